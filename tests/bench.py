"""What converting, linting and observing cost, as ratios: `python tests/bench.py` exits with 1 where a bound is broken.

The measure is `python -c "import libcst; libcst.parse_module(...)"` of the same file on the same machine, so that the
bounds mean the same everywhere.
"""

from __future__ import annotations

import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "fixtures/convert/argparse_functions/before.py"
PROCESSES = ROOT / "ddpify/verify/processes"
STEPS = ROOT / "tests/verify/scripts/steps.py"
RUNS = 7
MOST_MEGABYTES = 200
PARSE = "import libcst, pathlib, sys; libcst.parse_module(pathlib.Path(sys.argv[1]).read_text())"
#: Finds the files of a folder that mention something distributed, and parses those: the least that a linter has to do.
SCAN = """
import libcst, pathlib, sys
for path in pathlib.Path(sys.argv[1]).rglob("*.py"):
    data = path.read_bytes()
    if b"istributed" in data:
        libcst.parse_module(data)
"""
#: a script that is distributed, of the size of most
DISTRIBUTED = ROOT / "fixtures/convert/argparse_functions/after.py"
#: Runs a command and prints the most memory that it held, in kilobytes (bytes on a Mac).
MEMORY = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], capture_output=True); " + (
    "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
)
#: Runs a command and prints the CPU time that it, and what it starts, used.
CPU = "import os, subprocess, sys; subprocess.run(sys.argv[1:], capture_output=True); " + (
    "used = os.times(); print(used.children_user + used.children_system)"
)


@dataclass(frozen=True)
class Measured:
    """A script of so many lines: what parsing it costs, what converting it costs, and what may it cost."""

    lines: int
    parse: float
    convert: float
    most: float
    megabytes: float

    @property
    def ratio(self) -> float:
        return self.convert / self.parse

    @property
    def ok(self) -> bool:
        return self.ratio <= self.most and self.megabytes <= MOST_MEGABYTES

    def __str__(self) -> str:
        return (
            f"{self.lines} lines: parse {self.parse:.2f} s, convert {self.convert:.2f} s, ratio {self.ratio:.1f} "
            f"(at most {self.most:.0f}), {self.megabytes:.0f} MB (at most {MOST_MEGABYTES}): "
            f"{'ok' if self.ok else 'TOO MUCH'}"
        )


def script(lines: int) -> str:
    """A real script, made longer by copies of its own classes and functions, each under a name of its own."""
    text = SCRIPT.read_text(encoding="utf-8")
    start, end = text.index("class ToneNet"), text.index("def main")
    block, at = text[start:end], 0
    while text.count("\n") < lines:
        at += 1
        copy = re.sub(r"\b(ToneNet|make_recordings|train|test)\b(?=\(|\.__init__|,)", rf"\1_{at}", block)
        wanted = lines - text.count("\n")
        if wanted < copy.count("\n"):
            text = text[:end] + "".join(f"LIMIT_{n} = {n}\n" for n in range(wanted)) + text[end:]
        else:
            text = text[:end] + copy + text[end:]
    return text


def seconds(command: list[str]) -> float:
    # who installs ddpify has the bytecode of it
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    begun = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env=env)
    return time.perf_counter() - begun


def megabytes(command: list[str]) -> float:
    kept = subprocess.run([sys.executable, "-c", MEMORY, *command], check=True, capture_output=True, text=True)
    return int(kept.stdout) / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def measure(path: Path, most: float, runs: int = RUNS) -> Measured:
    """Medians over runs that take turns, so that a busy moment of the machine meets both."""
    parse = [sys.executable, "-c", PARSE, str(path)]
    convert = [sys.executable, "-m", "ddpify", str(path), "-o", str(path.with_name("out.py"))]
    seconds(convert)  # the first run writes the bytecode
    both = [(seconds(parse), seconds(convert)) for _ in range(runs)]
    return Measured(
        path.read_text(encoding="utf-8").count("\n"),
        statistics.median(p for p, _ in both),
        statistics.median(c for _, c in both),
        most,
        megabytes(convert),
    )


@dataclass(frozen=True)
class Linted:
    """A tree of so many files: what reading it costs, what linting it costs, and how much more that may be."""

    files: int
    scan: float
    lint: float
    most: float

    @property
    def ok(self) -> bool:
        return self.lint / self.scan <= self.most

    def __str__(self) -> str:
        return (
            f"{self.files} files: scan {self.scan:.2f} s, lint {self.lint:.2f} s "
            f"({self.files / self.lint:.0f} files/s), ratio {self.lint / self.scan:.1f} "
            f"(at most {self.most:.1f}): {'ok' if self.ok else 'TOO MUCH'}"
        )


def plant(folder: Path, files: int, share: int = 100) -> None:
    """A tree in which one of `share` files is distributed, and the others are what one finds around it."""
    plain, distributed = SCRIPT.read_bytes(), DISTRIBUTED.read_bytes()
    for at in range(files):
        place = folder / f"package_{at // 100}"
        place.mkdir(exist_ok=True)
        (place / f"module_{at}.py").write_bytes(plain if at % share else distributed)


def lint_tree(files: int = 10_000, most: float = 0.0, runs: int = 3) -> Linted:
    """The least of some runs that take turns; lint shares its files out to as many processes as there are cores.

    A file that matters costs about three times its parsing: on two cores, which often are two threads of one, the whole
    takes 1.9 times as long as finding and parsing in one process, and up to 2.4 times where the cores are busy.
    """
    most = most or (2.0 if (os.cpu_count() or 1) >= 4 else 2.5)
    with tempfile.TemporaryDirectory() as folder:
        plant(Path(folder), files)
        scan = [sys.executable, "-c", SCAN, folder]
        lint = [sys.executable, "-m", "ddpify", "lint", "--ignore", "DDP102", folder]
        both = [(seconds(scan), seconds(lint)) for _ in range(runs)]
    return Linted(files, min(s for s, _ in both), min(c for _, c in both), most)


@dataclass(frozen=True)
class Compared:
    """A code base of so many files: the CPU seconds that TorchFix needs for it, those of lint, and by how much."""

    name: str
    files: int
    other: float
    lint: float
    least: float

    @property
    def ratio(self) -> float:
        return self.other / self.lint

    @property
    def ok(self) -> bool:
        return self.ratio >= self.least

    def __str__(self) -> str:
        return (
            f"{self.name}, {self.files} files: TorchFix {self.other:.1f} s of CPU time ({self.files / self.other:.1f} "
            f"files/s), lint {self.lint:.1f} s ({self.files / self.lint:.0f} files/s), {self.ratio:.0f} times as fast "
            f"(at least {self.least:.0f}): {'ok' if self.ok else 'TOO SLOW'}"
        )


#: who wants it measured, on which tree
TORCHFIX, TREE = "DDPIFY_TORCHFIX", "DDPIFY_TORCHFIX_TREE"
_HOW = (
    "TorchFix is not installed, its speed is not compared; to do so: python -m venv build/torchfix && "
    "build/torchfix/bin/pip install torchfix==0.7.0 && pip install --no-deps --target build/tree torchvision"
)


def torchfix(runs: int = 1, least: float = 50.0) -> Compared | str:
    """How much faster than TorchFix lint is on a code base, or why that is not known."""
    program = Path(os.environ.get(TORCHFIX, ROOT / "build/torchfix/bin/torchfix"))
    tree = Path(os.environ.get(TREE, ROOT / "build/tree/torchvision"))
    if not program.is_file() or not tree.is_dir():
        return _HOW
    theirs = [str(program), "--select", "ALL", str(tree)]
    ours = [sys.executable, "-m", "ddpify", "lint", str(tree)]
    both = [(cpu_seconds(theirs), cpu_seconds(ours)) for _ in range(runs)]
    files = sum(1 for _ in tree.rglob("*.py"))
    return Compared(tree.name, files, min(t for t, _ in both), min(o for _, o in both), least)


def cpu_seconds(command: list[str]) -> float:
    """What a command and its processes use; findings are no failure."""
    kept = subprocess.run([sys.executable, "-c", CPU, *command], check=True, capture_output=True, text=True)
    return float(kept.stdout)


@dataclass(frozen=True)
class Observed:
    """Training steps: the milliseconds of CPU time that one costs by itself, and with all that verify watches."""

    plain: float
    observed: float
    most: float

    @property
    def ok(self) -> bool:
        return self.observed / self.plain <= self.most

    def __str__(self) -> str:
        return (
            f"a step of {self.plain:.1f} ms: {self.observed:.1f} ms when it is observed, ratio "
            f"{self.observed / self.plain:.2f} (at most {self.most:.2f}): {'ok' if self.ok else 'TOO MUCH'}"
        )


def observe(args: list[str], most: float = 1.15, runs: int = 3) -> Observed:
    """The least of some runs that take turns; one rank, so that no other one is waited for."""

    def step(observed: bool) -> float:
        with tempfile.TemporaryDirectory() as folder, socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
            alone |= {"MASTER_PORT": str(probe.getsockname()[1]), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
            alone |= {"DDPIFY_VERIFY_CPU": "1", "DDPIFY_VERIFY_DEADLINE": str(time.time() + 600)}
            probe.close()
            rank = [sys.executable, "-u", str(PROCESSES), "rank", folder] if observed else [sys.executable]
            done = subprocess.run([*rank, str(STEPS), *args], env={**os.environ, **alone}, check=True, stdout=-1)
            text = Path(folder, "rank0.out").read_text() if observed else done.stdout.decode()
            return float(text.split()[-1])

    both = [(step(observed=False), step(observed=True)) for _ in range(runs)]
    return Observed(min(plain for plain, _ in both), min(observed for _, observed in both), most)


def main(runs: int = RUNS) -> bool:
    """Measure, print, and say whether every bound held."""
    held = True
    with tempfile.TemporaryDirectory() as folder:
        for lines, most in ((150, 4.0), (500, 6.0)):
            path = Path(folder, f"train_{lines}.py")
            path.write_text(script(lines), encoding="utf-8")
            result = measure(path, most, runs)
            print(result, flush=True)
            held = held and result.ok
    linted = lint_tree(runs=min(runs, 3))
    print(linted, flush=True)
    compared = torchfix()
    print(compared, flush=True)
    observed = observe(["--width", "512", "--batch", "64", "--steps", "100"], runs=min(runs, 3))
    print(observed, flush=True)
    return held and linted.ok and observed.ok and (isinstance(compared, str) or compared.ok)


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
