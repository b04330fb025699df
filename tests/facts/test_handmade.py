"""What makes training batches where no DataLoader does: what plain data may come from."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpify.facts import collect
from ddpify.facts.handmade import Draws, hand_fed
from ddpify.facts.whole import Unshared
from ddpify.project import Project
from ddpify.source import Source

SCRIPT = """
{imports}
import random
import torch
from torch import nn

pairs = []
for name in {names}:
    for line in open(name):
        pairs.append((line, len(line)))

net = nn.Linear(8, 3)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)


def draw():
    line, kind = random.choice(pairs)
    return torch.ones(1, 8) * len(line), torch.tensor([kind])


def train(x, y):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(net(x), y)
    loss.backward()
    optimizer.step()
    return loss.item()


for step in range(100):
    x, y = draw()
    train(x, y)
"""


@pytest.mark.parametrize(
    ("imports", "names"),
    [
        ("import glob", "glob.glob('data/*.txt')"),
        ("from pathlib import Path", "Path('data').iterdir()"),
        ("import csv", "[row[0] for row in csv.reader(open('names.csv'))]"),
        ("", "['a.txt']"),
    ],
)
def test_data_that_the_standard_library_reads_are_drawn_from(imports: str, names: str) -> None:
    source = Source(Path("train.py"), SCRIPT.format(imports=imports, names=names).encode())
    found = hand_fed(collect(Project(source), converting=True))
    assert [type(f) for f in found] == [Draws]


def test_what_another_library_iterates_over_is_named() -> None:
    text = SCRIPT.format(imports="import corpora", names="['a.txt']").replace(
        "for step in range(100):\n    x, y = draw()", "for x, y in corpora.batches('data'):"
    )
    found = hand_fed(collect(Project(Source(Path("train.py"), text.encode())), converting=True))
    assert isinstance(found[0], Unshared)
    assert "corpora.batches" in found[0].why


HANDED = """
import torch
from torch import nn
from corpora.data import Batches

def load():
    train, test = Batches.splits(("train", "test"), size=4)
    return train, test

net = nn.Linear(8, 3)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)


def fit(parts):
    for i, part in enumerate(parts):
        loss = net(part.points).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


train, test = load()
fit(train)
"""


def test_one_of_several_results_of_another_library_is_its_own() -> None:
    (found,) = hand_fed(collect(Project(Source(Path("train.py"), HANDED.encode())), converting=True))
    assert isinstance(found, Unshared)
    assert "the batches come from corpora.data.Batches.splits (`parts`)" in found.why


@pytest.mark.parametrize("made", ['Buckets.splits(("train", "test"), size=4)', 'Buckets("train"), Buckets("test")'])
def test_a_class_that_iterates_as_another_library_has_it_is_its_own(made: str) -> None:
    text = HANDED.replace('Batches.splits(("train", "test"), size=4)', made)
    text = text.replace(
        "def load():", "class Buckets(Batches):\n    def sizes(self):\n        return [4]\n\ndef load():"
    )
    (found,) = hand_fed(collect(Project(Source(Path("train.py"), text.encode())), converting=True))
    assert isinstance(found, Unshared)
    assert "the batches come from corpora.data.Batches (`parts`)" in found.why


@pytest.mark.parametrize("line", ["from reading import *", "from reading import rows"])
def test_batches_that_another_file_has_from_a_library(tmp_path: Path, line: str) -> None:
    (tmp_path / "reading.py").write_text("from elsewhere.data import Buckets\n\nrows, rest = Buckets.splits(8)\n")
    script = f"{line}\nimport torch\nfrom torch import nn\n\nnet = nn.Linear(8, 3)\n"
    script += "optimizer = torch.optim.SGD(net.parameters(), lr=0.1)\n\n\ndef train(batches):\n"
    script += (
        "    for batch in batches:\n        net(batch.x).mean().backward()\n        optimizer.step()\n\n\ntrain(rows)\n"
    )
    facts = collect(Project(Source(tmp_path / "train.py", script.encode())), converting=True)
    (found,) = hand_fed(facts)
    assert isinstance(found, Unshared)
    assert "elsewhere.data.Buckets" in found.why
