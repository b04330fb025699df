"""A tree in, where each of its nodes stands out: from which character of the text to which, as libcst counts it.

libcst's own PositionProvider gives lines and columns, in twice the time; they cost as much as the parsing.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from types import TracebackType

import libcst as cst
from libcst.metadata import ByteSpanPositionProvider
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
