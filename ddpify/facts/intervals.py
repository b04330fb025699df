"""Tests and schedules in, the numbers out that count the steps of one process: `n_train // (2 * batch_size)`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.contents import origins
from ddpify.facts.definitions import definitions
from ddpify.facts.dependencies import bindings, bound_names, named, read_names
from ddpify.facts.frames import Frame
from ddpify.facts.values import Dataset, Ext, FromLength, Instance, Loader, Obj, Value
from ddpify.facts.worldsize import counts_ranks
from ddpify.source import Source, dotted, walk

if TYPE_CHECKING:
    from ddpify.facts import Facts


def intervals(facts: Facts) -> Iterator[tuple[Source, cst.BinaryOperation]]:
    """Each division that computes, from the length of the training set, after how many steps something is done."""
    trained = {id(o) for loader in facts.roles.training_loaders for o in sets_of(loader.dataset, 4)}
    seen = set[int]()
    for p in facts.roles.passes:
        node, frame = p.loop.node, p.start.frame
        if not p.training or not isinstance(node, cst.For) or id(node) in seen:
            continue
        seen.add(id(node))
        counted = bound_names(node.target).union(*(b.targets for b in bindings(node.body)))
        for test in (n.test for n in walk(node.body) if isinstance(n, cst.If)):
            for part in (test, *walk(test)):
                if not isinstance(part, cst.BinaryOperation) or not isinstance(part.operator, cst.Modulo):
                    continue
                division = _division(frame.source, frame.node, part.right)
                if division is None or not read_names(part.left) & counted or id(division) in seen:
                    continue
                lengths = [o.of for o in origins(facts.flow.values.get(division, ())) if isinstance(o, FromLength)]
                if lengths and all(id(o) in trained for o in lengths) and not counts_ranks(facts, division, frame):
                    seen.add(id(division))
                    yield frame.source, division


def _division(source: Source, scope: cst.CSTNode, node: cst.BaseExpression) -> cst.BinaryOperation | None:
    """`n // size`, where it stands or where the only statement gives the name its value."""
    if named(node):
        made = [b.node for b in bindings(scope) if dotted(node) in b.targets]
        only = made[0] if len(made) == 1 else None
        node = only.value if isinstance(only, cst.Assign) and len(only.targets) == 1 else node
    return node if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.FloorDivide) else None


def sets_of(value: Value, depth: int) -> Iterator[Obj]:
    """A dataset, and those that it is a part of."""
    for obj in value if depth else ():
        yield obj
        if isinstance(obj, Dataset):
            yield from sets_of(obj.of, depth - 1)


def counted_rows(facts: Facts, node: cst.CSTNode, frame: Frame) -> cst.Call | None:
    """`len(frame)` on the way to a number, where the training set is made of the rows of `frame`."""
    rows = facts.cached("rows", _rows)
    for at, where in way_of(facts, node, frame):
        if isinstance(at, cst.Call) and len(at.args) == 1 and is_len(facts, at):
            of = at.args[0].value
            loader = any(isinstance(o, Loader) for o in facts.flow.values.get(of, ()))
            if not loader and not rows.isdisjoint(_keys(facts, of, where)):
                return at
    return None


def _rows(facts: Facts) -> frozenset[object]:
    """All that the training sets of the script's own classes are made of, by names and by expressions."""
    sets = [o for loader in facts.roles.training_loaders for o in sets_of(loader.dataset, 4)]
    made = [(o.site.node, o.site.frame) for o in sets if isinstance(o, Instance)]
    return frozenset(
        key
        for node, frame in made
        if isinstance(node, cst.Call) and frame is not None
        for arg in node.args
        for at, where in way_of(facts, arg.value, frame)
        for key in _keys(facts, at, where)
    )


def way_of(facts: Facts, node: cst.CSTNode, frame: Frame, depth: int = 5) -> Iterator[tuple[cst.CSTNode, Frame]]:
    """The parts of an expression, and those of the expressions that its names have their values from."""
    for part in walk(node):
        if not isinstance(part, (cst.Name, cst.Attribute, cst.Call)):
            continue
        yield part, frame
        if depth and not isinstance(part, cst.Call):
            for d in definitions(facts.flow).of(part, frame):
                yield from way_of(facts, d.node, d.frame, depth - 1)


def _keys(facts: Facts, node: cst.CSTNode, frame: Frame) -> Iterator[object]:
    """What tells a variable from others: where it lives, and what it has its value from."""
    if isinstance(node, cst.Name):
        holder = frame.scope.holder(node.value)
        if holder is not None:
            yield id(holder.names), node.value
    for d in definitions(facts.flow).of(node, frame) if isinstance(node, (cst.Name, cst.Attribute)) else ():
        yield id(d.node), d.index


def is_len(facts: Facts, call: cst.Call) -> bool:
    return any(isinstance(o, Ext) and o.name == "builtins.len" for o in facts.flow.values.get(call.func, ()))
