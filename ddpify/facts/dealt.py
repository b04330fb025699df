"""A loop whose passes are dealt out in, the tests in it that go by the pass or its batch out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.dependencies import bindings, bound_names, own_nodes, read_names
from ddpify.facts.values import Data, FromForward, Optimizer, Scheduler
from ddpify.source import dotted, walk

if TYPE_CHECKING:
    from ddpify.facts import Facts

_WAYS_OUT = (cst.Continue, cst.Break, cst.Return, cst.Raise)
_COMPARED = (cst.Equal, cst.NotEqual, cst.LessThan, cst.LessThanEqual, cst.GreaterThan, cst.GreaterThanEqual)


def own_tests(facts: Facts, loop: cst.For, counted: bool) -> list[cst.If]:
    """The tests that decide by the pass what else is done in it: `if i % 100 == 0: print(...)`."""
    target = loop.target
    if counted and isinstance(target, cst.Tuple):  # enumerate's own number is the same on all ranks
        dealt = frozenset().union(*(bound_names(e.value) for e in target.elements[1:]))
    else:
        dealt = bound_names(target)
    known = _computed_from(facts, loop, dealt)
    return [n for n in own_nodes(loop.body) if isinstance(n, cst.If) and read_names(n.test) & known and _acts(facts, n)]


def last_pass(facts: Facts, loop: cst.For) -> cst.If | None:
    """`if i + 1 == len(batches): optimizer.step()` of enumerate's own number: each rank has another last one."""
    target = loop.target
    index = dotted(target.elements[0].value) if isinstance(target, cst.Tuple) else ""
    for node in own_nodes(loop.body):
        if isinstance(node, cst.If) and index and index in read_names(node.test) and _acts(facts, node):
            for part in _parts(node.test):
                exact = isinstance(part, cst.Comparison) and isinstance(part.comparisons[0].operator, cst.Equal)
                if exact and index in read_names(part) and not _periodic(part, index):
                    return node
    return None


def _computed_from(facts: Facts, loop: cst.For, dealt: frozenset[str]) -> frozenset[str]:
    """The names of a pass that are computed from its variable, but for what the model makes of it."""
    known = dealt
    found = [b for b in bindings(loop.body) if not any(_of_model(facts, n) for n in walk(b.node))]
    changed = True
    while changed:
        more = known.union(*(b.targets for b in found if b.reads & known))
        changed, known = more != known, more
    return known


def _of_model(facts: Facts, node: cst.CSTNode) -> bool:
    held = facts.flow.values.get(node, ()) if isinstance(node, cst.BaseExpression) else ()
    return any(isinstance(o, Data) and any(isinstance(k, FromForward) for k in o.origins) for o in held)


def _acts(facts: Facts, node: cst.If) -> bool:
    """Whether a branch does more than give names other values."""
    trained = {id(n) for n in facts.roles.training_forwards} | {id(b.node) for b in facts.roles.backwards}
    for inner in walk(node):
        if isinstance(inner, _WAYS_OUT) or id(inner) in trained:
            return True
        if isinstance(inner, cst.Expr) and isinstance(inner.value, cst.Call) and not _fills(inner.value):
            return True
        if isinstance(inner, cst.Call) and isinstance(inner.func, cst.Attribute) and inner.func.attr.value == "step":
            held = facts.flow.values.get(inner.func.value, ())
            if any(isinstance(o, (Optimizer, Scheduler)) for o in held):
                return True
    return False


def _fills(call: cst.Call) -> bool:
    """`batch.append(x)`"""
    return isinstance(call.func, cst.Attribute) and call.func.attr.value in ("append", "extend", "insert", "add")


def every_so_often(facts: Facts, loop: cst.For, test: cst.BaseExpression) -> list[cst.Name] | None:
    """The loop's variable in a test that a counter of this rank's own passes can take: `i % 100 == 0`, `i > 0`."""
    name = dotted(loop.target)
    others = _computed_from(facts, loop, bound_names(loop.target)) - {name}
    if not isinstance(loop.target, cst.Name) or read_names(test) & others:
        return None
    found: list[cst.Name] = []
    for part in _parts(test):
        mine = [n for n in (part, *walk(part)) if isinstance(n, cst.Name) and n.value == name]
        if mine and not _periodic(part, name):
            return None
        found.extend(mine)
    return found


def _parts(test: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """`a` and `b` of `a and not b`."""
    if isinstance(test, cst.BooleanOperation):
        yield from _parts(test.left)
        yield from _parts(test.right)
    elif isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        yield from _parts(test.expression)
    else:
        yield test


def _periodic(part: cst.BaseExpression, name: str) -> bool:
    """`i % n`, `(i + 1) % n == 0`, `i > 0`: not `i == last`."""
    if isinstance(part, cst.Comparison):
        target = part.comparisons[0]
        if len(part.comparisons) > 1 or not isinstance(target.operator, _COMPARED):
            return False
        if name in read_names(target.comparator):
            return False
        exact = isinstance(target.operator, (cst.Equal, cst.NotEqual))
        small = isinstance(target.comparator, cst.Integer) and (int(target.comparator.value) < 2 or not exact)
        return _remainder(part.left) or small
    return _remainder(part)


def _remainder(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Modulo)
