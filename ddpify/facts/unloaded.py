"""Forwards in, those out that evaluate what no DataLoader gives: whole tensors, or batches that are cut by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.contents import origins
from ddpify.facts.frames import Event, Frame, Loop
from ddpify.facts.handmade import Columns, Turns, hand_fed
from ddpify.facts.roles import loaders_in
from ddpify.facts.values import Const, Dict, Ext, FromBatch, FromForward, Loader, Value
from ddpify.source import children

if TYPE_CHECKING:
    from ddpify.facts import Facts

_KINDS = {"builtins.isinstance", "builtins.hasattr", "builtins.len", "builtins.type", "builtins.callable"}


def unloaded(facts: Facts) -> frozenset[int]:
    """The calls of models that every rank makes for itself, on the same data, outside of the training's batches."""
    training = {id(n) for n in facts.roles.training_forwards}
    dealt = {id(h.loop) for h in hand_fed(facts) if isinstance(h, (Turns, Columns))}
    found, others = set[int](), set[int]()
    for e in facts.flow.log.of("forward"):
        if id(e.node) not in training:
            (others if any(_reads(lp, dealt) for ls in e.all_loops() for lp in ls) else found).add(id(e.node))
    return frozenset(found - others)


def _reads(loop: Loop, dealt: set[int]) -> bool:
    return id(loop.node) in dealt or any(isinstance(o, Loader) for o in loaders_in(loop.iterates))


def of_unloaded(facts: Facts, value: Value) -> bool:
    """Whether a value comes of such forwards, and of no batch of a loader."""
    known = facts.cached("unloaded", unloaded)
    found = origins(value) if not all(isinstance(o, Const) for o in value) else frozenset()
    if any(isinstance(o, FromBatch) and isinstance(o.loader, Loader) for o in found):
        return False
    forwards = [o for o in found if isinstance(o, FromForward)]
    return bool(forwards) and all(id(o.node) in known for o in forwards)


def decides_training(facts: Facts, frame: Frame, node: cst.CSTNode, event: Event) -> bool:
    """Whether all loops around a test train: what a loop that decodes or evaluates decides stays in there."""
    trains = facts.cached("loops that train", lambda f: {id(n) for n in f.roles.training_loops})
    inner = set(frame.source.ancestors(node))
    own = [lp.node for lp in event.loops if lp.node in inner]
    own += [node] if isinstance(node, cst.While) else []
    ways = ([*(lp.node for lp in around), *own] for around in frame.loops_around())
    return any(bool(way) and all(id(loop) in trains for loop in way) for way in ways)


def asks_what_it_is(facts: Facts, test: cst.BaseExpression) -> bool:
    """`isinstance(image, Image)`, `best is None`, `len(found) > 3`: no number of the evaluation decides."""
    values = facts.flow.values
    todo: list[cst.CSTNode] = [test]
    while todo:
        node = todo.pop()
        if isinstance(node, cst.Comparison) and isinstance(node.comparisons[0].operator, (cst.Is, cst.IsNot)):
            continue
        called = values.get(node.func, ()) if isinstance(node, cst.Call) else ()
        if any(isinstance(o, Ext) and o.name in _KINDS for o in called):
            continue
        if isinstance(node, (cst.Name, cst.Attribute, cst.Call)) and of_unloaded(facts, values.get(node, ())):
            return False
        todo.extend(children(node))
    return True


def asked(facts: Facts, test: cst.BaseExpression) -> Iterator[cst.CSTNode]:
    """The parts of a test that decide by what they hold: not `isinstance(x, Tensor)`, nor `seen.get(key) is None`."""
    todo: list[cst.CSTNode] = [test]
    while todo:
        node = todo.pop()
        match node:
            case cst.Call(args=args) if _asks_kind(facts, node):
                todo.extend(args[1:])
            case cst.Comparison(
                left=cst.Call(
                    func=cst.Attribute(value=held, attr=cst.Name(value="get")), args=[cst.Arg(value=key), *_]
                ),
                comparisons=[cst.ComparisonTarget(operator=cst.Is() | cst.IsNot())],
            ) if any(isinstance(o, Dict) for o in facts.flow.values.get(held, ())):
                todo.append(key)
            case _:
                yield node
                todo.extend(children(node))


def _asks_kind(facts: Facts, call: cst.Call) -> bool:
    names = {o.name for o in facts.flow.values.get(call.func, ()) if isinstance(o, Ext)}
    return bool(names & (_KINDS - {"builtins.len"}))
