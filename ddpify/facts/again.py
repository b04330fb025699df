"""A training loop in, what can be computed again behind it out, from the numbers of all ranks.

    for i, (x, y) in enumerate(loader):
        losses.append(loss.item())
        mean = np.mean(losses)
    print(mean)

`losses` is averaged over the ranks behind the loop, and `mean` is one rank's until it is taken of them once more.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.collected import left_over, mean_lists
from ddpify.facts.contents import origins
from ddpify.facts.dependencies import bindings, bound_names, read_names
from ddpify.facts.loops import LoopFacts
from ddpify.facts.values import Ext, FromLength, Iteration, Loader
from ddpify.source import walk

if TYPE_CHECKING:
    from ddpify.facts import Facts

_PURE = re.compile(r"(numpy|math|statistics|torch)\..+|builtins\.(sum|len|float|int|max|min|round|abs)")
_METHODS = frozenset({"sum", "mean", "trace", "item", "max", "min", "diagonal", "std", "tolist"})


@dataclass(frozen=True, eq=False)
class Again:
    """`mean = np.mean(losses)`: the statement, and what the loop keeps that it reads."""

    name: str
    stmt: cst.Assign
    reads: frozenset[str]


def computed_again(facts: Facts, loop: LoopFacts, tallied: frozenset[str]) -> tuple[Again, ...]:
    """The names that a statement in the loop computes of what it keeps, the last of them used behind the loop."""
    sums = {a.target for a in loop.accumulators if a.fresh and a.agg in ("sum", "size")}
    means = {a.target for a in loop.accumulators if a.fresh and a.agg == "mean"} | set(mean_lists(facts, loop))
    wanted = left_over(facts, loop)
    inside = list(bindings(loop.node.body))
    changing = {name for b in inside for name in b.targets} | bound_names(loop.node.target)
    found: list[Again] = []
    for line in loop.node.body.body:
        stmt = line.body[0] if isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1 else None
        match stmt:
            case cst.Assign(targets=[cst.AssignTarget(target=cst.Name(value=name))], value=value) if name in wanted:
                reads = read_names(value)
                kept = reads & (sums | means | tallied)
                free = (reads - kept) & changing
                steps = free <= _counters(facts, loop) and kept <= means
                only = sum(name in b.targets for b in inside) == 1
                known = kept and only and (not free or steps) and _is_pure(facts, value, bool(kept - means))
                if known and _comes_last(loop, stmt, kept):
                    found.append(Again(name, stmt, kept))
    return tuple(found)


def _counters(facts: Facts, loop: LoopFacts) -> frozenset[str]:
    """`i` of `for i, batch in enumerate(loader):`, alike on all ranks behind the loop."""
    held = facts.flow.values.get(loop.node.iter, ())
    counted = any(isinstance(o, Iteration) and o.how == "enumerate" for o in held)
    target = loop.node.target
    if not counted or not isinstance(target, cst.Tuple) or not target.elements:
        return frozenset()
    first: frozenset[str] = bound_names(target.elements[0].value)
    return first


def _is_pure(facts: Facts, value: cst.BaseExpression, summed: bool) -> bool:
    """Calls that change nothing; a sum over all ranks is not divided by what one rank's loader counts."""
    for node in walk(value):
        if summed and isinstance(node, cst.Call):
            held = origins(facts.flow.values.get(node, ()))
            if any(isinstance(o, FromLength) and isinstance(o.of, Loader) for o in held):
                return False
        if isinstance(node, cst.Call):
            named = [o.name for o in facts.flow.values.get(node.func, ()) if isinstance(o, Ext)]
            method = isinstance(node.func, cst.Attribute) and node.func.attr.value in _METHODS
            if not method and not (named and all(_PURE.fullmatch(n) for n in named)):
                return False
    return True


def _comes_last(loop: LoopFacts, stmt: cst.CSTNode, kept: frozenset[str]) -> bool:
    """All that the pass keeps is kept when the statement comes."""
    start = loop.source.span(stmt).start
    return all(loop.source.span(b.node).start < start for b in bindings(loop.node.body) if b.targets & kept)
