"""`--synthetic`: what is not on this machine is made up, the same on all ranks; what is there is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpify.verify.observed import Standin
from tests.ranks import Job, JobResult, run_batch

pytestmark = pytest.mark.torchrun

TABLES = """
import numpy
from numpy import genfromtxt
numpy.random.seed(1)
before = numpy.random.get_state()[1].tolist()
there = numpy.loadtxt("there.csv", delimiter=",")
missing = numpy.loadtxt("missing.csv", delimiter=",")
assert there.shape == (2, 2)
assert missing.shape == (96, 9) and set(missing[:, -1]) == {0, 1}
assert genfromtxt("other.csv").shape == (96, 9)
assert numpy.random.get_state()[1].tolist() == before
print(missing.sum())
"""
PANDAS = """
import pandas as pd
frame = pd.read_csv("missing.csv")
assert frame["price"].isin([0, 1]).all()
x = frame.drop(columns=["species"]).values
y = frame[["species", "label"]]
assert len(x) == len(y) == 96 and x.shape[1] == 10
assert len(pd.read_csv("there.csv", header=None)) == 2
"""
VISION = """
import torch
from torchvision import transforms
from torchvision.datasets import CIFAR10, MNIST, SVHN, ImageFolder
class Mine(CIFAR10):
    pass
to_tensor = transforms.ToTensor()
for cls, shape in ((CIFAR10, (3, 32, 32)), (Mine, (3, 32, 32)), (MNIST, (1, 28, 28))):
    for train, size in ((True, 96), (False, 40)):
        data = cls("no/such/folder", train=train, download=True, transform=to_tensor)
        assert len(data) == size and data[0][0].shape == shape and isinstance(data, cls)
        assert len(data.classes) == 10
assert SVHN("nowhere", split="test", transform=to_tensor)[3][0].shape == (3, 32, 32)
folder = ImageFolder("no/images/train", transform=to_tensor)
assert folder[1][0].shape == (3, 64, 64) and folder.classes == ["class 0", "class 1"]
"""
HUB = """
from datasets import load_dataset
data = load_dataset("glue", "sst2")
assert len(data["train"]) == 96 and isinstance(data["validation"][0]["sentence"], str)
"""


def _run(folder: Path, text: str, world: int = 1) -> JobResult:
    (folder / "train.py").write_text(text)
    (folder / "there.csv").write_text("1,2\n3,4\n")
    [result] = run_batch([Job(folder / "train.py", cwd=folder, world=world, synthetic=True)])
    assert result.ok, result.ranks[0].stderr
    return result


def _made_up(result: JobResult) -> list[str]:
    return [event.what for event in result.trace.ranks[0].of(Standin)]


def test_tables_of_numpy(tmp_path: Path) -> None:
    result = _run(tmp_path, TABLES, world=2)
    assert _made_up(result) == ["missing.csv", "other.csv"]
    assert result.ranks[0].stdout == result.ranks[1].stdout != ""
    assert result.trace.ranks[0].of(Standin)[0].at == "train.py:7"


@pytest.mark.parametrize(
    ("library", "text", "made_up"),
    [
        ("pandas", PANDAS, ["missing.csv"]),
        ("torchvision", VISION, ["CIFAR10"] * 2 + ["Mine"] * 2 + ["MNIST"] * 2 + ["SVHN", "ImageFolder"]),
        ("datasets", HUB, ["load_dataset('glue')"]),
    ],
)
def test_libraries(tmp_path: Path, library: str, text: str, made_up: list[str]) -> None:
    pytest.importorskip(library)
    assert _made_up(_run(tmp_path, text)) == made_up
