"""Which DataLoader classes of a script hand all their arguments on."""

from __future__ import annotations

from textwrap import dedent

import libcst as cst
import pytest

from ddpify.facts.handing_on import hands_on_all


def handed_on(text: str) -> bool:
    return hands_on_all(cst.ensure_type(cst.parse_module(dedent(text)).body[0], cst.FunctionDef))


@pytest.mark.parametrize(
    "text",
    [
        """
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
        """,
        """
        def __init__(self, dataset, *args, pad=0, **kwargs):
            super(Loader, self).__init__(dataset, *args, collate_fn=Pad(pad), **kwargs)
            self.vocabulary = dataset.vocabulary
        """,
        """
        def __init__(self, dataset, **kwargs):
            super().__init__(dataset, **kwargs)
        """,
        """
        def __init__(self, *args, **kwargs):
            kwargs["collate_fn"] = collate
            super().__init__(*args, **kwargs)
        """,
    ],
)
def test_all_arguments_are_the_loaders(text: str) -> None:
    assert handed_on(text)


@pytest.mark.parametrize(
    "text",
    [
        """
        def __init__(self, dataset, batch_size, *args, **kwargs):  # which a batch sampler takes the place of
            super().__init__(dataset, batch_size, *args, **kwargs)
        """,
        """
        def __init__(self, *args, **kwargs):
            kwargs["shuffle"] = True
            super().__init__(*args, **kwargs)
        """,
        """
        def __init__(self, *args, **kwargs):
            kwargs[name] = True
            super().__init__(*args, **kwargs)
        """,
        """
        def __init__(self, *args, **kwargs):
            super().__init__(*args, shuffle=True, **kwargs)
        """,
        """
        def __init__(self, *args, **kwargs):
            kwargs.update(shuffle=True)
            super().__init__(*args, **kwargs)
        """,
        """
        def __init__(self, data, *args, **kwargs):
            super().__init__(Sounds(data), *args, **kwargs)
        """,
        """
        def __init__(self, **kwargs):
            super().__init__(Sounds(), **kwargs)
        """,
        """
        def __init__(self, *args, **kwargs):
            if kwargs:
                super().__init__(*args, **kwargs)
            else:
                super().__init__(*args)
        """,
    ],
)
def test_some_are_its_own(text: str) -> None:
    assert not handed_on(text)
