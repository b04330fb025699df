"""A training forward in, the call out that reaches it from outside: `model.compute_loss(x)`, `model.encoder(x)`."""

from __future__ import annotations

from dataclasses import dataclass, replace

import libcst as cst

from ddpify.facts.contents import origins
from ddpify.facts.flow import Flow
from ddpify.facts.frames import Entry, Event, Frame
from ddpify.facts.roles import Roles, root
from ddpify.facts.values import FromBatch, Module, Thing


@dataclass(frozen=True, eq=False)
class Route:
    """A call, outside the model, of a method or a part of it, in which it trains."""

    call: cst.Call
    #: the expression that holds the model
    base: cst.BaseExpression
    #: what is called of it: `compute_loss`, `encoder`, `layers.0`
    name: str
    frame: Frame
    stmt: cst.CSTNode
    #: it is a part of the model, no method
    is_part: bool = False

    def event(self, of: Event) -> Event:
        """The forward, as if it happened where the method is called."""
        loops = next((en.loops for chain in of.frame.chains() for en in chain if en.call is self.call), of.loops)
        return replace(of, node=self.call, frame=self.frame, stmt=self.stmt, loops=loops)


def find_routes(flow: Flow, roles: Roles, event: Event, module: Module) -> list[Route]:
    """The outermost calls on the ways to a forward that are of a method or a part of the model, and do not train.

    One for each way that leads there in the loop that takes the steps: `net.loss(a) + net.loss(b)` has two.
    """
    found: list[tuple[bool, Route]] = []
    for chain in event.frame.chains():
        steps = [*chain, Entry(event.frame, event.node, event.stmt, event.loops, event.grad)]
        stepping = _is_turn(roles, {id(lp.node) for entry in steps for lp in entry.loops})
        for entry in steps:
            if not isinstance(entry.call, cst.Call) or _trains_inside(roles, entry.call):
                continue
            named = _named(flow, entry.call.func, module)
            if named is not None:
                is_part = any(isinstance(o, Module) for o in flow.values.get(entry.call.func, ()))
                route = Route(entry.call, *named, entry.frame, entry.stmt, is_part)
                found.append((stepping, route))
                break
    once = {id(r.call): r for stepping, r in found if stepping} or {id(r.call): r for _, r in found[:1]}
    return list(once.values())


def in_step(roles: Roles, event: Event) -> bool:
    """Whether a forward runs in the loop that takes the steps: the same method may be called for a look at the end."""
    return _is_turn(roles, {id(lp.node) for around in event.all_loops() for lp in around})


def on_the_way(roles: Roles, event: Event) -> bool:
    """`keep = net(x).max(1).values < 0.9`: a look, with gradients on, at a training batch on the way to its loss."""
    read = {*roles.training_loaders, *(loader for loader, _ in roles.other_data)}
    of_batch = any(isinstance(o, FromBatch) and o.loader in read for o in origins(event.value))
    return event.grad is not False and of_batch and in_step(roles, event)


def _is_turn(roles: Roles, loops: set[int]) -> bool:
    """Whether one of the loops is the innermost around a backward."""
    turns = [{id(around[-1].node) for around in b.all_loops() if around} for b in roles.backwards]
    return any(not t or t & loops for t in turns)


def _trains_inside(roles: Roles, call: cst.Call) -> bool:
    """`model.fit(loader)`: the backward happens in the call."""
    return any(entry.call is call for b in roles.backwards for chain in b.frame.chains() for entry in chain)


def _named(flow: Flow, func: cst.BaseExpression, module: Module) -> tuple[cst.BaseExpression, str] | None:
    """`model.layers[0]` is `layers.0` of `model`."""
    names: list[str] = []
    node = func
    while isinstance(node, (cst.Attribute, cst.Subscript)):
        key = node.attr.value if isinstance(node, cst.Attribute) else _literal(node)
        if key is None:
            return None
        names.insert(0, key)
        node = node.value
        held = [o.module if isinstance(o, Thing) else o for o in flow.values.get(node, ())]
        if any(isinstance(o, Module) and module in (o, o.inner) and root(o) is module for o in held):
            return (node, ".".join(names)) if names not in (["forward"], ["__call__"]) else None
    return None


def _literal(node: cst.Subscript) -> str | None:
    """`["enc"]`, `[0]`"""
    index = node.slice[0].slice if len(node.slice) == 1 else None
    value = index.value if isinstance(index, cst.Index) else None
    if isinstance(value, cst.SimpleString):
        found = value.evaluated_value
        return found if isinstance(found, str) and "." not in found else None
    return value.value if isinstance(value, cst.Integer) else None
