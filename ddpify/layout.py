"""A source in, where its statements stand out: heads, ends, indentation, neighbours."""

from __future__ import annotations

import re

import libcst as cst

from ddpify.source import Source, walk

_NEWLINE = re.compile(r"\r\n|\r|\n")


class Layout:
    """Where things stand in one file. Nothing here changes it."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.nl = source.newline
        self.unit = source.module.default_indent

    def indent_of(self, stmt: cst.CSTNode) -> str:
        """The white space before the line on which a statement's block stands."""
        line = self.source.line(self.line_owner(stmt))
        start = self.source.line_start(line)
        text = self.source.text[start:]
        space = text[: len(text) - len(text.lstrip(" \t\f"))]
        return space + (self.unit_after(space) if self.in_suite(stmt) else "")

    def unit_of(self, stmt: cst.CSTNode) -> str:
        return self.unit_after(self.indent_of(stmt))

    def unit_after(self, indent: str) -> str:
        """One level of indentation, in the style of the block (some files mix tabs and spaces)."""
        if "\t" in indent:
            return "\t"
        return "    " if indent and "\t" in self.unit else self.unit

    def line_owner(self, stmt: cst.CSTNode) -> cst.CSTNode:
        """The statement whose line a small statement stands on: itself, or the `if x:` of a one-line suite."""
        parent = self.source.parents.get(stmt)
        if isinstance(parent, cst.SimpleStatementSuite):
            return self.source.parents[parent]
        return parent if isinstance(parent, cst.SimpleStatementLine) else stmt

    def in_suite(self, stmt: cst.CSTNode) -> bool:
        return isinstance(self.source.parents.get(stmt), cst.SimpleStatementSuite)

    def head(self, stmt: cst.CSTNode, comments: bool = True) -> int:
        """Where a statement begins, with the comments directly above it."""
        start = self.start(stmt)
        parent = self.source.parents.get(stmt)
        first = not isinstance(parent, (cst.SimpleStatementLine, cst.SimpleStatementSuite)) or parent.body[0] is stmt
        if not comments or not first or self.in_suite(stmt):
            return start
        above = self.source.comments_above(start)
        return start - sum(map(len, above)) if above else start

    def start(self, stmt: cst.CSTNode) -> int:
        """The first character of a statement, decorators included."""
        decorators = getattr(stmt, "decorators", ())
        return self.source.span(decorators[0] if decorators else stmt).start

    def end(self, stmt: cst.CSTNode) -> int:
        """The end of a statement's last line, a comment behind it included, without the line break."""
        end = self.last_code(stmt)
        parent = self.source.parents.get(stmt)
        if isinstance(parent, (cst.SimpleStatementLine, cst.SimpleStatementSuite)) and parent.body[-1] is not stmt:
            return end
        stop = re.compile(r"\r|\n|\Z").search(self.source.text, end)
        return stop.start() if stop is not None else len(self.source.text)

    def last_code(self, stmt: cst.CSTNode) -> int:
        body = getattr(stmt, "body", None)
        if isinstance(stmt, cst.BaseCompoundStatement):
            last: cst.CSTNode = stmt
            for name in ("finalbody", "orelse"):
                tail = getattr(stmt, name, None)
                if tail is not None:
                    return self.last_code(tail)
            if isinstance(stmt, (cst.Try, cst.TryStar)) and stmt.handlers:
                body = stmt.handlers[-1].body
            if isinstance(stmt, cst.Match):
                body = stmt.cases[-1].body
            return self.last_code(body) if isinstance(body, cst.CSTNode) else self.source.span(last).end
        if isinstance(stmt, (cst.Else, cst.Finally)):
            return self.last_code(stmt.body)
        if isinstance(stmt, (cst.IndentedBlock, cst.SimpleStatementSuite)) and stmt.body:
            return self.last_code(stmt.body[-1])
        if isinstance(stmt, cst.SimpleStatementLine):
            return self.last_code(stmt.body[-1])
        return self.source.span(stmt).end

    def on_lines(self, stmt: cst.CSTNode) -> bool:
        """Whether a statement that goes takes its lines with it; else something stays, or `pass` takes its place."""
        owner = self.line_owner(stmt)
        several = isinstance(owner, cst.SimpleStatementLine) and len(owner.body) > 1
        return not (self.alone(stmt) or several or self.in_suite(stmt))

    def alone(self, stmt: cst.CSTNode) -> bool:
        """Whether a block has nothing else in it."""
        block = self.source.parents.get(self.line_owner(stmt))
        return len(getattr(block, "body", ())) == 1 and not isinstance(block, cst.Module)

    def previous(self, stmt: cst.CSTNode | None) -> cst.CSTNode | None:
        """The statement directly before, in the same block."""
        if stmt is None:
            return None
        parent = self.source.parents.get(stmt)
        if isinstance(parent, (cst.SimpleStatementLine, cst.SimpleStatementSuite)):
            at = next(i for i, small in enumerate(parent.body) if small is stmt)
            if at:
                return parent.body[at - 1]
            if isinstance(parent, cst.SimpleStatementSuite):
                return None
            owner: cst.CSTNode = parent
        else:
            owner = stmt
        block = self.source.parents.get(owner)
        body = list(getattr(block, "body", ())) if not isinstance(block, cst.SimpleStatementLine) else []
        if owner not in body or body.index(owner) == 0:
            return None
        before = body[body.index(owner) - 1]
        return before.body[-1] if isinstance(before, cst.SimpleStatementLine) else before

    def far(self, one: cst.CSTNode, two: cst.CSTNode) -> bool:
        """Whether so much stands between two neighbours (a notebook's text cell) that they do not read as one block."""
        gap = self.source.text[self.end(one) : self.start(two)]
        return len(_NEWLINE.findall(gap)) > 5 or re.search(r"^\s*# In\[|^\s*# %%", gap, re.MULTILINE) is not None

    def strings(self, run: list[cst.CSTNode]) -> list[tuple[int, int]]:
        """The spans of strings that go over several lines: their lines are text, not code."""
        found = []
        for stmt in run:
            for node in walk(stmt):
                if isinstance(node, (cst.SimpleString, cst.FormattedString)):
                    span = self.source.span(node)
                    if self.source.line_at(span.start) != self.source.line_at(span.end):
                        found.append((span.start, span.end))
        return found
