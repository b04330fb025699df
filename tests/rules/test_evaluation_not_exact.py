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
