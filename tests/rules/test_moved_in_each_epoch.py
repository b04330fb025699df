"""DDP201: a model that gets to its device in the function of an epoch is moved where it is wrapped."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpify.convert import convert_source
from ddpify.source import Source

SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

class Trainer:
    def __init__(self, net):
        self.net = net
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def epoch(self, loader):
        {moves}
        self.net.train()
        for x in loader:
            self.optimizer.zero_grad()
            self.net(x.to(device)).mean().backward()
            self.optimizer.step()

def train(net, loader, optimizer):
    {alone}
    for x in loader:
        optimizer.zero_grad()
        net(x.to(device)).mean().backward()
        optimizer.step()

loader = DataLoader(torch.ones(8, 4), batch_size=2)
"""
FUNCTION = """
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(2):
    train(net, loader, optimizer)
"""
CLASS = """
trainer = Trainer(nn.Linear(4, 1))
for epoch in range(2):
    trainer.epoch(loader)
"""
IDS = ', device_ids=[device.index] if device.type != "cpu" else None)'


def converted(move: str, tail: str) -> str:
    text = SCRIPT.format(moves=move.replace("net", "self.net"), alone=move) + tail
    return convert_source(Source(Path("train.py"), text.encode())).text


@pytest.mark.parametrize(
    ("move", "moved"),
    [
        ("net.to(device)", ".to(device)"),
        ("net = net.to(device)", ".to(device)"),
        ("net.cuda()", ".cuda()"),
        ("if device.type == 'cuda':\n            net.cuda()", ".to(device)"),
        ("net.train()", ""),
    ],
)
def test_ddp_gets_a_model_that_is_on_its_device(move: str, moved: str) -> None:
    """On the CPU, DDP refuses it together with the index of a GPU."""
    assert f"\nnet = DDP(net{moved}{IDS}\n" in converted(move, FUNCTION)
    assert f"        self.net = DDP(self.net{moved}{IDS}\n" in converted(move, CLASS)


def test_a_model_that_is_on_its_device_already_is_not_moved_again() -> None:
    tail = FUNCTION.replace("nn.Linear(4, 1)\n", "nn.Linear(4, 1).to(device)\n")
    assert f"\nnet = DDP(net{IDS}\n" in converted("net.to(device)", tail)
