"""One file in, its problems out, mended where that was asked for: for editors, standard input and tests."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ddpify.errors import DdpifyError
from ddpify.files import may_matter
from ddpify.linting.gitignore import Ignored
from ddpify.linting.ignores import MARK, UNUSED, ignores, unused, without
from ddpify.linting.problem import FileResult, Problem
from ddpify.linting.root import Root, Seen, Task, key_of, look
from ddpify.linting.settings import Settings
from ddpify.linting.together import merged
from ddpify.rules import Finding
from ddpify.shelf import SHELF
from ddpify.source import Source, read_source


@dataclass
class Checked:
    """The problems of one text, with the findings that they were made of (None for those of comments)."""

    source: Source
    problems: list[Problem] = field(default_factory=list)
    findings: list[Finding | None] = field(default_factory=list)
    #: what scripts see in the file that import it
    views: list[Seen] = field(default_factory=list)


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


def check(source: Source, name: str, task: Task, scripts: Sequence[Path] = ()) -> Checked:
    """The problems of a text that are selected and not ignored by a comment.

    Of a module `scripts` are those that import it: they know how it is called.
    """
    key = key_of(source.path)
    seen: list[tuple[Root, dict[str, list[Finding]]]] = [look(source, task)]
    seen += [s for script in scripts if (s := as_imported(script, source, task)) is not None and key in s[0].files]
    views = [(root, root.files[key]) for root, _ in seen]
    problems = merged(key, name, views, task.settings, alone=True).problems
    made_of = {
        (p.line, p.column, p.code): f
        for root, found in reversed(seen)
        for p, f in zip(root.files[key].problems, found[key], strict=True)
    }
    findings = [made_of.get((p.line, p.column, p.code)) for p in problems]
    return Checked(source, problems, findings, [v for _, v in views[1:]])


def as_imported(script: Path, source: Source, task: Task) -> tuple[Root, dict[str, list[Finding]]] | None:
    """What a script sees, with a text in place of a module that it imports; None where it cannot be read."""
    try:
        return look(SHELF.read(script), task, {source.path: source})
    except DdpifyError:
        return None


def scripts_for(path: Path, settings: Settings, most: int = 3) -> list[Path]:
    """The nearest scripts of a file's project that import it; more would take longer than one waits for."""
    from ddpify.linting.importers import importing_scripts

    ignored = Ignored() if settings.respect_gitignore else None

    def skips(found: str, folder: bool) -> bool:
        left_out = bool(settings.exclude) and settings.excludes(found)
        return left_out or (folder and ignored is not None and ignored(found, folder=True))

    return [p for p in importing_scripts([path], may_matter, skips) if key_of(p) != key_of(path)][:most]


def mended(checked: Checked, name: str, task: Task) -> FileResult:
    """The file after its edits, and its alone."""
    from ddpify.linting.mending import Mending

    path = checked.source.path
    key = key_of(path)
    mending = Mending(task, {key}, {key: checked.views})
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


__all__ = [
    "Checked",
    "FileResult",
    "Task",
    "check",
    "check_file",
    "comments_only",
    "mended",
    "mended_alone",
    "scripts_for",
]
