"""Arguments in, exit code out: 0 done, 1 something is left to do, 2 could not be done."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ddpify import __version__
from ddpify.errors import DdpifyError
from ddpify.group import DONE, LEFT, ScriptOrCommand, debug, is_debug, say
from ddpify.running import bench, verify
from ddpify.watch import Launch, html_option, launch_options, print_json, render, taken, write_page

if TYPE_CHECKING:
    from ddpify.convert import Conversion
    from ddpify.report import Report
    from ddpify.source import Source

_format = click.option(
    "--format", "form", type=click.Choice(["text", "json"]), default="text", help="How to report (text)."
)
_path = click.Path(path_type=Path)


def _split(_ctx: click.Context, _param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    """`--select DDP301,DDP302`"""
    return tuple(code for text in value for code in text.split(",") if code.strip())


_STANDARD = Path("-")


@click.group(
    cls=ScriptOrCommand,
    subcommand_metavar="SCRIPT [OPTIONS] | COMMAND [ARGS]",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="ddpify")
def cli() -> None:
    """Convert a single-GPU PyTorch training script to DistributedDataParallel, and prove the result under torchrun.

    \b
    ddpify train.py --diff                  see what would change
    ddpify train.py -o train_ddp.py         convert
    ddpify verify train_ddp.py -- ARGS      run it on 2 ranks and check it
    ddpify bench train_ddp.py -- ARGS       time it on 1 and 2 ranks

    `ddpify SCRIPT` is short for `ddpify convert SCRIPT`. Exit codes: 0 done, 1 something is left for you, 2 cannot.
    """


@cli.command()
@click.argument("script", type=_path)
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@click.option("-o", "--output", type=_path, metavar="OUT", help="Write the result to OUT.")
@click.option("--in-place", is_flag=True, help="Write the result over SCRIPT.")
@click.option("--diff", "diff", is_flag=True, help="Show what would change.")
@click.option("--check", is_flag=True, help="Only say whether it would change (exit code 1).")
@_format
@click.option(
    "--global-batch",
    type=click.Choice(["scale", "keep"]),
    default="scale",
    help="scale: batch_size per process (default); keep: divide it by the number of processes.",
)
@click.option("--sync-bn", is_flag=True, help="On GPUs, BatchNorm takes its statistics of all processes.")
@click.option(
    "--verify",
    "verifying",
    is_flag=True,
    help="Run the result on ranks, and against SCRIPT; ARGS behind `--` are the script's own.",
)
@html_option
@launch_options
@debug
@click.pass_context
def convert(ctx: click.Context, /, script: Path, global_batch: str, form: str, **asked: Any) -> None:
    """Convert SCRIPT to DistributedDataParallel.

    SCRIPT `-` is standard input. The result goes to standard output, or where -o, --in-place, --diff or --check say.
    The report goes to standard error.
    """
    wish = Wish(script, launch=taken(asked), **asked)
    if wish.in_place and script.suffix == ".ipynb":
        raise DdpifyError(f"{script}: a notebook is not changed in place; write the script with -o OUT.py")
    wish.check_usage()
    from ddpify.convert import convert_source
    from ddpify.report import Report

    conversion = convert_source(
        _read(script), global_batch=global_batch, sync_bn=wish.sync_bn, suffix=wish.suffix, debug=is_debug(ctx)
    )
    if conversion.files and not (wish.quiet or wish.diff):
        names = ", ".join(str(p) for p in conversion.files)
        raise DdpifyError(
            f"{script}: the conversion writes other files too ({names}); give -o OUT, --in-place or --diff"
        )
    if wish.target is not None:
        _write(conversion, wish.target, in_place=wish.in_place)
    report = Report(conversion, wish.target, wish.args, wish.verifying, wish.check)
    if form == "text":
        _show(report, wish)
    verified = None
    if wish.verifying and wish.target is not None:
        verified = wish.launch.verify(wish.target, wish.args, wish.original)
    if wish.html is not None and verified is not None:
        write_page(wish.html, verified, report)
    if form == "json":
        code = {} if wish.quiet or wish.diff else {"code": conversion.text}
        print_json({**report.to_json(), **code, "verified": None if verified is None else verified.to_json()})
    elif verified is not None:
        render(verified, err=True)
    unfinished = conversion.left or (wish.check and report.changed) or (verified is not None and not verified.ok)
    ctx.exit(LEFT if unfinished else DONE)


@dataclass(frozen=True)
class Wish:
    """What the options of `convert` ask for."""

    script: Path
    args: tuple[str, ...]
    output: Path | None
    in_place: bool
    diff: bool
    check: bool
    sync_bn: bool
    verifying: bool
    html: Path | None
    launch: Launch

    @property
    def target(self) -> Path | None:
        """The file to write, where there is one."""
        return self.script if self.in_place else None if self.output == _STANDARD else self.output

    @property
    def original(self) -> Path | None:
        """The script to hold the result against: it must still be there, and run."""
        return None if self.in_place or self.script == _STANDARD or self.script.suffix == ".ipynb" else self.script

    @property
    def suffix(self) -> str | None:
        """What copies of changed modules are called by, as OUT is after SCRIPT; None: changed in place."""
        if self.in_place:
            return None
        stem = self.output.stem if self.output is not None else ""
        return stem[len(self.script.stem) :] or "_ddp" if stem.startswith(self.script.stem) else "_ddp"

    @property
    def quiet(self) -> bool:
        """Whether neither code nor diff is to be shown."""
        return self.check or self.target is not None

    def check_usage(self) -> None:
        asked = {"-o": self.output, "--in-place": self.in_place, "--diff": self.diff, "--check": self.check}
        given = [name for name, wanted in asked.items() if wanted]
        if len(given) > 1:
            raise click.UsageError(f"{' and '.join(given)} exclude each other")
        if self.args and not self.verifying:
            hint = "the script's own arguments are for --verify, behind `--`"
            raise click.UsageError(f"unexpected argument {self.args[0]!r} ({hint})")
        if self.script == _STANDARD and self.in_place:
            raise click.UsageError("standard input cannot be written in place")
        if self.html is not None and not self.verifying:
            raise click.UsageError("--html shows what --verify found: give both")
        if self.verifying and self.target is None:
            raise click.UsageError("--verify runs the result: say where to write it with -o OUT or --in-place")


def _show(report: Report, wish: Wish) -> None:
    """Code or diff to standard output, everything else to standard error."""
    if wish.diff:
        from ddpify.report import coloured_diff, diff_bytes

        if sys.stdout.isatty():
            click.echo(coloured_diff(report), nl=False)
        else:
            _emit(diff_bytes(report))
    elif not wish.quiet:
        _emit(report.conversion.data)
    for line in report.lines():
        say(line)


def _read(script: Path) -> Source:
    from ddpify.source import Source, read_source

    if script == _STANDARD:
        source = Source(Path("<stdin>"), sys.stdin.buffer.read())
    elif not script.exists() and script.suffix == "" and script.name == str(script):
        raise DdpifyError(f"{script}: no such file, and no such command (`ddpify --help` lists them)")
    else:
        source = read_source(script)
    if not source.text.strip():
        raise DdpifyError(f"{source.path}: empty; give the script that trains")
    return source


def _write(conversion: Conversion, target: Path, *, in_place: bool) -> None:
    from ddpify.writing import check_imports, check_target, write

    read = [s.path for s in conversion.facts.project.files()]
    if not in_place:
        for path in (target, *conversion.files):
            check_target(path, read)
        check_imports(target, conversion.source.path, read)
    for path, changed in conversion.files.items():
        write(path, changed.data, like=changed.source.path if changed.source is not None else conversion.source.path)
    write(target, conversion.data, like=conversion.source.path)


def _emit(data: bytes) -> None:
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


cli.add_command(verify)
cli.add_command(bench)


def _codes(name: str, said: str) -> Callable[[Any], Any]:
    return click.option(name, multiple=True, metavar="CODES", callback=_split, help=said)


@cli.command()
@click.argument("paths", nargs=-1, type=_path)
@_codes("--select", "Report these rules only: codes (DDP401), their beginnings (DDP4) or names.")
@_codes("--ignore", "Do not report these.")
@_codes("--extend-select", "Report these too.")
@click.option("--fix", is_flag=True, help="Mend what can be mended without changing files or results of the script.")
@click.option("--unsafe-fixes", is_flag=True, help="With --fix or --diff: mend the rest that can be mended too.")
@click.option("--diff", is_flag=True, help="Show what --fix would do (exit code 1 where it would do something).")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "sarif", "github", "junit"]),
    default="text",
    help="How to report (text).",
)
@click.option("--statistics", is_flag=True, help="Count the problems of each rule.")
@click.option(
    "--stdin-filename", type=_path, metavar="FILE", help="The name of what comes by standard input (PATHS -)."
)
@click.option("--baseline", type=_path, metavar="FILE", help="Report only what FILE does not know.")
@click.option("--write-baseline", is_flag=True, help="Write what is found to the baseline (ddpify-baseline.json).")
@click.option("--jobs", type=click.IntRange(0), default=0, metavar="N", help="Number of processes (one per CPU).")
@debug
@click.pass_context
def lint(ctx: click.Context, /, **asked: Any) -> None:
    """Report DistributedDataParallel pitfalls in PATHS.

    PATHS are scripts, or folders of them; without any, this folder. `# ddpify: ignore[DDP401]` behind a line silences
    it, `# ddpify: ignore-file[DDP401]` a file; `ddpify explain lint` tells of the settings in pyproject.toml.
    """
    from ddpify.linting.command import Request
    from ddpify.linting.command import lint as run

    ctx.exit(run(Request(debug=is_debug(ctx), **asked)))


@cli.command()
@click.option("--stdio", is_flag=True, expose_value=False, help="Talk by standard input and output (it always does).")
@debug
def lsp() -> None:
    """Serve an editor: problems and their fixes.

    This is a language server: the editor starts it and talks to it. `ddpify explain lint` tells how to set one up.
    """
    try:
        from ddpify.linting.server import make_server
    except ImportError as error:
        raise DdpifyError(f'the language server needs pygls 2: pip install "ddpify[lsp]" ({error})') from None
    make_server().start_io()


@cli.command()
@click.argument("script", type=_path)
@debug
def facts(script: Path) -> None:
    """Print what was understood of SCRIPT.

    Every role (model, loaders, optimizer, device, epoch loop, metrics) with its line and the evidence for it.
    """
    from ddpify.facts import collect
    from ddpify.project import Project
    from ddpify.understood import listing

    for line in listing(collect(Project(_read(script)), converting=True)):
        click.echo(line)


@cli.command()
@debug
def rules() -> None:
    """List the rules."""
    from ddpify.report import rules_table
    from ddpify.rules import all_rules

    for line in rules_table(all_rules()):
        click.echo(line)


@cli.command()
@click.argument("topic", required=False, metavar="CODE")
@debug
def explain(topic: str | None) -> None:
    """Print the documentation of a rule or a topic.

    CODE is DDP301, loader-without-sampler, or a topic; without it, the topics are listed.
    """
    from ddpify.docs import explain as find
    from ddpify.docs import pages

    if topic is None:
        click.echo("\n".join([*pages(), "", "and every rule of `ddpify rules`"]))
        return
    text = find(topic)
    if not sys.stdout.isatty():
        click.echo(text, nl=False)
        return
    from rich.console import Console
    from rich.markdown import Markdown

    Console(width=min(Console().width, 100)).print(Markdown(text))


def main() -> None:
    """The `ddpify` command."""
    gc.set_threshold(
        200_000, 10, 10
    )  # trees are many small objects that live long: looking for dead ones takes a fourth
    cli(prog_name="ddpify")
