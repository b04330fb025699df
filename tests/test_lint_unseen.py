"""Whole scripts in the shapes that repositories which nobody here had seen turned out to have."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from ddpify.linting.check import Task, check
from ddpify.linting.settings import Settings
from ddpify.source import Source

TOP = """
import argparse
import os
import sys
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from torch.utils.tensorboard import SummaryWriter
"""

STEPS = """
def steps(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 4)).mean().backward()
        optimizer.step()
"""


def lines(code: str, *rules: str) -> list[str]:
    """The lines at which lint finds something of some rules."""
    text = f"{TOP}\n{STEPS}\n{dedent(code)}"
    problems = check(Source(Path("train.py"), text.encode()), "train.py", Task(Settings(select=rules))).problems
    return [text.splitlines()[p.line - 1].strip() for p in problems]


WORLD = """
{kind}
    size: int
    rank: int
    main: bool


def start():
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        dist.init_process_group("gloo")
        {made}
    else:
        world = World(1, 0, True)
    print(f"started {{world}}")
    return world


def main():
    world = start()
    model = DDP(nn.Linear(4, 1))
    steps(model)
    if world.{field}:
        print("done")
        torch.save(model.module.state_dict(), "net.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
"""
RECORD, TUPLE = "@dataclass\nclass World:", "class World(NamedTuple):"
NAMED = "world = World(size=dist.get_world_size(), rank=dist.get_rank(), main=dist.get_rank() == 0)"
PLACED = "rank = dist.get_rank(); world = World(dist.get_world_size(), rank, not rank)"


@pytest.mark.parametrize("kind", [RECORD, TUPLE])
@pytest.mark.parametrize("made", [NAMED, PLACED])
@pytest.mark.parametrize("test", ["main", "rank == 0"])
def test_a_field_of_a_dataclass_tells_the_rank(kind: str, made: str, test: str) -> None:
    assert lines(WORLD.format(kind=kind, made=made, field=test), "DDP401", "DDP402") == []


@pytest.mark.parametrize("kind", [RECORD, TUPLE])
def test_a_field_of_a_dataclass_that_is_the_same_everywhere(kind: str) -> None:
    found = lines(WORLD.format(kind=kind, made=NAMED, field="size > 1"), "DDP401", "DDP402")
    assert found == ['print("done")', 'torch.save(model.module.state_dict(), "net.pt")']


def test_a_field_of_a_dataclass_that_settings_hold() -> None:
    code = """
    @dataclass
    class World:
        rank: int
        chief: bool


    def settings():
        dist.init_process_group("gloo")
        from somewhere import Settings
        return Settings(world=World(dist.get_rank(), dist.get_rank() == 0))


    config = settings()
    steps(DDP(nn.Linear(4, 1)))
    if config.world.chief:
        print("done")
    if config.world.large:
        print("large")
    dist.destroy_process_group()
    """
    assert lines(code, "DDP402") == ['print("large")']


SPAWNED = """
class Trainer:
    def __init__(self, args):
        self.args = args
        self.model = DDP(nn.Linear(4, 1))
        if args.board:
            self.writer = SummaryWriter("runs")
        if self.args.verbose:
            print(self.model)

    def run(self):
        steps(self.model)
        if self.args.first:
            print("first")


def worker({parameters}):
    {own}
    dist.init_process_group("gloo", rank=rank, world_size=args.world_size)
    args.first = rank == 0
    if args.same_lr:
        print("one learning rate")
    else:
        print("two learning rates")
    if rank == 0:
        print("of rank 0")
    Trainer(args).run()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--board", action="store_true")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--same_lr", action="store_true")
    parser.add_argument("--world_size", type=int, default=2)
    args = parser.parse_args()
    {starts}
"""
STARTED = [
    ("rank, args", "pass", "mp.spawn(worker, nprocs=args.world_size, args=(args,))"),
    ("gpu, size, args", "rank = gpu", "mp.spawn(worker, nprocs=2, args=(2, args))"),
    ("rank, args", "pass", "for r in range(2): mp.Process(target=worker, args=(r, args)).start()"),
]


@pytest.mark.parametrize(("parameters", "own", "starts"), STARTED)
def test_a_flag_of_the_ranks_that_are_spawned_is_no_test_of_the_rank(parameters: str, own: str, starts: str) -> None:
    assert lines(SPAWNED.format(parameters=parameters, own=own, starts=starts), "DDP402") == [
        'self.writer = SummaryWriter("runs")',
        "print(self.model)",
        'print("one learning rate")',
        'print("two learning rates")',
    ]


QUIET = """
def quiet():
    global out
    {kept}
    sys.stdout = open(os.devnull, "w")


def loud():
    {back}


dist.init_process_group("gloo")
model = DDP(nn.Linear(4, 1))
print("made")
if dist.get_rank() {who} 0:
    quiet()
    model.module.eval()
    loud()
steps(model)
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("kept", "back", "who", "found"),
    [
        ("pass", "sys.stdout = sys.__stdout__", "==", ['print("made")']),
        ("out = sys.stdout", "sys.stdout = out", "!=", ['print("made")']),
        ("pass", "pass", "!=", []),
    ],
)
def test_what_is_hidden_for_a_while_only(kept: str, back: str, who: str, found: list[str]) -> None:
    assert lines(QUIET.format(kept=kept, back=back, who=who), "DDP402") == found


PATHS = """
dist.init_process_group("gloo")
rank = dist.get_rank()
if rank == 0:
    path = "args.txt"
    with open(path, "w") as f:
        f.write("a")
{path}
with open(path, "w") as f:
    f.write("b")
steps(DDP(nn.Linear(4, 1)))
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ('path = "names.txt"', ['with open(path, "w") as f:']),
        ('path = f"names{rank}.txt"', []),
        ('path = "names.txt"\nif rank != 0:\n    path = os.devnull', []),
        ('if rank != 0:\n    path = "other.txt"', []),
    ],
)
def test_a_name_that_gets_another_path(path: str, found: list[str]) -> None:
    assert lines(PATHS.format(path=path), "DDP401") == found


EPOCHS = """
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
args = parser.parse_args()
dist.init_process_group("gloo")
data = TensorDataset(torch.randn(16, 4))
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=4, sampler=sampler)
model = DDP(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(args.epochs):
    {more}
    sampler.set_epoch({given})
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("more", "given", "wrong"),
    [
        ("pass", "args.epochs", True),
        ("pass", "0", True),
        ("pass", "epoch", False),
        ("args.now = epoch", "args.now", False),
        ("args.epochs += 1", "args.epochs", False),
        ('setattr(args, "epochs", epoch)', "args.epochs", False),
        ("pass", "args.epochs + epoch", False),
    ],
)
def test_set_epoch_with_the_same_number(more: str, given: str, wrong: bool) -> None:
    assert lines(EPOCHS.format(more=more, given=given), "DDP302") == [f"sampler.set_epoch({given})"] * wrong


HANDED = """
def run(rank, size):
    print("of every rank")
    if rank == 0:
        print("of one rank")
    steps(DDP(nn.Linear(4, 1)))


def plain(rank, size):
    print("never called")


def start({parameters}, backend="gloo"):
    dist.init_process_group(backend, rank=rank, world_size=size)
    fn(rank, size)
    dist.destroy_process_group()


if __name__ == "__main__":
    {starts}
"""


@pytest.mark.parametrize(
    ("parameters", "starts"),
    [
        ("rank, size, fn", "for r in range(2): mp.Process(target=start, args=(r, 2, run)).start()"),
        ("rank, size, fn", "mp.spawn(start, args=(2, run), nprocs=2)"),
        ("rank, size, unused, fn", "mp.spawn(start, args=(2, plain, run), nprocs=2)"),
    ],
)
def test_a_function_that_the_spawned_one_is_given(parameters: str, starts: str) -> None:
    found = lines(HANDED.format(parameters=parameters, starts=starts), "DDP402")
    assert found == ['print("of every rank")']


GIVEN = """
def build(size, verbose=0, show=False):
    if verbose > 1:
        print("much")
    if verbose:
        print("little")
    if show:
        print("shown")
    if size > 2:
        print("large")
    return nn.Linear(size, 1)


def deeper(size, verbose):
    return build(size, verbose=verbose)


dist.init_process_group("gloo")
steps(DDP(deeper(4, {verbose})))
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("verbose", "found"),
    [
        ("0", ['print("large")']),
        ("1", ['print("little")', 'print("large")']),
        ("2", ['print("much")', 'print("little")', 'print("large")']),
        ("int(os.environ['LOUD'])", ['print("much")', 'print("little")', 'print("large")']),
    ],
)
def test_what_the_arguments_of_every_caller_rule_out(verbose: str, found: list[str]) -> None:
    assert lines(GIVEN.format(verbose=verbose), "DDP402") == found


METERS = """
class Meter:
    def __init__(self):
        self.sum, self.count = 0.0, 0

    def update(self, value, n):
        self.sum += value * n
        self.count += n


def mean(value):
    dist.all_reduce(value)
    return value / dist.get_world_size()


def validate(model, loader):
    meter = Meter()
    model.eval()
    with torch.no_grad():
        for (x,) in loader:
            loss = model(x).mean()
            {reduce}
            meter.update(loss.item(), len(x))
    {behind}
    return meter


dist.init_process_group("gloo")
held = TensorDataset(torch.randn(33, 4))
model = DDP(nn.Linear(4, 1))
loader = DataLoader(held, batch_size=4, sampler={sampler})
steps(model)
print(dist.get_rank(), validate(model, loader).sum)
dist.destroy_process_group()
"""
PADS, ALL = "DistributedSampler(held, shuffle=False)", "None"


@pytest.mark.parametrize(
    ("reduce", "behind", "sampler", "wrong"),
    [
        ("loss = mean(loss)", "pass", PADS, True),
        ("dist.all_reduce(loss)", "pass", PADS, True),
        ("pass", "t = torch.tensor(meter.sum); dist.all_reduce(t); meter.sum = t.item()", PADS, True),
        ("loss = mean(loss)", "pass", ALL, False),
        ("loss = mean(loss)", "pass", "DistributedSampler(held, drop_last=True)", False),
    ],
)
def test_an_evaluation_that_pads_and_reduces_its_meters(reduce: str, behind: str, sampler: str, wrong: bool) -> None:
    found = lines(METERS.format(reduce=reduce, behind=behind, sampler=sampler), "DDP304")
    assert found == [f"loader = DataLoader(held, batch_size=4, sampler={sampler})"] * wrong


SHARE = """
class Share:
    def __init__(self, path):
        self.path = path
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.size = dist.get_world_size() if dist.is_initialized() else 1

    def cut(self, data):
        order = torch.randperm(len(data))
        count = len(data) // self.size
        {cut}

    def epochs(self):
        while True:
            yield self.cut(torch.load(self.path, map_location="cpu"))


dist.init_process_group("gloo")
every = Share("data").epochs()
model = DDP(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    data = next(every)
    for (x,) in DataLoader(data, batch_size=4, shuffle=True):
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("cut", "wrong"),
    [
        ("return data[order[self.rank * count : (self.rank + 1) * count]]", False),
        ("return data[order[self.rank :: self.size]]", False),
        ("return data[order[: count * self.size]]", True),
    ],
)
def test_data_that_cut_out_the_share_of_their_rank(cut: str, wrong: bool) -> None:
    assert bool(lines(SHARE.format(cut=cut), "DDP301")) is wrong


THAWED = """
dist.init_process_group("gloo")
net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
{before}
model = DDP(net, find_unused_parameters=True)
for p in model.parameters():
    p.requires_grad = False
for p in model.module[1].parameters():
    p.requires_grad = True
steps(model)
dist.destroy_process_group()
"""


@pytest.mark.parametrize(("before", "wrong"), [("pass", False), ("net[1].requires_grad_(False)", True)])
def test_a_part_is_trained_that_was_trained_at_the_wrap(before: str, wrong: bool) -> None:
    assert lines(THAWED.format(before=before), "DDP213") == ["p.requires_grad = True"] * wrong


LOGS = """
import logging

logger = logging.getLogger("train")


def quieten(log, name, chief):
    said = getattr(log, name)

    def say(*args, **kwargs):
        if chief:
            said(*args, **kwargs)

    {set}


dist.init_process_group("gloo")
rank = dist.get_rank()
if rank != 0:
    {stdout}
logging.basicConfig(level=logging.INFO, {stream})
logger.addHandler(logging.FileHandler("train.log"))
for name in ("info", "warning"):
    quieten(logger, name, rank == 0)
logger.info("started")
steps(DDP(nn.Linear(4, 1)))
dist.destroy_process_group()
"""
FILE, SAID = 'logger.addHandler(logging.FileHandler("train.log"))', 'logger.info("started")'
NULL = 'sys.stdout = open(os.devnull, "w")'


@pytest.mark.parametrize(
    ("set", "stdout", "stream", "found"),
    [
        ("setattr(log, name, say)", "pass", "", [FILE]),
        ("log.__setattr__(name, say)", "pass", "", [FILE]),
        ("pass", NULL, "stream=sys.stdout", [FILE]),
        ("pass", NULL, "", [FILE, SAID]),  # logging writes to sys.stderr
        ("pass", "pass", "stream=sys.stdout", [FILE, SAID]),
    ],
)
def test_loggers_that_say_nothing_on_other_ranks(set: str, stdout: str, stream: str, found: list[str]) -> None:
    assert lines(LOGS.format(set=set, stdout=stdout, stream=stream), "DDP402") == found


SETTINGS = """
import yaml

parser = argparse.ArgumentParser()
parser.add_argument("--rank", type=int, default=0)
parser.add_argument("--config", default="a.yaml")
args = parser.parse_args()
args.chief = args.rank == 0
dist.init_process_group("gloo")
with open(args.config) as f:
    config = yaml.safe_load(f)
{merge}
steps(DDP(nn.Linear(4, 1)))
if config[{key}]:
    print("by the settings")
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("merge", "key", "wrong"),
    [
        ("config.update(vars(args))", '"rank"', False),
        ("config.update(vars(args))", '"chief"', False),
        ("config.update(vars(args))", '"verbose"', True),
        ("pass", '"chief"', True),
    ],
)
def test_arguments_that_settings_take_in(merge: str, key: str, wrong: bool) -> None:
    assert lines(SETTINGS.format(merge=merge, key=key), "DDP402") == ['print("by the settings")'] * wrong


DRAWN = """
from torch.utils.data import RandomSampler


class Lines(torch.utils.data.Dataset):
    def __init__(self, texts, rank=0, size=1):
        self.texts = texts[rank::size]

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, at):
        return self.texts[at]


dist.init_process_group("gloo")
data = Lines(torch.randn(16, 4){given})
loader = DataLoader(data, batch_size=4, sampler=RandomSampler(data))
model = DDP(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for x in loader:
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
dist.destroy_process_group()
"""


def test_a_random_sampler_over_the_share_of_a_rank() -> None:
    assert lines(DRAWN.format(given=", dist.get_rank(), dist.get_world_size()"), "DDP301") == []


def test_a_random_sampler_over_everything() -> None:
    plain = DRAWN.format(given="").replace("texts, rank=0, size=1", "texts").replace("texts[rank::size]", "texts")
    assert lines(plain, "DDP301") == ["loader = DataLoader(data, batch_size=4, sampler=RandomSampler(data))"]


PAIRS = """
def gather(a, b):
    every_a = [torch.zeros_like(a) for _ in range(dist.get_world_size())]
    every_b = [torch.zeros_like(b) for _ in range(dist.get_world_size())]
    dist.all_gather(every_a, a)
    dist.all_gather(every_b, b)
    return torch.cat(every_a), torch.cat(every_b)


def contrast(a, b):
    if dist.get_world_size() > 1:
        {gather}
        logits = all_a @ all_b.t()
    else:
        logits = a @ b.t()
    return nn.functional.cross_entropy(logits, torch.arange(len(logits)))


dist.init_process_group("gloo")
data = TensorDataset(torch.randn(16, 4))
sampler = DistributedSampler(data)
model = DDP(nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for (x,) in DataLoader(data, batch_size=4, sampler=sampler):
        y = model(x)
        optimizer.zero_grad()
        contrast(y, y.flip(1)).backward()
        optimizer.step()
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("gather", "found"),
    [
        ("all_a, all_b = gather(a, b)", []),
        ("all_a, all_b = a, b", ["logits = all_a @ all_b.t()", "logits = a @ b.t()"]),
    ],
)
def test_pairs_that_were_gathered_and_those_of_one_process(gather: str, found: list[str]) -> None:
    assert lines(PAIRS.format(gather=gather), "DDP514") == found


TRAINER = """
class Trainer:
    def __init__(self, model, rank=0, size=1):
        self.size = size
        if self.size > 1:
            model = DDP(model)
        self.model = model

    def run(self):
        steps(self.model)
        print("done")


Trainer(nn.Linear(4, 1){given}).run()
"""


@pytest.mark.parametrize(
    ("given", "wrong"), [("", False), (", 0, 1", False), (", size=2", True), (", size=int(os.environ['N'])", True)]
)
def test_a_trainer_that_nobody_tells_of_other_ranks(given: str, wrong: bool) -> None:
    assert lines(TRAINER.format(given=given), "DDP402") == ['print("done")'] * wrong


def test_a_dict_that_holds_itself() -> None:
    code = """
    def tree():
        made = {}
        made["self"] = made
        made["all"] = [made]
        return made


    dist.init_process_group("gloo")
    first, second = tree(), tree()
    steps(DDP(nn.Linear(4, 1)))
    print(first, second)
    dist.destroy_process_group()
    """
    assert lines(code, "DDP402") == ["print(first, second)"]


@pytest.mark.parametrize(("size", "wrong"), [("1", False), ("2", True), ("int(os.environ['N'])", True)])
def test_a_group_of_one_process(size: str, wrong: bool) -> None:
    code = f"""
    dist.init_process_group("gloo", rank=0, world_size={size}, store=dist.HashStore())
    steps(DDP(nn.Linear(4, 1)))
    print("done")
    """
    assert (
        lines(code, "DDP102", "DDP402")
        == ['print("done")', f'dist.init_process_group("gloo", rank=0, world_size={size}, store=dist.HashStore())'][
            ::-1
        ]
        * wrong
    )


CHECKPOINTED = """
from torch.utils.checkpoint import checkpoint


class Net(nn.Module):
    def __init__(self, saves_memory=False):
        super().__init__()
        self.saves_memory = saves_memory
        self.layer = nn.Linear(4, 1)

    def forward(self, x):
        if self.saves_memory:
            return checkpoint(self.layer, x)
        return self.layer(x)


dist.init_process_group("gloo")
steps(DDP(Net({given})))
dist.destroy_process_group()
"""


@pytest.mark.parametrize(("given", "wrong"), [("", False), ("True", True), ("bool(os.environ.get('SAVE'))", True)])
def test_a_checkpoint_that_nobody_asks_for(given: str, wrong: bool) -> None:
    found = lines(CHECKPOINTED.format(given=given), "DDP216")
    assert found == ["return checkpoint(self.layer, x)"] * wrong


FLAG_OFF = """
if __name__ == "__main__":
    distributed = False
    if distributed:
        dist.init_process_group("nccl")
        local_rank = int(os.environ["LOCAL_RANK"])
        device = torch.device("cuda", local_rank)
        print(f"rank {local_rank}")
    else:
        device = torch.device("cuda")
        local_rank = 0
    model = nn.Linear(4, 1).to(device)
    if local_rank == 0:
        print(model)
    if distributed:
        net = DDP(model, device_ids=[local_rank])
    else:
        net = nn.DataParallel(model)
    steps(net)
    if local_rank == 0:
        print("done")
        torch.save(model.state_dict(), "net.pt")
"""


def test_a_flag_that_is_off_is_taken_at_its_word() -> None:
    """Half of it was read as if it were on: a wrapper without a group, and prints under the test of the rank."""
    assert lines(FLAG_OFF, "DDP101", "DDP401", "DDP402") == []
