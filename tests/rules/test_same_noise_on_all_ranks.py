"""DDP306: the ranks are seeded apart only where everything that has to be alike was drawn before."""

from __future__ import annotations

from tests.cases import convert_bytes

FOLDS = b"""
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

torch.manual_seed(3)
data = TensorDataset(torch.ones(12, 4))
for fold in range(3):
    order = torch.randperm(12).tolist()
    loader = DataLoader(Subset(data, order[4:]), batch_size=2)
    net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for epoch in range(2):
        for (x,) in loader:
            net(x).mean().backward()
            optimizer.step()
"""


def test_splits_of_later_folds_stay_alike() -> None:
    """Seeded apart in the first fold, the ranks would split the second one each in their own way."""
    found = convert_bytes(FOLDS)
    assert "torch.manual_seed(3 + " not in found.text
    (note,) = [f.message for f in found.plan.notes if f.code == "DDP306"]
    assert "`torch.randperm(12)` comes behind the wrap" in note


def test_folds_that_draw_nothing_are_seeded_apart() -> None:
    script = FOLDS.replace(b"torch.randperm(12).tolist()", b"list(range(12))")
    assert "torch.manual_seed(3 + dist.get_rank())" in convert_bytes(script).text
