"""One file in, its problems out, mended where that was asked for: for editors, standard input and tests."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field
from pathlib import Path

from ddpify.linting.ignores import MARK, UNUSED, ignores, unused, without
from ddpify.linting.problem import FileResult, Problem
from ddpify.linting.root import Task, key_of, look
from ddpify.linting.settings import Settings
from ddpify.linting.together import merged
from ddpify.rules import Finding
from ddpify.source import Source, read_source


@dataclass
class Checked:
    """The problems of one text, with the findings that they were made of (None for those of comments)."""

    source: Source
    problems: list[Problem] = field(default_factory=list)
    findings: list[Finding | None] = field(default_factory=list)


def check_file(path: Path, task: Task, data: bytes | None = None, name: str = "") -> FileResult:
    """The result for a file, or for `data` in its place; whatever goes wrong is a sentence."""
    shown = name or str(path)
    try:
        source = Source(path, data) if data is not None else read_source(path)
        checked = check(source, shown, task)
        if not task.mend or path.suffix == ".ipynb":
            return FileResult(shown, checked.problems)
        return mended(checked, shown, task)
    except Exception as error:
        from ddpify.group import sentence

        if task.debug:
            traceback.print_exc()
        return FileResult(shown, error=sentence(error, f"{shown}: "))


def check(source: Source, name: str, task: Task) -> Checked:
    """The problems of a text that are selected and not ignored by a comment, as the file by itself tells."""
    root, found = look(source, task)
    key = key_of(source.path)
    seen = root.files[key]
    problems = merged(key, name, [(root, seen)], task.settings, alone=True).problems
    made_of = {(p.line, p.column, p.code): f for p, f in zip(seen.problems, found[key], strict=True)}
    return Checked(source, problems, [made_of.get((p.line, p.column, p.code)) for p in problems])


def mended(checked: Checked, name: str, task: Task) -> FileResult:
    """The file after its edits, and its alone."""
    from ddpify.linting.mending import Mending

    path = checked.source.path
    mending = Mending(task, {key_of(path)})
    mending.add(checked.source)
    mending.mend(path)
    mending.comments(check(mending.current(path), name, task).problems)
    result = FileResult(name, check(mending.current(path), name, task).problems)
    mending.tell(result, key_of(path))
    return result


def mended_alone(text: str, problem: Problem, finding: Finding | None = None) -> str | None:
    """A text with the edits of one problem (without a finding: of a comment), None where they do not go."""
    from ddpify.linting.mending import rewritten

    return without(text, [problem]) if finding is None else rewritten(finding.source, [finding])


def comments_only(data: bytes, name: str, settings: Settings) -> list[Problem]:
    """The problems of a file in which no rule can find anything: its ignores are idle."""
    if MARK not in data or not settings.selects(UNUSED, name):
        return []
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return []
    return list(unused(ignores(text), name, text, lambda code: settings.selects(code, name)))


__all__ = ["Checked", "FileResult", "Task", "check", "check_file", "comments_only", "mended", "mended_alone"]
