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


BY_KEYS = """
import torch
from torch import nn
from torch.utils.data import DataLoader
from somewhere import Model, Rows

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x, mask=None):
        return self.layer(x)

def run(net, **inputs):
    return net(**inputs)

def loss_of(net, x, **rest):
    return net(x).mean()

loader = DataLoader(Rows("train"), batch_size=2)
held = DataLoader(Rows("val"), batch_size=2)
net = {net}
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(2):
    for batch in loader:
        {made}
        {call}.backward()
        optimizer.step()
    for batch in held:
        print(net(**batch))
"""


@pytest.mark.parametrize("net", ["Net()", "Model()"])
@pytest.mark.parametrize(
    ("made", "call"),
    [
        ("pass", "net(**batch).mean()"),
        ("batch = {k: v.to('cpu') for k, v in batch.items()}", "net(**batch).mean()"),
        ("batch = {k: batch[k].float() for k in batch}", "net(mask=None, **batch).mean()"),
        ("inputs = dict(batch)", "run(net, **inputs).mean()"),
        ("pass", "loss_of(net, **batch)"),
    ],
)
def test_a_model_that_gets_its_batch_by_keys_is_trained_on_it(net: str, made: str, call: str) -> None:
    """`model(**batch)` of many transformers scripts was refused: its loop was said to train and to evaluate."""
    script = BY_KEYS.format(net=net, made=made, call=call)
    facts = collect(Project(Source(Path("train.py"), script.encode())), converting=True)
    assert len(facts.roles.training_loaders) == 1
    assert {(p.loader in facts.roles.training_loaders, p.training) for p in facts.roles.passes} == {
        (True, True),
        (False, False),
    }
