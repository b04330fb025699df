"""DDP207 where its examples are too small: what counts as a model whose buffers change."""

from __future__ import annotations

import pytest

from ddpify.errors import Refused
from tests.cases import convert_bytes
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


WAYS = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Plain:
    def __call__(self, out):
        return out.mean()


class Pair:
    def __call__(self, out):
        raise ValueError("call train")

    def train(self, net, x, optimizer):
        {first}
        optimizer.zero_grad()
        out.mean().backward(retain_graph=True)
        {second}
        optimizer.step()
        return out.mean()


loss_of = {{"plain": Plain, "pair": Pair}}[sys.argv[1]]()
loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for (x,) in loader:
    {test}:
        loss = loss_of(net(x))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    {other}:
        loss = loss_of.train(net, x, optimizer)
"""


@pytest.mark.parametrize(("test", "other"), [("try", "except ValueError"), ("if len(sys.argv) > 2", "else")])
def test_two_backwards_in_one_of_two_ways(test: str, other: str) -> None:
    """The first way has a backward of its own, of which the other one's are no second."""
    text = WAYS.format(test=test, other=other, first="out = net(x)", second="out.pow(2).mean().backward()")
    with pytest.raises(Refused, match=r"second backward through `net\(x\)`"):
        convert_bytes(text.encode())
    again = WAYS.format(test=test, other=other, first="out = net(x)", second="net(x).pow(2).mean().backward()")
    # of the two classes, one does not have the method: the model is trained in it all the same
    assert "loss = loss_of.train(net, x, optimizer)" in convert_bytes(again.encode()).text
