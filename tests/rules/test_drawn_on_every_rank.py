"""DDP314: data that are drawn anew for each epoch are the same on all ranks, and every rank makes as many steps."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cases import convert_bytes
from tests.ranks import Job, JobResult, run_batch

HEAD = """
import random
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

baskets = [[(7 * b + k) % 31 for k in range(b % 6)] for b in range(40)]
net = nn.Embedding(31, 4)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

def apart(pairs):
    return (net(pairs[:, 0]) * net(pairs[:, 1])).sum(1).exp().mean()

def step(pairs):
    optimizer.zero_grad()
    apart(pairs).backward()
    optimizer.step()

"""
#: negatives that are thrown away where they are in the basket
FUNCTION = (
    HEAD
    + """
def draw():
    pairs = []
    for basket in baskets:
        for good in basket:
            other = np.random.randint(31)
            if other in basket:
                continue
            pairs.append([good, other])
    return np.array(pairs)

def cut(*arrays, size):
    for i in range(0, len(arrays[0]), size):
        yield tuple(a[i : i + size] for a in arrays)

def epoch_of():
    pairs = draw()
    good, other = torch.from_numpy(pairs[:, 0]), torch.from_numpy(pairs[:, 1])
    # SEEN pairs.tolist()
    for g, o in cut(good, other, size=4):
        step(torch.stack([g, o], 1))

for epoch in range(3):
    epoch_of()
"""
)
GENERATOR = (
    HEAD
    + """
def batches(size):
    pairs = []
    for b in random.sample(range(len(baskets)), len(baskets)):
        for good in baskets[b]:
            if random.random() < 0.4:
                continue
            pairs.append([good, random.randrange(31)])
            if len(pairs) == size:
                yield torch.tensor(pairs)
                pairs = []

for epoch in range(3):
    for pairs in batches(4):
        step(pairs)
"""
)
OBJECT = (
    HEAD
    + """
class Pairs:
    def __init__(self):
        self.pairs = []
        self.renew()

    def renew(self):
        self.pairs = []
        for basket in baskets:
            for good in basket:
                other = random.randrange(31)
                if other not in basket:
                    self.pairs.append([good, other])

pairs = Pairs()
for epoch in range(3):
    pairs.renew()
    # SEEN pairs.pairs
    for i in range(0, len(pairs.pairs), 4):
        step(torch.tensor(pairs.pairs[i : i + 4]))
"""
)
MASKED = (
    HEAD
    + """
everything = torch.tensor([[good, (good + 5) % 31] for basket in baskets for good in basket])
for epoch in range(3):
    kept = everything[torch.from_numpy(np.random.rand(len(everything)) < 0.6)]
    order = torch.randperm(len(kept))
    # SEEN kept.tolist()
    for i in range(0, len(kept), 4):
        step(kept[order[i : i + 4]])
"""
)
REMADE = (
    HEAD
    + """
class Pairs(Dataset):
    def __init__(self):
        self.pairs = [[g, random.randrange(31)] for basket in baskets for g in basket if random.random() < 0.6]

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, i):
        return torch.tensor(self.pairs[i])

for epoch in range(3):
    loader = DataLoader(Pairs(), batch_size=4, shuffle=True)
    # SEEN loader.dataset.pairs
    for pairs in loader:
        step(pairs)
"""
)
RENEWED = (
    HEAD
    + """
class Pairs(Dataset):
    def __init__(self):
        self.good = [g for basket in baskets for g in basket]

    def renew(self):
        self.other = [np.random.randint(31) for _ in self.good]

    def __len__(self):
        return len(self.good)

    def __getitem__(self, i):
        return torch.tensor([self.good[i], self.other[i]])

torch.manual_seed(1)
np.random.seed(1)
data = Pairs()
loader = DataLoader(data, batch_size=4, shuffle=True)
for epoch in range(3):
    loader.dataset.renew()
    # SEEN data.other
    for pairs in loader:
        step(pairs)
"""
)
BEFORE = (
    HEAD
    + """
def draw():
    pairs = []
    for basket in baskets:
        for good in basket:
            if random.random() < 0.6:
                pairs.append([good, random.randrange(31)])
    return pairs

pairs = draw()
for epoch in range(3):
    # SEEN pairs
    for i in range(0, len(pairs), 4):
        step(torch.tensor(pairs[i : i + 4]))
"""
)
SHAPES = {
    "function": FUNCTION,
    "generator": GENERATOR,
    "object": OBJECT,
    "masked": MASKED,
    "remade": REMADE,
    "renewed": RENEWED,
    "before": BEFORE,
}
#: every process of torchrun has random numbers of its own, unless the script fixes them
OWN = (
    "import os as _os, random as _random, numpy as _numpy\n"
    "_random.seed(_os.environ['RANK'])\n_numpy.random.seed(int(_os.environ['RANK']))\n"
)


def converted(text: str) -> str:
    found = convert_bytes(text.encode())
    assert not [f for f in found.plan.left if f.code in ("DDP305", "DDP309", "DDP314")]
    return found.text


def watched(text: str) -> str:
    """What stands behind `# SEEN` is written down on each rank."""
    return OWN + re.sub(r"# SEEN (.*)", r"open('seen' + _os.environ['RANK'], 'a').write(repr(\1))", text)


def run(folder: Path, text: str) -> JobResult:
    script = folder / "train.py"
    script.write_text(text)
    return run_batch([Job(script, world=2, cwd=folder)], timeout=40)[0]


@pytest.mark.torchrun
@pytest.mark.parametrize("shape", SHAPES)
def test_all_ranks_draw_the_same_data_and_make_as_many_steps(shape: str, tmp_path: Path) -> None:
    text = converted(SHAPES[shape])
    assert "with same_draws():" in text
    result = run(tmp_path, watched(text))
    assert result.ok, [r.stderr for r in result.ranks]
    if "# SEEN" in text:
        assert (tmp_path / "seen0").read_text() == (tmp_path / "seen1").read_text()


@pytest.mark.torchrun
@pytest.mark.parametrize("shape", ["generator", "object", "renewed"])
def test_without_it_the_ranks_part(shape: str, tmp_path: Path) -> None:
    """The damage that the test above is to see: other data, or a rank that waits for a step nobody else makes."""
    text = re.sub(
        r"\n    \S+\.set_?state\(shared\[\d\]\)|\n    \S+\.set_state\(shared\[\d\]\)", "", converted(SHAPES[shape])
    )
    result = run(tmp_path, watched(text))
    seen = [tmp_path / "seen0", tmp_path / "seen1"]
    assert not result.ok or seen[0].read_text() != seen[1].read_text()


def test_steps_that_draw_a_batch_of_a_given_size_draw_their_own() -> None:
    text = converted(
        HEAD
        + """
def batch(size):
    pairs = []
    while len(pairs) < size:
        good, other = random.randrange(31), random.randrange(31)
        if good != other:
            pairs.append([good, other])
    return torch.tensor(pairs)

for epoch in range(3):
    for _ in range(5):
        pairs = batch(4)
        step(pairs)
"""
    )
    assert "same_draws" not in text
    assert "share_of_rank" not in text


def test_noise_of_each_batch_stays_each_ranks_own() -> None:
    text = converted(
        HEAD
        + """
everything = [[g, (g + 5) % 31] for basket in baskets for g in basket]
for epoch in range(3):
    for i in range(0, len(everything), 4):
        pairs = torch.tensor(everything[i : i + 4])
        pairs[:, 1] = torch.randint(31, (len(pairs),))
        step(pairs)
"""
    )
    assert "same_draws" not in text


def test_a_script_that_fixes_its_seed_and_draws_nothing_else_is_left_as_it_is() -> None:
    """All ranks draw alike there, by themselves."""
    seeded = GENERATOR.replace("baskets = [[", "random.seed(3)\nbaskets = [[")
    assert "same_draws" not in converted(seeded)


def test_an_order_inside_a_drawn_set_is_sent_with_it() -> None:
    """`random.shuffle(pairs)` and `random.choice(...)` in such a function got a broadcast for each draw: a hang."""
    text = converted(BEFORE.replace("return pairs\n", "random.shuffle(pairs)\n    return pairs\n"))
    assert "broadcast_value" not in text
    text = converted(BEFORE.replace("random.randrange(31)", "random.choice(range(31))"))
    assert "broadcast_value" not in text


def test_what_is_drawn_for_a_picture_stays_each_ranks_own() -> None:
    """`save=True` has a name in common with `shuffle=True` for the parser, and changes no data."""
    text = """
import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision.datasets import FakeData
net = nn.Linear(4, 8)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
def show(epoch, save=False):
    print(net(torch.randn(5, 4)).mean())
loader = DataLoader(FakeData(size=64), batch_size=8, shuffle=True, drop_last=True)
for epoch in range(2):
    for x, _ in loader:
        noise = torch.randn(len(x), 4)
        optimizer.zero_grad()
        net(noise).mean().backward()
        optimizer.step()
    show(epoch + 1, save=True)
"""
    assert "same_draws" not in convert_bytes(text.encode()).text
    root = text.replace("FakeData(size=64)", "FakeData(size=64, train=True)")
    assert "same_draws" not in convert_bytes(root.encode()).text
