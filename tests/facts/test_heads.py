"""Which heads of a model a loss leaves out, so that DDP has to look for them, and which it does not."""

from __future__ import annotations

import pytest

from tests.cases import convert_bytes

SCRIPT = """\
import argparse
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

WITH_AUX = False
parser = argparse.ArgumentParser()
parser.add_argument("--aux", action="store_true")
parser.add_argument("--no-aux", action="store_true")
parser.add_argument("--weight", type=float, default=0.0)
parser.add_argument("--share", type=float, default=0.4)
args = parser.parse_args()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.out, self.aux = nn.Linear(8, 8), nn.Linear(8, 2), nn.Linear(8, 2)

    def forward(self, x):
        h = self.stem(x).relu()
{gives}


criterion = nn.CrossEntropyLoss()
loader = DataLoader(TensorDataset(torch.ones(16, 8), torch.ones(16).long()), batch_size=2)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for x, y in loader:
{step}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
PAIR = "return self.out(h), self.aux(h)"
DICT = 'return {"out": self.out(h), "aux": self.aux(h)}'
TAKES_APART = """\
outputs = net(x)
if isinstance(outputs, tuple):
    logits, aux = outputs
    loss = criterion(logits, y)
    if TEST:
        loss = loss + 0.4 * criterion(aux, y)
else:
    loss = criterion(outputs, y)"""


def looks(gives: str, step: str) -> bool:
    def indented(text: str, by: int) -> str:
        return "\n".join(" " * by + line for line in text.split("\n"))

    text = SCRIPT.replace("{gives}", indented(gives, 8)).replace("{step}", indented(step, 4))
    return "find_unused_parameters=True" in convert_bytes(text.encode()).text


@pytest.mark.parametrize(
    ("gives", "step"),
    [
        (PAIR, TAKES_APART.replace("TEST", "WITH_AUX")),
        (PAIR, TAKES_APART.replace("TEST", "args.aux")),
        (PAIR, TAKES_APART.replace("TEST", "args.weight > 0")),
        (PAIR, TAKES_APART.replace("TEST", "not args.share")),
        (PAIR, "outputs = net(x)\nloss = criterion(outputs[0], y)"),
        (PAIR, "out = net(x)\nlogits = out[0] if isinstance(out, (tuple, list)) else out\nloss = criterion(logits, y)"),
        (PAIR, "logits, aux = net(x)\nloss = criterion(logits, y)\nif args.aux:\n    loss += criterion(aux, y)"),
        (DICT, 'loss = criterion(net(x)["out"], y)'),
        (DICT, 'found = net(x)\nloss = criterion(found["out"], y)\ncount = len(found)'),
        (f"if self.training:\n    {PAIR}\nreturn self.out(h)", "loss = criterion(net(x)[0], y)"),
        (f"if not self.training:\n    return self.out(h)\n{PAIR}", "loss = criterion(net(x)[0], y)"),
    ],
)
def test_a_head_that_the_loss_leaves_out(gives: str, step: str) -> None:
    assert looks(gives, step)


@pytest.mark.parametrize(
    ("gives", "step"),
    [
        (PAIR, TAKES_APART.replace("TEST", "not WITH_AUX")),
        (PAIR, TAKES_APART.replace("TEST", "not args.no_aux")),
        (PAIR, TAKES_APART.replace("TEST", "args.share > 0")),
        (PAIR, "outputs = net(x)\nloss = sum(criterion(o, y) for o in outputs)"),
        (PAIR, "outputs = net(x)\nloss = criterion(outputs[0], y) + criterion(outputs[1], y)"),
        (PAIR, "outputs = net(x)\nlast = outputs[-1]\nloss = criterion(last, y)"),
        (DICT, 'out = net(x)\nloss = criterion(out["out"], y) + 0.4 * criterion(out["aux"], y)'),
        (DICT, "loss = sum(criterion(o, y) for o in net(x).values())"),
        (f"if y is None:\n    return h\n{PAIR}".replace("y is None", "len(x) == 1"), "loss = criterion(net(x)[0], y)"),
    ],
)
def test_what_may_be_used_is_no_such_head(gives: str, step: str) -> None:
    assert not looks(gives, step)


def test_what_a_compiled_model_gives_is_known() -> None:
    """`loss` is a mean over the batch, as it is without `torch.compile`: the evaluation is dealt out by sample."""
    gives = "        out = self.out(h)\n        return out, nn.functional.mse_loss(out, out + 1)"
    text = SCRIPT.replace("{gives}", gives).replace("{step}", "    logits, loss = net(x)") + (
        "held_out = DataLoader(TensorDataset(torch.ones(9, 8)), batch_size=2)\ntotal = 0.0\nnet.eval()\n"
        "with torch.no_grad():\n    for (x,) in held_out:\n        logits, loss = net(x)\n"
        "        total += loss.item() * len(x)\nprint(total / len(held_out.dataset))\n"
    )
    for made in ("Net()", "torch.compile(Net())"):
        result = convert_bytes(text.replace("net = Net()", f"net = {made}").encode()).text
        assert "sampler=range(dist.get_rank(), len(val_set), dist.get_world_size())" in result, made
