"""Ways in which projects write DDP that look like a fault and are none, each beside the fault that it looks like."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from ddpify.linting.check import Task, check
from ddpify.linting.root import check_root
from ddpify.linting.settings import Settings
from ddpify.source import Source
from tests.test_lint_cases import HEAD, TAIL

#: what happens, in a script that is right without it -> the rules that report it
CASES: dict[str, tuple[str, set[str]]] = {
    # the rank: where it comes from
    "the rank is a flag of absl": (
        """
        from absl import flags
        FLAGS = flags.FLAGS
        flags.DEFINE_integer("local_rank", 0, "set by the launcher")
        if FLAGS.local_rank == 0:
            torch.save(net.state_dict(), "net.pt")
        """,
        {"DDP108"},  # on every node, which is another matter
    ),
    "the rank of the job is called the local one": (
        """
        parser = argparse.ArgumentParser()
        args = parser.parse_args()
        args.local_rank = dist.get_rank()
        if args.local_rank == 0:
            torch.save(net.state_dict(), "net.pt")
        """,
        set(),
    ),
    "another flag of absl": (
        """
        from absl import flags
        FLAGS = flags.FLAGS
        flags.DEFINE_integer("level", 0, "how much is kept")
        if FLAGS.level == 0:
            torch.save(net.state_dict(), "net.pt")
        """,
        {"DDP401"},
    ),
    "the rank is kept in settings that a file gave": (
        """
        import yaml
        options = yaml.safe_load(open("options.yml"))
        options["rank"], options["world"] = dist.get_rank(), dist.get_world_size()
        if options["name"] and options["rank"] == 0:
            torch.save(net.state_dict(), "net.pt")
        """,
        set(),
    ),
    "another entry of settings that hold the rank": (
        """
        import yaml
        options = yaml.safe_load(open("options.yml"))
        options["rank"], options["world"] = dist.get_rank(), dist.get_world_size()
        if options["world"] == 0 or options["name"]:
            torch.save(net.state_dict(), "net.pt")
        """,
        {"DDP401"},
    ),
    "a reader of the environment is asked for the number of ranks": (
        """
        def number(names, default):
            for name in names:
                if name in os.environ:
                    return int(os.environ[name])
            return default
        own, all_of_them = number(["MY_RANK", "RANK"], 0), number(["MY_SIZE", "WORLD_SIZE"], 1)
        if all_of_them > 1:
            dist.barrier()
        """,
        set(),
    ),
    "a reader of the environment is asked for the rank": (
        """
        def number(names, default):
            for name in names:
                if name in os.environ:
                    return int(os.environ[name])
            return default
        own, all_of_them = number(["MY_RANK", "RANK"], 0), number(["MY_SIZE", "WORLD_SIZE"], 1)
        if own > 0:
            dist.barrier()
        """,
        {"DDP512"},
    ),
    "each rank works through days of its own": (
        """
        for day in range(rank, 24, world):
            torch.save(torch.zeros(3), f"day_{day}.pt")
        """,
        set(),
    ),
    "each rank works through files of its own": (
        """
        for at, name in enumerate(["a", "b", "c", "d"][rank::world]):
            torch.save(torch.zeros(3), os.path.join("out", name + ".pt"))
        """,
        set(),
    ),
    "every rank works through all days": (
        """
        for day in range(0, 24, 2):
            torch.save(torch.zeros(3), f"day_{day}.pt")
        """,
        {"DDP401"},
    ),
    "a suffix that tells the rank, handed on": (
        """
        def start(name, suffix=""):
            if rank > 0:
                suffix = suffix + "-rank%03i" % rank
            return open("log%s.txt" % suffix, "w")
        start("log")
        """,
        set(),
    ),
    # who runs it
    "what only a run without ranks comes to": (
        """
        def started():
            return dist.is_available() and dist.is_initialized()

        def small_loader():
            if started():
                raise NotImplementedError("one process only")
            return DataLoader(train_set, 8, shuffle=True)

        loader = small_loader()
        for epoch in range(3):
            for x, y in loader:
                F.mse_loss(model(x.cuda()), y.cuda()).backward()
                optimizer.step()
        """,
        set(),
    ),
    "what only a run with ranks comes to": (
        """
        def started():
            return dist.is_available() and dist.is_initialized()

        def small_loader():
            if not started():
                raise NotImplementedError("several processes only")
            return DataLoader(train_set, 8, shuffle=True)

        loader = small_loader()
        for epoch in range(3):
            for x, y in loader:
                F.mse_loss(model(x.cuda()), y.cuda()).backward()
                optimizer.step()
        """,
        {"DDP301"},
    ),
    "all ranks validate, rank 0 with a word on it": (
        """
        def validate(model):
            model.eval()
            with torch.no_grad():
                if rank == 0:
                    print("validating")
                    return sum(model(x.cuda()).sum().item() for x, _ in train_loader)
                else:
                    return sum(model(x.cuda()).sum().item() for x, _ in train_loader)
        validate(model)
        """,
        set(),
    ),
    "a helper lets one process go first, and is called for one process": (
        """
        def meet(at=-1):
            if at not in [-1, 0]:
                dist.barrier()
            if at == 0:
                dist.barrier()

        def make(data, at=-1):
            meet(at)
            return DataLoader(data, 8)

        make(train_set, local_rank)
        if rank == 0:
            make(test_set)
        """,
        set(),
    ),
    "a helper lets one process go first, and rank 0 alone calls it": (
        """
        def meet(at):
            if at not in [-1, 0]:
                dist.barrier()

        if rank == 1:
            meet(rank)
        """,
        {"DDP512"},
    ),
    "an object of another library saves, by keywords": (
        """
        import somewhere
        trainer = somewhere.registry()["trainer"](net)
        trainer.save(epoch=-1, step=1)
        """,
        set(),
    ),
    # numbers
    "a score of one process is compared with a score of all": (
        """
        class Score:
            def of(self, x, y):
                x *= 2
                return F.mse_loss(x, y)

        score, shard = Score(), DataLoader(test_set, 8, sampler=DistributedSampler(test_set, shuffle=False))

        def one(model, loader):
            total = 0
            for x, y in loader:
                total += score.of(model(x.cuda()), y.cuda())
            return total / len(loader)

        best = one(net, DataLoader(test_set, 8)) if rank == 0 else 0
        for epoch in range(3):
            train(model, epoch)
            value = one(model, shard)
            dist.reduce(value, 0)
            if rank == 0 and value < best:
                best = value
                torch.save(net.state_dict(), "best.pt")
        """,
        {"DDP304"},
    ),
    "a score of one shard is compared": (
        """
        class Score:
            def of(self, x, y):
                x *= 2
                return F.mse_loss(x, y)

        score, shard = Score(), DataLoader(test_set, 8, sampler=DistributedSampler(test_set, shuffle=False))

        def one(model, loader):
            total = 0
            for x, y in loader:
                total += score.of(model(x.cuda()), y.cuda())
            return total / len(loader)

        best = 1e9
        for epoch in range(3):
            train(model, epoch)
            value = one(net, shard)
            if rank == 0 and value < best:
                best = value
                torch.save(net.state_dict(), "best.pt")
        """,
        {"DDP304", "DDP506"},
    ),
    "a step in so many is reported, and a loop ends at the last": (
        """
        for epoch in range(3):
            sampler.set_epoch(epoch)
            for step, (x, y) in enumerate(train_loader):
                F.mse_loss(model(x.cuda()), y.cuda()).backward()
                optimizer.step()
                if step % 10 == 0 and step > 100:
                    break
        """,
        set(),
    ),
    "an attack in an evaluation goes backward": (
        """
        shard = DataLoader(test_set, 8, sampler=DistributedSampler(test_set))
        other = Net().cuda()

        def attack(x, y):
            x = x.clone().requires_grad_()
            F.mse_loss(other(x), y).backward()
            return x + 0.1 * x.grad.sign()

        for epoch in range(3):
            train(model, epoch)
            for x, y in shard:
                attack(x.cuda(), y.cuda())
        """,
        set(),
    ),
    "a loader, or a pair of them, is given back": (
        """
        def data(pairs):
            own = DataLoader(test_set, 8, sampler=DistributedSampler(test_set, shuffle=False))
            if pairs:
                return train_loader, sampler, own
            return DataLoader(test_set, 8), None

        loader, drawn, _ = data(True)
        held, _ = data(False)
        for epoch in range(3):
            drawn.set_epoch(epoch)
            for x, y in loader:
                F.mse_loss(model(x.cuda()), y.cuda()).backward()
                optimizer.step()
            with torch.no_grad():
                total = sum(F.mse_loss(net(x.cuda()), y.cuda()).item() for x, y in held)
            if rank == 0:
                print(total)
        """,
        set(),
    ),
    "a short batch is left out": (
        """
        def parts(batch):
            x, y = batch
            return x * 1.0, y * 1.0

        for epoch in range(3):
            sampler.set_epoch(epoch)
            for batch in train_loader:
                x, y = parts(batch)
                if x.size(0) % 2 != 0 or y.shape[0] < 4:
                    continue
                F.mse_loss(model(x.cuda()), y.cuda()).backward()
                optimizer.step()
        """,
        set(),
    ),
    "a batch of nothing but zeros is left out": (
        """
        def parts(batch):
            x, y = batch
            return x * 1.0, y * 1.0

        for epoch in range(3):
            sampler.set_epoch(epoch)
            for batch in train_loader:
                x, y = parts(batch)
                if x.abs().sum() == 0:
                    continue
                F.mse_loss(model(x.cuda()), y.cuda()).backward()
                optimizer.step()
        """,
        {"DDP506"},
    ),
    "samples are compared with those of all ranks, by a function of autograd": (
        """
        class Gather(torch.autograd.Function):
            @staticmethod
            def forward(ctx, z):
                parts = [torch.zeros_like(z) for _ in range(dist.get_world_size())]
                dist.all_gather(parts, z)
                return torch.cat(parts)

            @staticmethod
            def backward(ctx, grad):
                return grad

        for epoch in range(3):
            sampler.set_epoch(epoch)
            for x, _ in train_loader:
                z = F.normalize(model(x.cuda()))
                every = Gather.apply(z)
                torch.logsumexp(z @ every.t(), 1).mean().backward()
                optimizer.step()
        """,
        set(),
    ),
    "samples are compared with those of the rank": (
        """
        class Same(torch.autograd.Function):
            @staticmethod
            def forward(ctx, z):
                return z * 1

            @staticmethod
            def backward(ctx, grad):
                return grad

        for epoch in range(3):
            sampler.set_epoch(epoch)
            for x, _ in train_loader:
                z = F.normalize(model(x.cuda()))
                every = Same.apply(z)
                torch.logsumexp(z @ every.t(), 1).mean().backward()
                optimizer.step()
        """,
        {"DDP514"},
    ),
    # files
    "a file is loaded as it is by a process that drives all GPUs": (
        """
        gpu = None if world == 1 else local_rank
        if gpu is None:
            state = torch.load("net.pt")
        else:
            state = torch.load("net.pt", map_location=f"cuda:{gpu}")
        net.load_state_dict(state)
        """,
        set(),
    ),
    "a file is loaded as it is": (
        """
        if os.path.exists("net.pt"):
            net.load_state_dict(torch.load("net.pt"))
        else:
            net.load_state_dict(torch.load("other.pt", map_location="cpu"))
        """,
        {"DDP105"},
    ),
    "a launcher of the project spawns what loads a file, or calls it": (
        """
        import torch.multiprocessing as mp

        def start(run, at, function):
            function(at)

        def launch(function, count):
            if count > 1:
                mp.spawn(start, nprocs=count, args=(start, 0, function))
            else:
                function(0)

        def load(at):
            net.load_state_dict(torch.load("net.pt"))

        launch(load, world)
        """,
        {"DDP105"},
    ),
    "rank 0 alone loads a file": (
        """
        if rank == 0:
            net.load_state_dict(torch.load("net.pt"))
        """,
        set(),
    ),
    "what the script has brought to the CPU is loaded": (
        """
        if rank == 0:
            torch.save(torch.zeros(3).cuda().cpu(), os.path.join("out", "features.pt"))
        dist.barrier()
        features = torch.load(os.path.join("out", "features.pt"))
        """,
        set(),
    ),
    "what the script has saved from the GPU is loaded": (
        """
        if rank == 0:
            torch.save(torch.zeros(3).cuda(), os.path.join("out", "features.pt"))
        dist.barrier()
        features = torch.load(os.path.join("out", "features.pt"))
        """,
        {"DDP105"},
    ),
    "rank 0 has a folder with the time in its name": (
        """
        class Run:
            def __init__(self):
                if rank == 0:
                    self.folder = time.strftime("runs/%H%M%S")
                    os.makedirs(self.folder, exist_ok=True)

            def resume(self):
                return torch.load(os.path.join(self.folder, "net.pt"), map_location="cpu")

        run = Run()
        if os.path.exists("resume"):
            run.resume()
        """,
        set(),
    ),
    "an argument with the time in it names a run of rank 0": (
        """
        parser = argparse.ArgumentParser()
        parser.add_argument("--tag", default=time.strftime("%H%M%S"))
        args = parser.parse_args()
        if local_rank > 0:
            folder = None
        else:
            folder = os.path.join("runs", args.tag)
            os.makedirs(folder, exist_ok=True)
        """,
        set(),
    ),
    "an argument with the time in it names a folder of all": (
        """
        parser = argparse.ArgumentParser()
        parser.add_argument("--tag", default=time.strftime("%H%M%S"))
        args = parser.parse_args()
        os.makedirs(os.path.join("runs", args.tag), exist_ok=True)
        """,
        {"DDP403"},
    ),
    "a listing of which there may be one": (
        """
        cached = glob.glob("cache/*.bin")
        if len(cached) == 1:
            open(cached[0], "rb").read()
        newest = sorted(list(glob.glob("*.pt")))[-1]
        """,
        set(),
    ),
    "a listing of which the first is taken": (
        """
        cached = glob.glob("cache/*.bin")
        if len(cached) > 1:
            open(cached[0], "rb").read()
        newest = list(glob.glob("*.pt"))[-1]
        """,
        {"DDP307"},
    ),
    "libraries that take a lock download": (
        """
        import datasets
        from huggingface_hub import hf_hub_download
        words = datasets.load_dataset("words")
        weights = hf_hub_download("me/net", "net.bin")
        """,
        set(),
    ),
    "a file is downloaded by all": (
        """
        import urllib.request
        urllib.request.urlretrieve("https://example.org/words.zip", "words.zip")
        """,
        {"DDP303"},
    ),
    # models
    "a wrapper is taken off where there is one": (
        """
        def save(model, ddp):
            if ddp:
                raw = model.module
            else:
                raw = model
            if rank == 0:
                torch.save({"model": raw.state_dict()}, "net.pt")
        import somewhere
        save(DDP(somewhere.make(), device_ids=[local_rank]), world > 1)
        """,
        set(),
    ),
    "a wrapper is saved": (
        """
        def save(model, ddp):
            if ddp:
                raw = model
            else:
                raw = model
            if rank == 0:
                torch.save({"model": raw.state_dict()}, "net.pt")
        import somewhere
        save(DDP(somewhere.make(), device_ids=[local_rank]), world > 1)
        """,
        {"DDP203"},
    ),
    "a model wraps the part of it that it trains": (
        """
        class Task(nn.Module):
            def __init__(self, net):
                super().__init__()
                self.net = net

            def distribute(self):
                self.net = DDP(self.net, device_ids=[local_rank])

            def forward(self, x, y):
                return F.mse_loss(self.net(x), y)

        task = Task(Net().cuda())
        task.distribute()
        optimizer = torch.optim.SGD(task.parameters(), lr=0.1)
        for epoch in range(3):
            sampler.set_epoch(epoch)
            for x, y in train_loader:
                task(x.cuda(), y.cuda()).backward()
                optimizer.step()
        """,
        set(),
    ),
    "a model trains a part of it that it does not wrap": (
        """
        class Task(nn.Module):
            def __init__(self, net):
                super().__init__()
                self.net = net

            def forward(self, x, y):
                return F.mse_loss(self.net(x), y)

        task = Task(Net().cuda())
        optimizer = torch.optim.SGD(task.parameters(), lr=0.1)
        for epoch in range(3):
            sampler.set_epoch(epoch)
            for x, y in train_loader:
                task(x.cuda(), y.cuda()).backward()
                optimizer.step()
                F.mse_loss(model(x.cuda()), y.cuda()).backward()
        """,
        {"DDP201"},
    ),
    "names that are made of each other": (
        """
        pair = (rank, world)
        for _ in range(2):
            other = pair
            pair = other
        mine, size = pair
        if mine == 0:
            torch.save(net.state_dict(), "net.pt")
        """,
        set(),
    ),
    "what the script refuses with ranks runs by itself": (
        """
        args = argparse.ArgumentParser().parse_args()
        if local_rank != -1:
            assert not args.search, "not with several processes"
            dist.init_process_group("nccl")
        if not args.search:
            pass
        else:
            torch.save(net.state_dict(), "best.pt")
        """,
        set(),
    ),
    "what the script asks for with ranks runs on all of them": (
        """
        args = argparse.ArgumentParser().parse_args()
        if local_rank != -1:
            assert not args.search, "not with several processes"
            dist.init_process_group("nccl")
        if not args.search:
            torch.save(net.state_dict(), "best.pt")
        """,
        {"DDP401"},
    ),
    "one file that is looked for": (
        """
        found = []
        for folder in ("data", "models"):
            found.extend(glob.glob(folder + "/*.yaml"))
        assert len(found) == 1, f"several: {found}"
        print(found[0])
        """,
        set(),
    ),
    "the first of the files that are looked for": (
        """
        found = glob.glob("models/*.yaml")
        assert len(found) > 0, f"none: {found}"
        state = torch.load(found[0], map_location="cpu")
        """,
        {"DDP307"},
    ),
    "an engine of another library beside the wrapper": (
        """
        def step(model, scaler):
            if scaler is None:
                model.micro_steps = 0

        args = argparse.ArgumentParser().parse_args()
        if args.engine:
            scaler = None
            trained = net
        else:
            trained = DDP(net, device_ids=[local_rank])
            scaler = torch.amp.GradScaler()
        step(trained, scaler)
        """,
        set(),
    ),
    "the wrapper where there is no scaler": (
        """
        def step(model, scaler):
            if scaler is None:
                model.micro_steps = 0

        args = argparse.ArgumentParser().parse_args()
        scaler = torch.amp.GradScaler() if args.half else None
        step(model, scaler)
        """,
        {"DDP202"},
    ),
    "files of the data that each rank draws": (
        """
        import random

        def batch(files):
            for name in random.sample(files, k=4):
                with open(name, "rb") as file:
                    yield file.read()

        for text in batch(sorted(os.listdir("songs"))):
            len(text)
        """,
        set(),
    ),
    "the greatest number among the files": (
        """
        last = None
        for name in os.listdir("checkpoints"):
            number = int(name)
            if last is None or number > last:
                last = number
        """,
        set(),
    ),
    "the last name that a listing gives": (
        """
        names = []
        for name in os.listdir("images"):
            if name > "a":
                names.append(name)
        held = torch.utils.data.Subset(names, [0, 2])
        """,
        {"DDP307"},
    ),
}


def codes(code: str) -> tuple[set[str], list[str]]:
    source = Source(Path("train.py"), f"{HEAD}{dedent(code).strip()}\n{TAIL}".encode())
    problems = check(source, "train.py", Task(Settings(ignore=("DDP222", "DDP402")))).problems
    return {p.code for p in problems}, [f"{p.code} {p.line}: {p.message}" for p in problems]


@pytest.mark.parametrize("name", CASES)
def test_a_way_to_write_it(name: str) -> None:
    code, rules = CASES[name]
    found, said = codes(code)
    assert found == rules, said


SINK = """
import logging
import sys

class Lines:
    def __init__(self, target):
        if isinstance(target, str):
            self.file = open(target, "wt")
        else:
            self.file = target

    def write(self, text):
        self.file.write(text)

def sink(kind, suffix):
    return Lines(sys.stdout) if kind == "stdout" else Lines("log" + suffix)

suffix = f"-rank{rank}" if rank > 0 else ""
kinds = os.environ.get("FORMATS", "stdout,log").split(",")
for out in [sink(kind, suffix) for kind in kinds]:
    out.write("started")
logging.debug("the shapes are %s", train_set)
"""


def test_a_sink_for_a_stream_or_a_file_of_each_rank() -> None:
    """Who gives the stream knows on which rank; a level that nothing asks for is not shown."""
    source = Source(Path("train.py"), f"{HEAD}{SINK}{TAIL}".encode())
    problems = check(source, "train.py", Task(Settings(select=("DDP401", "DDP402")))).problems
    assert problems == []
    loud = f"{HEAD}{SINK}logging.getLogger().setLevel(logging.DEBUG)\n{TAIL}"
    problems = check(Source(Path("train.py"), loud.encode()), "train.py", Task(Settings(select=("DDP402",)))).problems
    assert [p.message for p in problems] == ["every rank logs: `logging.debug`"]


def test_what_the_ranks_are_compared_with_is_trained_by_their_parent() -> None:
    code = """
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

def step(model, x):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(x).mean().backward()
    optimizer.step()

def worker(rank, world, net, x):
    dist.init_process_group("gloo", rank=rank, world_size=world)
    step(DDP(net), x[rank::world])
    {worker}
    dist.destroy_process_group()

def compare():
    x = torch.ones(8, 4)
    net, reference = nn.Linear(4, 1), nn.Linear(4, 1)
    {parent}
    mp.spawn(worker, args=(2, net, x), nprocs=2)

compare()
"""
    for where, found in (("parent", []), ("worker", ["DDP201"])):
        other = {"parent": "worker", "worker": "parent"}[where]
        made = "step(nn.Linear(4, 1), x)"
        text = code.replace(f"{{{where}}}", made).replace(f"{{{other}}}", "pass")
        problems = check(
            Source(Path("train.py"), text.encode()), "train.py", Task(Settings(select=("DDP201",)))
        ).problems
        assert [p.code for p in problems] == found, where


JOINED = """
import argparse
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

args = argparse.ArgumentParser().parse_args()
if args.distributed:
    dist.init_process_group("gloo")
net = nn.Linear(4, 1)
if args.distributed:
    net = DDP(net)
{test}
    print("one process")
if args.distributed:
    dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("test", "found"),
    [
        ("if not args.distributed:", []),
        ("if args.distributed:\n    pass\nelse:", []),
        ("if args.distributed:", ["DDP402"]),
        ("if not args.half:", ["DDP402"]),
    ],
)
def test_the_other_side_of_the_test_that_sets_up_the_group(test: str, found: list[str]) -> None:
    source = Source(Path("train.py"), JOINED.replace("{test}", test).encode())
    problems = check(source, "train.py", Task(Settings(select=("DDP402",)))).problems
    assert [p.code for p in problems] == found


@pytest.mark.parametrize(("joins", "found"), [("if rank < 2:\n        ", []), ("", ["DDP512"])])
def test_a_group_of_some_ranks(joins: str, found: list[str]) -> None:
    """Ranks that never join the group are no ranks of it."""
    code = f"""
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

def worker(rank, world):
    {joins}dist.init_process_group("gloo", rank=rank, world_size=2)
    if rank == 2:
        return
    DDP(nn.Linear(4, 1))(torch.ones(1, 4)).mean().backward()
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.spawn(worker, args=(3,), nprocs=3)
"""
    problems = check(Source(Path("train.py"), code.encode()), "train.py", Task(Settings(select=("DDP512",)))).problems
    assert [p.code for p in problems] == found


DEVICES = {
    '"0,1,2,3"': "info",
    '"0"': "error",
    "argparse.Namespace(**vars(arguments)).gpus": "info",
    'str(["a:0", "a:1"][local_rank].split(":")[-1])': "",
}


@pytest.mark.parametrize("gpus", DEVICES)
def test_gpus_that_a_script_names(gpus: str) -> None:
    """One GPU for all ranks is a fault; a list of them, or what the user asks for, is a remark."""
    code = f"arguments = argparse.Namespace()\nos.environ['CUDA_VISIBLE_DEVICES'] = {gpus}\n"
    source = Source(Path("train.py"), f"{HEAD}{code}{TAIL}".encode())
    problems = check(source, "train.py", Task(Settings(select=("DDP104",)))).problems
    assert [p.severity for p in problems] == ([DEVICES[gpus]] if DEVICES[gpus] else [])


LAUNCHED = """\
import argparse
import {library}
import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=0)
parser = {library}.add_config_arguments(parser)
args = parser.parse_args()
dist.init_process_group("nccl")
torch.cuda.set_device(args.local_rank)
dist.destroy_process_group()
"""


@pytest.mark.parametrize(("library", "rules"), [("deepspeed", []), ("somewhere", ["DDP108"])])
def test_the_launcher_of_another_library_gives_the_argument(library: str, rules: list[str]) -> None:
    source = Source(Path("train.py"), LAUNCHED.format(library=library).encode())
    assert [p.code for p in check(source, "train.py", Task(Settings())).problems] == rules


def test_a_function_that_another_script_calls_is_its_own(tmp_path: Path) -> None:
    """What a module has for a script without ranks is not asked about ranks."""
    (tmp_path / "tools.py").write_text(
        "import torch\n\n\ndef load_best(net):\n    net.load_state_dict(torch.load('best.pt'))\n\n\n"
        "def load_last(net):\n    net.load_state_dict(torch.load('last.pt'))\n"
    )
    (tmp_path / "look.py").write_text("from tools import load_best\n\nload_best(None)\n")
    train = tmp_path / "train.py"
    train.write_text(f"from tools import load_last\n{HEAD}load_last(net)\n{TAIL}")
    root = check_root(train, Task(Settings(ignore=("DDP222",))))
    said = [(s.name, p.line, p.code) for s in root.files.values() for p in s.problems]
    assert said == [("tools.py", 9, "DDP105")] or said == [(str(tmp_path / "tools.py"), 9, "DDP105")]


#: lines of output -> whether DDP402 reports them
OUTPUT = {
    "from tqdm import tqdm\nfor _ in tqdm(range(3), disable=True):\n    pass": False,
    "from tqdm import tqdm\nfor _ in tqdm(range(3), disable=False):\n    pass": True,
    "assert world > 0, print('no ranks')": False,
    "import logging\ntry:\n    train(model, 0)\nexcept Exception:\n    logging.error('it failed')\n    raise": False,
    "import logging\ntry:\n    train(model, 0)\nexcept Exception:\n    logging.error('it failed')": True,
    "import logging\nlevel = logging.INFO\nif rank != 0:\n    level = logging.ERROR\n"
    "logging.basicConfig(level=level, filename=f'{rank}.log')\nlogging.info('begun')": False,
    "import logging\nlevel = logging.INFO\n"
    "logging.basicConfig(level=level, filename='all.log')\nlogging.info('begun')": True,
}


@pytest.mark.parametrize("code", OUTPUT)
def test_output_of_every_rank(code: str) -> None:
    source = Source(Path("train.py"), f"{HEAD}{code}\n{TAIL}".encode())
    found = check(source, "train.py", Task(Settings(select=("DDP402",)))).problems
    assert bool(found) is OUTPUT[code], [p.message for p in found]
