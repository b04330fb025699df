"""DDP501: arrays that a training loop writes row by row, where the index of a sample says."""

from __future__ import annotations

import pytest

from tests.rules.edited import edited

TEXT = """
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

train_set = TensorDataset(torch.arange(47), torch.ones(47, 5), torch.ones(47).long())
loader = DataLoader(train_set, batch_size=6, shuffle=True)
net = nn.Linear(5, 2)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
{before}
for epoch in range(2):
    {start}
    for i, (idx, x, y) in enumerate(loader):
        out = net(x)
        loss = criterion(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        {step}
    print(kept.sum())
"""
ZEROS = "kept = torch.zeros(47, 2)"


@pytest.mark.parametrize(
    ("start", "step", "line"),
    [
        (ZEROS, "kept[idx] = out.detach()", "merge_rows(kept)"),
        ("kept = np.zeros((47, 2))", "kept[idx.numpy()] = out.detach().numpy()", "merge_rows(torch.from_numpy(kept))"),
        ("kept = torch.zeros(47).to('cpu')", "kept[idx.cpu(), 0] = out[:, 0].detach()", "merge_rows(kept)"),
    ],
)
def test_rows_that_stand_where_the_sample_says_are_put_together(start: str, step: str, line: str) -> None:
    """Rank 0 printed them with zeros for the samples of other ranks, and the report called that an estimate."""
    result = edited(TEXT.format(before="", start=start, step=step), "DDP501")
    assert f"    {line}\n" in result.text
    assert not any("keeps numbers" in message for message in result.left)


@pytest.mark.parametrize(
    ("before", "start", "step"),
    [
        (ZEROS, "pass", "kept[idx] = out.detach()"),  # goes on from epoch to epoch
        ("", ZEROS, "kept[idx] = 0.9 * kept[idx] + 0.1 * out.detach()"),
        ("", "kept = torch.ones(47, 2)", "kept[idx] = out.detach()"),
        ("", "kept = torch.zeros(47, 2, dtype=torch.bool)", "kept[idx] = (out > 0).detach()"),
        ("", "kept = torch.zeros(2, 2)", "kept[y] = out.detach()"),  # the last sample of a class
        ("", ZEROS, "kept[i * 6 : i * 6 + len(x)] = out.detach()"),  # where they go is another place on each rank
        ("", ZEROS, "kept[idx] = out.detach(); print(kept[0])"),
    ],
)
def test_rows_that_cannot_be_put_together_are_left_and_called_no_estimate(before: str, start: str, step: str) -> None:
    result = edited(TEXT.format(before=before, start=start, step=step), "DDP501")
    assert "merge_rows" not in result.text
    assert any("`kept` gets the rows of this rank's own samples" in message for message in result.left), result.left
    assert not any("estimate" in message for message in result.left)


def test_a_number_for_each_batch_is_no_row_of_a_sample() -> None:
    result = edited(TEXT.format(before="", start="kept = torch.zeros(99)", step="kept[i] = loss.item()"), "DDP501")
    assert "merge_rows" not in result.text
    assert any("`kept` keeps numbers of each rank's own training batches" in message for message in result.left)


def test_batches_that_are_cut_by_hand_have_their_places() -> None:
    text = TEXT.format(before="", start=ZEROS, step="kept[i : i + 6] = out.detach()").replace(
        "for i, (idx, x, y) in enumerate(loader):",
        "for i in range(0, 47, 6):\n        idx, x, y = train_set[i : i + 6]",
    )
    assert "    merge_rows(kept)\n" in edited(text, "DDP309", "DDP501").text
