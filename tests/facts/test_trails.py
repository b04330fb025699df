"""facts/trails.py: the way back from a loss, as far as it could be followed."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpify.convert import convert_source
from ddpify.errors import Refused
from ddpify.source import Source

SCRIPT = """\
import registry
import torch
from torch.utils.data import DataLoader


class Config:
    def make(self, name):
        return registry.make(name), 3


class Trainer:
    def __init__(self, net, criterion):
        self.net = net.to("cpu")
        self.criterion = criterion

    def step(self, x):
        out = self.net(x)
        loss = self.criterion(out, x)
        losses = {"all": loss * 2}
        losses["all"].backward()


net, size = Config().make("net")
trainer = Trainer(net, registry.criterion)
for x in DataLoader(torch.ones(8, 4)):
    trainer.step(x)
"""


def test_a_refusal_tells_each_step_with_its_line() -> None:
    with pytest.raises(Refused) as refusal:
        convert_source(Source(Path("nowhere", "train.py"), SCRIPT.encode()))
    assert str(refusal.value).split("\n")[1:] == [
        '  nowhere/train.py:19: `losses` is `{"all": loss * 2}`',
        "  nowhere/train.py:18: `loss` is `self.criterion(out, x)`",
        "  nowhere/train.py:17: `out` is `self.net(x)`",
        '  nowhere/train.py:13: `self.net` is `net.to("cpu")`',
        "  nowhere/train.py:24: `net` is given as `net`",
        '  nowhere/train.py:23: `net` is `Config().make("net")`',
        '  nowhere/train.py:8: `Config().make("net")` gives back `registry.make(name)`',
        "  nowhere/train.py:1: `registry` is no part of the project: `import registry`",
    ]
