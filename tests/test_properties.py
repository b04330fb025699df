"""What holds of every conversion: of the fixtures, and of the same scripts in other words."""

from __future__ import annotations

import ast
import difflib
import io
import re
import tokenize
from collections import Counter
from pathlib import Path

import libcst as cst
import pytest

from ddpify.changes import Change
from ddpify.edits import AddHelper, AddImport, Edit
from ddpify.errors import Refused
from ddpify.lint import lint_source
from ddpify.rewrite import Rewriter
from ddpify.rules import Severity
from ddpify.source import Source, walk
from tests.cases import CASES, CONVERTED, NOWHERE, Case, conversion, convert_bytes, each, pairs, recorded, written
from tests.variants import STATEMENT, bound

ROOT = Path(__file__).resolve().parent.parent


# ---- the result -----------------------------------------------------------------------------------------


@each(CONVERTED)
def test_compiles(case: Case) -> None:
    for name, data in written(conversion(case)).items():
        compile(data, name, "exec")


@each(CONVERTED)
def test_lints_clean(case: Case) -> None:
    files = {NOWHERE / name: data for name, data in (case.modules | written(conversion(case))).items()}
    overlay = {path: Source(path, data) for path, data in files.items()}
    for source in overlay.values():
        found = [f for f in lint_source(source, overlay=overlay) if f.severity is not Severity.INFO]
        assert not found, [(source.path, f.span.line, f.code, f.message) for f in found]


@each(CONVERTED)
def test_second_conversion_is_refused(case: Case) -> None:
    files = case.modules | written(conversion(case))
    with pytest.raises(Refused, match="already distributed"):
        convert_bytes(files.pop("before.py"), files)


@each(CONVERTED)
def test_nothing_is_left_for_the_user(case: Case) -> None:
    assert not conversion(case).left


def comments(text: str) -> Counter[str]:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return Counter(t.string for t in tokens if t.type == tokenize.COMMENT)


@each(CONVERTED)
def test_every_comment_stays(case: Case) -> None:
    for source, result in pairs(conversion(case)):
        assert not comments(source.text) - comments(result.text)


@each(CONVERTED)
def test_bytes_are_of_the_same_kind(case: Case) -> None:
    for before, after in pairs(conversion(case)):
        assert (after.bom, after.encoding, after.newline) == (before.bom, before.encoding, before.newline)
        assert after.module.default_indent == before.module.default_indent
        assert set(re.findall(r"\r\n|\r|\n", after.text)) == set(re.findall(r"\r\n|\r|\n", before.text))
        assert after.text.endswith("\n") == before.text.endswith("\n")


@each(CONVERTED)
def test_does_not_mention_ddpify(case: Case) -> None:
    assert not [name for name, data in written(conversion(case)).items() if b"ddpify" in data.lower()]


@each(CONVERTED)
def test_no_line_ends_in_white_space_that_did_not_before(case: Case) -> None:
    for source, result in pairs(conversion(case)):
        before = set(source.text.splitlines())
        assert not [line for line in result.text.splitlines() if line != line.rstrip() and line not in before]


def used(text: str) -> set[str]:
    return {n.id for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Name)} | bound(text)


@each(CONVERTED)
def test_names_stay_and_new_ones_collide_with_none(case: Case) -> None:
    for source, result in pairs(conversion(case)):
        before, after = bound(source.text), bound(result.text)
        # `import nets.small` in nets/__init__.py: the copy beside the package is not that package
        assert before - {source.path.parent.name} <= after
        assert not (after - before) & used(source.text)


# ---- only edits change anything ---------------------------------------------------------------------------


@each(c for c in CASES if c.name not in ("refused_python2", "refused_syntax_error"))
def test_no_edits_change_nothing(case: Case) -> None:
    for name, data in {"before.py": case.before.read_bytes(), **case.modules}.items():
        source = Source(case.folder / name, data)
        assert source.encode(Rewriter(source).apply([])) == source.data


def owned_lines(edit: Edit, source: Source) -> range:
    """The lines that an edit may touch: of the statement around its node, the comments above it, and the one behind."""
    assert not isinstance(edit, (AddHelper, AddImport))
    around = (n for n in (edit.node, *source.ancestors(edit.node)) if isinstance(n, STATEMENT))
    stmt = next(around)
    line = source.parents.get(stmt)
    parts = [source.span(n) for n in walk(line if isinstance(line, cst.SimpleStatementLine) else stmt)]
    first = min(p.line for p in parts)
    first -= len(source.comments_above(source.line_start(first) + source.span(stmt).column))
    return range(first - 1, max(source.line_at(p.end) for p in parts) + 2)


def in_block(change: Change, source: Source) -> bool:
    """Whether a change stands among the imports at the top, where imports and helpers go."""
    imports = [n for n in walk(source.module) if isinstance(n, (cst.Import, cst.ImportFrom))]
    return source.line_at(change.start) <= max((source.line_at(source.span(n).end) for n in imports), default=1) + 1


@each(CONVERTED)
def test_every_change_has_an_owner(case: Case) -> None:
    found, rewriters = recorded(case)
    assert {r.source for r in rewriters} == {before for before, _ in pairs(found)}
    for rewriter in rewriters:
        source = rewriter.source
        edits = [e for e in found.plan.edits if e.source is source and not isinstance(e, (AddHelper, AddImport))]
        owners = [owned_lines(e, source) for e in edits]
        for change in rewriter.changes:
            first, last = source.line_at(change.start), source.line_at(max(change.start, change.end - 1))
            owned = any(first in lines and last in lines for lines in owners)
            assert owned or in_block(change, source), (source.path, first, change.text)


@each(CONVERTED)
def test_every_hunk_has_a_change(case: Case) -> None:
    """By a diff that knows nothing of edits: lines without a change are equal, in order."""
    found, rewriters = recorded(case)
    results = dict(pairs(found))
    for rewriter in rewriters:
        check_hunks(rewriter, results[rewriter.source].text)


def check_hunks(rewriter: Rewriter, text: str) -> None:
    source = rewriter.source
    changed: set[int] = set()
    for change in rewriter.changes:
        changed.update(range(source.line_at(change.start), source.line_at(change.end) + 1))
    before, after = source.text.splitlines(keepends=True), text.splitlines(keepends=True)
    for tag, start, end, _, _ in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if tag != "equal":
            touched = range(start + 1, end + 1) if end > start else range(start, start + 2)
            # of equal lines next to each other a diff may call either the new one
            reach = range(touched.start - 3, touched.stop + 3) if tag == "insert" else touched
            assert changed & set(reach), before[start:end]
    kept = [line for number, line in enumerate(before, 1) if number not in changed]
    rest = iter(after)
    assert all(line in rest for line in kept)


@each(CONVERTED)
def test_edits_come_with_a_reason(case: Case) -> None:
    for finding in conversion(case).plan.findings:
        assert finding.message
        assert finding.reason or finding.message
        assert finding.edits
