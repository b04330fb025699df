"""DDP507: schedules that count the steps of one process, whatever tells how many samples there are."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpify.convert import convert_source
from ddpify.source import Source

FRAMES = """
import pandas as pd
import torch
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Reviews(Dataset):
    def __init__(self, texts, marks):
        self.texts, self.marks = texts, marks

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        return torch.ones(4), self.marks[index]


frame = pd.read_csv("rows.csv")
kept, held_out = train_test_split(frame, test_size=0.1, random_state=42)
kept = kept.reset_index(drop=True)
texts = kept.text.values
loader = DataLoader(Reviews(texts, kept.mark.values), batch_size=4)
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
steps = STEPS
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps)
for epoch in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        net(x).mean().backward()
        optimizer.step()
        schedule.step()
"""


def left(steps: str) -> list[str]:
    conversion = convert_source(Source(Path("train.py"), FRAMES.replace("STEPS", steps).encode()))
    return [f.message for f in conversion.plan.left if f.code == "DDP507"]


@pytest.mark.parametrize("count", ["len(kept)", "len(texts)", "len(frame)"])
def test_the_rows_that_the_set_is_made_of(count: str) -> None:
    assert any("the schedule counts the steps of one process" in m for m in left(f"int({count} / 4 * 3)"))


@pytest.mark.parametrize("count", ["3 * len(loader)", "len([1, 2, 3]) * 1000", "len(held_out)"])
def test_other_lengths(count: str) -> None:
    assert not left(count)


@pytest.mark.parametrize("given", ["optimizer", "optimizer=optimizer"])
def test_how_large_the_optimizer_s_model_is_counts_no_steps(given: str) -> None:
    text = FRAMES.replace("nn.Linear(4, 1)", "nn.Linear(len(texts), 1)").replace("STEPS", "10")
    text = text.replace("OneCycleLR(optimizer,", f"OneCycleLR({given}, max_lr=").replace("max_lr= 0.1", "max_lr=0.1")
    conversion = convert_source(Source(Path("train.py"), text.encode()))
    assert not [f.message for f in conversion.plan.left if f.code == "DDP507"]
