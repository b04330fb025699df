"""What keeps the other ranks quiet, or apart, in scripts by hand; beside each the line that makes the claim true."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from ddpify.linting.check import Task, check
from ddpify.linting.settings import Settings
from ddpify.source import Source
from tests.test_lint_cases import HEAD, TAIL
from tests.test_lint_other_ways import found

#: a function with ranks in it that nothing of the file calls: a launcher elsewhere imports the file by a computed name
LAUNCHED = """
import logging
import sys
logging.basicConfig(stream=sys.stdout, level=logging.INFO)
logger = logging.getLogger(__name__)
{level}


def steps():
    logger.info("steps")


def pretrain(args):
    logger.info("world %d", dist.get_world_size())
    steps()
    {also}


{call}
"""

FILES = """
import logging
logger = logging.getLogger("train")
logger.setLevel(logging.INFO)
{handlers}
logger.info("start")
"""

#: handlers of a logger -> what is found of `logger.info`
HANDLERS: dict[str, set[str]] = {
    "if rank == 0:\n    logger.addHandler(logging.FileHandler('log.txt'))": set(),
    "if rank == 0:\n    logger.addHandler(logging.FileHandler('log.txt'))\n"
    "logger.addHandler(logging.StreamHandler())": {"DDP402"},
    "logger.addHandler(logging.FileHandler(f'log_{rank}.txt'))": set(),
    "logger.addHandler(logging.FileHandler(f'log_{rank}.txt'))\nlogger.addHandler(logging.StreamHandler())": {"DDP402"},
    "if rank == 0:\n    logging.basicConfig(filename='log.txt', level=logging.INFO)": set(),
    "logging.basicConfig(filename=f'log_{rank}.txt', level=logging.INFO)": set(),
    "logging.basicConfig(format=f'[{rank}] %(message)s', level=logging.INFO)": set(),
    "console = logging.StreamHandler()\nconsole.setFormatter(logging.Formatter(f'[{rank}] %(message)s'))\n"
    "logger.addHandler(console)": set(),
    "logger.disabled = rank != 0": set(),
    "logger.disabled = False\nlogger.addHandler(logging.StreamHandler())": {"DDP402"},
}

#: what happens, in a script that is right without it -> the rules that report it
CASES: dict[str, tuple[str, set[str]]] = {
    "a decorator that asks the project for the rank": (
        """
        import functools
        def get_rank():
            return dist.get_rank() if dist.is_initialized() else 0
        def main_only(func):
            @functools.wraps(func)
            def wrapper(*args):
                if get_rank() == 0:
                    return func(*args)
            return wrapper
        @main_only
        def say(*args):
            print(*args)
        say("start")
        """,
        set(),
    ),
    "a decorator that asks for something else": (
        """
        import functools
        def is_late():
            return len(os.listdir(".")) > 3
        def often(func):
            @functools.wraps(func)
            def wrapper(*args):
                if is_late():
                    return func(*args)
            return wrapper
        @often
        def say(*args):
            print(*args)
        say("start")
        """,
        {"DDP402"},
    ),
    "the last words of a process that ends": (
        """
        try:
            import faster
        except ImportError:
            print("faster is missing")
            sys.exit(1)
        """,
        set(),
    ),
    "words of a process that goes on": (
        """
        try:
            import faster
        except ImportError:
            print("faster is missing")
        """,
        {"DDP402"},
    ),
    "the greatest time of all ranks": (
        """
        import time
        def greatest(value):
            held = torch.tensor(value, device="cuda")
            dist.all_reduce(held, op=dist.ReduceOp.MAX)
            return held.item()
        now = int(time.time())
        folder = f"runs/{greatest(now)}"
        os.makedirs(folder, exist_ok=True)
        """,
        set(),
    ),
    "each rank's own time": (
        """
        import time
        def shifted(value):
            held = torch.tensor(value, device="cuda") + 1
            return held.item()
        now = int(time.time())
        folder = f"runs/{shifted(now)}"
        os.makedirs(folder, exist_ok=True)
        """,
        {"DDP403"},
    ),
    "a loop over what rank 0 alone has": (
        """
        results, best = {}, []
        for epoch in range(2):
            if rank == 0:
                results.setdefault("loss", []).append(epoch)
                best.append(epoch)
        for name, given in sorted(results.items()):
            print(name, given)
        for number in best:
            print(number)
        """,
        set(),
    ),
    "a loop over what every rank has, too": (
        """
        results = {}
        for epoch in range(2):
            if rank == 0:
                results["loss"] = epoch
        results["epochs"] = 2
        for name in results:
            print(name)
        """,
        {"DDP402"},
    ),
    "bars that are never asked for": (
        """
        from tqdm import tqdm
        class Predictor:
            def __init__(self, bars=True):
                self.bars = bars
            def run(self):
                for _ in tqdm(range(3), disable=not self.bars):
                    pass
        Predictor(bars=False).run()
        """,
        set(),
    ),
    "bars that one of two asks for": (
        """
        from tqdm import tqdm
        class Predictor:
            def __init__(self, bars=True):
                self.bars = bars
            def run(self):
                for _ in tqdm(range(3), disable=not self.bars):
                    pass
        Predictor(bars=False).run()
        Predictor().run()
        """,
        {"DDP402"},
    ),
    "bars by an argument": (
        """
        from tqdm import tqdm
        parser = argparse.ArgumentParser()
        parser.add_argument("--quiet", type=bool, default=True)
        args = parser.parse_args()
        for _ in tqdm(range(3), disable=args.quiet):
            pass
        """,
        {"DDP402"},
    ),
    "what rank 0 says sets up nothing": (
        """
        import logging
        logging.getLogger().setLevel(logging.INFO)
        if rank == 0:
            logging.info("rank 0")
        logging.info(f"rank {rank}")
        logging.info("start")
        """,
        {"DDP402"},
    ),
    "each rank unpacks for itself": (
        """
        import tempfile
        folder = tempfile.mkdtemp()
        with open(os.path.join(folder, "config.json")) as file:
            config = file.read()
        """,
        set(),
    ),
    "rank 0 leaves it in a folder of its own": (
        """
        import tempfile
        folder = tempfile.mkdtemp()
        if rank == 0:
            torch.save(net.state_dict(), os.path.join(folder, "best.pt"))
        dist.barrier()
        state = torch.load(os.path.join(folder, "best.pt"), map_location="cpu")
        """,
        {"DDP403"},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_quiet_or_not(name: str) -> None:
    code, rules = CASES[name]
    assert found(dedent(code), "DDP401", "DDP402", "DDP403") == rules


@pytest.mark.parametrize("handlers", HANDLERS)
def test_handlers_of_one_rank(handlers: str) -> None:
    """A file of rank 0, or of each rank, is all that is written, until another handler shows it on every rank."""
    text = f"{HEAD}{FILES.format(handlers=handlers)}\n{TAIL}"
    script = Source(Path("train.py"), text.encode())
    problems = check(script, "train.py", Task(Settings(select=("DDP402",)))).problems
    said = text.splitlines().index('logger.info("start")') + 1
    assert {p.code for p in problems if p.line == said} == HANDLERS[handlers]


QUIET = """
import importlib
import logging


def work(rank, name):
    logger = logging.getLogger()
    if rank == 0:
        logger.setLevel(logging.INFO)
    else:
        logger.setLevel(logging.ERROR)
    importlib.import_module(f"{name}.train").pretrain(None)
"""
#: a file of rank 0 besides, and the console of every rank
LOUD = QUIET.replace("logger = logging.getLogger()", 'file = logging.FileHandler("a.log")').replace("logger.", "file.")


@pytest.mark.parametrize(
    ("launcher", "level", "also", "call", "rules"),
    [
        (QUIET, "", "", "", set()),
        (LOUD, "", "", "", {"DDP402"}),
        ("", "", "", "", {"DDP402"}),
        (QUIET, "logger.setLevel(logging.INFO)", "", "", {"DDP402"}),  # behind the launcher's
        (QUIET, "", "", "pretrain(None)", {"DDP402"}),
        (QUIET, "", "print('world')", "", {"DDP402"}),
    ],
)
def test_loggers_that_a_launcher_elsewhere_sets_up(
    tmp_path: Path, launcher: str, level: str, also: str, call: str, rules: set[str]
) -> None:
    """The file names no launcher: one of the project that quietens loggers by rank may import it by a computed name."""
    (tmp_path / "setup.py").write_text("")
    (tmp_path / "launch.py").write_text(launcher)
    (tmp_path / "app").mkdir()
    text = f"{HEAD}{LAUNCHED.format(level=level, also=also, call=call)}\n{TAIL}"
    script = Source(tmp_path / "app" / "train.py", text.encode())
    assert {p.code for p in check(script, "train.py", Task(Settings(select=("DDP402",)))).problems} == rules


ARGUMENT = """
parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=0)
args = parser.parse_args()


class Comm:
    local = 0


comm = Comm()
{uses}
"""


@pytest.mark.parametrize(
    ("uses", "rules"),
    [
        ("torch.cuda.set_device(args.local_rank)", {"DDP108"}),
        ("comm.local_rank = args.local_rank\ntorch.cuda.set_device(comm.local_rank)", {"DDP108"}),
        ("comm.local_rank = 0\ncomm.local_rank = args.local_rank\ntorch.cuda.set_device(comm.local_rank)", {"DDP108"}),
        ("args.local_rank = dist.get_rank() % 8\ntorch.cuda.set_device(args.local_rank)", set()),
        ("print(f'{rank}: {len(vars(args))}')", {"DDP108"}),  # handed on with all others
        ("", set()),  # nothing asks for it
    ],
)
def test_an_argument_that_torchrun_does_not_give(uses: str, rules: set[str]) -> None:
    text = (HEAD + ARGUMENT.format(uses=uses) + "\n" + TAIL).replace(
        'int(os.environ["LOCAL_RANK"])', "dist.get_rank() % 8"
    )
    assert "LOCAL_RANK" not in text
    problems = check(Source(Path("train.py"), text.encode()), "train.py", Task(Settings(select=("DDP108",)))).problems
    assert {p.code for p in problems} == rules


SPAWNED = """
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def set_up(rank, world):
    dist.init_process_group("nccl", rank=rank, world_size=world)


def work(gpu, world, node):
    set_up({rank}, world)
    torch.cuda.set_device(torch.device("cuda", dist.get_rank()))
    model = DDP(nn.Linear(4, 1).cuda())
    model(torch.ones(2, 4).cuda()).sum().backward()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(work, args=(4, 0), nprocs=4)
"""


@pytest.mark.parametrize(("rank", "rules"), [("gpu", set()), ("node * 4 + gpu", {"DDP108"})])
def test_ranks_of_one_node(rank: str, rules: set[str]) -> None:
    """mp.spawn's own numbers are those of GPUs; with the number of a node in them they are not."""
    script = Source(Path("train.py"), SPAWNED.format(rank=rank).encode())
    assert {p.code for p in check(script, "train.py", Task(Settings(select=("DDP108",)))).problems} == rules
