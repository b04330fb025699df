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
    """The generators go on from where torch began, which every rank can ask for."""
    found = convert_bytes(SEEDED.replace("EXTRA", extra).replace("CALL", "fix('a', 3)").encode())
    assert "fix('a', 3 + " not in found.text
    began = "torch.initial_seed() + dist.get_rank()"
    lines = f"        torch.manual_seed({began})\n        random.seed({began})\n"
    assert f"    net = DDP(net)\n    if not is_main_process():\n{lines}" in found.text


def test_a_seed_of_numpy_alone_that_has_no_name_at_the_wrap_is_noted() -> None:
    script = SEEDED.replace("EXTRA", "print(folder)").replace("CALL", "fix('a', 3)")
    script = script.replace("torch.manual_seed(number)", "numpy.random.seed(number)").replace(
        "import os", "import numpy\nimport os"
    )
    found = convert_bytes(script.encode())
    assert "initial_seed" not in found.text
    assert any("the seed `number` cannot be named" in f.message for f in found.plan.notes)


ASKED = """
import argparse
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def fix(seed):
    if seed is not None:
        torch.manual_seed(seed)

parser = argparse.ArgumentParser()
parser.add_argument("-seed", type=int, default=NONE)
args = parser.parse_args()
SEED
loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(2):
    for (x,) in loader:
        net(x).mean().backward()
        optimizer.step()
"""


def asked(seed: str, default: str = "None") -> str:
    return convert_bytes(ASKED.replace("SEED", seed).replace("NONE", default).encode()).text


@pytest.mark.parametrize(
    ("test", "written"),
    [
        ("args.seed is not None", "if args.seed is not None and not is_main_process():"),
        ("args.seed", "if args.seed and not is_main_process():"),
        ("args.seed or 0", "if (args.seed or 0) and not is_main_process():"),
    ],
)
def test_a_seed_that_may_not_be_set_is_asked_for(test: str, written: str) -> None:
    """`None + 1` stopped all ranks but the first."""
    text = asked(f"if {test}:\n    torch.manual_seed(args.seed)")
    assert f"{written}\n    torch.manual_seed(args.seed + dist.get_rank())\n" in text


def test_a_seed_with_a_default_is_set() -> None:
    text = asked("if args.seed is not None:\n    torch.manual_seed(args.seed)", default="3")
    assert "\nif not is_main_process():\n    torch.manual_seed(args.seed + dist.get_rank())\n" in text


@pytest.mark.parametrize(
    "seed", ["fix(args.seed)", "if args.seed is None:\n    pass\nelse:\n    torch.manual_seed(args.seed)"]
)
def test_a_seed_under_a_test_that_has_no_name_there_is_left_alone(seed: str) -> None:
    assert "get_rank()" not in asked(seed)


TRAINER = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Trainer:
    def __init__(self, net, loader):
        self.net = net
        self.loader = loader
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def run(self, epochs):
        for epoch in range(epochs):
            for (x,) in self.loader:
                self.optimizer.zero_grad()
                self.net(x).mean().backward()
                self.optimizer.step()

def main():
    torch.manual_seed(SEED)
    net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    trainer = Trainer(net, DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2))
    noise = torch.randn(2, 4)
    trainer.run(3)
    print(net(torch.randn(1, 4)), noise)

main()
"""


@pytest.mark.parametrize(("seed", "written"), [("3", "3 + dist.get_rank()"), ("0", "dist.get_rank()")])
def test_ranks_are_seeded_apart_where_the_seed_has_a_name(seed: str, written: str) -> None:
    """The wrap, or the loop over the epochs, stands in a class: before the call that begins the training it is named.

    What is drawn behind the training need not be alike.
    """
    text = convert_bytes(TRAINER.replace("SEED", seed).encode()).text
    block = f"    if not is_main_process():\n        torch.manual_seed({written})\n    trainer.run(3)\n"
    assert block in text


TRANSFORMED = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Blur:
    def __call__(self, x):
        return x + torch.randn_like(x)

class Signals(Dataset):
    def __init__(self, n, transform=None):
        self.transform = transform
        self.x = torch.randn(n, 12)
    def __len__(self):
        return len(self.x)
    def __getitem__(self, index):
        x = self.x[index]
        return self.transform(x) if self.transform else x

torch.manual_seed(4)
signals = Signals(8{given})
loader = DataLoader(signals, batch_size=2, shuffle=True)
{later}
net = nn.Linear(12, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(2):
    {inside}
    for x in loader:
        net(x).mean().backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("given", "later", "inside", "noisy"),
    [
        (", Blur()", "", "pass", True),
        ("", "signals.transform = Blur()", "pass", True),
        ("", "", "loader.dataset.transform = Blur()", True),
        ("", "", "pass", False),  # what is drawn once, where the data set is made, is no noise
    ],
)
def test_a_transform_that_draws_is_noise_wherever_it_is_set(given: str, later: str, inside: str, noisy: bool) -> None:
    text = convert_bytes(TRANSFORMED.format(given=given, later=later, inside=inside).encode()).text
    assert ("torch.manual_seed(4 + dist.get_rank())" in text) is noisy


def test_unseeded_streams_of_numpy_are_left_as_they_are() -> None:
    """Every process begins with another one; torch's are alike with CUDA."""
    script = TRANSFORMED.format(given="", later="", inside="pass").replace("torch.manual_seed(4)", "import numpy as np")
    step = "x = x + torch.randn(12) * float(np.random.uniform())\n        net(x)"
    text = convert_bytes(script.replace("net(x)", step).encode()).text
    assert "torch.manual_seed(torch.initial_seed() + dist.get_rank())" in text
    assert "np.random.seed" not in text
