"""DDP309: what a loop that is dealt out decides by its variable."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ddpify.facts import collect
from ddpify.facts.handmade import Draws, Turns, hand_fed
from ddpify.facts.whole import Unshared
from ddpify.project import Project
from ddpify.source import Source
from tests.rules.edited import edited

SCRIPT = """\
import random
import numpy as np
import torch
from torch import nn
import torch.nn.functional as F

x, y = torch.rand(40, 4), torch.rand(40, 1)
pairs = list(zip(x, y))
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
{before}
for epoch in range(2):
    {order}
    for {loop}:
        {batch}
        loss = F.mse_loss(net(xb), yb)
        loss.backward()
        {after}
"""
CUT = "xb, yb = x[i * 8:i * 8 + 8], y[i * 8:i * 8 + 8]"


def script(loop: str, batch: str = CUT, after: str = "optimizer.step()", order: str = "pass", before: str = "") -> str:
    return SCRIPT.format(loop=loop, batch=batch, after=after, order=order, before=before)


@pytest.mark.parametrize("test", ["(i + 1) % 2 == 0", "not i % 2", "i % 2 == 0 and i > 0", "epoch == 1 or i % 2"])
def test_passes_are_counted_by_each_rank(test: str) -> None:
    text = edited(script("i in range(5)", after=f"if {test}:\n            optimizer.step()"), "DDP309").text
    assert "    for count, i in zip(range(5), share_of_rank(range(5))):" in text
    counted = re.sub(r"\bi\b", "count", test)
    assert f"if {counted}:" in text
    assert CUT in text


def test_the_counter_stands_in_the_tests_only() -> None:
    after = "if (i + 1) % 2 == 0 and i > 0:\n            optimizer.step()\n            print(i, loss.item())"
    text = edited(script("i in range(5)", after=after), "DDP309").text
    assert (
        "if (count + 1) % 2 == 0 and count > 0:\n            optimizer.step()\n            print(i, loss.item())"
        in text
    )


def test_a_progress_bar_keeps_its_length() -> None:
    loop = "i in tqdm(range(5))"
    after = "if i % 2 == 0:\n            print(loss.item())"
    text = edited(script(loop, after=after, before="from tqdm import tqdm"), "DDP309").text
    assert "    for count, i in zip(range(5), tqdm(share_of_rank(range(5)))):" in text


@pytest.mark.parametrize(
    ("loop", "batch", "after"),
    [
        ("i in range(5)", f"{CUT}\n        if len(xb) < 8:\n            continue", "optimizer.step()"),
        ("i in range(5)", CUT, "if i == 4:\n            optimizer.step()"),
        ("i in range(5)", CUT, "last = i + 1 == len(x)\n        if last:\n            print(loss.item())"),
        ("xb, yb in pairs", "pass", "if xb.sum() > 2:\n            optimizer.step()"),
    ],
)
def test_what_goes_by_the_batch_is_refused(loop: str, batch: str, after: str) -> None:
    known = _known(script(loop, batch, after))
    assert isinstance(known, Unshared)
    assert "goes by the batch, and each rank has another batch" in known.why


def test_the_number_of_enumerate_is_alike_on_all_ranks() -> None:
    known = _known(script("n, (xb, yb) in enumerate(pairs)", "pass", "if n % 2:\n            optimizer.step()"))
    assert isinstance(known, Turns)
    assert known.counted == ()


def test_data_in_a_new_order_for_each_epoch() -> None:
    order = "order = torch.randperm(len(x)); x, y = x[order], y[order]"
    text = edited(script("i in range(5)", order=order), "DDP309").text
    assert "order = broadcast_value(torch.randperm(len(x)))" in text


def test_an_order_is_sent_once() -> None:
    order = "order = torch.randperm(len(x))"
    batch = "xb, yb = x[order[i:i + 8]], y[order[i:i + 8]]"
    text = script("i in range(5)", batch, order=order)
    loop = text[text.index("    for i in range(5)") :]
    assert edited(text + loop, "DDP309").text.count("broadcast_value(") == 1


def test_sklearns_shuffle_is_the_same_on_all_ranks() -> None:
    before = "from sklearn.utils import shuffle"
    order = "xs, ys = shuffle(x, y)"
    batch = "xb, yb = xs[i * 8:i * 8 + 8], ys[i * 8:i * 8 + 8]"
    text = edited(script("i in range(5)", batch, order=order, before=before), "DDP309").text
    assert "xs, ys = broadcast_value(shuffle(x, y))" in text


@pytest.mark.parametrize(
    ("before", "draw"),
    [
        ("g = torch.Generator().manual_seed(3)", "torch.randint(40, (8,), generator=g)"),
        ("g = np.random.default_rng(3)", "g.integers(0, 40, 8)"),
    ],
)
def test_a_generator_with_a_seed_of_its_own_is_refused(before: str, draw: str) -> None:
    known = _known(script("_ in range(5)", f"rows = {draw}\n        xb, yb = x[rows], y[rows]", before=before))
    assert isinstance(known, Unshared)
    assert "every rank would train on the same batches" in known.why


def test_the_next_batch_may_be_drawn_early() -> None:
    before = "def draw():\n    rows = torch.randint(40, (8,))\n    return x[rows], y[rows]\nxb, yb = draw()"
    known = _known(script("_ in range(5)", "pass", "xb, yb = draw(); optimizer.step()", before=before))
    assert isinstance(known, Draws)
    known = _known(script("_ in range(5)", "pass", "xb = net(xb).repeat(1, 4)", before=before))
    assert isinstance(known, Unshared)
    assert "goes on from the `xb`" in known.why


def test_noise_on_whole_tensors_is_no_batch() -> None:
    known = _known(script("_ in range(5)", "xb, yb = x + torch.randn_like(x), y"))
    assert type(known).__name__ == "Rows"


def _known(text: str) -> object:
    return hand_fed(collect(Project(Source(Path("train.py"), text.encode())), converting=True))[0]


def test_noise_for_a_generator_is_a_batch() -> None:
    batch = "xb, yb = torch.rand(8, 4), torch.rand(8, 1)"
    text = script("_ in range(5)", batch).replace("net(xb)", "net(torch.randn(8, 4))")
    known = hand_fed(collect(Project(Source(Path("train.py"), text.encode())), converting=True))
    assert [type(k) for k in known] == [Draws]


def test_the_last_pass_of_all_is_refused() -> None:
    after = "if (n + 1) % 4 == 0 or n + 1 == len(pairs):\n            optimizer.step()"
    known = _known(script("n, (xb, yb) in enumerate(pairs)", "pass", after))
    assert isinstance(known, Unshared)
    assert "asks for one pass, which only one rank makes" in known.why


def test_a_place_in_the_data_that_an_object_keeps_is_refused() -> None:
    before = """
class Batches:
    def __init__(self):
        self.at, self.order = 0, torch.randperm(40)
    def draw(self):
        if self.at >= 40:
            self.at, self.order = 0, torch.randperm(40)
        rows = self.order[self.at:self.at + 8]
        self.at += 8
        return x[rows], y[rows]
batches = Batches()
"""
    known = _known(script("_ in range(5)", "xb, yb = batches.draw()", before=before))
    assert isinstance(known, Unshared)
    assert "are cut at `self.at` (line 19), which moves on alike on every rank" in known.why


CURSOR = """
class Batches:
    def __init__(self):
        self.at, self.x, self.y = 0, x, y
    def next_batch(self, size):
        start = self.at
        {moves}
        if self.at > 40:
            order = {order}
            self.x, self.y = self.x[order], self.y[order]
            start, self.at = 0, size
        end = self.at
        return self.x[start:end], self.y[start:end]
batches = Batches()
at = 0
def next_batch(size):
    global at
    at = 0 if at + size > 40 else at
    batch = x[at:at + size], y[at:at + size]
    at += size
    return batch
"""


@pytest.mark.parametrize(
    ("moves", "order", "call", "place"),
    [
        ("self.at += size", "torch.randperm(40)", "batches.next_batch(8)", "self.at"),
        ("self.at = start + size", "np.random.permutation(40)", "batches.next_batch(8)", "self.at"),
        ("self.at += size", "slice(None)", "batches.next_batch(8)", "self.at"),
        ("pass", "0", "next_batch(8)", "at"),
    ],
)
def test_a_place_that_moves_on_from_call_to_call_is_refused(moves: str, order: str, call: str, place: str) -> None:
    """Every rank would train on the same batches, whatever else is drawn at random."""
    noise = f"xb, yb = {call}\n        xb = xb + torch.randn(8, 4)"
    known = _known(script("_ in range(5)", noise, before=CURSOR.format(moves=moves, order=order)))
    assert isinstance(known, Unshared)
    assert f"the batches are cut at `{place}`" in known.why


def test_a_place_that_is_drawn_anew_is_none() -> None:
    before = """
class Batches:
    def __init__(self):
        self.at, self.calls = 0, 0
    def draw(self):
        self.calls += 1
        self.at = random.randrange(32)
        return x[self.at:self.at + 8], y[self.at:self.at + 8]
batches = Batches()
"""
    assert isinstance(_known(script("_ in range(5)", "xb, yb = batches.draw()", before=before)), Draws)


def test_folds_are_no_batches() -> None:
    text = """\
import torch
from torch import nn
x, y = torch.rand(40, 4), torch.rand(40, 1)
for fold in range(4):
    kept = torch.arange(40) % 4 != fold
    xt, yt = x[kept], y[kept]
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(3):
        loss = (net(xt) - yt).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
    new = edited(text, "DDP308", "DDP309").text
    assert "for fold in range(4):" in new
    assert "    xt, yt, row_weight = rows_of_rank(xt, yt)\n    for step in range(3):" in new


MOVED = "xb, yb = x[at:at + 8], y[at:at + 8]"


@pytest.mark.parametrize(
    ("loop", "order", "after", "head"),
    [
        ("i in range(5)", "at = 0", "optimizer.step()\n        at += 8", "i"),
        ("_ in range(len(x) // 8)", "at = 0", "at += 8\n        optimizer.step()", "index"),
        ("i in range(5)", "at, size = 0, 8", "optimizer.step()\n        at += size", "i"),
    ],
)
def test_a_place_that_moves_on_is_a_number_of_passes(loop: str, order: str, after: str, head: str) -> None:
    text = edited(script(loop, MOVED, after, order), "DDP309").text
    step = "size" if "size" in after else "8"
    assert f"    for {head} in share_of_rank(range(" in text
    assert f"\n        at = {head} * {step}\n        {MOVED}" in text


@pytest.mark.parametrize(
    ("loop", "order", "after"),
    [
        ("i in range(5)", "at = 4", "optimizer.step()\n        at += 8"),
        ("i in range(1, 5)", "at = 0", "optimizer.step()\n        at += 8"),
        ("i in range(5)", "at = 0", "optimizer.step()\n        if loss < 1:\n            at += 8"),
        ("i in range(5)", "at = 0", "if i > 3:\n            continue\n        optimizer.step()\n        at += 8"),
        ("i in range(5)", "at = 0", "optimizer.step()\n        size = i + 1\n        at += size"),
        ("i in range(5)", "at = 0", "optimizer.step()\n        at += 8\n    print(at)"),
        ("i in range(5)", "pass", "optimizer.step()\n        at += 8"),
    ],
)
def test_a_place_that_is_no_number_of_passes_is_refused(loop: str, order: str, after: str) -> None:
    before = "at = 0" if order == "pass" else ""
    known = _known(script(loop, MOVED, after, order, before))
    assert isinstance(known, Unshared)
    assert "goes on from the `at`" in known.why


@pytest.mark.parametrize("length", ["len(x)", "x.shape[0]", "x.size(0)"])
def test_the_length_of_drawn_data_is_alike_on_all_ranks(length: str) -> None:
    """`x = broadcast_value(torch.rand(40, 4))` has it: nothing is drawn for the number of steps."""
    text = edited(script(f"i in range(0, {length}, 8)", "xb, yb = x[i:i + 8], y[i:i + 8]"), "DDP309", "DDP515").text
    assert f"for i in share_of_rank(range(0, {length}, 8)):" in text


def test_an_order_that_a_method_draws_in_each_epoch_is_sent_once() -> None:
    before = """
import numpy as np
class Rows:
    def __init__(self, x, y):
        self.x, self.y = x, y
    def shuffle(self):
        order = np.random.permutation(len(self.x))
        self.x, self.y = self.x[order], self.y[order]
rows = Rows(x, y)
"""
    batch = "xb, yb = rows.x[i * 8:i * 8 + 8], rows.y[i * 8:i * 8 + 8]"
    text = edited(script("i in range(5)", batch, order="rows.shuffle()", before=before), "DDP305", "DDP309").text
    assert "        order = broadcast_value(np.random.permutation(len(self.x)))\n" in text
