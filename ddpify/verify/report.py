"""A Trace and its Results -> what the user reads: a line for each property, and what went wrong where."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .checks import Result, Status
from .checks._base import at
from .checks.ends_in_time import first_error
from .observed import Standin
from .trace import RankTrace, Trace

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from .equivalence import Equivalence

_ON_CPU = (
    "run on the CPU with gloo: there are not {nproc} GPUs. Not tried: nccl, a GPU for each rank, map_location, "
    "pinned memory, mixed precision and whatever else needs CUDA."
)
_MARKS = {
    Status.HELD: ("held", "green"),
    Status.FAILED: ("FAILED", "bold red"),
    Status.NOTED: ("noted", "yellow"),
    Status.NOT_TRIED: ("not tried", "dim"),
}
_LAST_LINES = 15
#: what torch, torchvision, datasets and Python say of data that they cannot find, or load from the network
_NOT_HERE = re.compile(
    r"FileNotFoundError|No such file|[Nn]ot found|[Dd]ownload|urlopen|Name or service|ConnectionError|HTTPError|offline"
)
SCHEMA = 1  # of to_json: a key may be added; one that changes its meaning, or goes, makes this 2


@dataclass(frozen=True)
class VerifyReport:
    """What one run under torchrun showed."""

    script: Path
    nproc: int
    backend: str
    results: tuple[Result, ...]
    seconds: float
    cpu_fallback: bool
    failure: str = ""  # where it went wrong: rank, traceback, output; empty where nothing did
    equivalence: Equivalence | None = None
    curves: Mapping[str, Sequence[float]] = field(default_factory=dict)  # losses by step, for each rank
    standins: tuple[str, ...] = ()  # data that was not there and was made up

    @property
    def ok(self) -> bool:
        """Nothing that was tried failed."""
        return not any(result.status is Status.FAILED for result in (*self.results, *self.compared))

    @property
    def compared(self) -> tuple[Result, ...]:
        """What came of holding the ranks against the original."""
        return self.equivalence.results if self.equivalence is not None else ()

    def to_json(self) -> dict[str, Any]:
        """The report as plain data."""
        return {
            "schema": SCHEMA,
            "script": str(self.script),
            "ok": self.ok,
            "nproc": self.nproc,
            "backend": self.backend,
            "cpu_fallback": self.cpu_fallback,
            "seconds": round(self.seconds, 1),
            "results": [
                {
                    "name": result.name,
                    "section": result.section,
                    "status": result.status.value,
                    "sentence": result.sentence,
                    "likely": list(result.likely),
                }
                for result in (*self.results, *self.compared)
            ],
            "equivalence": None if self.equivalence is None else self.equivalence.to_json(),
            "failure": self.failure,
            "standins": list(self.standins),
        }

    def notes(self) -> list[str]:
        """What to keep in mind of the run."""
        made_up = f"made-up data stood in for {', '.join(self.standins)}: numbers mean nothing" if self.standins else ""
        return [note for note in (_ON_CPU.format(nproc=self.nproc) if self.cpu_fallback else "", made_up) if note]

    def render(self, console: Console) -> None:
        """Print a line for each property, then what failed in full."""
        from rich.text import Text

        head = f"{self.script}: {self.nproc} ranks under torchrun, {self.backend}, {self.seconds:.1f} s"
        console.print(Text(head, style="bold"), soft_wrap=True)
        if console.is_terminal:
            console.print(self._table())
        for result in () if console.is_terminal else self.results:
            console.print(_line(result), soft_wrap=True)
        if self.equivalence is not None:
            console.print(Text(self.equivalence.head(), style="bold"), soft_wrap=True)
            for result in self.compared:
                console.print(_line(result), soft_wrap=True)
            for row in self.equivalence.table():
                console.print(Text(row, style="dim"), soft_wrap=True)
        for note in self.notes():
            console.print(Text(note, style="dim"), soft_wrap=True)
        if self.failure:
            console.print(Text(self.failure), soft_wrap=True)

    def _table(self) -> Table:
        from rich import box
        from rich.table import Table
        from rich.text import Text

        table = Table("", "property", "what was seen", "likely", box=box.SIMPLE_HEAD, pad_edge=False)
        for result in self.results:
            word, style = _MARKS[result.status]
            table.add_row(Text(word, style), Text(result.name), Text(result.sentence), Text(" ".join(result.likely)))
        return table


def loss_curves(trace: Trace) -> dict[str, list[float]]:
    """The loss of each step, as each rank had it."""
    found = {f"rank {rank.rank}": [s.loss for s in rank.steps if s.loss is not None] for rank in trace.ranks}
    return {name: losses for name, losses in found.items() if losses}


def made_up(trace: Trace) -> tuple[str, ...]:
    """The data that was made up, with the lines that asked for it."""
    events = [event for rank in trace.ranks for event in rank.of(Standin)]
    return tuple(dict.fromkeys(f"{event.what}{at(event.at)}" for event in events))


def _line(result: Result) -> Text:
    from rich.text import Text

    word, style = _MARKS[result.status]
    line = Text.assemble("  ", (f"{word:<10}", style), f"{result.name:<20} ", result.sentence)
    if result.likely:
        line.append(f"  (likely {', '.join(result.likely)}: see `ddpify explain {result.likely[0]}`)", "yellow")
    return line


def _last(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.rstrip().splitlines()[-_LAST_LINES:])


def _of_rank(rank: RankTrace, first: RankTrace | None) -> list[str]:
    """What is to be said of one rank; `first` is the one whose error came first."""
    parts = []
    if rank.end is not None and rank.end.status in ("error", "exit"):
        again = first is not None and first is not rank and first.end is not None and first.end.error == rank.end.error
        text = "the same error" if again else rank.end.traceback.rstrip() or rank.end.error
        parts.append(f"rank {rank.rank}: {text}")
    elif not rank.events:
        parts.append(f"rank {rank.rank} never started")
    if rank.standing:
        parts.append(f"rank {rank.rank} stood at {rank.standing}")
    return parts


def _wants_data(trace: Trace, first: RankTrace | None) -> bool:
    """Did a rank stop before any step for a file, or an address, that is not there?"""
    error = first.end.error if first is not None and first.end is not None else ""
    return not any(rank.steps for rank in trace.ranks) and _NOT_HERE.search(error) is not None


def describe_failure(trace: Trace, results: tuple[Result, ...], *, synthetic: bool = True) -> str:
    """Ranks, tracebacks, where each stood, and the last words; empty where nothing failed."""
    if not any(result.status is Status.FAILED for result in results):
        return ""
    first = first_error(trace)
    ordered = sorted(trace.ranks, key=lambda rank: rank is not first)
    parts = [part for rank in ordered for part in _of_rank(rank, first)]
    for rank in ordered:
        died = rank.end is None and not rank.standing
        if died and rank.stderr.strip():
            parts.append(f"rank {rank.rank} said last:\n{_last(rank.stderr)}")
    if not any(rank.events for rank in trace.ranks) and trace.log.strip():
        parts.append(f"torchrun said last:\n{_last(trace.log)}")
    if trace.ranks and trace.ranks[0].stdout.strip():
        parts.append(f"rank 0 printed last:\n{_last(trace.ranks[0].stdout)}")
    if not synthetic and _wants_data(trace, first):
        parts.append("if this is for data that is not on this machine: --synthetic makes up small data in its place")
    return "\n".join(parts)
