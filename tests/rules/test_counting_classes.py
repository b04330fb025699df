"""DDP501, DDP503: objects of the script's own that count into arrays, and those that do more than that."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpify.convert import convert_source
from ddpify.source import Source

SCRIPT = """\
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Counts:
    def __init__(self):
        self.names, self.best = [], 0
        self.{start}
    def shape(self, y):
        {helper}
        return y
    def update(self, y, p):
        {update}
    def reset(self):
        self.{start}

def make(n):
    return TensorDataset(torch.rand(n, 4), torch.randint(0, 3, (n,)))

net = nn.Linear(4, 3)
train, test = DataLoader(make(40), batch_size=4), DataLoader(make(23), batch_size=4)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
counts = Counts()
for epoch in range(2):
    for x, y in train:
        loss = nn.functional.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    net.eval()
    {before}
    with torch.no_grad():
        for x, y in test:
            {call}
    print(counts.total)
    net.train()
"""
ZEROS = "total = np.zeros((3, 3))"
ADDS = "self.total[y.numpy(), p.numpy()] += 1"
CALL = "counts.update(y, net(x).argmax(1))"


def converted(
    start: str = ZEROS, update: str = ADDS, call: str = CALL, before: str = "counts.reset()", helper: str = "pass"
) -> str:
    text = SCRIPT.format(start=start, update=update, call=call, before=before, helper=helper)
    return convert_source(Source(Path("train.py"), text.encode())).text


@pytest.mark.parametrize(
    ("start", "update", "body"),
    [
        (ZEROS, ADDS, "dist.all_reduce(torch.from_numpy(self.total))"),
        (ZEROS, "for t, g in zip(y, p):\n            self.total[t, g] += 1", "torch.from_numpy(self.total)"),
        (
            ZEROS,
            "y = self.shape(y)\n        self.total += np.bincount(y.numpy(), minlength=9).reshape(3, 3)",
            "(self.total)",
        ),
        (
            "total = torch.zeros(3)",
            "self.total = self.total + torch.bincount(p, minlength=3)",
            "dist.all_reduce(self.total)",
        ),
        (
            "total = torch.zeros(3)",
            "if len(y) > 1:\n            self.total += torch.bincount(p, minlength=3)",
            "(self.total)",
        ),
        (
            "total = [0] * 3",
            "for g in p.tolist():\n            self.total[g] += 1",
            "self.total[:] = all_reduce_sum(*self.total)",
        ),
    ],
)
def test_what_only_adds_is_added_up(start: str, update: str, body: str) -> None:
    text = converted(start, update)
    assert "    def all_reduce(self):\n" in text
    assert body in text
    assert "    counts.all_reduce()\n    if is_main_process():\n        print(counts.total)" in text
    assert "DataLoader(val_set, batch_sampler=val_batches)" in text


@pytest.mark.parametrize(
    ("start", "update"),
    [
        (ZEROS, f"{ADDS}\n        self.best = max(self.best, float(p.max()))"),
        (ZEROS, f"if self.total.sum() < 50:\n            {ADDS}"),
        (ZEROS, "self.total *= 0.9\n        self.total += len(y)"),
        (ZEROS, f"{ADDS}\n        self.names.append(len(y))"),
        (ZEROS, f"{ADDS}\n        print(len(y))"),
        (ZEROS, "self.total += self.total.max() + len(y)"),
        ("total = np.ones((3, 3))", ADDS),
        ("total = None", ADDS),
    ],
)
def test_what_does_more_is_evaluated_in_full(start: str, update: str) -> None:
    text = converted(start, update)
    assert "all_reduce" not in text
    assert "DataLoader(make(23), batch_size=4)" in text


def test_a_method_that_leaves_something_counts_as_more() -> None:
    text = converted(update=f"y = self.shape(y)\n        {ADDS}", helper="self.best += 1")
    assert "DataLoader(make(23), batch_size=4)" in text


@pytest.mark.parametrize(
    ("call", "before"),
    [
        (CALL, "pass"),  # the counts go on from epoch to epoch
        (f"{CALL}\n            print(counts.total.sum())", "counts.reset()"),
        ("seen = counts.update(y, net(x).argmax(1))", "counts.reset()"),
    ],
)
def test_what_is_not_begun_anew_or_asked_for_in_the_loop_is_evaluated_in_full(call: str, before: str) -> None:
    text = converted(call=call, before=before)
    assert "DataLoader(make(23), batch_size=4)" in text
