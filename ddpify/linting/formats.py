"""Results in, a report out: text for people, JSON, SARIF and JUnit for machines, lines that GitHub shows in a diff."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePath
from typing import Any

import click

from ddpify import __version__
from ddpify.linting.problem import FileResult, Problem
from ddpify.xml_text import clean

FORMATS = ("text", "json", "sarif", "github", "junit")
COLOURS = {"error": "red", "warning": "yellow", "info": "blue"}
_WIDTH = 100


class Text:
    """One problem after the other, as they are found: place and message, the line, why it matters, what to do."""

    def __init__(self) -> None:
        self.told: set[str] = set()

    def __call__(self, problem: Problem) -> Iterator[str]:
        severity = click.style(problem.severity, fg=COLOURS[problem.severity])
        place = click.style(f"{problem.path}:{problem.line}:{problem.column}:", bold=True)
        yield f"{place} {problem.code} {severity} {problem.message}"
        number = str(problem.line)
        margin = " " * len(number)
        if problem.text.strip():
            yield f"{margin} |"
            yield f"{number} | {problem.text.expandtabs(4)}"
            yield f"{margin} | {caret(problem)}"
        if problem.code not in self.told:
            self.told.add(problem.code)
            yield from _hung(f"{margin} = why: ", problem.why)
        way = f"{problem.fix} [{'--fix' if problem.mend == 'safe' else '--fix --unsafe-fixes'}]"
        yield from _hung(f"{margin} = fix: ", way if problem.mend else problem.fix)
        yield ""


def caret(problem: Problem) -> str:
    """`    ^^^^^^` under the part of the line that is meant."""
    before = problem.text[: problem.column - 1].expandtabs(4)
    end = problem.end_column - 1 if problem.end_line == problem.line else len(problem.text)
    width = len(problem.text[problem.column - 1 : end].expandtabs(4).rstrip())
    return " " * len(before) + "^" * max(1, width)


def _hung(head: str, text: str) -> Iterator[str]:
    if text:
        yield from textwrap.wrap(
            head + text.replace("`", "`"),
            _WIDTH,
            subsequent_indent=" " * len(head),
            break_long_words=False,
            break_on_hyphens=False,
        )


def statistics(problems: Sequence[Problem]) -> Iterator[str]:
    """A line per rule, the most frequent first."""
    counted = Counter((p.code, p.name) for p in problems)
    width = max((len(str(n)) for n in counted.values()), default=0)
    for (code, name), number in sorted(counted.items(), key=lambda c: (-c[1], c[0])):
        yield f"{number:>{width}}  {code}  {name}"


def summary(problems: Sequence[Problem], files: int, unread: int) -> str:
    """`found 3 (2 errors, 1 info) in 14 files`."""
    kinds = [_count(n, kind) for kind in COLOURS if (n := sum(p.severity == kind for p in problems))]
    which = f" ({', '.join(kinds)})" if kinds else ""
    unreadable = f", {unread} of them not checked" if unread else ""
    return f"found {len(problems)}{which} in {_count(files, 'file')}{unreadable}"


def fixable(problems: Sequence[Problem]) -> str:
    """What --fix would do, where it would do something."""
    safe, unsafe = (sum(p.mend == kind for p in problems) for kind in ("safe", "unsafe"))
    parts = [f"{safe} can be mended with --fix"] if safe else []
    parts += [f"{unsafe} with --fix --unsafe-fixes"] if unsafe else []
    return "; ".join(parts)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


# -- for machines -----------------------------------------------------------------------------------------------


def as_json(problems: Iterable[Problem], results: Iterable[FileResult]) -> str:
    """A stable object: `problems` and `errors`."""
    listed = [
        {
            "file": p.path,
            "line": p.line,
            "column": p.column,
            "end_line": p.end_line,
            "end_column": p.end_column,
            "rule": p.code,
            "name": p.name,
            "severity": p.severity,
            "message": p.message,
            "why": p.why,
            "fix": p.fix,
            "fixable": p.mend or None,
        }
        for p in problems
    ]
    errors = [{"file": r.path, "message": r.error} for r in results if r.error]
    return json.dumps({"version": 1, "problems": listed, "errors": errors}, indent=2)


def as_github(problems: Iterable[Problem], results: Iterable[FileResult]) -> str:
    """Workflow commands: GitHub shows them in the diff of a pull request."""
    kinds = {"error": "error", "warning": "warning", "info": "notice"}
    lines = []
    for p in problems:
        where = {"file": p.path, "line": p.line, "col": p.column, "endLine": p.end_line, "endColumn": p.end_column}
        given = ",".join(f"{key}={_escaped(str(value), '%:,')}" for key, value in where.items())
        message = _escaped(f"{p.path}:{p.line}:{p.column}: {p.code} {p.message}", "%")
        lines.append(f"::{kinds[p.severity]} title=ddpify ({p.code}),{given}::{message}")
    lines += [f"::error file={_escaped(r.path, '%:,')}::{_escaped(r.error, '%')}" for r in results if r.error]
    return "\n".join(lines)


def _escaped(text: str, special: str) -> str:
    codes = {"%": "%25", "\r": "%0D", "\n": "%0A", ":": "%3A", ",": "%2C"}
    return "".join(codes[c] if c in special or c in "\r\n" else c for c in text)


def as_sarif(problems: Iterable[Problem], results: Iterable[FileResult]) -> str:
    """SARIF 2.1.0, for code scanning."""
    from ddpify.rules import all_rules

    levels = {"error": "error", "warning": "warning", "info": "note"}
    rules = [
        {
            "id": r.code,
            "name": "".join(part.title() for part in r.name().split("-")),
            "shortDescription": {"text": r.title().replace("`", "'")},
            "fullDescription": {"text": " ".join(r.sections().get("Why is this bad?", r.title()).split())},
            "help": {"text": r.docs(), "markdown": r.docs()},
            "defaultConfiguration": {"level": levels[r.severity.value]},
            **({"helpUri": r.references[0]} if r.references else {}),
        }
        for r in all_rules()
    ]
    places = {str(r["id"]): at for at, r in enumerate(rules)}
    found = [
        {
            "ruleId": p.code,
            "ruleIndex": places[p.code],
            "level": levels[p.severity],
            "message": {"text": f"{p.message}. {p.fix}".rstrip()},
            "locations": [
                {
                    "physicalLocation": {
                        "artifactLocation": {"uri": _uri(p.path)},
                        "region": {
                            "startLine": p.line,
                            "startColumn": p.column,
                            "endLine": p.end_line,
                            "endColumn": p.end_column,
                            "snippet": {"text": p.text},
                        },
                    }
                }
            ],
            "partialFingerprints": {"ddpify/v1": _fingerprint(p)},
        }
        for p in problems
    ]
    notes = [
        {
            "level": "error",
            "message": {"text": r.error},
            "locations": [{"physicalLocation": {"artifactLocation": {"uri": _uri(r.path)}}}],
        }
        for r in results
        if r.error
    ]
    run: dict[str, Any] = {
        "tool": {"driver": {"name": "ddpify", "version": __version__, "rules": rules}},
        "columnKind": "unicodeCodePoints",
        "invocations": [{"executionSuccessful": not notes, "toolExecutionNotifications": notes}],
        "results": found,
    }
    document = {"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [run]}
    return json.dumps(document, indent=2)


def _uri(path: str) -> str:
    from urllib.parse import quote

    place = PurePath(path)
    return place.as_uri() if place.is_absolute() else quote(place.as_posix())


def _fingerprint(p: Problem) -> str:
    import hashlib

    return hashlib.sha256("\0".join([p.path, p.code, p.text.strip(), str(p.nth)]).encode()).hexdigest()[:32]


def as_junit(problems: Iterable[Problem], results: Iterable[FileResult]) -> str:
    """A failed test per problem, an error per file that could not be checked."""
    from xml.etree import ElementTree as ET

    suite = ET.Element("testsuite", name="ddpify")
    count = 0
    for p in problems:
        count += 1
        case = ET.SubElement(
            suite, "testcase", name=f"{p.code} {p.name}", classname=clean(p.path), file=clean(p.path), line=str(p.line)
        )
        kind = "skipped" if p.severity == "info" else "failure"
        node = ET.SubElement(case, kind, message=clean(f"{p.path}:{p.line}:{p.column}: {p.message}"))
        if kind == "failure":
            node.set("type", p.severity)
        node.text = clean("\n".join(filter(None, (p.text.strip(), p.why, p.fix))))
    failed = [r for r in results if r.error]
    for r in failed:
        case = ET.SubElement(suite, "testcase", name="not checked", classname=clean(r.path), file=clean(r.path))
        ET.SubElement(case, "error", message=clean(r.error))
    if not count and not failed:
        ET.SubElement(suite, "testcase", name="no problems", classname="ddpify")
    failures = sum(p.severity != "info" for p in problems)
    counts = {"tests": max(1, count + len(failed)), "failures": failures, "errors": len(failed)}
    for key, value in (counts | {"skipped": count - failures}).items():
        suite.set(key, str(value))
    root = ET.Element("testsuites")
    root.append(suite)
    ET.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode")


WRITERS = {"json": as_json, "github": as_github, "sarif": as_sarif, "junit": as_junit}
