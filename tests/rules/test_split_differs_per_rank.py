"""DDP305: data that every process would draw for itself are rank 0's."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from ddpify.convert import convert
from tests.cases import convert_bytes

SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset


class Points(Dataset):
    def __init__(self):
        self.points = POINTS

    def __len__(self):
        return len(self.points)

    def __getitem__(self, index):
        return self.points[index]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(1))

    def forward(self, x):
        return x.mean() * self.scale


SEED
loader = DataLoader(Points(), batch_size=8)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for x in loader:
    net(x).mean().backward()
    optimizer.step()
"""


def converted(tmp_path: Path, points: str, seed: str) -> tuple[str, list[str]]:
    """The text, and what is left to the user."""
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.replace("POINTS", points).replace("SEED", seed))
    conversion = convert(path)
    return conversion.text, [f.message for f in conversion.plan.left if f.code == "DDP305"]


@pytest.mark.parametrize(
    "points",
    [
        "torch.rand(64, 3)",
        "torch.randint(0, 9, (64,)).float()",
        "np.random.rand(64, 3)",
        "[random.gauss(0, 1) for _ in range(64)]",
        "{i: [random.random() for _ in range(3)] for i in range(64)}",
    ],
)
@pytest.mark.parametrize("seed", ["", "if len(sys.argv) > 1:\n    SEEDS", "n = random.randint(1, 99)\nRANDOM"])
def test_data_without_a_seed(tmp_path: Path, points: str, seed: str) -> None:
    seeds = "torch.manual_seed(0); np.random.seed(0); random.seed(0)"
    seed = seed.replace("SEEDS", seeds).replace("RANDOM", seeds.replace("(0)", "(n)"))
    text, left = converted(tmp_path, points, "import random, sys\nimport numpy as np\n" + seed)
    assert not left
    drawn = points.removesuffix(".float()")
    assert f"self.points = broadcast_value({drawn})" in text


@pytest.mark.parametrize(
    ("points", "seed"),
    [
        ("torch.rand(64, 3)", "torch.manual_seed(0)"),
        ("torch.rand(64, 3, generator=torch.Generator().manual_seed(0))", ""),
        ("torch.ones(64, 3)", ""),  # the weights are drawn, but the wrapper shares rank 0's
        ("torch.ones(64, 3)", "for _ in range(3):\n    at = torch.randint(9, size=(1,)).item()\n    print(at)"),
        ("torch.ones(64, 3)", "import random\nlucky = random.randint(0, 9)"),
    ],
)
def test_the_same_data_everywhere(tmp_path: Path, points: str, seed: str) -> None:
    text, left = converted(tmp_path, points, seed)
    assert "broadcast_value" not in text
    assert not left


def test_a_loop_that_draws_piece_by_piece(tmp_path: Path) -> None:
    text, left = converted(
        tmp_path, "ROWS", "ROWS = []\nfor _ in range(64):\n    row = torch.rand(3)\n    ROWS.append(row)"
    )
    assert "broadcast_value" not in text
    assert "a loop draws them piece by piece" in left[0]


def test_an_option_with_a_default_seeds_for_certain(tmp_path: Path) -> None:
    parser = "from argparse import ArgumentParser\nparser = ArgumentParser()\nparser.add_argument('--seed', DEFAULT)\n"
    seeds = parser + "args = parser.parse_args()\nif args.seed is not None:\n    torch.manual_seed(args.seed)"
    assert "broadcast_value" not in converted(tmp_path, "torch.rand(64, 3)", seeds.replace("DEFAULT", "default=4"))[0]
    assert "broadcast_value" in converted(tmp_path, "torch.rand(64, 3)", seeds.replace("DEFAULT", "type=int"))[0]


@pytest.mark.parametrize("draw", ["torch.rand(3)", "np.random.permutation(3)"])
def test_what_loader_workers_draw_too_is_left(tmp_path: Path, draw: str) -> None:
    """A function that fills a cache and makes samples: a worker cannot wait for rank 0."""
    path = tmp_path / "train.py"
    functions = f"import numpy as np\n\n\ndef some(points):\n    chosen = {draw}\n    return points + chosen.max()\n"
    text = SCRIPT.replace("POINTS", "some(torch.ones(64, 3))").replace("SEED\n", "")
    text = text.replace("return self.points[index]", "return some(self.points[index])")
    path.write_text(text.replace("\n\nclass Points", f"{functions}\n\nclass Points"))
    conversion = convert(path)
    assert "broadcast_value" not in conversion.text
    assert any("loader workers do it, too" in f.message for f in conversion.plan.left)


def test_a_split_in_a_method_of_several_objects_gets_one_seed() -> None:
    script = """\
    import torch
    from sklearn.model_selection import train_test_split
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    class Rows:
        def __init__(self, x):
            self.x = x

        def split(self, part):
            return train_test_split(self.x, test_size=part)

    for rows in (Rows(torch.ones(8, 4)), Rows(torch.zeros(8, 4))):
        train, _ = rows.split(0.5)
        loader = DataLoader(TensorDataset(train), batch_size=2)
        net = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for (x,) in loader:
            optimizer.zero_grad()
            net(x).mean().backward()
            optimizer.step()
    """
    text = convert_bytes(textwrap.dedent(script).encode()).text
    assert text.count("random_state=0") == 1
