"""DDP514: where a conversion says that a loss compares the samples of one rank's batch."""

from __future__ import annotations

import pytest

from tests.cases import convert_bytes

SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(4, 2), nn.Linear(4, 2)
        self.table = nn.Parameter(torch.ones(8, 2))

    def forward(self, x, y):
        a, b = self.one(x), self.other(y)
        return {loss}

loader = DataLoader(TensorDataset(torch.ones(8, 4), torch.ones(8, 4)), batch_size=4)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for x, y in loader:
    net(x, y).backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("loss", "number"),
    [
        ("nn.functional.cross_entropy(a @ b.T, torch.arange(4))", 1),
        ("torch.mm(a, b.t().contiguous()).mean() + torch.mm(a, a.T.detach()).mean()", 1),
        ("(torch.mm(a, b.t()) - a @ a.T).pow(2).mean()", 1),
        ("(a @ self.table.T).mean()", 0),
        ("(a.unsqueeze(1) @ b.unsqueeze(1).transpose(-2, -1)).mean()", 0),
    ],
)
def test_a_contrast_in_the_forward_of_a_model_is_said_once(loss: str, number: int) -> None:
    done = convert_bytes(SCRIPT.format(loss=loss).encode())
    assert [f.code for f in done.plan.notes].count("DDP514") == number
