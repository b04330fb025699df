"""Steps that cut their batch at a place which moves on in, the place as a number of the loop's own passes out.

at = 0
for step in range(n // size):
    x = data[at:at + size]
    ...
    at += size
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.dependencies import bindings, carried, own_nodes, read_names
from ddpify.facts.frames import Loop
from ddpify.facts.levels import Level
from ddpify.facts.starts import pairs
from ddpify.facts.values import Ext
from ddpify.source import Source, walk

if TYPE_CHECKING:
    from ddpify.facts import Facts


@dataclass(frozen=True, eq=False)
class Cursor:
    """`name` is `step` times the variable of the loop at the head of each pass."""

    level: Level
    loop: Loop
    name: str
    step: cst.BaseExpression


def cursor(facts: Facts, way: list[Level]) -> Cursor | None:
    """The place, where it begins at 0 before the loop, moves by the same number each time, and is not read behind."""
    found = [
        (level, loop, left)
        for level in way
        for loop in level.loops
        if isinstance(loop.node, cst.For) and (left := carried(level.names, loop.node, level.frame.source))
    ]
    if len(found) != 1 or len(found[0][2]) != 1:
        return None
    level, loop, [(name, node)] = found[0]
    step = _step(facts, loop.node, name, node) if isinstance(loop.node, cst.For) else None
    if step is None or not _begins_at_zero(level, loop.node, name) or _read_behind(level, loop.node, name):
        return None
    return Cursor(level, loop, name, step)


def _step(facts: Facts, loop: cst.For, name: str, node: cst.CSTNode) -> cst.BaseExpression | None:
    """`size` of `at += size`, the one statement of the loop that sets it, and made in each pass."""
    own = list(bindings(loop.body))
    lines = [s for line in loop.body.body if isinstance(line, cst.SimpleStatementLine) for s in line.body]
    counted = isinstance(loop.target, cst.Name) and _counts(facts, loop.iter)
    leaves = any(isinstance(n, (cst.Continue, cst.Break)) for n in own_nodes(loop.body))
    match node:
        case cst.AugAssign(
            target=cst.Name(value=target), operator=cst.AddAssign(), value=(cst.Name() | cst.Integer()) as by
        ):
            alone = [b.node for b in own if name in b.targets] == [node] and any(s is node for s in lines)
            fixed = not read_names(by) & {t for b in own for t in b.targets}
            return by if target == name and alone and fixed and counted and not leaves else None
    return None


def _counts(facts: Facts, node: cst.BaseExpression) -> bool:
    """`range(n)`: from 0, one by one."""
    called = facts.flow.values.get(node.func, ()) if isinstance(node, cst.Call) and len(node.args) == 1 else ()
    return any(isinstance(o, Ext) and o.name == "builtins.range" for o in called)


def _begins_at_zero(level: Level, loop: cst.CSTNode, name: str) -> bool:
    """`at = 0` is what comes last before the loop, in the same pass of the loops around."""
    source = level.frame.source
    start = source.span(loop).start
    before = [b.node for b in bindings(_code(level)) if name in b.targets and source.span(b.node).end <= start]
    last = before[-1] if before else None
    given = (
        [v for t in last.targets for b, v in pairs(t.target, last.value) if source.code(b) == name]
        if isinstance(last, cst.Assign)
        else []
    )
    zero = [isinstance(v, cst.Integer) and v.evaluated_value == 0 for v in given] == [True]
    return zero and last is not None and _loops(source, last) == _loops(source, loop)


def _read_behind(level: Level, loop: cst.CSTNode, name: str) -> bool:
    source, inside = level.frame.source, set(walk(loop))
    end = source.span(loop).end
    behind = [n for n in own_nodes(_code(level)) if isinstance(n, cst.Name) and n.value == name and n not in inside]
    return any(source.span(n).start >= end for n in behind)


def _code(level: Level) -> cst.CSTNode:
    node = level.frame.node
    return node.body if isinstance(node, cst.FunctionDef) else node


def _loops(source: Source, node: cst.CSTNode) -> list[cst.CSTNode]:
    return [a for a in source.ancestors(node) if isinstance(a, (cst.For, cst.While))]
