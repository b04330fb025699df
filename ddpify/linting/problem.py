"""A finding in, plain data out: what is reported, sent from process to process, and compared with a baseline."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

from ddpify.rules import Finding, rule
from ddpify.source import Source


@dataclass(frozen=True)
class Problem:
    """A place in a file, counted as editors do (lines and columns from 1), what is wrong there, and the way out."""

    path: str
    line: int
    column: int
    end_line: int
    end_column: int
    code: str
    name: str
    severity: str
    message: str
    why: str
    fix: str
    #: `safe`, `unsafe`, or "" where ddpify has no edit
    mend: str = ""
    #: the source line, without the indentation around it
    text: str = ""
    #: how many equal problems stand before it in the file, for baselines
    nth: int = 0


@dataclass
class FileResult:
    """What became of one file."""

    path: str
    problems: list[Problem] = field(default_factory=list)
    #: why it could not be checked
    error: str = ""
    #: how many problems were mended, and the new bytes
    mended: int = 0
    data: bytes | None = None
    diff: str = ""


def problem_of(finding: Finding, path: str) -> Problem:
    """A finding of a rule as plain data."""
    source = finding.source
    span = source.span(finding.node)
    end_line = source.line_at(max(span.start, span.end - 1))
    end_column = span.end - source.line_start(end_line) + 1
    known = texts(finding.code)
    mend = "" if not finding.edits else "unsafe" if finding.unsafe else "safe"
    return Problem(
        path,
        span.line,
        span.column + 1,
        end_line,
        end_column,
        finding.code,
        known[0],
        finding.severity.value,
        finding.message,
        known[1],
        finding.left or known[2],
        mend,
        line_text(source, span.line),
    )


@cache
def texts(code: str) -> tuple[str, str, str]:
    """A rule's name, why it matters, and what to do, from its own documentation."""
    found = rule(code)
    if found is None:
        return "", "", ""
    sections = found.sections()
    why, fix = (" ".join(sections.get(s, "").split()) for s in ("Why is this bad?", "Fix"))
    return found.name(), why, fix


def line_text(source: Source, line: int) -> str:
    """One line of a file, without its end."""
    return source.text[source.line_start(line) : source.line_start(line + 1)].rstrip("\r\n")
