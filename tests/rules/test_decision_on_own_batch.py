"""DDP506 inside a batch loop: all ranks go the way of any of them, where all of them come to the test."""

from __future__ import annotations

import pytest

from tests.rules.edited import edited

SCRIPT = """\
import time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
start = time.time()
for epoch in range(2):
    for step, (x,) in enumerate(loader):
        loss = model(x).mean()
{inside}
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
CODE = "DDP506"


def inside(code: str) -> str:
    return SCRIPT.format(inside="\n".join("        " + line for line in code.split("\n")))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("if torch.isnan(loss):\n    continue", "if any_process(torch.isnan(loss)):\n    continue"),
        ("if not loss.item() < 9:\n    break", "if any_process(not loss.item() < 9):\n    break"),
        ("if bool(loss == 0):\n    continue", "if any_process(bool(loss == 0)):\n    continue"),
        ("if time.time() - start > 60:\n    break", "if any_process(time.time() - start > 60):\n    break"),
        (
            "if step > 2:\n    if loss.item() > 9:\n        continue",
            "if step > 2:\n    if any_process(loss.item() > 9):\n        continue",
        ),
        (
            "for k in range(2):\n    if loss.item() > 9:\n        break",
            "    if any_process(loss.item() > 9):\n        break",
        ),
    ],
)
def test_all_ranks_go_the_way_of_any(before: str, after: str) -> None:
    result = edited(inside(before), CODE)
    assert not result.left
    assert result.has(after)
    assert "any_process" in result.needs


def test_a_test_that_not_all_ranks_come_to_is_left() -> None:
    result = edited(inside("if loss.item() > 9:\n    print(loss)\n    if x.max() > 3:\n        continue"), CODE)
    (message,) = result.left
    assert "`x.max() > 3` is this rank's own" in message
    assert "any_process(x.max() > 3)" not in result.text


@pytest.mark.parametrize("code", ["if step > 2:\n    break", "if len(x) < 2:\n    continue"])
def test_what_is_alike_on_all_ranks_stays(code: str) -> None:
    result = edited(inside(code), CODE)
    assert not result.left
    assert "any_process" not in result.text
