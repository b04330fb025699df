"""Passes over loaders in, their accumulators out: what a loop adds up, and in which form."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.batchsize import relation
from ddpify.facts.contents import constants, data_of
from ddpify.facts.frames import Event, Frame, Loop
from ddpify.facts.handmade import Columns, Draws, Turns, hand_fed
from ddpify.facts.loops import Accumulator, LoopFacts, read_after
from ddpify.facts.roles import Pass
from ddpify.facts.sharding import loader_facts
from ddpify.facts.shares import problem
from ddpify.facts.starts import adds_to_itself, base_of, before_epochs, fixed_item, is_fresh, same_object
from ddpify.facts.values import Data, Loader, Site, Thing, Value
from ddpify.source import walk

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
    """The loops that cut training batches by hand, or draw them."""
    found = []
    for hand in hand_fed(facts):
        if not isinstance(hand, (Turns, Columns, Draws)) or (node := _passes(hand)) is None:
            continue
        for e in facts.flow.log.of("loop"):
            if (e.node, e.frame, e.name) == (node, hand.level.frame, "start"):
                batches = Thing(Site(node.iter, e.frame.source, e.frame), name="batches")
                known = _analyse(facts, Pass(batches, Loop(e.node, e.frame), e, training=True), node)
                known.dealt, known.drawn = not isinstance(hand, Columns), isinstance(hand, Draws)
                found.append(known)
                break
    return found


def _passes(hand: Turns | Columns | Draws) -> cst.For | None:
    """The loop whose passes are the steps."""
    if isinstance(hand, (Turns, Columns)):
        return hand.loop
    inner = hand.level.loops[-1].node if hand.level.loops else None
    return inner if isinstance(inner, cst.For) else None


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
    targets: dict[str, list[Event]] = {}
    again = [e for e in events if e.kind == "bind" and adds_to_itself(e.stmt)]
    for e in sorted([*again, *augmented(facts, known.frame, events)], key=lambda e: e.seq):
        name = e.frame.source.code(e.node.target) if isinstance(e.node, cst.AugAssign) else e.name
        targets.setdefault(name, []).append(e)
    for target, adds in targets.items():
        found = [(e.frame, n, d) for e in adds for n, v in [_added(facts, e)] if (d := data_of(v)) is not None]
        parts = [d for _, _, d in found]
        if not parts or any(p.form == "str" for p in parts):
            continue
        rows = any(lp.node is not known.node and id(lp.node) in inside for e in adds for lp in e.loops)
        aggs = {
            relation(facts, known.loader, f, n, agg) if known.training else agg
            for f, n, d in found
            for agg in ["other" if not rows and _is_one_number(facts, known, n, d) else d.agg]
        }
        agg = aggs.pop() if len(aggs) == 1 else "other"
        tensor = any(p.form == "tensor" for p in parts)
        read = read_after(known, base_of(target), inside)
        fresh = is_fresh(facts, known, target)
        known.accumulators.append(
            Accumulator(
                target,
                agg,
                tensor,
                all(p.on_cpu for p in parts if p.form == "tensor") and tensor,
                # hits += (out > 0).sum(0) may be a number for each class
                fresh and not (agg == "sample" and tensor),
                read,
                tuple(n for _, n, _ in found),
                all(p.form in ("int", "float", "number", "bool") for p in parts),
                before_epochs(facts, known, target) if known.training and read and not fresh else None,
            )
        )


def _is_one_number(facts: Facts, known: LoopFacts, node: cst.BaseExpression, added: Data) -> bool:
    """`kld.item()` of `kld.sum(1).mean(0)`: of a batch of several samples it is a sum or a mean, whichever."""
    parts = [n.func.attr.value for n in walk(node) if isinstance(n, cst.Call) and isinstance(n.func, cst.Attribute)]
    if added.agg != "sample" or not ("item" in parts or added.form in ("number", "float", "int")):
        return False
    loader = loader_facts(facts, known.loader) if isinstance(known.loader, Loader) else None
    size = loader.batch_size if loader is not None else None
    held = constants(facts.flow.values.get(size, ())) if size is not None else None
    return loader is not None and size is not None and held != [1]


def augmented(facts: Facts, frame: Frame, events: list[Event], depth: int = 4) -> Iterator[Event]:
    """`total += x`, `meters["loss"] += x`; also `self.total += x` in a method of the same object that is called."""
    for e in events:
        node = e.node
        if e.kind == "augment" and isinstance(node, cst.AugAssign):
            plain = isinstance(node.target, (cst.Name, cst.Attribute)) or fixed_item(facts, node.target)
            if plain and isinstance(node.operator, (cst.AddAssign, cst.SubtractAssign)):
                yield e
        elif e.kind == "call" and e.callee is not None and depth and same_object(frame, e):
            for inner in augmented(facts, e.callee, e.callee.events, depth - 1):
                own = isinstance(inner.node, cst.AugAssign) and isinstance(inner.node.target, cst.Attribute)
                if own and inner.frame.source is frame.source:
                    yield inner


def _added(facts: Facts, event: Event) -> tuple[cst.BaseExpression, Value]:
    """`x` of `total += x` and of `total = total + x`."""
    if isinstance(event.node, cst.AugAssign):
        return event.node.value, event.value
    assert isinstance(event.stmt, cst.Assign)
    assert isinstance(event.stmt.value, cst.BinaryOperation)
    return event.stmt.value.right, facts.flow.values.get(event.stmt.value.right, ())
