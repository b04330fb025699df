"""A collective under a test of the rank in, whether other ranks meet it: behind a way out, in a model that trains."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddpify.facts import Facts
from ddpify.facts.contents import constants
from ddpify.facts.definitions import Definition, definitions, reaching
from ddpify.facts.frames import Event, Frame
from ddpify.facts.ranks import Ranks
from ddpify.source import walk

_WAYS_OUT = (cst.Return, cst.Continue, cst.Break)


def met_behind(facts: Facts, event: Event, name: str, by: cst.CSTNode) -> bool:
    """`if rank != 0: barrier(); return` and, behind it, what the other ranks come to: `barrier()`."""
    frame, source = event.frame, event.frame.source
    if not isinstance(by, cst.If) or by not in source.parents or event.node not in set(walk(by.body)):
        return False
    if not any(isinstance(n, _WAYS_OUT) for n in walk(by.body)):
        return False
    end = source.span(by).end
    for e in frame.events:
        behind = e.stmt in source.parents and source.span(e.stmt).start >= end
        if behind and (_is_called(e, name) or (e.callee is not None and _leads_to(e.callee, name, set()))):
            return True
    return False


def _leads_to(frame: Frame, name: str, seen: set[int]) -> bool:
    seen.add(id(frame))
    return any(
        _is_called(e, name) or (e.callee is not None and id(e.callee) not in seen and _leads_to(e.callee, name, seen))
        for e in frame.events
    )


def _is_called(event: Event, name: str) -> bool:
    return event.kind == "external" and event.name.startswith("torch.distributed.") and event.name.endswith(f".{name}")


def in_training_mode(event: Event) -> bool:
    """`if self.training: all_gather(x)`: rank 0 evaluates by itself, and then it makes no such call."""
    ways = [(event.node, event.frame), *((e.call, e.frame) for chain in event.frame.chains(8) for e in chain)]
    tests = [
        above.test
        for node, frame in ways
        for above in frame.source.ancestors(node)
        if isinstance(above, (cst.If, cst.IfExp))
    ]
    return any(isinstance(n, cst.Attribute) and n.attr.value == "training" for t in tests for n in (t, *walk(t)))


def turns_of_one_rank(facts: Facts, event: Event, known: Ranks) -> tuple[cst.For, str] | None:
    """`for i in range(n): broadcast(x)`, where `n = 0` and rank 0 alone sets it to another number: `if rank == 0:`."""
    frame, source = event.frame, event.frame.source
    for loop in source.ancestors(event.node):
        if isinstance(loop, (cst.FunctionDef, cst.Lambda)):
            return None
        if not isinstance(loop, cst.For):
            continue
        match loop.iter:
            case cst.Call(func=cst.Name(value="range"), args=[cst.Arg(value=cst.Name() as count)]):
                given = list(_given(facts, count, frame, loop))
                mine = [d for d in given if d.event is not None and _under_rank(d.event, known)]
                others = [d for d in given if d not in mine]
                plain = [constants(facts.flow.values.get(d.node, ())) for d in others]
                if (
                    mine
                    and others
                    and all(plain)
                    and all(constants(facts.flow.values.get(d.node, ())) is None for d in mine)
                ):
                    return loop, count.value
    return None


def _given(facts: Facts, count: cst.Name, frame: Frame, loop: cst.For) -> Iterator[Definition]:
    """What a number may be where a loop begins, of its own function."""
    if count.value in frame.assigned or frame.func is None:
        yield from reaching(definitions(facts.flow).of(count, frame), count, frame)


def _under_rank(event: Event, known: Ranks) -> bool:
    """Under `if rank == 0:`, with no other branch that gives the name another value."""
    for by, passing in known.limits(event.node, event.frame):
        if isinstance(by, cst.If) and passing and by.orelse is None:
            return True
    return False
