"""DDP218: parameters that an optimizer has and no module, by the way in which it gets them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpify.convert import convert_source
from ddpify.errors import Refused
from ddpify.source import Source

SCRIPT = """
import itertools
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
net = nn.Linear(4, 1)
scale = {made}
{optimizer}
for (x,) in loader:
    optimizer.zero_grad()
    (net(x) * scale).mean().backward()
    optimizer.step()
"""
PARAMETER = "nn.Parameter(torch.ones(1))"


def converted(optimizer: str, made: str = PARAMETER) -> str:
    return convert_source(Source(Path("train.py"), SCRIPT.format(made=made, optimizer=optimizer).encode())).text


@pytest.mark.parametrize(
    "optimizer",
    [
        pytest.param("optimizer = torch.optim.SGD([*net.parameters(), scale], lr=0.1)", id="in-a-list"),
        pytest.param("optimizer = torch.optim.SGD(list(net.parameters()) + [scale], lr=0.1)", id="added"),
        pytest.param(
            "optimizer = torch.optim.SGD(itertools.chain(net.parameters(), [scale]), lr=0.1)", id="in-a-chain"
        ),
        pytest.param(
            "optimizer = torch.optim.SGD([{'params': net.parameters()}, {'params': [scale]}], lr=0.1)", id="in-a-group"
        ),
        pytest.param(
            "every = list(net.parameters())\nevery.append(scale)\noptimizer = torch.optim.SGD(every, lr=0.1)",
            id="appended",
        ),
        pytest.param(
            "every = [*net.parameters(), scale]\n"
            "optimizer = torch.optim.SGD([p for p in every if p.requires_grad], lr=0.1)",
            id="picked",
        ),
        pytest.param(
            "optimizer = torch.optim.SGD(net.parameters(), lr=0.1)\noptimizer.add_param_group({'params': [scale]})",
            id="added-later",
        ),
    ],
)
@pytest.mark.parametrize("made", [PARAMETER, "torch.zeros(1, requires_grad=True)"])
def test_its_gradient_is_averaged_however_the_optimizer_gets_it(optimizer: str, made: str) -> None:
    text = converted(optimizer, made)
    assert "\ndist.broadcast(scale.data, src=0)\n" in text
    assert ".backward()\n    average_gradients(scale)\n" in text


def test_a_parameter_of_a_module_is_averaged_by_its_wrapper() -> None:
    text = converted("net.scale = scale\noptimizer = torch.optim.SGD([net.weight, net.scale], lr=0.1)")
    assert "average_gradients" not in text
    assert "net = DDP(net)" in text


@pytest.mark.parametrize(
    "optimizer",
    [
        pytest.param(
            "every = []\nfor _ in range(2):\n    scale = nn.Parameter(torch.ones(1))\n    every.append(scale)\n"
            "optimizer = torch.optim.SGD([*net.parameters(), *every], lr=0.1)",
            id="made-in-a-loop",
        ),
        pytest.param(
            "optimizer = torch.optim.SGD([*net.parameters(), nn.Parameter(torch.ones(1))], lr=0.1)", id="without-a-name"
        ),
    ],
)
def test_one_that_has_no_name_of_its_own_is_refused(optimizer: str) -> None:
    with pytest.raises(Refused, match="parameters that belong to no model"):
        converted(optimizer)
