"""A verified script, with its conversion where there was one -> one HTML page that needs nothing else.

What is shown: the checks, the losses by step, and both texts side by side with the reason of each edit.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddpify.report import Report
    from ddpify.rules import Finding
    from ddpify.verify import VerifyReport

_CONTEXT = 3
_WIDE, _HIGH, _EDGE = 860, 260, 48
_COLOURS = ("#1f6feb", "#d1242f", "#1a7f37", "#8250df", "#bf8700", "#57606a")
_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1200px; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .25rem .6rem; vertical-align: top; border-bottom: 1px solid #8884; }
td.held { color: #1a7f37; } td.failed { color: #d1242f; font-weight: bold; } td.noted { color: #9a6700; }
h1, h2 { line-height: 1.25; } h2 { font-size: 1.2rem; margin-top: 2rem; }
td.nottried { color: #57606a; }
pre, table.diff { font: 12px/1.45 ui-monospace, Menlo, Consolas, monospace; }
pre { overflow-x: auto; padding: .8rem; border: 1px solid #8884; }
table.diff { table-layout: fixed; }
table.diff td { padding: 0 .4rem; border: 0; white-space: pre-wrap; overflow-wrap: anywhere; }
table.diff td.n { width: 3rem; text-align: right; color: #57606a; user-select: none; }
td.del { background: #d1242f22; } td.add { background: #1a7f3722; }
tr.why td { font: 13px/1.4 system-ui, sans-serif; white-space: normal; padding: .3rem .6rem; background: #1f6feb18; }
tr.gap td { color: #57606a; text-align: center; }
svg text { fill: currentColor; font-size: 12px; }
"""


def page(verified: VerifyReport, report: Report | None = None) -> str:
    """The whole page."""
    head = "everything that was tried held" if verified.ok else "not everything held"
    parts = [
        "<!doctype html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>{_text(verified.script)}: {head}</title>',
        f"<style>{_STYLE}</style></head><body>",
        f"<h1>{_text(verified.script)}: {head}</h1>",
        f"<p>{verified.nproc} ranks under torchrun, {_text(verified.backend)}, {verified.seconds:.1f} s: "
        f"{_counts(verified)}</p>",
        *_checks(verified),
        *_curves(_losses(verified)),
        *(_comparison(report) if report is not None else ()),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _counts(verified: VerifyReport) -> str:
    """`1 failed, 12 held, 3 not tried`"""
    words = [result.status.value for result in (*verified.results, *verified.compared)]
    return ", ".join(f"{words.count(word)} {word}" for word in sorted(set(words)))


def _text(value: object) -> str:
    return escape(str(value))


def _checks(verified: VerifyReport) -> Iterator[str]:
    yield "<h2>Checks</h2><table><tr><th>result</th><th>property</th><th>contract</th><th>what was seen</th></tr>"
    for result in (*verified.results, *verified.compared):
        word, hints = result.status.value, ", ".join(result.likely)
        yield (
            f'<tr><td class="{word.replace(" ", "")}">{word}</td><td><code>{_text(result.name)}</code></td>'
            f"<td>{result.section}</td><td>{_text(result.sentence)}{f' (likely {hints})' if hints else ''}</td></tr>"
        )
    yield "</table>"
    if verified.equivalence is not None:
        head = verified.equivalence.head()
        yield f"<h2>{_text(head[:1].upper() + head[1:])}</h2>"
        yield f"<pre>{_text(chr(10).join(verified.equivalence.table()))}</pre>"
    for note in verified.notes():
        yield f"<p>{_text(note)}</p>"
    if verified.failure:
        yield f"<h2>What went wrong</h2><pre>{_text(verified.failure)}</pre>"


def _losses(verified: VerifyReport) -> Mapping[str, Sequence[float]]:
    """Of the original and of the ranks together, where both were run; else of each rank."""
    both = verified.equivalence
    if both is None or not both.curve:
        return verified.curves
    return {
        f"{both.original}": [one for _, one, _ in both.curve],
        "the ranks (mean)" if both.world > 1 else "converted": [mean for *_, mean in both.curve],
    }


def _curves(curves: Mapping[str, Sequence[float]]) -> Iterator[str]:
    """One line for each series of losses, by step."""
    shown = {name: [(i, v) for i, v in enumerate(values, 1) if math.isfinite(v)] for name, values in curves.items()}
    points = [point for series in shown.values() for point in series]
    if len(points) < 2:
        return
    last, low, high = max(i for i, _ in points), min(v for _, v in points), max(v for _, v in points)
    yield f'<h2>Loss by step</h2><svg viewBox="0 0 {_WIDE} {_HIGH + 24 * len(shown)}" role="img" width="100%">'
    yield f'<path d="M{_EDGE},10V{_HIGH - 30}H{_WIDE - 10}" fill="none" stroke="currentColor"/>'
    for value, y in ((high, 16), (low, _HIGH - 34)):
        yield f'<text x="{_EDGE - 6}" y="{y}" text-anchor="end">{value:.4g}</text>'
    yield f'<text x="{_WIDE - 10}" y="{_HIGH - 12}" text-anchor="end">step {last}</text>'
    for number, (name, series) in enumerate(shown.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        places = " ".join(
            f"{_EDGE + (_WIDE - 10 - _EDGE) * (i - 1) / max(last - 1, 1):.1f},"
            f"{10 + (_HIGH - 40) * (high - v) / ((high - low) or 1):.1f}"
            for i, v in series
        )
        # one that lies on another lets it show through
        dash = ' stroke-dasharray="7 5"' if number else ""
        yield f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>'
        y = _HIGH + 24 * number + 8
        yield f'<path d="M{_EDGE},{y}h24" stroke="{colour}" stroke-width="3"{dash}/>'
        yield f'<text x="{_EDGE + 32}" y="{y + 4}">{_text(name)}</text>'
    yield "</svg>"


def _comparison(report: Report) -> Iterator[str]:
    conversion = report.conversion
    yield from _side_by_side(
        report.script, report.output, conversion.source.text, conversion.text, _edits(report, None)
    )
    for path, changed in conversion.files.items():
        before = changed.source.text if changed.source is not None else ""
        name = changed.source.path if changed.source is not None else Path("nothing")
        yield from _side_by_side(name, path, before, changed.text, _edits(report, name))
    left = conversion.left
    if left:
        yield "<h2>Left for you</h2><ul>"
        for finding in left:
            yield f"<li>line {finding.span.line}: {_text(finding.message)}. {_text(finding.left)}</li>"
        yield "</ul>"


def _edits(report: Report, path: Path | None) -> list[Finding]:
    """The findings of one file (None: the script) that changed something."""
    wanted = report.conversion.source.path if path is None else path
    return [f for f in report.conversion.plan.findings if f.edits and f.source.path == wanted]


def _side_by_side(before: Path, after: Path, old: str, new: str, edits: Sequence[Finding]) -> Iterator[str]:
    a, b = old.splitlines(), new.splitlines()
    left = list(edits)
    yield f"<h2>{_text(before)} and {_text(after)}</h2>"
    yield '<table class="diff"><colgroup><col style="width:3rem"><col><col style="width:3rem"><col></colgroup>'
    for group in difflib.SequenceMatcher(None, a, b, autojunk=False).get_grouped_opcodes(_CONTEXT):
        yield '<tr class="gap"><td colspan="4">&#8942;</td></tr>'
        for tag, i1, i2, j1, j2 in group:
            for k in range(max(i2 - i1, j2 - j1)):
                yield _row(tag, a, i1 + k if i1 + k < i2 else None, b, j1 + k if j1 + k < j2 else None)
            if tag == "equal":
                continue
            own = [f for f in left if f.span.line <= i2 + 1]  # the edit may stand below what it is about
            left = [f for f in left if f not in own]
            for why in dict.fromkeys(f"<b>{f.code}</b> {_text(f.reason or f.message)}" for f in own):
                yield f'<tr class="why"><td colspan="4">{why}</td></tr>'
    for finding in left:
        why = f"line {finding.span.line}: <b>{finding.code}</b> {_text(finding.reason or finding.message)}"
        yield f'<tr class="why"><td colspan="4">{why}</td></tr>'
    yield "</table>"


def _row(tag: str, a: Sequence[str], i: int | None, b: Sequence[str], j: int | None) -> str:
    kinds = (
        ("", "")
        if tag == "equal"
        else (' class="del"' if i is not None else "", ' class="add"' if j is not None else "")
    )
    cells = []
    for lines, at, kind in ((a, i, kinds[0]), (b, j, kinds[1])):
        number, text = ("", "") if at is None else (str(at + 1), _text(lines[at]))
        cells.append(f'<td class="n">{number}</td><td{kind}>{text}</td>')
    return f"<tr>{''.join(cells)}</tr>"
