"""DDP313: whose columns go on by themselves, and what is refused because they may not."""

from __future__ import annotations

import pytest

from ddpify.facts import collect
from ddpify.facts.columns import Columns
from ddpify.facts.handmade import hand_fed
from ddpify.facts.whole import Unshared
from ddpify.project import Project
from ddpify.source import Source
from tests.cases import NOWHERE
from tests.rules.edited import edited

SCRIPT = """\
import random
import torch
from torch import nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.cells, self.out = nn.Embedding(9, 8), nn.GRU(8, 8), nn.Linear(8, 9)

    def forward(self, x, state):
        x, state = self.cells(self.embed(x), state)
        return self.out(x).view(-1, 9), state


def batch(source, i):
    return source[i : i + 5], source[i + 1 : i + 6].reshape(-1)


torch.manual_seed(0)
letters = torch.randint(9, (41, 6))
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(2):
    state = torch.zeros(1, 6, 8)
    for i in range(0, len(letters) - 1, 5):
        x, y = batch(letters, i)
        state = state.detach()
        guess, state = net(x, state)
        loss = F.cross_entropy(guess, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def known(*changes: tuple[str, str]) -> object:
    text = SCRIPT
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    [found] = hand_fed(collect(Project(Source(NOWHERE / "train.py", text.encode())), converting=True))
    return found


@pytest.mark.parametrize(
    "changes",
    [
        (),
        (("x, y = batch(letters, i)", "x, y = letters[i : i + 5, :], letters[i + 1 : i + 6].reshape(-1)"),),
        (("guess, state = net(x, state)", "guess, state = net(x, state)\n        state = state.data"),),
        (("    for i in range(0", "    for _, i in enumerate(range(0"), ("- 1, 5)", "- 1, 5))")),
        (("return self.out(x).view(-1, 9)", "return F.log_softmax(self.out(x).view(-1, 9), dim=1)"),),
        (("return self.out(x)", "return torch.tanh(F.log_softmax(self.out(x), dim=-1))"),),
    ],
)
def test_whole_columns_are_shared_out(changes: tuple[tuple[str, str], ...]) -> None:
    assert isinstance(known(*changes), Columns)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param((("nn.GRU(8, 8)", "nn.GRU(8, 8, batch_first=True)"),), id="batch-first"),
        pytest.param((("self.embed(x)", "self.embed(x.t())"),), id="turned-in-the-model"),
        pytest.param((("net(x, state)", "net(x.transpose(0, 1), state)"),), id="turned-in-the-loop"),
        pytest.param((("return source[i : i + 5]", "return source[i : i + 5].T"),), id="turned-in-a-function"),
        pytest.param(
            (("return self.out(x)", "return F.softmax(self.out(x), dim=1)"), (".view(-1, 9)", "")), id="mixed"
        ),
        pytest.param((("self.embed(x)", "self.embed(x) - self.embed(x).mean(1, keepdim=True)"),), id="centred"),
        pytest.param((("nn.Linear(8, 9)", "nn.Sequential(nn.Softmax(1), nn.Linear(8, 9))"),), id="a-layer-that-mixes"),
        pytest.param((("y)\n", 'y, reduction="sum")\n'),), id="a-sum"),
        pytest.param((("return source[i : i + 5]", "return source[:, i : i + 5]"),), id="cut-across"),
        pytest.param((("return source[i : i + 5]", "return source.flip(1)[i : i + 5]"),), id="more-than-cut"),
        pytest.param(
            (("x, y = batch(letters, i)", "x, y = batch(letters, i + random.randint(0, 3))"),), id="by-chance"
        ),
        pytest.param(
            (("state = torch.zeros(1, 6, 8)", "state = None"), ("state.detach()", "state")), id="no-state-yet"
        ),
        pytest.param(
            (("state = state.detach()", "state = state.detach() + x.float().mean()"),), id="state-of-the-batch"
        ),
        pytest.param(
            (("        loss.backward()", "        if loss < 1:\n            break\n        loss.backward()"),),
            id="ends",
        ),
    ],
)
def test_what_may_not_be_columns_is_refused(changes: tuple[tuple[str, str], ...]) -> None:
    found = known(*changes)
    assert isinstance(found, Unshared)
    assert "that the step before it left" in found.why


def test_what_only_counts_is_left_alone() -> None:
    text = SCRIPT.replace("loss.backward()", "loss.backward()\n        print(i, len(letters), letters.size(0))")
    result = edited(text, "DDP313").text
    assert "own_columns = columns_of_rank(letters)\n    for i in range(0, len(letters) - 1, 5):" in result
    assert "batch(own_columns, i)" in result
    assert "print(i, len(letters), letters.size(0))" in result
