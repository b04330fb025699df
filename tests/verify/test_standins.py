"""`--synthetic`: what is not on this machine is made up, the same on all ranks; what is there is read."""

from __future__ import annotations

import importlib.util
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
from torchvision.datasets import CIFAR10, CIFAR100, MNIST, SVHN, ImageFolder
class Mine(CIFAR10):
    pass
to_tensor = transforms.ToTensor()
for cls, shape in ((CIFAR10, (3, 32, 32)), (Mine, (3, 32, 32)), (MNIST, (1, 28, 28))):
    for train, size in ((True, 96), (False, 40)):
        data = cls("no/such/folder", train=train, download=True, transform=to_tensor)
        assert len(data.classes) == 10 and len(data) == size and data[0][0].shape == shape and isinstance(data, cls)
assert len(CIFAR100("nowhere").classes) == 100 and CIFAR100("nowhere")[95][1] == 95
assert SVHN("nowhere", split="test", transform=to_tensor)[3][0].shape == (3, 32, 32)
folder = ImageFolder("no/images/train", transform=to_tensor)
assert folder[1][0].shape == (3, 64, 64) and folder.classes == ["class 0", "class 1"]
"""
MORE_VISION = """
import torch, torchvision
from torchvision import models, transforms
from torchvision.datasets import CelebA, Flowers102, OxfordIIITPet, VOCSegmentation
to_tensor = transforms.ToTensor()
flowers = Flowers102("nowhere", split="val", transform=to_tensor)
assert len(flowers) == 40 and flowers[39][0].shape == (3, 64, 64) and flowers[39][1] == 39
pets = OxfordIIITPet("nowhere", target_types="segmentation", transform=to_tensor, target_transform=to_tensor)
assert pets[0][1].shape == (1, 64, 64)
assert CelebA("nowhere", transform=to_tensor)[0][1].shape == (40,)
image, mask = VOCSegmentation("nowhere", image_set="train", transforms=lambda i, m: (to_tensor(i), to_tensor(m)))[0]
assert image.shape[1:] == mask.shape[1:] and isinstance(pets, OxfordIIITPet)
"""
WEIGHTS = """
import torch
from torch.hub import load_state_dict_from_url
from torchvision import models
torch.manual_seed(torch.initial_seed())
new = models.resnet18(weights="DEFAULT")
new.fc = torch.nn.Linear(512, 2)
old = models.squeezenet1_1(pretrained=True)
new.load_state_dict(load_state_dict_from_url("https://nowhere.invalid/other.pth")["model"])
print(float(sum(p.sum() for p in (*old.features.parameters(), *new.layer1.parameters()) if p.dim() > 1)))
"""
FILES = """
import csv, os
from PIL import Image
rows = list(csv.DictReader(open("missing.csv")))
assert len(rows) == 96 and float(rows[0]["x0"]) and rows[0]["label"] in ("0", "1")
names = sorted(os.listdir("no/images"))
assert Image.open(os.path.join("no/images", names[0])).convert("L").size == (64, 64)
for missing in ("missing.txt", "missing.json"):
    try:
        open(missing)
    except FileNotFoundError:
        continue
    raise AssertionError(missing)
"""
HUB = """
from datasets import load_dataset
data = load_dataset("glue", "sst2")
assert len(data["train"]) == 96 and isinstance(data["validation"][0]["sentence"], str)
assert set(load_dataset("imdb", split="test[:10%]").column_names) == {"text", "label"}
assert len(load_dataset("squad", split=["train", "test"])[1]["question"]) == 40
"""

#: what a machine without the hub's library has in its place; its own `load_dataset` finds nothing
STUB = """
class Dataset(dict):
    from_dict = classmethod(lambda cls, columns: cls(columns))
    column_names = property(list)
    def __len__(self):
        return len(next(iter(self.values())))
    def __getitem__(self, key):
        return {k: v[key] for k, v in self.items()} if isinstance(key, int) else super().__getitem__(key)
class DatasetDict(dict):
    pass
def load_dataset(path, *args, **kwargs):
    raise ConnectionError(path)
"""
ASKS = """
import os
from pathlib import Path
root = os.path.abspath("flowers")
assert os.path.exists(root), "{} is not there".format(root)
if not os.path.isdir(root):
    raise FileNotFoundError(root)
if not Path("flowers", "train").is_dir():
    print("no data")
    exit(1)
assert (os.path.exists("there.csv") and
        os.path.isfile("labels.txt"))
if os.path.exists("checkpoint.pt"):
    raise AssertionError("nothing to resume from")
if not os.path.exists("made"):
    os.makedirs("made")
assert Path("made").exists() and len(os.listdir("flowers")) == 24
"""
LOADS = """
import torch
net = torch.nn.Linear(3, 2)
torch.save(net.state_dict(), "own.pt")
net.load_state_dict(torch.load("own.pt"))
found = torch.load("missing.pth", map_location="cpu")
net.load_state_dict({k: v for k, v in found.items() if k in net.state_dict()}, strict=False)
net.load_state_dict(found["model"])
try:
    start = torch.load("checkpoint.pt")
except FileNotFoundError:
    start = None
assert start is None and net.weight.isfinite().all()
"""
OWN = """
import datasets
assert datasets.make() == 3
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
        (
            "torchvision",
            VISION,
            ["CIFAR10"] * 2 + ["Mine"] * 2 + ["MNIST"] * 2 + ["CIFAR100"] * 2 + ["SVHN", "ImageFolder"],
        ),
        ("torchvision", MORE_VISION, ["Flowers102", "OxfordIIITPet", "CelebA", "VOCSegmentation"]),
        ("PIL", FILES, ["missing.csv", "the files of no", "the images of no/images"]),
        ("datasets", HUB, ["load_dataset('glue')", "load_dataset('imdb')", "load_dataset('squad')"]),
    ],
)
def test_libraries(tmp_path: Path, library: str, text: str, made_up: list[str]) -> None:
    if library == "datasets" and importlib.util.find_spec("datasets") is None:
        (tmp_path / "datasets.py").write_text(STUB)
    else:
        pytest.importorskip(library)
    assert _made_up(_run(tmp_path, text)) == made_up


def test_pretrained_weights_are_the_same_on_all_ranks(tmp_path: Path) -> None:
    pytest.importorskip("torchvision")
    result = _run(tmp_path, WEIGHTS, world=2)
    assert [what.partition("-")[0] for what in _made_up(result)] == [
        "the weights resnet18",
        "the weights squeezenet1_1",
        "the weights other.pth",
    ]
    assert result.ranks[0].stdout == result.ranks[1].stdout != ""


def test_a_module_that_is_called_as_the_library_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "datasets.py").write_text("def make():\n    return 3\n")
    assert _made_up(_run(tmp_path, OWN)) == []


def test_data_that_a_script_insists_on_is_said_to_be_there(tmp_path: Path) -> None:
    made = _made_up(_run(tmp_path, ASKS))
    flowers = str(tmp_path / "flowers")
    assert made == [flowers, flowers, "flowers/train", "labels.txt", "the files of flowers"]


def test_a_checkpoint_that_may_be_missing_is(tmp_path: Path) -> None:
    assert _made_up(_run(tmp_path, LOADS)) == ["the weights missing.pth"]
