"""Conversions and findings in, what the user reads out: text for the terminal, or plain data for JSON."""

from __future__ import annotations

import os
import shlex
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ddpify.facts.handmade import Draws, hand_fed
from ddpify.notebook import what_is_lost
from ddpify.package import python_path
from ddpify.rules import Finding, Severity, rule

if TYPE_CHECKING:
    from ddpify.convert import Conversion
    from ddpify.facts.values import Loader

WIDTH = 80
_COLOURS = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.INFO: "blue"}


@dataclass(frozen=True)
class Report:
    """A conversion, and what was done with its result."""

    conversion: Conversion
    #: the file that was written, or None where the result went to stdout or nowhere
    written: Path | None = None
    #: the script's own arguments, where they were given
    args: Sequence[str] = ()
    #: whether --verify ran or is about to
    verified: bool = False
    checking: bool = False

    @property
    def script(self) -> Path:
        return self.conversion.source.path

    @property
    def changed(self) -> bool:
        return self.conversion.data != self.conversion.source.data or bool(self.conversion.files)

    @property
    def output(self) -> Path:
        """The file that the commands name: what was written, or what one would call it."""
        if self.written is not None:
            return self.written
        stem = "train" if self.script.name.startswith("<") else self.script.stem
        return self.script.with_name(f"{stem}_ddp.py")

    @property
    def torchrun(self) -> str:
        """The command that starts the result; `...` stands for the script's arguments."""
        package = self.conversion.facts.project.package
        what = _quote(self.output) if package is None else f"-m {package.name}.{self.output.stem}"
        above = python_path(self.script, self.conversion.facts.source.text)
        path = f"PYTHONPATH={_quote(Path(os.path.relpath(above)))} " if above is not None else ""
        return _join(f"{path}torchrun --standalone --nproc-per-node=N {what}", self._arguments("..."))

    @property
    def verify_command(self) -> str:
        """The command that proves the result."""
        arguments = self._arguments("ARGS")
        after = f"-- {arguments}" if arguments else ""
        if self.written is not None:
            return _join(f"ddpify verify {_quote(self.output)}", after)
        script = "-" if self.script.name.startswith("<") else _quote(self.script)
        return _join(f"ddpify {script} -o {_quote(self.output)} --verify", after)

    @property
    def diff(self) -> str:
        """A unified diff from the script to the output."""
        return self.conversion.diff(str(self.output))

    def _arguments(self, unknown: str) -> str:
        if self.args:
            return " ".join(shlex.quote(a) for a in self.args)
        return unknown if takes_arguments(self.conversion) else ""

    # -- text ---------------------------------------------------------------------------------------------

    def lines(self) -> Iterator[str]:
        """The report as lines of at most 80 columns, coloured (click takes that away where there is no terminal)."""
        yield click.style(self._header(), bold=True)
        for lines, finding in _grouped(self._edits()):
            yield from _entry(
                f"{self._place(finding)}{', '.join(map(str, lines))}", finding, finding.reason or finding.message
            )
        left = self.conversion.left
        if left:
            yield ""
            yield click.style(f"left for you ({len(left)}):", fg="yellow", bold=True)
        for finding in left:
            why = f"{finding.message} ({finding.reason})" if finding.reason else finding.message
            yield from _entry(f"{self._file(finding)}:{finding.span.line}", finding, why, colour="yellow")
            if finding.left:
                yield from _wrapped("what to do: ", finding.left, 6)
        lost = what_is_lost(self.conversion.source)
        notes = [*self._batch_size(), *lost, *map(self._note, self.conversion.plan.notes)]
        if notes:
            yield ""
            yield click.style("good to know:", bold=True)
        for note in notes:
            yield from _wrapped("", note, 2, hang=6)
        if self.changed:
            yield from self._ending()

    def _header(self) -> str:
        edits = self._edits()
        rules = len({f.code for f in edits})
        counted = f"{_count(len(edits), 'edit')} by {_count(rules, 'rule')}"
        if self.checking:
            return f"{self.script} {'would change' if self.changed else 'would not change'}: {counted}"
        others = "".join(f", {path}" for path in self.conversion.files)
        if self.written is None:
            return f"{self.script}: {counted}"
        return f"{self.script} -> {self.written}{others}: {counted}"

    def _batch_size(self) -> Iterator[str]:
        """What became of the number in `batch_size`, which means something else now."""
        if self.conversion.facts.global_batch == "keep":
            what = "is divided by the number of processes: a step sees as many samples as before"
        else:
            what = "is per process: a step on N processes sees N times as many samples, and the learning rate stays"
        loaders = {ld.site.node: ld for ld in reversed(self.conversion.facts.roles.training_loaders)}
        for loader in reversed(list(loaders.values())):
            source = loader.site.source
            file = "" if source is self.conversion.source else f"{source.path}:"
            where = f"{file}{source.line(loader.site.node)}"
            yield f"{where} {_batch_argument(loader)} {what} (`ddpify explain batch-size`)"
        for drawn in (h.draw for h in hand_fed(self.conversion.facts) if isinstance(h, Draws)):
            source = drawn.frame.source
            file = "" if source is self.conversion.source else f"{source.path}:"
            yield (
                f"{file}{source.line(drawn.node)} every rank draws batches of its own: a step on N processes sees N "
                "times as many samples, and the learning rate stays (`ddpify explain batch-size`)"
            )

    def _ending(self) -> Iterator[str]:
        yield ""
        yield f"run it:       {self.torchrun}"
        known = "N: the number of GPUs"
        yield (
            f"              ({known}; ...: the arguments as before)"
            if self.torchrun.endswith(" ...")
            else f"              ({known})"
        )
        if not self.verified:
            yield f"{click.style('not verified', fg='yellow')}: {self.verify_command}"

    def _edits(self) -> list[Finding]:
        return [f for f in self.conversion.plan.findings if f.edits]

    def _place(self, finding: Finding) -> str:
        return "" if finding.source is self.conversion.source else f"{self._file(finding)}:"

    def _note(self, finding: Finding) -> str:
        return f"{self._place(finding)}{finding.span.line} {finding.reason or finding.message}"

    def _file(self, finding: Finding) -> str:
        """The file that a finding's line counts in: the result's own findings count in the result."""
        source = finding.source
        return str(self.output if source is not self.conversion.source and source.path == self.script else source.path)

    # -- data ---------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """The same as plain data."""
        return {
            "script": str(self.script),
            "output": str(self.written) if self.written is not None else None,
            "changed": self.changed,
            "files": {str(path): changed.text for path, changed in self.conversion.files.items()},
            "edits": [self._finding(f) for f in self._edits()],
            "left": [{**self._finding(f), "remedy": f.left} for f in self.conversion.left],
            "notes": [self._finding(f) for f in self.conversion.plan.notes],
            "batch_size": list(self._batch_size()),
            "commands": what_is_lost(self.conversion.source),
            "command": self.torchrun,
            "verify_command": self.verify_command,
            "diff": self.diff,
        }

    def _finding(self, finding: Finding) -> dict[str, Any]:
        return {
            "file": self._file(finding),
            "line": finding.span.line,
            "column": finding.span.column + 1,
            "rule": finding.code,
            "name": _name(finding),
            "message": finding.message,
            "reason": finding.reason,
        }


def _batch_argument(loader: Loader) -> str:
    """`batch_size=args.batch_size`, as the script says it."""
    arguments = loader.call.args if loader.call is not None else ()
    for at, argument in enumerate(arguments):
        keyword = argument.keyword.value if argument.keyword is not None else ""
        if keyword == "batch_size" or (at == 1 and not keyword and not argument.star):
            return f"`batch_size={loader.site.source.code(argument.value)}`"
    return "the batch size"


def diff_bytes(report: Report) -> bytes:
    """The diff in the encoding of the file, so that `patch` takes it."""
    source = report.conversion.source
    return report.diff.encode("utf-8" if source.bom else source.encoding, "backslashreplace")


def coloured_diff(report: Report) -> str:
    """The diff for a terminal."""
    colours = {"+": "green", "-": "red", "@": "cyan"}
    lines = report.diff.splitlines(keepends=True)
    return "".join(click.style(s, fg=colours[s[0]]) if s[:1] in colours else s for s in lines)


def takes_arguments(conversion: Conversion) -> bool:
    """Whether the script reads its command line."""
    facts = conversion.facts
    return bool(facts.flow.log.of("parsed")) or any(
        word in conversion.source.text for word in ("sys.argv", "argparse", "click", "fire", "hydra")
    )


def rules_table(rules: Iterable[Any]) -> Iterator[str]:
    """A line per rule: code, severity, name, title."""
    listed = list(rules)
    width = max((len(r.name()) for r in listed), default=0)
    for r in listed:
        severity = click.style(f"{r.severity.value:<7}", fg=_COLOURS[r.severity])
        yield f"{r.code}  {severity}  {r.name():<{width}}  {r.title()}"


def _grouped(findings: list[Finding]) -> Iterator[tuple[list[int], Finding]]:
    """Edits of one rule for one reason in one file are told together, at the first line of them."""
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.source.path, finding.code, finding.reason or finding.message), []).append(finding)
    for group in groups.values():
        yield sorted({f.span.line for f in group}), group[0]


def _entry(place: str, finding: Finding, text: str, colour: str = "cyan") -> Iterator[str]:
    head = f"{place}  {finding.code} {_name(finding)}: "
    first, *rest = _wrapped(head, text, 2, hang=6)
    yield first.replace(finding.code, click.style(finding.code, fg=colour), 1)
    yield from rest


def _wrapped(head: str, text: str, indent: int, hang: int | None = None) -> list[str]:
    return textwrap.wrap(
        head + " ".join(text.split()),
        WIDTH,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + len(head) if hang is None else hang),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _name(finding: Finding) -> str:
    known = rule(finding.code)
    return known.name() if known is not None else ""


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _quote(path: Path) -> str:
    return shlex.quote(str(path))


def _join(*parts: str) -> str:
    return " ".join(p for p in parts if p)
