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
    said = str(refusal.value)
    for step in (
        "`loss` is `self.criterion(out, x)` (train.py:18)",
        "`out` is `self.net(x)` (train.py:17)",
        '`self.net` is `net.to("cpu")` (train.py:13)',
        "`net` is `net` (train.py:24)",
        '`net` is `Config().make("net")` (train.py:23)',
        '`Config().make("net")` is `registry.make(name)` (train.py:8)',
    ):
        assert step in said, said
