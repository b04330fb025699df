"""DDP307: an order that comes from a directory is made the same on all ranks, where any is taken from it."""

from __future__ import annotations

import pytest

from tests.rules.edited import edited, script

IMPORTS = (
    "from glob import glob as find\nimport pathlib\nimport natsort\nfrom natsort import natsorted\n"
    "folder = pathlib.Path('data')"
)


@pytest.mark.parametrize(
    "line",
    [
        "names = os.listdir('data')",
        "names = [n for n in os.listdir('data') if n.endswith('.png')]",
        "names = find('data/*.png')\nfirst = names[0]\nnames.sort()",
        "names = os.listdir('data')\nindex = {n: i for i, n in enumerate(names)}\nkinds = sorted(names)",
        "names = pathlib.Path('data').iterdir()",
        "names = [n for n in folder.rglob('*.png') if n.is_file()]",
        "names = list(folder.glob('*.png'))",
    ],
)
def test_what_goes_by_the_order_is_sorted(line: str) -> None:
    assert "= sorted(" in edited(script(imports=IMPORTS, before=line), "DDP307").text.replace("[n for n in ", "")


def test_the_first_of_a_listing_is_taken_from_the_sorted_one() -> None:
    text = edited(script(imports=IMPORTS, before="first = next(folder.glob('*.png'))"), "DDP307").text
    assert "first = next(iter(sorted(folder.glob('*.png'))))" in text


def test_two_listings_that_are_compared_are_both_sorted() -> None:
    """One side alone would never be the other, where the file system has an order of its own."""
    text = edited(script(imports=IMPORTS, before="assert os.listdir('data') == os.listdir('masks')"), "DDP307").text
    assert "assert sorted(os.listdir('data')) == sorted(os.listdir('masks'))" in text


def test_listings_in_a_loop_over_listings_are_sorted() -> None:
    line = (
        "paths = []\nfor d in os.listdir('data'):\n    for n in os.listdir(d):\n        paths += [os.path.join(d, n)]"
    )
    text = edited(script(imports=IMPORTS, before=line), "DDP307").text
    assert "for d in sorted(os.listdir('data')):" in text
    assert "for n in sorted(os.listdir(d)):" in text


@pytest.mark.parametrize(
    "line",
    [
        "names = natsorted(os.listdir('data'))",
        "names = natsort.os_sorted(find('data/*.png'))",
        "names = natsorted([n for n in os.listdir('data') if n.endswith('.png')])",
        "empty = len(os.listdir('data')) == 0",
        "if os.listdir('data') == []:\n    raise SystemExit",
        "if [] == os.listdir('data') or 'last.pt' in os.listdir('data'):\n    raise SystemExit",
        "if not os.listdir('data'):\n    raise SystemExit",
        "names = os.listdir('data')\nnames.sort()",
        "names = os.listdir('data')\ncount = len(names)\nlast = max(names)",
        "count = sum(1 for n in os.listdir('data'))",
        "names = sorted(folder.glob('*.png'))",
        "names = natsorted(list(folder.iterdir()))",
        "empty = not any(folder.iterdir())",
        "for p in folder.glob('*.tmp'):\n    p.unlink()",
    ],
)
def test_where_no_order_is_taken_nothing_is_sorted(line: str) -> None:
    text = script(imports=IMPORTS, before=line)
    assert edited(text, "DDP307").text == text
