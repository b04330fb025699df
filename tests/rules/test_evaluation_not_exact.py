"""DDP304: how an evaluation is shared out, or why every rank does all of it."""

from __future__ import annotations

import pytest

from tests.rules.edited import edited, script

HELD = """
held_set = TensorDataset(torch.ones(9, 4), torch.ones(9, dtype=torch.long))
held = DataLoader(held_set, batch_size=4{more})

def right(model):
    model.eval()
    {start}
    with torch.no_grad():
        for x, y in held:
            {add} += (model(x).argmax(1) == y).sum().item()
    return {end}
"""
SHARED = "sampler=range(dist.get_rank(), len(held_set), dist.get_world_size())"


@pytest.mark.parametrize(
    ("start", "add", "end"),
    [
        ("total = 0", "total", "total / len(held.dataset)"),
        ("sums = {'right': 0}", "sums['right']", "sums['right'] / len(held.dataset)"),
        ("sums = [0, 0.0]", "sums[0]", "sums[0] / len(held.dataset)"),
    ],
)
def test_numbers_in_a_dict_are_shared_out_like_any(start: str, add: str, end: str) -> None:
    before = HELD.format(start=start, add=add, end=end, more="")
    result = edited(script(before=before, inside="print(right(model))"), "DDP304", "DDP501")
    assert SHARED in result.text
    assert f"[{add}] = all_reduce_sum({add})" in result.text


@pytest.mark.parametrize("more", ["", ", shuffle=True"])
def test_a_loader_of_which_one_batch_is_taken_is_read_in_full(more: str) -> None:
    """A rank without a batch would end in a StopIteration, and a shard has another first batch."""
    before = HELD.format(start="total = 0", add="total", end="total", more=more)
    text = script(before=before, inside="x, y = next(iter(held))\nprint(right(model), model(x))")
    result = edited(text, "DDP304", "DDP501")
    assert SHARED not in result.text
    assert "batch_sampler" not in result.text
    assert "all_reduce_sum" not in result.text


BATCHES = """
from math import log10
from tqdm import tqdm
held_set = TensorDataset(torch.ones(9, 4), torch.ones(9, 1))
held = DataLoader(held_set, batch_size=4)

def score(model, loader):
    model.eval()
    total = run = 0.0
    {start}
    with torch.no_grad():
        for {loop}:
            {step}
    return {end}
"""
BY_BATCH = "BatchSampler(range(len(held_set)), 4, drop_last=False))[dist.get_rank()::dist.get_world_size()]"
ADD = "total += nn.functional.mse_loss(model(x), y).item()"


@pytest.mark.parametrize(
    ("start", "loop", "step", "end", "gives"),
    [
        ("", "i, (x, y) in enumerate(loader)", ADD, "total / (i + 1)", ("total, batches", "total, len(loader)")),
        ("", "i, (x, y) in enumerate(tqdm(loader))", ADD, "total / (1 + i)", ("total, batches", "total, len(loader)")),
        ("", "i, (x, y) in enumerate(loader, 1)", ADD, "total / i", ("total, batches", "total, len(loader)")),
        (
            "bar = tqdm(loader)",
            "i, (x, y) in enumerate(bar)",
            f"{ADD}; bar.desc = f'{{total / (i + 1)}}'",
            "total / (i + 1)",
            ("total, batches", "total, len(bar)"),
        ),
        ("n = len(loader)", "x, y in tqdm(loader, total=n)", ADD, "total / max(n, 1)", ("total, n", "total, n")),
        (
            "",
            "x, y in tqdm(loader, total=len(loader))",
            ADD,
            "total / max(1, len(loader))",
            ("total, batches", "total, len(loader)"),
        ),
        (
            "",
            "x, y in loader",
            "total += 10 * log10(1 / nn.functional.mse_loss(model(x), y).item())",
            "total / len(loader)",
            ("total, batches", "total, len(loader)"),
        ),
    ],
)
def test_the_number_of_batches_is_added_up_with_what_it_divides(
    start: str, loop: str, step: str, end: str, gives: tuple[str, str]
) -> None:
    text = script(before=BATCHES.format(start=start, loop=loop, step=step, end=end), inside="print(score(model, held))")
    result = edited(text, "DDP304", "DDP501")
    assert BY_BATCH in result.text
    assert f"{gives[0]} = all_reduce_sum({gives[1]})" in result.text
    counted = gives[0].split()[1]
    for old in ("(i + 1)", "(1 + i)", "len(loader)", "/ i"):
        end = end.replace(old, f"/ {counted}" if old == "/ i" else counted)
    assert f"return {end}" in result.text


@pytest.mark.parametrize(
    ("loop", "step", "end", "inside", "why"),
    [
        ("i, (x, y) in enumerate(loader)", ADD, "total / i", "print(score(model, held))", "`i` of the last batch"),
        (
            "i, (x, y) in enumerate(loader, 3)",
            ADD,
            "total / (i + 1)",
            "print(score(model, held))",
            "`i` of the last batch",
        ),
        (
            "i, (x, y) in enumerate(loader)",
            f"{ADD}; print(i)",
            "total / (i + 1)",
            "print(score(model, held))",
            "prints in the loop",
        ),
        (
            "i, (x, y) in enumerate(loader)",
            f"{ADD}; last = i",
            "total",
            "print(score(model, held))",
            "the index of the batch is used",
        ),
        (
            "x, y in loader",
            "run = 0.9 * run + model(x).norm().item(); total += run",
            "total / len(loader)",
            "print(score(model, held))",
            "`total` adds up values that could not be followed",
        ),
        ("x, y in loader", ADD, "total", "print(score(model, held) / len(held))", "uses the number of its batches"),
        (
            "x, y in loader",
            f"{ADD}; total *= 1 / len(loader)",
            "total",
            "print(score(model, held))",
            "the number of batches is used for more",
        ),
    ],
)
def test_numbers_of_batches_that_could_not_be_brought_together_are_made_in_full(
    loop: str, step: str, end: str, inside: str, why: str
) -> None:
    text = script(before=BATCHES.format(start="", loop=loop, step=step, end=end), inside=inside)
    result = edited(text, "DDP304", "DDP501")
    assert BY_BATCH not in result.text
    assert any(why in message for message in result.left), result.left
