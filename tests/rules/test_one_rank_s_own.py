"""DDP501 and DDP504: what of a training loop stays one rank's own is named, by whatever way the loop changes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpify.convert import convert_source
from ddpify.source import Source

SCRIPT = """\
import types

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Meter:
    def __init__(self):
        self.reset()

    def reset(self):
        self.total = self.n = 0

    def update(self, value, n):
        self.total += value * n
        self.n += n

    @property
    def mean(self):
        return self.total / self.n


def count(guess, y, hits):
    for g, t in zip(guess, y):
        hits[t] += int(g == t)


def counted(guess, y):
    hits = torch.zeros(3)
    for g, t in zip(guess, y):
        hits[t] += int(g == t)
    return hits


def counted_on(hits, guess, y):
    count(guess, y, hits)
    return hits


def count_in(stats, guess, y):
    count(guess, y, stats.hits)


def count_here(guess, y):
    count(guess, y, SEEN)


def train(net, loader, optimizer, kept=None):
    START
    for step, (x, y) in enumerate(loader):
        out = net(x)
        loss = nn.functional.cross_entropy(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        guess = out.argmax(1)
        STEP
    END


SEEN = torch.zeros(3)
LOSSES = []
METER = Meter()
loader = DataLoader(TensorDataset(torch.randn(64, 8), torch.randint(0, 3, (64,))), batch_size=8)
net = nn.Linear(8, 3)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(2):
    given = GIVEN
    train(net, loader, optimizer, given)
    print(given, SEEN, LOSSES, METER.mean)
"""
ZEROS = "hits = torch.zeros(3)"


def converted(start: str, step: str, end: str, given: str = "None") -> tuple[str, list[str]]:
    """The new text, and the notes of both rules."""
    text = SCRIPT.replace("START", start).replace("STEP", step).replace("END", end).replace("GIVEN", given)
    done = convert_source(Source(Path("train.py"), text.encode()))
    assert not done.plan.left
    return done.text, [f.message for f in done.plan.notes if f.code in ("DDP501", "DDP504")]


@pytest.mark.parametrize(
    ("start", "step"),
    [
        (ZEROS, "count(guess, y, hits)"),
        (ZEROS, "hits += counted(guess, y)"),
        (ZEROS, "hits = counted_on(hits, guess, y)"),
        (ZEROS, "hits = torch.add(hits, torch.bincount(y, minlength=3))"),
        (ZEROS, "hits.index_add_(0, y, (guess == y).float())"),
        (ZEROS, "hits.scatter_add_(0, y, torch.ones(len(y)))"),
        (ZEROS, "hits.add_(torch.bincount(y, minlength=3))"),
        (ZEROS, "hits[y] = hits[y] + 1"),
        (ZEROS, "hits = torch.maximum(hits, out.detach().max(0).values)"),
        ("hits = np.zeros(3)", "np.add.at(hits, y.numpy(), 1)"),
        ("hits = [[] for _ in range(3)]", "[hits[t].append(int(g == t)) for g, t in zip(guess, y)]"),
        ("hits = [0, 0, 0]", "count(guess, y, hits)"),
        ("hits = 0.0", "hits = max(hits, loss.item())"),
        ("hits = types.SimpleNamespace(hits=torch.zeros(3))", "count_in(hits, guess, y)"),
    ],
)
def test_numbers_of_a_shard_that_are_used_behind_the_loop_are_named(start: str, step: str) -> None:
    _, notes = converted(start, step, "print(hits)")
    assert len(notes) == 1
    assert notes[0].startswith(("`hits` keeps numbers of each rank's own", "`hits.hits` keeps numbers of each rank's"))


@pytest.mark.parametrize(
    ("step", "given", "name"),
    [
        ("kept[y] += 1", "torch.zeros(3)", "kept"),
        ("kept.index_add_(0, y, torch.ones(len(y)))", "torch.zeros(3)", "kept"),
        ("count(guess, y, kept)", "torch.zeros(3)", "kept"),
        ("kept.append((loss.item(), len(x)))", "[]", "kept"),
        ("kept.update(loss.item(), len(x))", "Meter()", "kept"),
        ("SEEN[y] += 1", "None", "SEEN"),
        ("count_here(guess, y)", "None", "SEEN"),
        ("METER.update(loss.item(), len(x))", "None", "METER"),
    ],
)
def test_numbers_of_a_shard_that_others_use_are_named(step: str, given: str, name: str) -> None:
    """What a caller gave to the function, or what belongs to the module, is used outside of it."""
    _, notes = converted("pass", step, "pass", given)
    assert len(notes) == 1
    assert notes[0].startswith(f"`{name}` keeps numbers of each rank's own training batches")


@pytest.mark.parametrize(
    ("start", "step", "given", "line"),
    [
        ("pass", "kept.append(loss.item())", "[]", "    kept[:] = all_reduce_mean(*kept)\n"),
        (
            "pass",
            'kept["loss"].append(loss.item())',
            '{"loss": []}',
            '    kept["loss"][:] = all_reduce_mean(*kept["loss"])\n',
        ),
        ("pass", "LOSSES.append(loss.item())", "None", "    LOSSES[:] = all_reduce_mean(*LOSSES)\n"),
        ("METER.reset()", "METER.update(loss.item(), len(x))", "None", "    METER.all_reduce()\n"),
        ("kept.reset()", "kept.update(loss.item(), len(x))", "Meter()", "    kept.all_reduce()\n"),
    ],
)
def test_what_others_use_is_brought_together_where_it_can_be(start: str, step: str, given: str, line: str) -> None:
    text, notes = converted(start, step, "pass", given)
    assert line in text
    assert not notes


@pytest.mark.parametrize(
    ("start", "step", "end", "given"),
    [
        (ZEROS, "count(guess, y, hits)", "pass", "None"),  # nobody looks at them
        (ZEROS, "hits[step % 3] += 1", "print(hits)", "None"),  # nothing of the batch
        ("pass", "kept[step % 3] += 1", "pass", "torch.zeros(3)"),
        ("pass", "x = x.add_(1); y[y > 2] = 0", "print(x, y)", "None"),  # the batch itself
        ("pass", "hits = torch.zeros(3); count(guess, y, hits)", "print(hits)", "None"),  # of the last batch
        ("pass", "net.requires_grad_(True)", "print(net)", "None"),
    ],
)
def test_what_is_no_number_of_all_batches_is_not_named(start: str, step: str, end: str, given: str) -> None:
    assert converted(start, step, end, given)[1] == []


@pytest.mark.parametrize(
    ("start", "step", "names"),
    [
        ("total = 0.0", "total += loss.item(); print(step, total / (step + 1))", "`total`"),
        ("total = 0.0", "total += loss.item(); mean = total / (step + 1); print(step, mean)", "`total`"),
        ("m = Meter()", "m.update(loss.item(), len(x)); print(step, m.mean)", "`m`"),
        ("m, n = Meter(), [0]", "m.update(loss.item(), len(x)); n[0] += len(x); print(f'{m.mean} {loss}')", "`m`"),
        ("losses = []", "losses.append(loss.item()); print(step, sum(losses) / len(losses))", "`losses`"),
        (
            "from tqdm import tqdm; bar = tqdm(total=8); hits = 0",
            "hits += (guess == y).sum().item(); bar.set_postfix(hits=hits)",
            "`hits`",
        ),
        (ZEROS, "count(guess, y, hits); print(hits)", "`hits`"),
    ],
)
def test_running_numbers_that_the_loop_shows_are_named(start: str, step: str, names: str) -> None:
    notes = converted(start, step, "pass")[1]
    assert len(notes) == 1
    assert notes[0].startswith(f"{names} in what the loop shows while it runs (line 59)")


@pytest.mark.parametrize(
    ("start", "step"),
    [
        ("total = 0.0", "total += loss.item(); print(step, loss.item())"),  # the step's own loss
        ("seen = 0", "seen += 1; print(seen)"),
        ("total = 0.0", "print(step, len(loader))"),
    ],
)
def test_what_a_step_says_of_itself_is_not_named(start: str, step: str) -> None:
    assert converted(start, step, "pass")[1] == []
