"""Ways to write DDP by hand that are right, beside the faults that they look like: nothing is said of the first."""

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
    "a file of the process's own is written": (
        """
        import tempfile
        with tempfile.NamedTemporaryFile("w+b") as file:
            torch.save(net.state_dict(), file.name)
        """,
        set(),
    ),
    "a file of a folder that all have is written": (
        """
        torch.save(net.state_dict(), os.path.join("/tmp", "shared.pt"))
        """,
        {"DDP401"},
    ),
    "an object of another library saves something": (
        """
        import somewhere
        trainer = somewhere.registry()["trainer"](net)
        for epoch in range(3):
            trainer.save(epoch, 1)
        """,
        set(),
    ),
    "an object of another library saves to a file": (
        """
        import somewhere
        trainer = somewhere.registry()["trainer"](net)
        trainer.save("last.bin")
        """,
        {"DDP401"},
    ),
    "files are removed as they are listed": (
        """
        if rank == 0:
            for path in glob.glob("*.tmp") + glob.glob("*.old"):
                os.remove(path)
        """,
        set(),
    ),
    "one process of a rank's own lists what there is": (
        """
        if rank == 0:
            first = glob.glob("*.pt")[0]
        """,
        set(),
    ),
    "names are listed to be looked up": (
        """
        names = [n for n in os.listdir("masks") if n.endswith(".png")]
        wanted = []
        for name in ("a.png", "b.png"):
            assert name in names
            wanted.append(name)
        names = wanted
        masks = [os.path.join("masks", n) for n in names]
        held = torch.utils.data.Subset(masks, [0, 2])
        """,
        set(),
    ),
    "names are listed to be read": (
        """
        names = [n for n in os.listdir("masks") if n.endswith(".png")]
        masks = [os.path.join("masks", n) for n in names]
        held = torch.utils.data.Subset(masks, [0, 2])
        """,
        {"DDP307"},
    ),
    "a number is hashed": (
        """
        port = 2**15 + hash(os.getuid() if os.name != "nt" else 1) % 2**14
        """,
        set(),
    ),
    "a name is hashed": (
        """
        port = 2**15 + hash("experiment" if os.name != "nt" else "other") % 2**14
        """,
        {"DDP307"},
    ),
    "each label has a list of its own": (
        """
        rows = {"cat": [], "dog": []}
        for label in set(["cat", "dog"]):
            rows[label].append(1)
        """,
        set(),
    ),
    "the labels come one after the other": (
        """
        rows = []
        for label in set(["cat", "dog"]):
            rows.append(label)
        numbers = {label: at for at, label in enumerate(rows)}
        """,
        {"DDP307"},
    ),
    "the engine of another library takes the wrapper's place": (
        """
        import deepspeed
        parser = argparse.ArgumentParser()
        parser.add_argument("--deepspeed", action="store_true")
        if parser.parse_args().deepspeed:
            engine, _, _, _ = deepspeed.initialize(model=net)
        else:
            engine = DDP(net, device_ids=[local_rank])
        if parser.parse_args().deepspeed:
            engine.save_checkpoint("out")
        """,
        set(),
    ),
    "the wrapper is asked for what the module alone has": (
        """
        print(rank, model.encode(torch.ones(2, 8).cuda()))
        """,
        {"DDP202"},
    ),
    "a function takes the wrapper off": (
        """
        def is_parallel(model):
            return type(model) in (nn.parallel.DataParallel, nn.parallel.DistributedDataParallel)

        def bare(model):
            return model.module if is_parallel(model) else model

        print(rank, bare(model).encode)
        """,
        set(),
    ),
    "a function takes no wrapper off": (
        """
        def same(model):
            return model

        print(rank, same(model).encode)
        """,
        {"DDP202"},
    ),
    "gradients are looked at": (
        """
        def heat(model, x):
            out = model.module.encode(x)
            out.sum().backward()
            return x.grad

        for epoch in range(3):
            train(model, epoch)
            print(rank, heat(model, torch.ones(2, 8, requires_grad=True).cuda()))
        """,
        set(),
    ),
    "gradients are gone by": (
        """
        def fit(model, x):
            out = model.module.encode(x)
            out.sum().backward()
            optimizer.step()

        fit(model, torch.ones(2, 8).cuda())
        """,
        {"DDP205"},
    ),
    "the wrapper gets what its module has": (
        """
        net.layers = [1, 2]
        model.layers = model.module.layers
        """,
        set(),
    ),
    "one epoch has one order": (
        """
        plain = DataLoader(train_set, 8, sampler=DistributedSampler(train_set))
        for epoch in range(1):
            for x, y in plain:
                F.mse_loss(model(x.cuda()), y.cuda()).backward()
                optimizer.step()
        """,
        set(),
    ),
    "two epochs have one order": (
        """
        plain = DataLoader(train_set, 8, sampler=DistributedSampler(train_set))
        for epoch in range(2):
            for x, y in plain:
                F.mse_loss(model(x.cuda()), y.cuda()).backward()
                optimizer.step()
        """,
        {"DDP302"},
    ),
    "each rank sees the GPU of its own": (
        """
        os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["SLURM_LOCALID"]
        """,
        set(),
    ),
    "all ranks see one GPU": (
        """
        os.environ["CUDA_VISIBLE_DEVICES"] = "0"
        """,
        {"DDP104"},
    ),
    "one of two ways goes backward": (
        """
        def scaled(loss):
            loss.backward()
            optimizer.step()

        half = os.path.exists("half")
        for x, y in train_loader:
            sampler.set_epoch(0)
            loss = F.mse_loss(model(x.cuda()), y.cuda())
            if half:
                scaled(loss)
            else:
                loss.backward()
                optimizer.step()
        """,
        set(),
    ),
    "nobody knows which of two numbers is the rank": (
        """
        from elsewhere import init_distributed
        size, number = init_distributed()
        if size > 1:
            other = DDP(Net().cuda(), device_ids=[local_rank])
        """,
        set(),
    ),
    "of a pair one is the rank, and the other is not": (
        """
        def launch(pair=(None, None)):
            at, many = pair
            if at is None:
                at, many = 0, 1
            return many, at

        many, at = launch((rank, world))
        if many > 1:
            other = DDP(Net().cuda(), device_ids=[local_rank])
        """,
        set(),
    ),
    "of a pair it is the rank that decides": (
        """
        def launch(pair=(None, None)):
            at, many = pair
            return many, at

        many, at = launch((rank, world))
        if at > 1:
            other = DDP(Net().cuda(), device_ids=[local_rank])
        """,
        {"DDP512"},
    ),
    "the sampler is chosen by whether there are ranks": (
        """
        from torch.utils.data import RandomSampler

        kind = RandomSampler if local_rank == -1 else DistributedSampler
        chosen = kind(train_set)
        loader = DataLoader(train_set, 8, sampler=chosen)
        for epoch in range(3):
            if local_rank != -1:
                chosen.set_epoch(epoch)
            for x, y in loader:
                F.mse_loss(model(x.cuda()), y.cuda()).backward()
                optimizer.step()
        """,
        set(),
    ),
    "rank 0 downloads between two barriers": (
        """
        from torchvision import datasets
        if local_rank not in [-1, 0]:
            dist.barrier()
        data = datasets.CIFAR10("data", download=True)
        if local_rank == 0:
            dist.barrier()
        """,
        set(),
    ),
    "all ranks download, and wait then": (
        """
        from torchvision import datasets
        data = datasets.CIFAR10("data", download=True)
        if local_rank == 0:
            dist.barrier()
        """,
        {"DDP303", "DDP512"},
    ),
    "the logger speaks on the rank that is given as 0": (
        """
        import logging

        def create_logger(number=0):
            logger = logging.getLogger("train")
            logger.setLevel(logging.INFO if number == 0 else logging.ERROR)
            return logger

        import somewhere
        logger = create_logger(somewhere.start().number)
        logger.info("started")
        """,
        set(),
    ),
    "loguru gets a place to write to on rank 0": (
        """
        from loguru import logger

        logger.remove()
        if rank == 0:
            logger.add("train.log")
        logger.info("started")
        """,
        set(),
    ),
    "loguru writes on every rank": (
        """
        from loguru import logger

        logger.info("started")
        """,
        {"DDP402"},
    ),
    "who ends the job says why": (
        """
        with open("data.bin", "rb") as file:
            header = file.read(4)
        if header != b"data":
            print("not a file of data")
            print("make it anew")
            exit(1)
        """,
        set(),
    ),
    "a decorator lets rank 0 alone in": (
        """
        import functools

        def info():
            if dist.is_initialized():
                return dist.get_rank(), dist.get_world_size()
            return 0, 1

        def first_only(func):
            @functools.wraps(func)
            def wrapper(*args, **kwargs):
                at, _ = info()
                if at == 0:
                    return func(*args, **kwargs)
            return wrapper

        @first_only
        def save(path):
            torch.save(net.state_dict(), path)

        save("net.pt")
        """,
        set(),
    ),
    "a decorator lets all in": (
        """
        import functools

        def timed(func):
            @functools.wraps(func)
            def wrapper(*args, **kwargs):
                begun, _ = time.time(), 1
                if begun > 0:
                    return func(*args, **kwargs)
            return wrapper

        @timed
        def save(path):
            torch.save(net.state_dict(), path)

        save("net.pt")
        """,
        {"DDP401"},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_case_as_it_is_written(name: str) -> None:
    body, expected = CASES[name]
    source = Source(Path("train.py"), (HEAD + dedent(body).strip("\n") + "\n" + TAIL).encode())
    found = check(source, "train.py", Task(Settings())).problems
    assert {p.code for p in found if p.severity != "info"} == expected, [(p.line, p.code, p.message) for p in found]


SPAWNED = f"""\
{HEAD.replace('dist.init_process_group("nccl")', "")}
from utils import launching


def main(number=0):
    dist.init_process_group("nccl", rank=number)
    if number == 0:
        print("first")
        torch.save(net.state_dict(), "net.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    if os.path.exists("many"):
        launching.spawn(main)
    else:
        main()
"""


def test_a_function_that_a_missing_module_spawns_gets_its_rank() -> None:
    found = check(Source(Path("train.py"), SPAWNED.encode()), "train.py", Task(Settings())).problems
    assert [(p.line, p.code) for p in found if p.code in ("DDP401", "DDP402")] == []


COMMAND = """\
import fire
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def run(rank, world):
    if world > 1:
        dist.init_process_group("nccl", rank=rank, world_size=world)
    model = DDP(nn.Linear(4, 1).cuda(rank), device_ids=[rank])
    if world > 1:
        dist.destroy_process_group()


def command(generate=False, several=False):
    if generate:
        print("generated")
        torch.save(torch.ones(4), "made.pt")
        return
    if not several:
        run(0, 1)
        return
    mp.spawn(run, args=(2,), nprocs=2)


def main():
    fire.Fire(command)
"""


def test_a_command_that_trains_or_not_knows_where(tmp_path: Path) -> None:
    """The function that fire runs sets up nothing itself: what it does beside the training is done by one process."""
    path = tmp_path / "cli.py"
    path.write_text(COMMAND)
    found = [p for s in check_root(path, Task(Settings())).files.values() for p in s.problems]
    assert [(p.line, p.code) for p in found if p.code in ("DDP401", "DDP402")] == []


LAUNCHER = """\
import os
import subprocess
import sys

import torch
import torch.distributed as dist


def init_distributed(rank, world, group):
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method="tcp://localhost:23456", world_size=world, rank=rank, group_name=group)


def main(folder, command):
    if not os.path.isdir(folder):
        os.makedirs(folder)
    for rank in range(torch.cuda.device_count()):
        out = open(os.path.join(folder, f"{rank}.log"), "w")
        subprocess.Popen([sys.executable, command, str(rank)], stdout=out)


if __name__ == "__main__":
    main("logs", "train.py")
"""


def test_what_starts_the_ranks_is_no_rank(tmp_path: Path) -> None:
    path = tmp_path / "launch.py"
    path.write_text(LAUNCHER)
    seen = check_root(path, Task(Settings())).files
    assert [p.code for s in seen.values() for p in s.problems if p.severity == "error"] == []
    assert not any("makedirs" in p.text or "open(" in p.text for s in seen.values() for p in s.problems)


def test_the_branch_beside_the_setup_runs_alone(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        HEAD.replace('dist.init_process_group("nccl")', "setup()").replace(
            "class Net",
            "parser = argparse.ArgumentParser()\n"
            'parser.add_argument("--launcher", default="none")\n\n\n'
            "def setup():\n"
            '    if parser.parse_args().launcher == "none":\n'
            '        print("by itself")\n'
            "    else:\n"
            "        join()\n\n\n"
            'def join():\n    dist.init_process_group("nccl")\n\n\n'
            "class Net",
            1,
        )
        + TAIL
    )
    assert [p.message for s in check_root(path, Task(Settings())).files.values() for p in s.problems] == []
