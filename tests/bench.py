"""What a conversion costs, as ratios: `python tests/bench.py` exits with 1 where a bound is broken.

The measure is `python -c "import libcst; libcst.parse_module(...)"` of the same file on the same machine, so that the
bounds mean the same everywhere.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "fixtures/convert/argparse_functions/before.py"
RUNS = 7
MOST_MEGABYTES = 200
PARSE = "import libcst, pathlib, sys; libcst.parse_module(pathlib.Path(sys.argv[1]).read_text())"
#: Runs a command and prints the most memory that it held, in kilobytes (bytes on a Mac).
MEMORY = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], capture_output=True); " + (
    "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
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
    begun = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
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
    return held


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
