"""The commands that run a script: `ddpify verify` and `ddpify bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ddpify.group import DONE, LEFT, debug
from ddpify.watch import Launch, Progress, compare_options, html_option, launch_options, print_json, render, write_page

_path = click.Path(path_type=Path)


@click.command()
@click.argument("script", type=_path, metavar="OUT")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@compare_options
@launch_options
@click.option(
    "--format", "form", type=click.Choice(["text", "json", "junit"]), default="text", help="How to report (text)."
)
@html_option
@debug
@click.pass_context
def verify(
    ctx: click.Context, /, script: Path, args: tuple[str, ...], form: str, html: Path | None, **asked: Any
) -> None:
    """Run OUT under torchrun and check it.

    The report says of each property of `ddpify explain contract` whether it held. This executes the script; its own
    arguments come behind `--`. Without enough GPUs the ranks run on the CPU.
    """
    compare = {name: asked.pop(name) for name in ("original", "dropout", "batch_norm")}
    report = Launch(**asked).verify(script, args, **compare)
    if html is not None:
        write_page(html, report)
    if form == "json":
        print_json(report.to_json())
    else:
        render(report, err=False, junit=form == "junit")
    ctx.exit(DONE if report.ok else LEFT)


def _numbers(_ctx: click.Context, _param: click.Parameter, value: str) -> list[int]:
    """`1,2,4`"""
    try:
        found = [int(part) for part in value.split(",")]
    except ValueError:
        found = [0]
    if min(found) < 1:
        raise click.BadParameter(f"{value!r} is no list of numbers such as 1,2,4")
    return found


@click.command()
@click.argument("script", type=_path, metavar="OUT")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@click.option("--nproc", default="1,2", metavar="N,N", callback=_numbers, help="Numbers of ranks to run (1,2).")
@click.option("--steps", type=click.IntRange(1), default=30, metavar="N", help="Optimizer steps to measure (30).")
@click.option("--warm-up", type=click.IntRange(0), default=5, metavar="N", help="Steps before those (5).")
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    default=300.0,
    metavar="S",
    help="Seconds until a run is ended (300).",
)
@click.option("--synthetic", is_flag=True, help="Make up small data where the real data is not on this machine.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", help="How to report (text).")
@debug
@click.pass_context
def bench(ctx: click.Context, /, script: Path, args: tuple[str, ...], form: str, **asked: Any) -> None:
    """Time OUT on several numbers of ranks.

    The report says how many samples a second each number of ranks trains on, what the time goes into, and what to
    change first. This executes the script, in copies of the working folder; its own arguments come behind `--`.
    """
    from ddpify.verify.bench import bench as measure

    progress = Progress()
    try:
        report = measure(script, args=args, progress=progress, **asked)
    finally:
        progress.end()
    if form == "json":
        print_json(report.to_json())
    else:
        from rich.console import Console

        report.render(Console(highlight=False))
    ctx.exit(DONE if report.ok else LEFT)
