"""DDP201: models that reach the function that trains them by stars, or in objects that several branches make."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpify.convert import convert_source
from ddpify.source import Source

HANDED = """
import torch
from torch import nn
from torch.utils.data import DataLoader

def train(data, net):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x in data:
        optimizer.zero_grad()
        net(x).mean().backward()
        optimizer.step()

def run(**options):
    train(loader, **options)

loader = DataLoader(torch.ones(8, 4))
model = nn.Linear(4, 1)
{call}
"""


@pytest.mark.parametrize(
    "call",
    [
        "given = dict(data=loader, net=model)\ntrain(**given)",
        'given = {"data": loader, "net": model}\ntrain(**given)',
        'given = {"data": loader}\ngiven["net"] = model\ntrain(**given)',
        "given = (loader, model)\ntrain(*given)",
        "given = [model]\ntrain(loader, *given)",
        "run(net=model)",
        'run(**{"net": model})',
    ],
)
def test_a_model_that_is_given_by_stars_is_that_of_the_caller(call: str) -> None:
    text = convert_source(Source(Path("train.py"), HANDED.format(call=call).encode())).text
    assert "\nmodel = nn.Linear(4, 1)\nmodel = DDP(model)\n" in text


EXPERIMENTS = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader

class Base:
    def __init__(self, width):
        self.model = self.build(width).to("cpu")

    def build(self, width):
        raise NotImplementedError

class Experiment(Base):
    def build(self, width):
        return nn.Linear(4, width)

    def predict(self, x):
        return self.model(x)

    def train(self):
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        for x in DataLoader(torch.ones(8, 4)):
            optimizer.zero_grad()
            self.predict(x).mean().backward()
            optimizer.step()

    def test(self):
        with torch.no_grad():
            print(self.predict(torch.ones(1, 4)).sum().item())

if "--test" not in sys.argv:
    for number in range(3):
        experiment = Experiment(2)
        experiment.train()
        experiment.test()
else:
    experiment = Experiment(2)
    experiment.test()
"""


def test_an_experiment_that_two_branches_make_is_wrapped_in_its_own_text() -> None:
    """The model of the branch that only tests is another one, of the same line."""
    text = convert_source(Source(Path("train.py"), EXPERIMENTS.encode())).text
    assert '        self.model = self.build(width).to("cpu")\n        self.model = DDP(self.model)\n' in text


UNSEEN = """
import sys
from importlib import import_module
import torch
from torch.utils.data import DataLoader
from nets import Net

place, name = sys.argv[1].split(":")
net = {made}
loader = DataLoader(torch.ones(8, 4), shuffle=True)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
{compiled}
for epoch in range(2):
    for x in loader:
        optimizer.zero_grad()
        loss = {loss}
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        print(net.sample(4))
"""


@pytest.mark.parametrize("compiled", ["", "net = torch.compile(net)"])
@pytest.mark.parametrize("made", ["getattr(import_module(place), name)(4)", "Net(4)"])
@pytest.mark.parametrize(
    ("loss", "given"),
    [
        ("net(net.prepare(x)).mean()", 'net(forward_through(net, "prepare", x)).mean()'),
        ("net.get_loss(x)", 'forward_through(net, "get_loss", x)'),
    ],
)
def test_a_model_whose_class_is_not_there_trains_in_its_methods(
    compiled: str, made: str, loss: str, given: str
) -> None:
    code = UNSEEN.format(compiled=compiled, made=made, loss=loss)
    text = convert_source(Source(Path("train.py"), code.encode())).text
    assert f"loss = {given}" in text
    assert "net = DDP(net)" in text
    assert "net.module.sample(4)" in text
