"""A script in, a VerifyReport out, with a line on the terminal that moves while the ranks run."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from ddpify.verify import VerifyReport


@dataclass(frozen=True)
class Launch:
    """How to run a script."""

    nproc: int
    timeout: float
    max_steps: int | None

    def verify(self, script: Path, args: tuple[str, ...], original: Path | None = None, **still: bool) -> VerifyReport:
        """Run the script on ranks, and against the original; what is seen of it goes to standard error."""
        from ddpify.verify import Still, verify

        progress = Progress()
        try:
            return verify(
                script,
                args=args,
                nproc=self.nproc,
                timeout=self.timeout,
                max_steps=self.max_steps,
                original=original,
                still=Still(**still),
                progress=progress,
            )
        finally:
            progress.end()


class Progress:
    """A line that is written anew on a terminal; elsewhere one line in ten."""

    def __init__(self) -> None:
        self.terminal = sys.stderr.isatty()
        self.told = 0

    def __call__(self, line: str) -> None:
        if self.terminal:
            click.echo(f"\r\x1b[K{line}", nl=False, err=True)
        elif self.told % 10 == 0:
            click.echo(line, err=True)
        self.told += 1

    def end(self) -> None:
        """Take the line away."""
        if self.terminal and self.told:
            click.echo("\r\x1b[K", nl=False, err=True)


def render(report: VerifyReport, *, err: bool) -> None:
    """Print what the ranks showed."""
    from rich.console import Console

    report.render(Console(stderr=err, highlight=False))
