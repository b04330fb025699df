"""Runs and advice -> what the user reads: a row for each number of ranks, and why it is not faster."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checks._base import count
from .advice import Advice, Machine, advise, milliseconds
from .measured import PARTS, Run

if TYPE_CHECKING:
    from rich.console import Console

SCHEMA = 1  # of to_json: a key may be added; one that changes its meaning, or goes, makes this 2
_FEW = 5
_SHORT = {"communication": "comm."}


def _number(value: float) -> str:
    """`12,345`, `12.3`."""
    return f"{value:,.0f}" if value >= 100 or value == round(value) else f"{value:.3g}"


@dataclass(frozen=True)
class BenchReport:
    """What the runs on each number of ranks showed."""

    script: Path
    runs: tuple[Run, ...]
    machine: Machine
    threads: int | None  # that each rank got; None: the user chose
    standins: tuple[str, ...] = ()

    @property
    def measured(self) -> list[Run]:
        """The runs that there are numbers of, the fewest ranks first."""
        return sorted((run for run in self.runs if run.ok), key=lambda run: run.world)

    @property
    def ok(self) -> bool:
        """Every run was measured."""
        return all(run.ok and not run.failure for run in self.runs)

    @property
    def advice(self) -> list[Advice]:
        """What to change, the most worthwhile first."""
        return advise(self.measured, self.machine) if self.measured else []

    def efficiency(self, run: Run) -> float:
        """Samples per second and rank, against the run with the fewest ranks."""
        first = self.measured[0]
        return (run.rate / run.world) / (first.rate / first.world)

    def notes(self) -> Iterator[str]:
        """What to keep in mind of the numbers."""
        cores, most = self.machine.cores, max(run.world for run in self.runs)
        if not self.machine.gpu:
            yield (
                "run on the CPU with gloo: there are not enough GPUs. What a GPU needs to compute, and nccl to "
                "exchange, is not known from this; what a batch needs to be loaded is."
            )
        if cores < most and not self.machine.gpu:
            yield (
                f"{most} ranks share {count(cores, 'core')} and take the time from one another: samples per "
                f"second and efficiency of more than {cores} say nothing of a machine with a core for each."
            )
        for run in self.measured:
            if len(run.steps) < _FEW:
                few = f"{count(len(run.steps), 'step')} after those that warm up"
                yield f"{count(run.world, 'rank')}: {few} are little to go by."
            if run.world > 1 and not run.exchange_known:
                yield f"{run.world} ranks: this torch did not tell how long gradients travelled; it counts as compute."
        if self.standins:
            yield f"made-up data stood in for {', '.join(self.standins)}: loading costs what it costs for that."

    def to_json(self) -> dict[str, Any]:
        """The report as plain data."""
        return {
            "schema": SCHEMA,
            "script": str(self.script),
            "ok": self.ok,
            "cores": self.machine.cores,
            "gpu": self.machine.gpu,
            "threads": self.threads,
            "runs": [self._row(run) for run in self.runs],
            "advice": [
                {"cause": a.cause, "share": round(a.share, 4), "change": a.change, "sentence": a.sentence}
                for a in self.advice
            ],
            "notes": list(self.notes()),
        }

    def _row(self, run: Run) -> dict[str, Any]:
        row: dict[str, Any] = {"nproc": run.world, "backend": run.trace.backend, "failure": run.failure}
        if not run.ok:
            return row
        return {
            **row,
            "samples_per_second": round(run.rate, 3),
            "efficiency": round(self.efficiency(run), 4),
            "steps": len(run.steps),
            "step_seconds": round(run.step_seconds, 6),
            "batch": round(run.batch, 2),
            "shares": {part: round(share, 4) for part, share in run.shares.items()},
            "exchange_beside_compute": round(run.beside, 4),
            "evaluation": round(run.evaluated, 4),
        }

    def render(self, console: Console) -> None:
        """Print the table, and what to change."""
        from rich.table import Table
        from rich.text import Text

        console.print(Text(f"{self.script}: {self._length()}", style="bold"), soft_wrap=True)
        if self.measured:
            heads = ("ranks", "samples/s", "efficiency", "step", "batch", *(_SHORT.get(part, part) for part in PARTS))
            table = Table(*heads, box=None, padding=(0, 1, 0, 0), header_style="dim")  # below 80 columns
            for column in table.columns:
                column.justify, column.no_wrap = "right", True
            for run in self.measured:
                table.add_row(*self._cells(run))
            console.print(table)
        for run in self.runs:
            if run.failure:
                console.print(Text(f"{count(run.world, 'rank')}: {run.failure}", style="red"), soft_wrap=True)
        self._why(console)
        for note in self.notes():
            console.print(Text(note, style="dim"), soft_wrap=True)

    def _length(self) -> str:
        counts = {len(run.steps) for run in self.measured}
        steps = f"{min(counts)} to {max(counts)}" if len(counts) > 1 else f"{max(counts, default=0)}"
        return f"{steps} steps measured on each number of ranks"

    def _cells(self, run: Run) -> list[str]:
        numbers = [f"{run.world}", _number(run.rate), f"{self.efficiency(run):.0%}", milliseconds(run.step_seconds)]
        return [*numbers, _number(run.batch), *(f"{run.shares[part]:.0%}" for part in PARTS)]

    def _why(self, console: Console) -> None:
        from rich.text import Text

        found = self.advice
        if not found:
            return
        last = self.measured[-1]
        ranks = count(last.world, "rank")
        console.print(Text(f"Why is it not faster? What to change first, on {ranks}:", style="bold"), soft_wrap=True)
        for number, advice in enumerate(found, 1):
            gain = f" (at most {advice.gain:.1f} times faster)" if advice.gain is not None else ""
            line = Text.assemble(f"  {number}. ", (advice.change, "bold yellow"), f": {advice.sentence}{gain}")
            console.print(line, soft_wrap=True)
