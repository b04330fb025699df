"""Passes over loaders in, their accumulators out: what a loop adds up, and in which form."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.batchsize import relation
from ddpify.facts.contents import constants, data_of
from ddpify.facts.frames import Event, Frame, Loop
from ddpify.facts.handmade import Columns, Turns, hand_fed
from ddpify.facts.loops import Accumulator, LoopFacts, read_after
from ddpify.facts.roles import Pass
from ddpify.facts.shares import problem
from ddpify.facts.values import Dict, Ext, Seq, Site, Thing, Value
from ddpify.source import Source, walk

if TYPE_CHECKING:
    from ddpify.facts import Facts


def loop_facts(facts: Facts) -> list[LoopFacts]:
    """Every `for` over a loader, once per function context."""
    found: list[LoopFacts] = []
    for p in facts.roles.passes:
        node = p.loop.node
        if isinstance(node, cst.For) and p.start.seq < facts.flow.main_end:
            found.append(_analyse(facts, p, node))
    return [*found, *_dealt_out(facts)]


def _dealt_out(facts: Facts) -> list[LoopFacts]:
    """The loops that cut training batches by hand."""
    found = []
    for hand in hand_fed(facts):
        starts = facts.flow.log.of("loop") if isinstance(hand, (Turns, Columns)) else []
        for e in starts:
            if not isinstance(hand, (Turns, Columns)):
                continue
            if (e.node, e.frame, e.name) == (hand.loop, hand.level.frame, "start"):
                batches = Thing(Site(hand.loop.iter, e.frame.source, e.frame), name="batches")
                known = _analyse(facts, Pass(batches, Loop(e.node, e.frame), e, training=True), hand.loop)
                known.dealt = isinstance(hand, Turns)
                found.append(known)
                break
    return found


def _analyse(facts: Facts, p: Pass, node: cst.For) -> LoopFacts:
    frame = p.start.frame
    known = LoopFacts(p.loader, node, frame, frame.source, p.training, p.start)
    inside = {id(n) for n in walk(node.body)}
    events = [e for e in frame.events if id(e.node) in inside or id(e.stmt) in inside]
    _accumulators(facts, known, events, inside)
    end = known.source.span(node.body).end
    after = [e for e in frame.events if e.callee is not None and known.source.span(e.stmt).start >= end]
    within = any(e.callee is not None and _meets(e.callee, set()) for e in events)
    known.reduces = within or any(_meets(e.callee, set()) for e in after if e.callee is not None)
    if known.reduces and not p.training:
        known.problem = "a helper that the loop calls meets the other ranks in each batch" if within else ""
        return known
    if not p.training:
        known.problem = problem(facts, known, events, inside)
    return known


def _meets(frame: Frame, seen: set[int]) -> bool:
    """Whether a function of the project reaches a collective."""
    if id(frame) in seen:
        return False
    seen.add(id(frame))
    return any(
        (e.kind == "external" and _COLLECTIVE.fullmatch(e.name) is not None)
        or (e.callee is not None and _meets(e.callee, seen))
        for e in frame.events
    )


_COLLECTIVE = re.compile(
    r"torch\.distributed\.(\w+\.)*(all_reduce|reduce|all_gather\w*|gather\w*|barrier|broadcast\w*)"
)


def _accumulators(facts: Facts, known: LoopFacts, events: list[Event], inside: set[int]) -> None:
    source, _frame = known.source, known.frame
    targets: dict[str, list[Event]] = {}
    for e in events:
        if (
            e.kind == "augment"
            and isinstance(e.node, cst.AugAssign)
            and isinstance(e.node.operator, (cst.AddAssign, cst.SubtractAssign))
        ):
            if isinstance(e.node.target, (cst.Name, cst.Attribute)):
                targets.setdefault(source.code(e.node.target), []).append(e)
        elif e.kind == "bind" and isinstance(e.stmt, cst.Assign) and _adds_to_itself(e.stmt):
            targets.setdefault(e.name, []).append(e)
    for target, adds in targets.items():
        found = [(n, d) for n, v in (_added(facts, e) for e in adds) if (d := data_of(v)) is not None]
        parts = [d for _, d in found]
        if not parts or any(p.form == "str" for p in parts):
            continue
        aggs = {relation(facts, known.loader, known.frame, n, d.agg) if known.training else d.agg for n, d in found}
        agg = aggs.pop() if len(aggs) == 1 else "other"
        tensor = any(p.form == "tensor" for p in parts)
        read = read_after(known, target, inside)
        known.accumulators.append(
            Accumulator(
                target,
                agg,
                tensor,
                all(p.on_cpu for p in parts if p.form == "tensor") and tensor,
                # hits += (out > 0).sum(0) may be a number for each class
                is_fresh(facts, known, target) and not (agg == "sample" and tensor),
                read,
                tuple(n for n, _ in found),
            )
        )


def _adds_to_itself(stmt: cst.Assign) -> bool:
    """`total = total + x`"""
    target = stmt.targets[0].target
    value = stmt.value
    return (
        isinstance(target, cst.Name)
        and isinstance(value, cst.BinaryOperation)
        and isinstance(value.operator, cst.Add)
        and isinstance(value.left, cst.Name)
        and value.left.value == target.value
    )


def _added(facts: Facts, event: Event) -> tuple[cst.BaseExpression, Value]:
    """`x` of `total += x` and of `total = total + x`."""
    if isinstance(event.node, cst.AugAssign):
        return event.node.value, event.value
    assert isinstance(event.stmt, cst.Assign)
    assert isinstance(event.stmt.value, cst.BinaryOperation)
    return event.stmt.value.right, facts.flow.values.get(event.stmt.value.right, ())


def _is_number(facts: Facts, value: cst.BaseExpression) -> bool:
    """`0.0`, `torch.tensor(0)`, `torch.zeros(1)`: not a list, an array or a vector, which have a number per class."""
    held = facts.flow.values.get(value, ())
    if any(isinstance(o, (Seq, Dict)) for o in held) or isinstance(value, (cst.List, cst.Dict, cst.ListComp)):
        return False
    if not isinstance(value, cst.Call):
        return True
    makers = {o.name.rsplit(".")[-1] for o in facts.flow.values.get(value.func, ()) if isinstance(o, Ext)}
    shapes = [facts.flow.values.get(a.value, ()) for a in value.args if a.keyword is None]
    first = shapes[0] if shapes else ()
    if makers & {"zeros", "ones", "full", "empty"}:
        shape = value.args[0].value if value.args else None
        scalar = isinstance(shape, (cst.Tuple, cst.List)) and not shape.elements
        return len(shapes) == 1 and (scalar or constants(first) == [1])
    return not makers & {"tensor", "array", "zeros_like", "as_tensor"} or constants(first) is not None


def is_fresh(facts: Facts, known: LoopFacts, target: str) -> bool:
    """`total = 0` stands before the loop, with no other loop around only one of them, and not inside it."""
    source = known.source
    start = source.span(known.node).start
    loops = [a for a in source.ancestors(known.node) if isinstance(a, (cst.For, cst.While))]
    best = False
    for node in walk(known.frame.node):
        names: list[str] = []
        if isinstance(node, cst.Assign):
            names = [source.code(e) for t in node.targets for e in _targets(t.target)]
            value: cst.BaseExpression | None = node.value
        elif isinstance(node, cst.AnnAssign):
            names, value = [source.code(node.target)], node.value
        if target not in names:
            continue
        place = source.span(node).start
        inner = any(a is known.node for a in source.ancestors(node))
        if inner and not _adds_to_itself(node) if isinstance(node, cst.Assign) else False:
            return False  # reset inside the loop: a running value
        if place < start and value is not None:
            around = [a for a in source.ancestors(node) if isinstance(a, (cst.For, cst.While))]
            pair = isinstance(node, cst.Assign) and isinstance(node.targets[0].target, (cst.Tuple, cst.List))
            best = (
                around == loops
                and (pair or _is_number(facts, value))
                and not any(
                    isinstance(a, (cst.FunctionDef, cst.ClassDef)) and a is not known.frame.node
                    for a in _between(source, node, known)
                )
            )
    return best


def _between(source: Source, node: cst.CSTNode, known: LoopFacts) -> list[cst.CSTNode]:
    found = []
    for above in source.ancestors(node):
        if above is known.frame.node:
            break
        found.append(above)
    return found


def _targets(target: cst.BaseExpression) -> list[cst.BaseExpression]:
    if isinstance(target, (cst.Tuple, cst.List)):
        return [e.value for e in target.elements]
    return [target]
