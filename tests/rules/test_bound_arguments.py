"""functools.partial of a model: where the model is wrapped, and where the partial gives no way to the bare model."""

from __future__ import annotations

import pytest

from ddpify.errors import Refused
from tests.cases import convert_bytes

SCRIPT = """\
from functools import partial
import functools
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = {layer}

    def forward(self, x, scale=1.0):
        return self.layer(x) * scale


class Trainer:
    def __init__(self, net):
        self.net = net
        self.call = functools.partial(self.net, scale=2.0)
        self.optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def fit(self):
        for (x,) in loader:
            self.optimizer.zero_grad()
            {train}.mean().backward()
            self.optimizer.step()

    def test(self):
        self.net.eval()
        with torch.no_grad():
            for (x,) in held:
                print({test})
        self.net.train()


loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
held = DataLoader(TensorDataset(torch.ones(6, 4)), batch_size=2)
trainer = Trainer(Net())
for epoch in range(2):
    trainer.fit()
    trainer.test()
"""
PLAIN, NORM = "nn.Linear(4, 1)", "nn.Sequential(nn.Linear(4, 1), nn.BatchNorm1d(1))"


def text(layer: str, train: str, test: str) -> str:
    return convert_bytes(SCRIPT.format(layer=layer, train=train, test=test).encode()).text


def test_a_model_that_trains_by_a_partial_is_wrapped_before_it() -> None:
    found = text(NORM, "self.call(x)", "self.net(x)")
    assert "self.net = DDP(self.net)\n        self.call = functools.partial(self.net, scale=2.0)" in found
    assert "self.net.module(x)" in found


def test_a_partial_that_is_only_evaluated_is_made_of_the_bare_model() -> None:
    found = text(PLAIN, "self.net(x)", "self.call(x)")
    assert "self.call = functools.partial(self.net.module, scale=2.0)" in found
    assert "self.call(x)" in found


@pytest.mark.parametrize(("layer", "train"), [(PLAIN, "self.call(x)"), (NORM, "self.net(x)")])
def test_a_partial_has_no_module(layer: str, train: str) -> None:
    """It trains and is evaluated, or its buffers would have to be given before, where it has another name."""
    with pytest.raises(Refused, match=r"`self.call` binds arguments to the model"):
        text(layer, train, "self.call(x)")


@pytest.mark.parametrize(
    "step",
    [
        "step = partial(train, net, optimizer)",
        "step = partial(train, optimizer=optimizer, model=net)",
        "step = partial(train, partial(net), optimizer)",
    ],
)
def test_a_step_that_is_given_its_model_beforehand(step: str) -> None:
    script = (
        "from functools import partial\nimport torch\nfrom torch import nn\n"
        "from torch.utils.data import DataLoader, TensorDataset\n\n\n"
        "def train(model, optimizer, x):\n    optimizer.zero_grad()\n    model(x).mean().backward()\n"
        "    optimizer.step()\n\n\n"
        "loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)\nnet = nn.Linear(4, 1)\n"
        f"optimizer = torch.optim.SGD(net.parameters(), lr=0.1)\n{step}\nfor (x,) in loader:\n    step(x=x)\n"
    )
    assert "net = nn.Linear(4, 1)\nnet = DDP(net)\n" in convert_bytes(script.encode()).text
