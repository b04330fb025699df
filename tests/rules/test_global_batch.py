"""`--global-batch keep`: the number in `batch_size` is divided where it stands, or said to be left."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpify.convert import Conversion, convert_source
from ddpify.source import Source

SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.ones(16, 4))
options = {{"batch_size": 8, "shuffle": True}}
size = 8
loader = DataLoader({arguments})
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(2):
    for (x,) in loader:
        {loss}.backward()
        optimizer.step()
"""


def kept(arguments: str, loss: str = "net(x).mean()") -> Conversion:
    text = SCRIPT.format(arguments=arguments, loss=loss)
    return convert_source(Source(Path("nowhere", "before.py"), text.encode()), global_batch="keep")


@pytest.mark.parametrize(
    ("arguments", "divided"),
    [
        ("data, batch_size=8, shuffle=True", "batch_size=8 // dist.get_world_size()"),
        ("data, size, True", "DataLoader(data, size // dist.get_world_size(), "),
        ("data, batch_size=size + 8", "batch_size=(size + 8) // dist.get_world_size()"),
    ],
)
def test_the_number_is_divided(arguments: str, divided: str) -> None:
    found = kept(arguments)
    assert divided in found.text
    assert not found.plan.left


def test_a_number_that_stands_elsewhere_is_left() -> None:
    found = kept("data, **options")
    assert "// dist.get_world_size()" not in found.text
    assert [f.message for f in found.plan.left] == [
        "the batch size of this loader does not stand in its call, so it was not divided"
    ]


def test_a_sum_is_multiplied() -> None:
    assert "(net(x).sum() * dist.get_world_size()).backward()" in kept("data, batch_size=8", "net(x).sum()").text
