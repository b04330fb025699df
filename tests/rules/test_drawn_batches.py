"""Batches that each step draws are each rank's own; what a split or a cache is drawn with is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpify.convert import Conversion, convert_source
from ddpify.source import Source

STEPS = """
import pickle
import random
import torch
from torch import nn

class Data:
    def __init__(self, names):
        self.names = names

    def batch(self, size, length):
        chosen = random.sample(self.names, k=size)
        return torch.tensor([self.row(name, length) for name in chosen])

    def row(self, name, length):
        with open(name, "rb") as file:
            row = pickle.load(file)
        if len(row) < length:
            raise IndexError
        start = random.randrange(0, len(row) - length + 1)
        return row[start : start + length]

data = Data(sorted(open("names.txt").read().split()))
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(3):
    for step in range(10):
        optimizer.zero_grad()
        {draw}
        net(x).mean().backward()
        optimizer.step()
"""
SKIPS = "try:\n            x = data.batch(4, 4)\n        except {caught}:\n            {way}"


def converted(text: str) -> Conversion:
    return convert_source(Source(Path("train.py"), text.encode()))


def test_each_rank_draws_its_own_batch() -> None:
    """Rank 0's choice was sent to all of them: N ranks made the same step."""
    done = converted(STEPS.format(draw="x = data.batch(4, 4)"))
    assert "broadcast_value" not in done.text
    assert not done.plan.left


@pytest.mark.parametrize("way", ["continue", "print('short')\n            continue"])
def test_a_rank_that_leaves_its_batch_out_is_named(way: str) -> None:
    """The others waited for it."""
    done = converted(STEPS.format(draw=SKIPS.format(caught="IndexError", way=way)))
    assert [f.code for f in done.plan.left] == ["DDP515"]


@pytest.mark.parametrize("caught", ["KeyboardInterrupt", "StopIteration"])
def test_what_comes_to_all_ranks_alike_is_not(caught: str) -> None:
    done = converted(STEPS.format(draw=SKIPS.format(caught=caught, way="break")))
    assert not done.plan.left


CACHED = """
import os
import random
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

{seed}

def rows(folder):
    if not os.path.exists("order.txt"):
        names = sorted(os.listdir(folder))
        random.shuffle(names)
        with open("order.txt", "w") as file:
            for name in names:
                file.write(name + " ")
    with open("order.txt") as file:
        return [float(len(name)) for name in file.read().split()]

x = torch.tensor(rows("data")).reshape(-1, 1)
net = nn.Linear(1, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(3):
    for (a,) in DataLoader(TensorDataset(x), batch_size=2, shuffle=True):
        optimizer.zero_grad()
        net(a).mean().backward()
        optimizer.step()
"""


def test_an_order_that_is_drawn_while_a_file_is_built_is_drawn_by_the_process_that_builds_it() -> None:
    """The others read the file while rank 0 was writing it; or they found it, and rank 0 waited for them for ever."""
    done = converted(CACHED.format(seed=""))
    assert '    with main_process_first():\n        if not os.path.exists("order.txt"):\n' in done.text
    assert "broadcast_value" not in done.text
    assert any("nodes that share no disk" in f.message for f in done.plan.notes)


def test_a_draw_that_a_seed_fixes_is_made_by_all() -> None:
    assert "main_process_first" not in converted(CACHED.format(seed="random.seed(0)")).text


TOTALS = """
import numpy as np
import torch
from torch import nn

torch.manual_seed(0)
np.random.seed(0)
x, y = torch.rand(100, 4), torch.rand(100, 1)
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

def train():
    total, right, seen = 0.0, 0, 0
    for step in range(50):
        index = np.random.permutation(100)[:8]
        out = net(x[index])
        loss = (out - y[index]).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
        right += (out > 0.5).sum().item()
        seen += len(index)
    {end}

for epoch in range(3):
    print(train())
"""


@pytest.mark.parametrize(
    ("end", "lines"),
    [
        ("return total / 50", ["[total] = all_reduce_mean(total)"]),
        ("return total / 50, right / 400", ["total, right = all_reduce_mean(total, right)"]),
        (
            "return total / 50, right / seen",
            ["[total] = all_reduce_mean(total)", "right, seen = all_reduce_sum(right, seen)"],
        ),
    ],
)
def test_numbers_of_batches_that_each_rank_draws_are_of_all_ranks(end: str, lines: list[str]) -> None:
    """Every rank makes all of the steps: what a number of steps divides is averaged over the ranks."""
    text = converted(TOTALS.format(end=end)).text
    assert all(f"\n    {line}\n" in text for line in lines)
    assert text.count(" = all_reduce_") == len(lines)
