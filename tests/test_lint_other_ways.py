"""More ways in which projects write DDP that look like a fault and are none, each beside the fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpify.linting.check import Task, check
from ddpify.linting.settings import Settings
from ddpify.source import Source
from tests.test_lint_cases import HEAD, TAIL


def found(code: str, *rules: str) -> set[str]:
    """What lint says of a script that is right without this code, of some rules or of all."""
    source = Source(Path("train.py"), f"{HEAD}{code}\n{TAIL}".encode())
    settings = Settings(select=rules) if rules else Settings(ignore=("DDP222",))
    return {p.code for p in check(source, "train.py", Task(settings)).problems}


TWO_LOADERS = """
class Endless(DataLoader):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.iterator = super().__iter__()

    def __iter__(self):
        for _ in range(len(self)):
            yield next(self.iterator)


def make_loader(data, size, rank=-1, plain=False):
    {sampler}
    kind = DataLoader if plain else Endless
    return kind(data, {given}sampler=sampler), data


def validate(net, loader=None):
    total = 0.0
    with torch.no_grad():
        for x, y in loader:
            total += F.mse_loss(net(x.cuda()), y.cuda()).item()
    return total


own, _ = make_loader(train_set, 4, rank=rank)
held = make_loader(test_set, 8, {rank})[0]
for epoch in range(2):
    own.sampler.set_epoch(epoch)
    for x, y in own:
        optimizer.zero_grad()
        F.mse_loss(model(x.cuda()), y.cuda()).backward()
        optimizer.step()
    if rank in (-1, 0):
        total = validate(net, loader=held)
"""


@pytest.mark.parametrize("given", ["batch_size=size, ", "size, "])
@pytest.mark.parametrize(
    "sampler",
    [
        "sampler = DistributedSampler(data) if rank != -1 else None",
        "sampler = None\n    if rank >= 0:\n        sampler = DistributedSampler(data)",
    ],
)
@pytest.mark.parametrize("rank", ["rank=-1", "", "rank=rank"])
def test_two_loaders_that_one_function_makes(given: str, sampler: str, rank: str) -> None:
    """By `*args` and `**kwargs` each call hands on its own; -1 for the rank makes no sampler."""
    code = TWO_LOADERS.format(given=given, sampler=sampler, rank=rank)
    assert found(code, "DDP304") == ({"DDP304"} if rank == "rank=rank" else set())
