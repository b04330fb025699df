"""A tree in, where each of its nodes stands out: from which character of the text to which, as libcst counts it.

libcst's own PositionProvider gives lines and columns, in twice the time; they cost as much as the parsing. To find them
libcst writes the tree: here it does so for the statement of the file, or of a class, that is asked for. Where a
statement begins is known from Python's own parser, which reads each file anyway.
"""

from __future__ import annotations

import ast
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType

import libcst as cst
from libcst.metadata import ByteSpanPositionProvider, CodePosition, MetadataWrapper, PositionProvider
from libcst.metadata.span_provider import SpanProvidingCodegenState

#: by the identity of the node, whose tree has to be kept
Offsets = Mapping[int, tuple[int, int]]


class _Syntactic(AbstractContextManager[None]):
    """Of a node whose white space is not counted: from the first to the last of its tokens."""

    def __init__(self, state: _State, node: cst.CSTNode, first: cst.CSTNode | None, last: cst.CSTNode | None) -> None:
        self.state, self.node, self.first, self.last = state, node, first, last
        self.start = 0

    def __enter__(self) -> None:
        self.start = self.state.position

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        found = self.state.found
        start = self.start if self.first is None else found[id(self.first)][0]
        end = self.state.position if self.last is None else found[id(self.last)][1]
        found[id(self.node)] = (start, end)


class _State(SpanProvidingCodegenState):
    """libcst writes the tree; here only the length of what it writes is kept."""

    found: dict[int, tuple[int, int]]

    def add_indent_tokens(self) -> None:
        for token in self.indent_tokens:
            self.position += len(token)

    def add_token(self, value: str) -> None:
        self.position += len(value)

    def before_codegen(self, node: cst.CSTNode) -> None:
        self._stack.append(self.position)

    def after_codegen(self, node: cst.CSTNode) -> None:
        self.found.setdefault(id(node), (self._stack.pop(), self.position))

    def record_syntactic_position(  # type: ignore[override]  # a generator's manager costs three times as much
        self, node: cst.CSTNode, *, start_node: cst.CSTNode | None = None, end_node: cst.CSTNode | None = None
    ) -> AbstractContextManager[None]:
        return _Syntactic(self, node, start_node, end_node)


def offsets(module: cst.Module, text: str) -> Offsets | None:
    """The place of every node of a tree in its text; None where libcst would write another text."""
    state = _State(module.default_indent, module.default_newline, provider=ByteSpanPositionProvider())
    state.found = {}
    state.tokens.append("")  # where none was written, libcst ends the file with a line break
    module._codegen(state)
    # a last line break that the text has not is written, and taken back
    more = 0 if module.has_trailing_newline else len(module.default_newline)
    return state.found if state.position in (len(text), len(text) + more) else None


@dataclass(frozen=True)
class Outline:
    """A statement as Python's parser sees it: its first line (of its decorators), its first token, its last line."""

    first: int
    line: int
    column: int
    last: int
    #: of a class
    body: tuple[Outline, ...] = ()


def outline(body: Sequence[ast.stmt]) -> tuple[Outline, ...]:
    """Where the statements of a file, or of a class, stand."""
    found = []
    for stmt in body:
        first = min([stmt.lineno, *(d.lineno for d in getattr(stmt, "decorator_list", ()))])
        inner = outline(stmt.body) if isinstance(stmt, ast.ClassDef) else ()
        found.append(Outline(first, stmt.lineno, stmt.col_offset, stmt.end_lineno or stmt.lineno, inner))
    return tuple(found)


@dataclass(frozen=True)
class _Part:
    """A statement of the file or of a class, with what both parsers know of it."""

    node: cst.BaseStatement
    first: Outline
    last: Outline
    indents: tuple[str, ...]


class Places:
    """The places of the nodes of one file, each found when it, or a neighbour, is asked for."""

    def __init__(self, module: cst.Module, text: str, starts: Sequence[int], body: Sequence[Outline]) -> None:
        self.module, self.text, self.starts = module, text, starts
        self.found: dict[int, tuple[int, int]] = {}
        self.parts = {id(p.node): p for p in self._parts(module.body, body, ())}

    def of(self, node: cst.CSTNode, parents: Mapping[cst.CSTNode, cst.CSTNode]) -> tuple[int, int]:
        """From which character to which a node stands."""
        known = self.found.get(id(node))
        if known is not None:
            return known
        above: cst.CSTNode | None = node
        while above is not None and id(above) not in self.parts:
            above = parents.get(above)
        if above is not None:
            self._write(self.parts.pop(id(above)))
        if id(node) not in self.found:
            self._write_all()
        return self.found[id(node)]

    def _parts(
        self, body: Sequence[cst.CSTNode], known: Sequence[Outline], indents: tuple[str, ...]
    ) -> Iterator[_Part]:
        """The statements that both parsers see alike; none where they differ."""
        sizes = [len(stmt.body) if isinstance(stmt, cst.SimpleStatementLine) else 1 for stmt in body]
        if sum(sizes) != len(known):
            return
        at = 0
        for stmt, size in zip(body, sizes, strict=True):
            first, last = known[at], known[at + size - 1]
            at += size
            if isinstance(stmt, (cst.SimpleStatementLine, cst.BaseCompoundStatement)):
                yield _Part(stmt, first, last, indents)
            if isinstance(stmt, cst.ClassDef) and isinstance(stmt.body, cst.IndentedBlock):
                indent = self.module.default_indent if stmt.body.indent is None else stmt.body.indent
                yield from self._parts(stmt.body.body, first.body, (*indents, indent))

    def _write(self, part: _Part) -> None:
        """Let libcst write a statement; the places count only where it begins and ends as in the text."""
        state = self._state()
        state.indent_tokens.extend(part.indents)
        for line in getattr(part.node, "leading_lines", ()):
            line._codegen(state)
        state.position = self.starts[part.first.first - 1] - state.position
        part.node._codegen(state)
        start, end = state.found[id(part.node)]
        stands = start == self.starts[part.first.line - 1] + part.first.column
        if stands and bisect_right(self.starts, end) == part.last.last:
            self.found.update(state.found)

    def _write_all(self) -> None:
        found = offsets(self.module, self.text)
        if found is None:
            places = MetadataWrapper(self.module, unsafe_skip_copy=True).resolve(PositionProvider).items()
            found = {id(n): (self._offset(p.start), self._offset(p.end)) for n, p in places}
        self.found.update(found)

    def _state(self) -> _State:
        state = _State(self.module.default_indent, self.module.default_newline, provider=ByteSpanPositionProvider())
        state.found = {}
        return state

    def _offset(self, place: CodePosition) -> int:
        start = self.starts[place.line - 1] if place.line <= len(self.starts) else len(self.text)
        return min(len(self.text), start + place.column)
