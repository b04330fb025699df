"""Guards around a whole `if` or `for`: where they are fewer, and nothing in the test matters to other ranks."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent, indent

import pytest

from ddpify.convert import convert_source
from ddpify.source import Source

SCRIPT = """
import os
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
names, best, left = ["a", "b"], True, [1, 2]
for (x,) in loader:
    net(x).mean().backward()
    optimizer.step()
"""


def converted(lines: str) -> str:
    text = convert_source(Source(Path("train.py"), (SCRIPT + dedent(lines)).encode())).text
    return text[text.index("    optimizer.step()\n") :]


@pytest.mark.parametrize(
    "lines",
    [
        "print(1)\nif best:\n    print(2)\nelif os.path.exists('a'):\n    print(3)\n",
        "if best:\n    print(2)\nelse:\n    print(3)\n",
        "for name in names:\n    print(name)\n",
        "for i in range(len(names)):\n    if best:\n        print(i)\n    print(names[i])\n",
        "if os.path.exists('a.txt'):\n    os.remove('a.txt')\nprint(1)\n",
        "for i in range(2):\n    print(i)\nfor i in names:\n    print(i)\n",
        "for name, value in net.named_parameters():\n    print(name)\n",
        "for name in sorted(names, key=lambda n: n[-1]):\n    print(name)\n",
        "for name in vars(loader):\n    print(name)\n",
        "with open('a.txt', 'w') as f:\n    for i in left:\n        print(i, file=f)\n"
        "with open('b.txt', 'w') as f:\n    for i in left:\n        print(i, file=f)\n",
    ],
)
def test_one_guard_around_all(lines: str) -> None:
    inner = lines.replace("net.named", "net.module.named")
    assert "if is_main_process():\n" + indent(inner, "    ") in converted(lines)


@pytest.mark.parametrize(
    ("lines", "gives"),
    [
        ("if best:\n    print(1)\n", "if best:\n    if is_main_process():\n        print(1)\n"),
        ("print(1)\nif left.pop():\n    print(2)\n", "if left.pop():\n    if is_main_process():\n"),
        ("for i in names:\n    print(i)\nlast = i\n", "for i in names:\n    if is_main_process():\n"),
        ("for (y,) in loader:\n    print(y)\n", "in whole_loader:\n    if is_main_process():\n"),
        (
            "print(1)\nif best:\n    print(2)\n    left = []\n",
            "if best:\n    if is_main_process():\n        print(2)\n",
        ),
        ("print(1)\nif best:\n    print(net(x))\n", "if best:\n    result = net"),
    ],
)
def test_what_other_ranks_need_stays_outside(lines: str, gives: str) -> None:
    assert gives in converted(lines)
