"""A loop whose batches are dealt out whole in, the lists out that get one entry a batch: they go over in that order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.collected import holder_of
from ddpify.facts.dependencies import named
from ddpify.facts.frames import Event
from ddpify.facts.loops import LoopFacts, uses_of
from ddpify.facts.starts import names, start_of
from ddpify.facts.tallies import is_sendable
from ddpify.facts.values import Class, Data, Func, Instance, Module, Seq, Wrapped
from ddpify.source import walk

if TYPE_CHECKING:
    from ddpify.facts import Facts

_RUNS = (Func, Class, Module, Wrapped, Instance)


def batch_lists(facts: Facts, loop: LoopFacts) -> dict[str, Event]:
    """`losses` of `losses.append(loss.item())`, which begins empty before the loop, with the event that fills it."""
    if not loop.dealt or loop.drawn:
        return {}
    inside = {id(n) for n in walk(loop.node.body)}
    direct = {id(line) for line in loop.node.body.body}
    found: dict[str, list[Event]] = {}
    for e in loop.frame.events:
        holder = holder_of(e) if id(e.node) in inside else None
        if holder is not None:
            found.setdefault(loop.source.code(holder), []).append(e)
    return {
        text: events[0]
        for text, events in found.items()
        if len({id(e.stmt) for e in events}) == 1
        and id(loop.source.parents.get(events[0].stmt)) in direct
        and _appends(facts, loop, text, events[0])
    }


def _appends(facts: Facts, loop: LoopFacts, text: str, event: Event) -> bool:
    holder, call = holder_of(event), event.node
    if holder is None or not named(holder) or event.kind != "method" or event.name != "append":
        return False
    if not isinstance(event.obj, (Seq, Data)) or not isinstance(call, cst.Call) or len(call.args) != 1:
        return False
    start = start_of(facts, loop, text)
    alone = not text.isidentifier() or len(uses_of(loop.node.body, text)) == 1
    given = call.args[0].value
    return (
        start is not None and _is_empty(facts, start[1]) and alone and is_sendable(facts, given) and idle(facts, given)
    )


def _is_empty(facts: Facts, start: cst.BaseExpression) -> bool:
    match start:
        case cst.List(elements=[]):
            return True
        case cst.Call(func=func, args=[]):
            return "builtins.list" in names(facts, func)
    return False


def idle(facts: Facts, node: cst.CSTNode) -> bool:
    """Whether an expression can be left out: it calls no function of the project, and no model."""
    calls = [n for n in (node, *walk(node)) if isinstance(n, cst.Call)]
    return not any(isinstance(o, _RUNS) for c in calls for o in facts.flow.values.get(c.func, ()))
