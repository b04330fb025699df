"""Processes that a script starts beside its training: those that train are refused, those that save or read are not."""

from __future__ import annotations

from textwrap import dedent

import pytest

from ddpify.errors import Refused
from tests.cases import convert_bytes

SCRIPT = """\
import multiprocessing
import threading
import torch
import torch.multiprocessing as mp
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2, shuffle=True)
{before}

def train(rank=0):
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for epoch in range(2):
        for (x,) in loader:
            optimizer.zero_grad()
            net(x).mean().backward()
            optimizer.step()

{start}
"""


def script(before: str, start: str) -> bytes:
    return SCRIPT.format(before=dedent(before).strip(), start=dedent(start).strip()).encode()


@pytest.mark.parametrize(
    ("before", "start"),
    [
        (
            'def write(queue):\n    while (item := queue.get()) is not None:\n        open("log.txt", "a").write(item)',
            "queue = mp.Queue()\np = mp.Process(target=write, args=(queue,))\np.start()\ntrain()\nqueue.put(None)",
        ),
        (
            'class Watch:\n    def look(self):\n        print("gpu")',
            "multiprocessing.Process(target=Watch().look, daemon=True).start()\ntrain()",
        ),
        (
            "",
            "workers = [mp.Process(target=lambda: print(1)) for _ in range(2)]\n"
            "for w in workers:\n    w.start()\ntrain()",
        ),
    ],
)
def test_a_process_that_does_not_train_is_no_rank(before: str, start: str) -> None:
    text = convert_bytes(script(before, start)).text
    assert "DistributedSampler(" in text
    written = [line.strip() for line in text.split("\n")]
    guarded = [written[i - 1] for i, line in enumerate(written) if line.startswith(("open(", "print("))]
    assert all(line == "if is_main_process():" for line in guarded), text


@pytest.mark.parametrize(
    "start",
    [
        "mp.Process(target=train).start()",
        "workers = [mp.Process(target=train, args=(i,)) for i in range(2)]\nfor w in workers:\n    w.start()",
        "def fit():\n    train()\nmultiprocessing.Process(target=fit).start()",
        "from helpers import work\ntrain()\nmp.Process(target=work).start()",
    ],
)
def test_a_process_that_trains_or_is_not_known_is_refused(start: str) -> None:
    with pytest.raises(Refused, match="starts training processes of its own"):
        convert_bytes(script("", start))


GLOBAL = """\
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2, shuffle=True)
net = None
{setup}
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for (x,) in loader:
    optimizer.zero_grad()
    net(x).mean().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    "setup",
    [
        "def make():\n    global net\n    if len(sys.argv) > 1:\n        net = 3\n        sys.exit(net)\n"
        "    else:\n        net = nn.Linear(4, 1)\nmake()",
        "def make():\n    global net\n    net = nn.Linear(4, 1)\nif len(sys.argv) < 2:\n    make()\n"
        "else:\n    sys.exit(1)",
        "Layer = nn.Linear\ndef make():\n    global Layer\n    if len(sys.argv) > 1:\n        Layer = Layer(4, 1)\n"
        "        return Layer\n    else:\n        return Layer(4, 1)\nnet = make()",
    ],
)
def test_a_global_that_one_branch_sets_is_followed(setup: str) -> None:
    assert "DDP(net)" in convert_bytes(GLOBAL.format(setup=setup).encode()).text


IDLE = """\
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.ones(8, 4))


class Runner:
    def __init__(self, net):
        self.net, self.loader = net, None
        self.optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 1)
        if len(sys.argv) < 3:
            self.loader = DataLoader(data, batch_size=2, shuffle=True)

    def train(self):
        for (x,) in self.loader:
            self.optimizer.zero_grad()
            self.net(x).mean().backward()
            self.optimizer.step()
        self.schedule.step()

    def test(self):
        with torch.no_grad():
            print(self.net(torch.ones(2, 4)))


if len(sys.argv) > 1:
    Runner(nn.Linear(4, 1)).test()
    {idle}
else:
    runner = Runner(nn.Linear(4, 1))
    while runner.schedule.last_epoch < 3:
        runner.train()
    runner.test()
"""


def test_an_optimizer_that_makes_no_step_asks_for_no_wrapper() -> None:
    text = convert_bytes(IDLE.format(idle="pass").encode()).text
    assert text.count("DDP(") == 1
    # the loader is None without training: where it is read, it is not
    assert "self.loader.sampler.set_epoch(self.loader.sampler.epoch + 1)\n        for (x,) in self.loader:" in text


def test_an_optimizer_that_steps_elsewhere_does() -> None:
    step = "other = Runner(nn.Linear(4, 1))\n    other.optimizer.step()"
    with pytest.raises(Refused, match="no training forward calls"):
        convert_bytes(IDLE.format(idle=step).encode())
