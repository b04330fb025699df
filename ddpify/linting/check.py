"""One file in, its problems out, mended where that was asked for: what a worker process does."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field
from pathlib import Path

import libcst as cst

from ddpify.edits import Edit
from ddpify.errors import DdpifyError
from ddpify.linting.ignores import MARK, UNUSED, Ignore, ignores, renumbered, silence, unused, without
from ddpify.linting.problem import FileResult, Problem, problem_of
from ddpify.linting.settings import Settings
from ddpify.rules import Finding
from ddpify.source import Source, read_source

#: how often a file is mended and looked at again
_PASSES = 8


@dataclass(frozen=True)
class Task:
    """What is asked of every file."""

    settings: Settings
    #: "", `safe` or `unsafe`
    mend: str = ""
    debug: bool = False


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
    """The problems of a text that are selected and not ignored by a comment."""
    from ddpify.lint import lint_source

    def selected(code: str) -> bool:
        return task.settings.selects(code, name)

    found = [f for f in lint_source(source, debug=task.debug) if selected(f.code)]
    problems = [problem_of(f, name) for f in found]
    comments = ignores(source.text) if MARK in source.data else []
    left = silence(problems, [lines_of(f) for f in found], comments) if comments else range(len(problems))
    kept: list[tuple[Problem, Finding | None]] = [(problems[at], found[at]) for at in left]
    if selected(UNUSED):
        kept += [(p, None) for p in unused(comments, name, source.text, selected)]
    kept.sort(key=lambda pair: (pair[0].line, pair[0].column, pair[0].code))
    return Checked(source, renumbered([p for p, _ in kept]), [f for _, f in kept])


def comments_only(data: bytes, name: str, settings: Settings) -> list[Problem]:
    """The problems of a file in which no rule can find anything: its ignores are idle."""
    if MARK not in data or not settings.selects(UNUSED, name):
        return []
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return []
    return list(unused(ignores(text), name, text, lambda code: settings.selects(code, name)))


def lines_of(finding: Finding) -> range:
    """The lines whose comments count: those of the statement, of a block those of its head."""
    source, node = finding.source, finding.node
    top: cst.CSTNode = node
    if not isinstance(node, (cst.BaseSmallStatement, cst.BaseCompoundStatement, cst.Module)):
        for above in source.ancestors(node):
            if isinstance(above, (cst.BaseSmallStatement, cst.BaseCompoundStatement)):
                top = above
                break
    first, last = source.line(top), source.line_at(max(source.span(top).start, source.span(top).end - 1))
    body = getattr(top, "body", None)
    if isinstance(top, cst.BaseCompoundStatement) and isinstance(body, cst.IndentedBlock) and body.body:
        last = max(first, source.line(body.body[0]) - 1)
    return range(min(first, source.line(node)), last + 1)


# -- mending ----------------------------------------------------------------------------------------------------


def mended(checked: Checked, name: str, task: Task) -> FileResult:
    """The file after its edits; each pass looks at the text that the one before has made."""
    first, count = checked.source, 0
    for _ in range(_PASSES):
        wanted = [(p, f) for p, f in zip(checked.problems, checked.findings, strict=True) if _allowed(p, task)]
        if not wanted:
            break
        text, done = _applied(checked.source, wanted)
        if not done or text == checked.source.text:
            break
        count += done
        checked = check(Source(first.path, first.encode(text)), name, task)
    result = FileResult(name, checked.problems, mended=count)
    if count:
        from ddpify.convert import text_diff

        result.data = checked.source.data
        result.diff = text_diff(first.text, checked.source.text, name, name)
    return result


def mended_alone(text: str, problem: Problem, finding: Finding | None = None) -> str | None:
    """A text with the edits of one problem (without a finding: of a comment), None where they do not go."""
    return without(text, [problem]) if finding is None else _rewritten(finding.source, [finding])


def _allowed(problem: Problem, task: Task) -> bool:
    return problem.mend == "safe" or (problem.mend == "unsafe" and task.mend == "unsafe")


def _applied(source: Source, wanted: list[tuple[Problem, Finding | None]]) -> tuple[str, int]:
    """The text with all edits at once; where they are in each other's way, with as many as go together."""
    comments = [p for p, f in wanted if f is None]
    if comments:
        return without(source.text, comments), len(comments)
    findings = [f for _, f in wanted if f is not None]
    text = _rewritten(source, findings)
    if text is not None:
        return text, len(findings)
    taken: list[Finding] = []
    for finding in findings:
        if _rewritten(source, [*taken, finding]) is not None:
            taken.append(finding)
    return _rewritten(source, taken) or source.text, len(taken)


def _rewritten(source: Source, findings: list[Finding]) -> str | None:
    from ddpify.convert import with_edits

    edits: list[Edit] = [e for f in findings for e in f.edits]
    try:
        text = with_edits(source, edits)
        compile(text, str(source.path), "exec", dont_inherit=True)
    except (DdpifyError, SyntaxError, ValueError):
        return None
    return text


__all__ = [
    "Checked",
    "FileResult",
    "Ignore",
    "Task",
    "check",
    "check_file",
    "comments_only",
    "mended",
    "mended_alone",
]
