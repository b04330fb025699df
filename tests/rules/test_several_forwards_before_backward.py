"""DDP207 where its examples are too small: what counts as a model whose buffers change."""

from __future__ import annotations

import pytest

from tests.rules.edited import edited

SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Judge(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 4, 3), LAYER, nn.ReLU())

    def forward(self, x):
        return self.layers(x).mean((1, 2, 3))

loader = DataLoader(TensorDataset(torch.ones(8, 1, 8, 8), torch.ones(8, 1, 8, 8)), batch_size=2)
judge = Judge()
optimizer = torch.optim.SGD(judge.parameters(), lr=0.1)
for real, fake in loader:
    loss = judge(fake).mean() - judge(real).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("layer", "keeps"),
    [
        ("nn.BatchNorm2d(4)", True),
        ("nn.InstanceNorm2d(4, track_running_stats=True)", True),
        ("nn.InstanceNorm2d(4)", False),
        ("nn.GroupNorm(2, 4)", False),
    ],
)
def test_only_layers_with_buffers_keep_statistics(layer: str, keeps: bool) -> None:
    found = edited(SCRIPT.replace("LAYER", layer), "DDP207")
    assert not found.left
    assert ("judge.broadcast_buffers = False" in found.text) is keeps


def test_one_forward_in_each_of_two_branches() -> None:
    two = SCRIPT.replace("LAYER", "nn.BatchNorm2d(4)").replace(
        "    loss = judge(fake).mean() - judge(real).mean()\n",
        "    if len(real) > 1:\n        loss = judge(real).mean()\n    else:\n        loss = judge(fake).mean()\n",
    )
    assert "broadcast_buffers" not in edited(two, "DDP207").text
