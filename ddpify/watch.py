"""A script in, a VerifyReport out, with a line on the terminal that moves while the ranks run."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ddpify.errors import DdpifyError
from ddpify.group import options

if TYPE_CHECKING:
    from ddpify.report import Report
    from ddpify.verify import VerifyReport

launch_options = options(
    click.option("--nproc", type=click.IntRange(1), default=2, metavar="N", help="Number of ranks to run (2)."),
    click.option(
        "--timeout",
        type=click.FloatRange(0, min_open=True),
        default=300.0,
        metavar="S",
        help="Seconds until the run is ended (300).",
    ),
    click.option("--max-steps", type=click.IntRange(1), metavar="N", help="End the run after N optimizer steps."),
    click.option(
        "--max-batches", type=click.IntRange(1), metavar="N", help="End each pass over a loader after N batches."
    ),
    click.option(
        "--nnodes",
        type=click.IntRange(1),
        default=1,
        metavar="N",
        help="Run as on N machines: N launchers on this one, each with --nproc ranks (1).",
    ),
    click.option(
        "--devices/--no-devices",
        default=True,
        help="Without GPUs, run a second time for a few steps and look at which GPUs are asked for (yes).",
    ),
    click.option("--synthetic", is_flag=True, help="Make up small data where the real data is not on this machine."),
    click.option("--stress", is_flag=True, help="Run it again with faults: NaN on one rank, a slow rank, and so on."),
)

compare_options = options(
    click.option(
        "--original",
        type=click.Path(path_type=Path),
        metavar="SCRIPT",
        help="Also run SCRIPT, that OUT was made from, on the same samples.",
    ),
    click.option("--keep-dropout", "dropout", is_flag=True, help="Leave dropout on where both are compared."),
    click.option("--keep-batchnorm", "batch_norm", is_flag=True, help="Let BatchNorm count where both are compared."),
)
html_option = click.option(
    "--html",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write what the ranks showed to a page of its own, too.",
)


@dataclass(frozen=True)
class Launch:
    """How to run a script."""

    nproc: int
    timeout: float
    max_steps: int | None
    max_batches: int | None = None
    nnodes: int = 1
    devices: bool = True
    synthetic: bool = False
    stress: bool = False

    def verify(self, script: Path, args: tuple[str, ...], original: Path | None = None, **still: bool) -> VerifyReport:
        """Run the script on ranks, and against the original; what is seen of it goes to standard error."""
        from ddpify.verify import Still, verify

        progress = Progress()
        try:
            return verify(script, args=args, original=original, still=Still(**still), progress=progress, **asdict(self))
        finally:
            progress.end()


def taken(asked: dict[str, Any]) -> Launch:
    """How to run it, taken out of what the options of a command say."""
    return Launch(**{field.name: asked.pop(field.name) for field in fields(Launch)})


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


def render(report: VerifyReport, *, err: bool, junit: bool = False) -> None:
    """Print what the ranks showed."""
    if junit:
        from ddpify.verify.junit import junit as as_junit

        click.echo(as_junit(report), nl=False)
        return
    from rich.console import Console

    report.render(Console(stderr=err, highlight=False))


def print_json(data: object) -> None:
    """To standard output."""
    import json

    click.echo(json.dumps(data, indent=2))


def write_page(path: Path, verified: VerifyReport, report: Report | None = None) -> None:
    """Write what the ranks showed, and where there was a conversion both texts, to an HTML page."""
    from ddpify.page import page

    try:
        path.write_text(page(verified, report), encoding="utf-8")
    except OSError as error:
        raise DdpifyError(f"{path}: cannot be written ({error.strerror})") from error
