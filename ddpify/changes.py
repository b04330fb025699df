"""Edits of expressions in, changes of text out: what is put behind, around or between the arguments of a call."""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from ddpify.edits import Append, SetArgument
from ddpify.layout import Layout
from ddpify.source import Source


@dataclass(frozen=True)
class Change:
    """Text to put in the place of [start, end); an insertion where both are equal."""

    start: int
    end: int
    text: str
    order: tuple[int, int] = (0, 0)


class Changes(Layout):
    """Collects the changes of one file."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.changes: list[Change] = []
        self.guarded: list[tuple[int, int]] = []
        self._seq = 0

    def change(self, start: int, end: int, text: str, priority: int = 0) -> None:
        new = Change(start, end, text, (priority, self._seq))
        if any((c.start, c.end, c.text) == (start, end, text) for c in self.changes if start != end):
            return
        self._seq += 1
        self.changes.append(new)

    def depth(self, at: int) -> int:
        """How many guards an offset stands under."""
        return sum(start < at < end for start, end in self.guarded)

    def append(self, edit: Append) -> None:
        span = self.source.span(edit.node)
        simple = isinstance(edit.node, (cst.Name, cst.Attribute, cst.Call, cst.Subscript))
        if not simple:
            self.change(span.start, span.start, "(", 5)
        self.change(span.end, span.end, edit.text if simple else ")" + edit.text, -5)

    def set_argument(self, edit: SetArgument) -> None:
        args = edit.node.args
        new = f"{edit.name}={edit.value}"
        for at, text in edit.positions:
            if at < len(args) and args[at].keyword is None and not args[at].star:
                span = self.source.span(args[at].value)
                self.change(span.start, span.end, text)
                if text.startswith(edit.name + "="):
                    return
        hits = [a for a in args if a.keyword is not None and a.keyword.value in (edit.name, *edit.replaces)]
        if hits:
            self.change(*self.argument_span(hits[0]), new)
            self.drop_arguments(edit.node, hits[1:])
            return
        self.add_argument(edit.node, new)

    def argument_span(self, arg: cst.Arg) -> tuple[int, int]:
        span = self.source.span(arg)
        return span.start, span.end

    def add_argument(self, call: cst.Call, new: str) -> None:
        """Behind the last plain argument, before any `**kwargs`, in the layout of the call."""
        plain = [a for a in call.args if a.star != "**"]
        splat = next((a for a in call.args if a.star == "**"), None)
        if splat is not None:
            start = self.argument_span(splat)[0]
            gap = "" if self.source.text[start - 1] in " \t(\n" else " "
            self.change(start, start, f"{gap}{new}, ")
        elif plain:
            end = self.argument_span(plain[-1])[1]
            start = self.argument_span(plain[-1])[0]
            before = self.source.text[:start]
            line = before[self.source.line_start(self.source.line_at(start)) :]
            own_line = len(plain) > 1 and not line.strip()
            line += self.unit_after(line) * self.depth(end)
            self.change(end, end, f",{self.nl}{line}{new}" if own_line else f", {new}")
        else:
            end = self.source.span(call).end - 1
            self.change(end, end, new)

    def drop_arguments(self, call: cst.Call, args: list[cst.Arg]) -> None:
        for arg in args:
            at = call.args.index(arg)
            start, end = self.argument_span(arg)
            if any(later not in args for later in call.args[at + 1 :]):
                end = self.argument_span(call.args[at + 1])[0]
            elif at:
                start = self.argument_span(call.args[at - 1])[1]
            self.change(start, end, "")
