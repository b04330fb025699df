"""DDP305: data that every process draws for itself are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpify.convert import convert

SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset


class Points(Dataset):
    def __init__(self):
        self.points = POINTS

    def __len__(self):
        return len(self.points)

    def __getitem__(self, index):
        return self.points[index]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(1))

    def forward(self, x):
        return x.mean() * self.scale


SEED
loader = DataLoader(Points(), batch_size=8)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for x in loader:
    net(x).mean().backward()
    optimizer.step()
"""


def notes(tmp_path: Path, points: str, seed: str) -> list[str]:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.replace("POINTS", points).replace("SEED", seed))
    return [f.message for f in convert(path).plan.notes if f.code == "DDP305"]


@pytest.mark.parametrize("points", ["torch.rand(64, 3)", "torch.randint(0, 9, (64,)).float()"])
def test_data_without_a_seed(tmp_path: Path, points: str) -> None:
    [said] = notes(tmp_path, points, "")
    assert "draws other numbers in every process" in said


@pytest.mark.parametrize(
    ("points", "seed"),
    [
        ("torch.rand(64, 3)", "torch.manual_seed(0)"),
        ("torch.rand(64, 3, generator=torch.Generator().manual_seed(0))", ""),
        ("torch.ones(64, 3)", ""),  # the weights are drawn, but the wrapper shares rank 0's
    ],
)
def test_the_same_data_everywhere(tmp_path: Path, points: str, seed: str) -> None:
    assert notes(tmp_path, points, seed) == []
