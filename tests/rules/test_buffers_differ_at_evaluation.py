"""DDP204 and DDP206: one function evaluates the model before the wrap (on resume) and behind it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ddpify.convert import convert_source
from ddpify.source import Source
from tests.rules.edited import edited

SCRIPT = """
import os
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

{models}

def train(epoch):
    for (x,) in loader:
        loss = net(x).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

def evaluate():
    net.eval()
    with torch.no_grad():
        values = [net(x).mean().item() for (x,) in held_out]
    net.train()
    return max(values)

loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2, shuffle=True)
held_out = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=4)
{made}
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
best = 0.0
if os.path.exists("net.pt"):
    net.load_state_dict(torch.load("net.pt"))
    best = evaluate()
    net.load_state_dict(torch.load("last.pt"))
for epoch in range(3):
    train(epoch)
    best = max(best, evaluate())
print(best)
"""
MODEL = """
class Net{i}(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.out = nn.Linear(4, 1)

    def forward(self, x):
        return self.out(self.norm(x))
"""


@pytest.mark.parametrize("count", [1, 14])
def test_the_module_is_evaluated_before_and_behind_the_wrap(count: int) -> None:
    """With 14 networks to choose from, more values than the flow keeps for one name."""
    models = "\n".join(MODEL.format(i=i) for i in range(count))
    choices = [f"{'el' if i else ''}if sys.argv[1] == 'net{i}':\n    net = Net{i}()" for i in range(count)]
    made = "\n".join(choices) if count > 1 else "net = Net0()"
    result = edited(SCRIPT.format(models=models, made=made), "DDP201", "DDP204", "DDP206")
    assert "    sync_buffers(unwrap(net))\n" in result.text
    assert "values = [unwrap(net)(x).mean().item() for (x,) in held_out]" in result.text
    assert {"unwrap", "sync_buffers"} <= result.needs


PARTS = """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x):
        return self.norm(x)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        {made}
        self.out = nn.Linear(4, 1)

    def forward(self, x):
        return self.out(x)
"""


@pytest.mark.parametrize(
    "made",
    [
        "self.blocks = nn.ModuleList()\n        self.blocks.append(Block())",
        "self.blocks = nn.ModuleList()\n        self.blocks.extend([nn.Linear(4, 4), Block()])",
        "self.blocks = nn.ModuleDict()\n        self.blocks['a'] = Block()",
        "self.blocks = nn.Sequential()\n        self.blocks.add_module('a', Block())",
        "self.add_module('block', Block())",
        "self.blocks = nn.ModuleList([Block() for _ in range(2)])",
    ],
)
def test_statistics_of_parts_that_a_container_takes_in(made: str) -> None:
    text = edited(SCRIPT.format(models=PARTS.format(made=made), made="net = Net()"), "DDP201", "DDP206").text
    assert "sync_buffers(" in text


AGAIN = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
model = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train():
    model.train()
    for (x,) in loader:
        model(x.to(device)).mean().backward()
        optimizer.step()
train()
model.eval()
with torch.no_grad():
    one = model(torch.ones(1, 4, device=device))
{between}
with torch.no_grad():
    two = model(torch.ones(1, 4))
"""


@pytest.mark.parametrize(("between", "count"), [('model.to("cpu")', 1), ("train()", 2)])
def test_two_evaluations_with_no_training_between_need_it_once(between: str, count: int) -> None:
    """By the second the model may be on the CPU, where nccl has nothing to say."""
    text = convert_source(Source(Path("train.py"), AGAIN.format(between=between).encode())).text
    assert text.count("\nsync_buffers(") + text.count("    sync_buffers(") == count


@pytest.mark.parametrize(
    ("head", "train", "again"),
    [
        ("for epoch in range(2):", "train()", True),
        ("for epoch in range(2):", "if epoch:\n        train()", True),
        ("with torch.enable_grad():", "train()", True),
        ("for epoch in range(2):", "print(epoch)", False),
        ("with torch.enable_grad():", "print(2)", False),
    ],
)
def test_an_evaluation_needs_it_again_where_a_loop_trains(head: str, train: str, again: bool) -> None:
    """The one before the loop does not speak for those in it."""
    between = f"{head}\n    {train}\n    with torch.no_grad():\n        print(model(torch.zeros(2, 4)))"
    text = convert_source(Source(Path("train.py"), AGAIN.format(between=between).encode())).text
    assert text.count("sync_buffers(model.module)", text.index(head), text.index("torch.zeros(2, 4)")) == again


@pytest.mark.parametrize(
    ("loop", "before"),
    [
        ("for i in range(2):\n            values.append(net(rows[i]).mean().item())", True),
        ("for one in (net,):\n            values.append(one(rows[0]).mean().item())", False),
    ],
)
def test_once_before_a_loop_that_cuts_its_batches_by_hand(loop: str, before: bool) -> None:
    text = SCRIPT.format(models=MODEL.format(i=""), made="net = Net()").replace(
        "values = [net(x).mean().item() for (x,) in held_out]",
        f"values, rows = [], torch.ones(2, 4, 4)\n        {loop}",
    )
    result = edited(text, "DDP201", "DDP206")
    assert ("    sync_buffers(unwrap(net))\n        for i in range(2):" in result.text) is before


OF_OTHERS = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchvision.models import resnet18

def layers_of(path):
    return torch.load(path)

loader = DataLoader(TensorDataset(torch.ones(8, 3, 32, 32), torch.zeros(8).long()), batch_size=2, shuffle=True)
base = resnet18()
net = nn.Sequential({parts}, nn.Flatten(), nn.Linear(512, 5))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(2):
    for x, y in loader:
        net.train()
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        print(net(torch.ones(1, 3, 32, 32)).argmax().item())
"""


@pytest.mark.parametrize(
    "parts", ["*list(base.children())[:-1]", "*layers_of('layers.pt')", "base.layer1, base.layer2"]
)
def test_layers_of_another_model_may_have_batchnorm(parts: str) -> None:
    """Each rank evaluated with statistics of its own."""
    done = convert_source(Source(Path("train.py"), OF_OTHERS.format(parts=parts).encode()))
    assert "sync_buffers(net.module)" in done.text


def test_layers_without_statistics_have_none() -> None:
    parts = "*[nn.Linear(4, 4) for _ in range(2)]"
    done = convert_source(Source(Path("train.py"), OF_OTHERS.format(parts=parts).encode()))
    assert "sync_buffers" not in done.text


LOSSES = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def sure(net, x, y):
    with torch.enable_grad():
        keep = net(x).max(1).values < 0.9
    return nn.functional.cross_entropy(net(x[keep]), y[keep]) + nn.functional.mse_loss(net(x[keep] + 1), net(x[keep]))

def plain(net, x, y):
    return nn.functional.cross_entropy(net(x), y)

def smooth(net, x, y):
    return nn.functional.cross_entropy(net(x), y, label_smoothing=0.1)

LOSSES = {{{losses}}}
loader = DataLoader(TensorDataset(torch.ones(8, 4), torch.zeros(8).long()), batch_size=2, shuffle=True)
net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
criterion = LOSSES[sys.argv[1]]
for epoch in range(2):
    net.train()
    for x, y in loader:
        optimizer.zero_grad()
        {loss}.backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        print(net(torch.ones(1, 4)).argmax().item())
"""


@pytest.mark.parametrize(
    ("losses", "loss", "quiet"),
    [
        ('"sure": sure, "plain": plain', "criterion(net, x, y)", True),
        ('"smooth": smooth, "plain": plain', "criterion(net, x, y)", False),
        ('"smooth": smooth, "plain": plain', "sum(c(net, x, y) for c in (smooth, plain))", True),
    ],
)
def test_a_loss_by_name_that_runs_the_model_more_than_once(losses: str, loss: str, quiet: bool) -> None:
    """Of a dict of losses one runs in a step; what it looks at on the way is no evaluation."""
    code = LOSSES.format(losses=losses, loss=loss)
    done = convert_source(Source(Path("train.py"), code.encode())).text
    assert ("\nnet.broadcast_buffers = False\n" in done) is quiet
    assert len(re.findall(r"^ *sync_buffers\(", done, re.MULTILINE)) == 1


BUFFERED = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(4, 4)
        {makes}

    def forward(self, x):
        {first}
        return self.out(x)

    def more(self, x):
        {more}

loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2, shuffle=True)
held_out = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=4)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(3):
    for (x,) in loader:
        loss = net(x).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        print(sum(net(x).sum().item() for (x,) in held_out))
"""
MASK = 'self.register_buffer("mask", torch.ones(4))'
NAMED = "for name in ('mask', 'scale'): self.register_buffer(name, torch.ones(4))"


@pytest.mark.parametrize(
    ("makes", "first", "more", "synced"),
    [
        pytest.param(MASK, "x = x.masked_fill(self.mask == 0, 0)", "pass", False, id="a-mask-is-read"),
        pytest.param(MASK, "x = x + torch.roll(self.mask, 1)[:4]", "self.count = 3", False, id="another-is-written"),
        pytest.param(NAMED, "x = x * self.scale", "pass", False, id="names-that-are-computed"),
        pytest.param(MASK, "self.mask += x.mean()", "pass", True, id="added-to"),
        pytest.param(MASK, "x = x + self.mask", "self.mask[:2] = x[0, :2]", True, id="written-in-a-method"),
        pytest.param(MASK, "self.mask.mul_(0.9).add_(x.mean(0))", "pass", True, id="in-place"),
        pytest.param(MASK, "seen = self.mask", "pass", True, id="another-name-for-it"),
        pytest.param(MASK, "x = F.batch_norm(x, self.mask, self.mask, training=True)", "pass", True, id="by-torch"),
        pytest.param(NAMED, "x = x * self.scale", "self.scale.copy_(x[0])", True, id="one-of-several"),
    ],
)
def test_buffers_that_no_method_writes_are_alike_still(makes: str, first: str, more: str, synced: bool) -> None:
    text = edited(BUFFERED.format(makes=makes, first=first, more=more), "DDP201", "DDP204", "DDP206").text
    assert ("sync_buffers(net.module)" in text) is synced


def test_a_model_that_another_command_loads_has_seen_no_batch() -> None:
    """`generate` knows no trained model: rank 0's buffers were sent before each of its forwards."""
    text = """
import fire
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))

    def forward(self, x):
        return self.layers(x)

def train():
    loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for (x,) in loader:
        net(x).mean().backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        print(net(torch.ones(2, 4)))

def generate(path):
    net = Net()
    net.load_state_dict(torch.load(path))
    net.eval()
    with torch.no_grad():
        print(net(torch.ones(2, 4)))

fire.Fire()
"""
    new = convert_source(Source(Path("train.py"), text.encode())).text
    assert new.count("    sync_buffers(net") == 1
    assert new.index("    sync_buffers(net.module)") < new.index("def generate")


ONE_STEP = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
held = DataLoader(TensorDataset(torch.ones(6, 4)), batch_size=2)
net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

def step(x, train):
    loss = net(x).mean()
    if train:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()

def run(data, phase):
    train = phase == "train"
    net.train(train)
    with torch.set_grad_enabled(train):
        return sum(step(x, train) for (x,) in data)

for epoch in range(2):
    print(run(loader, "train"), run(held, "val"))
"""


def test_a_step_for_both_phases_is_told_apart_by_its_own_parameter() -> None:
    """It asked whether gradients are enabled, which a reader has to look up."""
    text = edited(ONE_STEP, "DDP204", "DDP206").text
    assert "    if not train:\n        sync_buffers(net.module)\n" in text
    assert "(net if train else net.module)(x)" in text
    assert "is_grad_enabled" not in text
