"""Arguments of `ddpify lint` in, exit code out: 0 nothing found, 1 something, 2 could not be done."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import click

from ddpify.errors import DdpifyError
from ddpify.group import CANNOT, say
from ddpify.linting.formats import WRITERS, Text, fixable, statistics, summary
from ddpify.linting.problem import FileResult, Problem
from ddpify.linting.settings import Settings, read_settings, with_options

STANDARD = Path("-")


@dataclass
class Request:
    """What the command line asks for."""

    paths: tuple[Path, ...]
    form: str = "text"
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    extend_select: tuple[str, ...] = ()
    fix: bool = False
    unsafe_fixes: bool = False
    diff: bool = False
    statistics: bool = False
    stdin_filename: Path | None = None
    write_baseline: bool = False
    baseline: Path | None = None
    jobs: int = 0
    debug: bool = False

    @property
    def mend(self) -> str:
        return "" if not (self.fix or self.diff) else "unsafe" if self.unsafe_fixes else "safe"

    @property
    def standard(self) -> bool:
        return self.paths == (STANDARD,)

    def check_usage(self) -> None:
        if STANDARD in self.paths and not self.standard:
            raise click.UsageError("standard input (-) is linted by itself")
        if self.stdin_filename is not None and not self.standard:
            raise click.UsageError("--stdin-filename is for standard input (-)")
        if self.fix and self.diff:
            raise click.UsageError("--fix and --diff exclude each other")
        if self.unsafe_fixes and not (self.fix or self.diff):
            raise click.UsageError("--unsafe-fixes is for --fix and --diff")
        if self.write_baseline and (self.fix or self.diff or self.standard):
            raise click.UsageError("--write-baseline goes with paths, without --fix and --diff")
        if self.diff and self.form != "text":
            raise click.UsageError("--diff has no other format")


@dataclass
class Outcome:
    """What was found."""

    problems: list[Problem] = field(default_factory=list)
    results: list[FileResult] = field(default_factory=list)
    files: int = 0

    @property
    def unread(self) -> int:
        return sum(bool(r.error) for r in self.results)

    @property
    def mended(self) -> int:
        return sum(r.mended for r in self.results)

    @property
    def code(self) -> int:
        return CANNOT if self.unread else int(any(p.severity != "info" for p in self.problems))


def lint(request: Request) -> int:
    """Do what was asked; the exit code."""
    request.check_usage()
    settings = settings_for(request)
    outcome = Outcome()
    told = Text()
    prints = request.form == "text" and not (request.diff or request.statistics or request.write_baseline)
    for result, problems in found(request, settings, outcome):
        if result.error:
            say(f"ddpify: {result.error}")
        for problem in problems if prints else ():
            for line in told(problem):
                # with --fix the text of standard input goes to standard output
                click.echo(line, err=request.standard and request.fix)
        put(request, result)
    if request.write_baseline:
        return written(settings, outcome)
    if request.form != "text":
        text = WRITERS[request.form](outcome.problems, outcome.results)
        if text:
            click.echo(text)
    elif request.statistics:
        for line in statistics(outcome.problems):
            click.echo(line)
    return ended(request, outcome)


def settings_for(request: Request) -> Settings:
    """pyproject.toml of the folder that holds all the paths, and the command line over it."""
    if request.standard:
        places = [(request.stdin_filename or Path("stdin")).absolute().parent]
    else:
        places = [p.absolute() if p.is_dir() else p.absolute().parent for p in request.paths or (Path(),)]
    try:
        start = Path(os.path.commonpath(places))
    except ValueError:  # several drives
        start = Path().absolute()
    settings = with_options(read_settings(start), request.select, request.ignore, request.extend_select)
    if request.baseline is not None:
        settings = dataclasses.replace(settings, baseline=request.baseline)
    if request.write_baseline and settings.baseline is None:
        settings = dataclasses.replace(settings, baseline=settings.root / "ddpify-baseline.json")
    return settings


def found(request: Request, settings: Settings, outcome: Outcome) -> Iterator[tuple[FileResult, list[Problem]]]:
    """Each file's result, and those of its problems that the baseline does not know."""
    from ddpify.linting.baseline import Baseline

    known = None
    if settings.baseline is not None and not request.write_baseline:
        known = Baseline.read(settings.baseline, settings.root)
    for result in results(request, settings, outcome):
        problems = list(known.new(result.problems)) if known is not None else result.problems
        outcome.results.append(result)
        outcome.problems.extend(problems)
        yield result, problems


def results(request: Request, settings: Settings, outcome: Outcome) -> Iterator[FileResult]:
    if request.standard:
        from ddpify.linting.check import check_file
        from ddpify.linting.root import Task

        name = request.stdin_filename or Path("<stdin>")
        outcome.files = 1
        data = sys.stdin.buffer.read()
        if settings.excludes(name):
            yield FileResult(str(name), data=data)
            return
        result = check_file(name, Task(settings, request.mend, request.debug), data)
        result.data = result.data if result.data is not None else data
        yield result
        return
    from ddpify.linting.run import Run

    run = Run(settings, request.mend, request.debug, request.jobs)
    yield from run(request.paths or (Path(),))
    outcome.files = run.files


def put(request: Request, result: FileResult) -> None:
    """The mended file, or its diff."""
    if request.diff:
        click.echo(result.diff, nl=False)
    elif request.fix and result.data is not None:
        if request.standard:
            sys.stdout.flush()
            sys.stdout.buffer.write(result.data)
            sys.stdout.buffer.flush()
        else:
            from ddpify.writing import write

            write(Path(result.path), result.data, like=Path(result.path))


def written(settings: Settings, outcome: Outcome) -> int:
    from ddpify.linting.baseline import Baseline

    assert settings.baseline is not None
    Baseline(settings.root).write(settings.baseline, outcome.problems)
    say(f"{settings.baseline}: {len(outcome.problems)} known; `baseline` in [tool.ddpify] names the file")
    return CANNOT if outcome.unread else 0


def ended(request: Request, outcome: Outcome) -> int:
    """The last lines, to standard error."""
    if request.diff:
        say(f"would mend {outcome.mended} in {_files(sum(bool(r.mended) for r in outcome.results))}")
        return CANNOT if outcome.unread else int(outcome.mended > 0)
    if request.fix:
        say(f"mended {outcome.mended}")
    say(summary(outcome.problems, outcome.files, outcome.unread))
    more = fixable(outcome.problems)
    if more:
        say(more)
    return outcome.code


def _files(number: int) -> str:
    return f"{number} file" if number == 1 else f"{number} files"


__all__ = ["DdpifyError", "Request", "lint"]
