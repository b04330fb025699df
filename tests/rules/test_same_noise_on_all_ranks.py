"""DDP306: the ranks are seeded apart only where everything that has to be alike was drawn before."""

from __future__ import annotations

import pytest

from tests.cases import convert_bytes

FOLDS = b"""
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

torch.manual_seed(3)
data = TensorDataset(torch.ones(12, 4))
for fold in range(3):
    order = torch.randperm(12).tolist()
    loader = DataLoader(Subset(data, order[4:]), batch_size=2)
    net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for epoch in range(2):
        for (x,) in loader:
            net(x).mean().backward()
            optimizer.step()
"""


def test_splits_of_later_folds_stay_alike() -> None:
    """Seeded apart in the first fold, the ranks would split the second one each in their own way."""
    found = convert_bytes(FOLDS)
    assert "torch.manual_seed(3 + " not in found.text
    (note,) = [f.message for f in found.plan.notes if f.code == "DDP306"]
    assert "`torch.randperm(12)` comes behind the wrap" in note


def test_folds_that_draw_nothing_are_seeded_apart() -> None:
    script = FOLDS.replace(b"torch.randperm(12).tolist()", b"list(range(12))")
    assert "torch.manual_seed(3 + dist.get_rank())" in convert_bytes(script).text


SEEDED = """
import os
import random
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def fix(folder, number=7):
    EXTRA
    os.environ["PYTHONHASHSEED"] = str(number)
    random.seed(number)
    torch.manual_seed(number)
    torch.backends.cudnn.deterministic = True

def main(options):
    CALL
    net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for epoch in range(2):
        for (x,) in DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2):
            net(x).mean().backward()
            optimizer.step()

main({"seed": 3})
"""


@pytest.mark.parametrize(
    ("call", "again"),
    [
        ("fix('a', options['seed'])", "fix('a', options['seed'] + dist.get_rank())"),
        (
            "fix(number=2 * options['seed'], folder='a')",
            "fix(number=(2 * options['seed']) + dist.get_rank(), folder='a')",
        ),
        ("fix('a')", "fix('a', number=7 + dist.get_rank())"),
    ],
)
def test_a_function_that_seeds_is_called_once_more(call: str, again: str) -> None:
    text = convert_bytes(SEEDED.replace("EXTRA", "pass").replace("CALL", call).encode()).text
    assert f"    net = DDP(net)\n    if not is_main_process():\n        {again}\n" in text


@pytest.mark.parametrize("extra", ["os.makedirs(folder)", "print(folder)"])
def test_a_function_that_does_more_is_not(extra: str) -> None:
    found = convert_bytes(SEEDED.replace("EXTRA", extra).replace("CALL", "fix('a', 3)").encode())
    assert "fix('a', 3 + " not in found.text
    assert any("the seed `number` cannot be named" in f.message for f in found.plan.notes)
