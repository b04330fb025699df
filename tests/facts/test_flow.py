"""What the flow knows of values that change in place."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpify.facts import collect
from ddpify.project import Project
from ddpify.source import Source

FILLED = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
images = torch.FloatTensor(2, 4)
for (x,) in loader:
    {fill}
    net(images).mean().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    "fill", ["images.copy_(x)", "images.resize_as_(x).copy_(x)", "images.data.resize_(x.size()).copy_(x)"]
)
def test_a_tensor_holds_the_batch_that_is_copied_into_it(fill: str) -> None:
    facts = collect(Project(Source(Path("train.py"), FILLED.format(fill=fill).encode())), converting=True)
    assert len(facts.roles.training_loaders) == 1


STARRED = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from nowhere import *

loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step, (x,) in enumerate(loader):
    net(x).mean().backward()
    optimizer.step()
"""


def test_a_star_import_of_a_module_that_is_not_there_hides_nothing_of_python() -> None:
    facts = collect(Project(Source(Path("train.py"), STARRED.encode())), converting=True)
    assert len(facts.roles.training_loaders) == 1
