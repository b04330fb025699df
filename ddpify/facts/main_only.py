"""Functions in, those that give rank 0 a value and the other ranks None out: `if is_main_process(): ... else: None`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.dependencies import own_nodes
from ddpify.facts.frames import Entry, Frame
from ddpify.facts.ranks import ranks
from ddpify.source import dotted

if TYPE_CHECKING:
    from ddpify.facts import Facts


def main_only(facts: Facts) -> Iterator[tuple[Frame, Entry]]:
    """The calls whose result only rank 0 has, where all ranks go on with it: `stats = evaluate(model, loader)`."""
    known = ranks(facts.flow)
    for frame in facts.flow.frames:
        node = frame.node
        if not isinstance(node, cst.FunctionDef) or not facts.editable(frame.source):
            continue
        tests = (n for n in own_nodes(node.body) if isinstance(n, cst.If) and known.tests_rank(n.test, frame))
        if not any(_is_none_elsewhere(node, test) for test in tests):
            continue
        for entry in frame.entries:
            source = entry.frame.source
            above = source.parents.get(entry.call)
            if isinstance(above, cst.Assign) and not known.limited(entry.call, entry.frame):
                yield frame, entry


def _is_none_elsewhere(func: cst.FunctionDef, test: cst.If) -> bool:
    """`if main: found = compute()`, `else: found = None`, `return found`"""
    other = test.orelse.body if isinstance(test.orelse, cst.Else) else None
    if other is None:
        return False
    given = [_gives(test.body), _gives(other)]
    names = {name for name, _ in given}
    if None in names or len(names) != 1 or [none for _, none in given].count(True) != 1:
        return False
    returned = [n.value for n in own_nodes(func.body) if isinstance(n, cst.Return)]
    return len(returned) == 1 and returned[0] is not None and dotted(returned[0]) in names


def _gives(block: cst.BaseSuite) -> tuple[str | None, bool]:
    """The name that the last statement of a block gives a value, and whether that is None."""
    last = block.body[-1] if block.body else None
    small = last.body[-1] if isinstance(last, cst.SimpleStatementLine) else last
    if isinstance(small, cst.Assign) and len(small.targets) == 1 and isinstance(small.targets[0].target, cst.Name):
        return small.targets[0].target.value, dotted(small.value) == "None"
    return None, False
