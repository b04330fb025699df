"""Text and edits by the text that they touch -> the rewritten text."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path

import libcst as cst

from ddpify.edits import (
    Append,
    Delete,
    Edit,
    Guard,
    InsertAfter,
    InsertBefore,
    Replace,
    SetArgument,
    Surround,
)
from ddpify.rewrite import Rewriter
from ddpify.source import Source, walk

MAIN = "if is_main_process()"
STATEMENT = (cst.BaseSmallStatement, cst.BaseCompoundStatement)
Make = Callable[["Script"], Sequence[Edit]]


class Script:
    """A source whose nodes are found by how their text begins."""

    def __init__(self, text: str) -> None:
        self.source = Source(Path("train.py"), text.encode())

    def stmt(self, start: str) -> cst.CSTNode:
        return self._find(start, STATEMENT)

    def expr(self, code: str) -> cst.CSTNode:
        return self._find(code, (cst.BaseExpression,), whole=True)

    def call(self, start: str) -> cst.Call:
        found = self._find(start, (cst.Call,))
        assert isinstance(found, cst.Call)
        return found

    def _find(self, code: str, kinds: tuple[type, ...], whole: bool = False) -> cst.CSTNode:
        for node in walk(self.source.module):
            if isinstance(node, kinds):
                text = self.source.code(node)
                if text == code or (not whole and text.startswith(code)):
                    return node
        raise AssertionError(f"{code!r} is not in the script")

    # -- edits on them --

    def guard(self, *starts: str, header: str = MAIN) -> list[Edit]:
        return [Guard(self.source, self.stmt(s), header) for s in starts]

    def before(self, start: str, *lines: str, blank_after: bool = False) -> InsertBefore:
        return InsertBefore(self.source, self.stmt(start), lines, blank_after)

    def after(self, start: str, *lines: str) -> InsertAfter:
        return InsertAfter(self.source, self.stmt(start), lines)

    def delete(self, start: str, comments: bool = False) -> Delete:
        return Delete(self.source, self.stmt(start), comments)

    def replace(self, code: str, text: str) -> Replace:
        return Replace(self.source, self.expr(code), text)

    def append(self, code: str, text: str = ".module") -> Append:
        return Append(self.source, self.expr(code), text)

    def surround(self, code: str, before: str, after: str) -> Surround:
        return Surround(self.source, self.expr(code), before, after)

    def argument(
        self,
        start: str,
        name: str,
        value: str,
        replaces: tuple[str, ...] = (),
        positions: tuple[tuple[int, str], ...] = (),
    ) -> SetArgument:
        return SetArgument(self.source, self.call(start), name, value, replaces, positions)


def rewritten(text: str, make: Make) -> str:
    script = Script(text)
    result = Rewriter(script.source).apply(list(make(script)))
    compile(result, "train.py", "exec")
    return result


def check(before: str, make: Make, after: str, *, clean: bool = True) -> None:
    """The same as `\\n` text, as Windows text and, where the last line is no comment, without a last line break."""
    if clean:
        before, after = inspect.cleandoc(before) + "\n", inspect.cleandoc(after) + "\n"
    assert rewritten(before, make) == after
    assert rewritten(before.replace("\n", "\r\n"), make) == after.replace("\n", "\r\n")
    assert rewritten(before.removesuffix("\n"), make) == after.removesuffix("\n")
