"""DDP501: comprehensions over the training loader."""

from __future__ import annotations

import pytest

from tests.rules.edited import edited, script

WHOLE = "whole_loader = DataLoader(loader.dataset, batch_size=2)"


@pytest.mark.parametrize(
    "reads",
    [
        "total = sum(model(x).sum().item() for (x,) in loader)",
        "outs = torch.cat([model(x) for (x,) in loader])",
        "print({i: model(x).sum().item() for i, (x,) in enumerate(loader)})",
    ],
)
def test_numbers_of_the_training_set_are_computed_on_all_of_it(reads: str) -> None:
    """Each rank's sampler deals out a shard: the sum was that of rank 0's."""
    found = edited(script(after=reads), "DDP501")
    assert WHOLE in found.text
    assert reads.replace("in loader", "in whole_loader").replace("(loader)", "(whole_loader)") in found.text
    assert any("every rank evaluates all of it" in m for m in found.left)


def test_a_function_that_is_given_the_training_loader_gets_the_other_one() -> None:
    found = edited(script(inside="print(evaluate(model, loader))"), "DDP501")
    assert WHOLE in found.text
    assert "print(evaluate(model, whole_loader))" in found.text


def test_a_loader_that_has_no_name_is_left_to_the_user() -> None:
    before = "parts = {'fit': loader}\nheld = [loader]"
    found = edited(script(before=before, after="print(sum(model(x).sum().item() for (x,) in held[0]))"), "DDP501")
    assert ["and each rank has only a shard of it" in m for m in found.left] == [True]


STEPS = """
def step(x):
    loss = model(x).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item(), len(x)
"""


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("losses, sizes = zip(*[step(x) for (x,) in loader]); print(sum(losses) / len(losses))", "`losses` keeps"),
        ("losses = [step(x)[0] for (x,) in loader]; print(losses)", "`losses` keeps"),
        ("print(sum(step(x)[0] for (x,) in loader))", "`step(x)[0] for (x,) in loader` keeps"),
        ("[step(x) for (x,) in loader]", ""),
        ("losses = [step(x) for (x,) in loader]", ""),
    ],
)
def test_numbers_of_steps_in_a_comprehension_are_named(line: str, named: str) -> None:
    told = edited(script(before=STEPS, inside=line), "DDP501").left
    assert [n.startswith(named) for n in told if "numbers of each rank's own" in n] == [True] * bool(named)
