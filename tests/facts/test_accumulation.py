"""Which loops may keep the gradients of a batch to themselves, and which may not."""

from __future__ import annotations

import pytest

from tests.cases import convert_bytes

SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.ones(16, 4)), batch_size=2)
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(2):
    for i, (x,) in enumerate(loader):
        loss = net(x).mean() / 4
        loss.backward()
        if (i + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
"""


def converted(*changes: tuple[str, str]) -> str:
    text = SCRIPT
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return convert_bytes(text.encode()).text


BACKWARD = "        loss.backward()\n"
IF = "        if (i + 1) % 4 == 0:\n"


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param([], id="as-it-is"),
        pytest.param([("(i + 1) % 4 == 0", "i % 4 == 3 or i == len(loader) - 1")], id="last-batch-too"),
        pytest.param([(BACKWARD, BACKWARD + "        print(loss.item())\n")], id="loss-printed-behind-it"),
        pytest.param(
            [("        loss = net", "        i += 1\n        loss = net"), ("(i + 1)", "i")], id="counted-before"
        ),
        pytest.param(
            [("        loss = net", "        if i % 4 == 0:\n            optimizer.zero_grad()\n        loss = net")],
            id="zeroed-under-a-test-of-its-own",
        ),
        pytest.param(
            [("mean() / 4\n", "mean()\n        if i >= 0:\n            loss = loss / 4\n")], id="divided-where-asked"
        ),
        pytest.param([("mean() / 4\n", "mean()\n        loss /= 4\n")], id="divided-in-place"),
        pytest.param([("    for i, (x", "    optimizer.zero_grad()\n    for i, (x")], id="zeroed-at-each-epoch"),
    ],
)
def test_a_batch_without_a_step_exchanges_nothing(changes: list[tuple[str, str]]) -> None:
    assert "with nullcontext() if is_step else net.no_sync():" in converted(*changes)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(
            [("    if (i + 1) % 4 == 0:\n            opt", "    optimizer.step()\n        if i:\n            opt")],
            id="a-step-each-batch",
        ),
        pytest.param([(IF, "        nn.utils.clip_grad_norm_(net.parameters(), 1.0)\n" + IF)], id="clipped-each-batch"),
        pytest.param([(IF, "        norm = net.weight.grad.norm()\n" + IF)], id="gradients-read"),
        pytest.param(
            [("            optimizer.zero_grad()\n", "            optimizer.zero_grad()\n    optimizer.step()\n")],
            id="a-step-for-the-rest",
        ),
        pytest.param([(IF, "        i += 1\n" + IF), ("(i + 1) %", "i %")], id="counted-behind-it"),
        pytest.param([("(i + 1) % 4 == 0", "loss.item() < 1")], id="decided-by-the-loss"),
        pytest.param([("mean() / 4\n", "mean() / 4\n        print(i)\n")], id="printed-between"),
        pytest.param([("mean() / 4\n", "mean() / 4\n        if i == 9:\n            break\n")], id="left-between"),
        pytest.param([(BACKWARD, BACKWARD + "        net(x).pow(2).mean().backward()\n")], id="two-backwards"),
    ],
)
def test_what_is_not_certain_stays(changes: list[tuple[str, str]]) -> None:
    assert "no_sync" not in converted(*changes)


def test_each_of_several_models_keeps_its_gradients() -> None:
    changes = [
        ("net = nn.Linear(4, 1)", "body, head = nn.Linear(4, 3), nn.Linear(3, 1)"),
        ("optimizer = torch.optim.SGD(net", "other = torch.optim.SGD(body"),
        ("for epoch", "optimizer = torch.optim.SGD(head.parameters(), lr=0.1)\nfor epoch"),
        ("        loss = net(x).mean() / 4\n", "        h = body(x)\n        loss = head(h).mean() / 4\n"),
        ("            optimizer.step()\n", "            optimizer.step()\n            other.step()\n"),
        ("            optimizer.zero_grad()\n", "            optimizer.zero_grad()\n            other.zero_grad()\n"),
    ]
    text = converted(*changes)
    assert (
        "        with nullcontext() if is_step else body.no_sync(), nullcontext() if is_step else head.no_sync():\n"
        "            h = body(x)\n            loss = head(h).mean() / 4\n            loss.backward()\n"
    ) in text
    apart = ("            other.step()\n", "        if i % 2:\n            other.step()\n")
    assert "no_sync" not in converted(*changes, apart)
