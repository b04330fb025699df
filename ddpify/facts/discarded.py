"""Two backwards through one forward in, the places at which the first one may be cut off from it out.

fake = gen(noise)
loss_d = criterion(disc(fake), zeros)
loss_d.backward(retain_graph=True)      # reaches gen, too
opt_d.step()
loss_g = criterion(disc(fake), ones)
gen.zero_grad()                         # and what it left there is thrown away
loss_g.backward()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.contents import modules
from ddpify.facts.dependencies import bound_names
from ddpify.facts.frames import Event
from ddpify.facts.values import Module, Optimizer, Wrapped
from ddpify.source import dotted, walk

if TYPE_CHECKING:
    from ddpify.facts import Facts


def discarded(facts: Facts, first: Event, second: Event, forward: Event) -> list[cst.Name | cst.Attribute]:
    """`fake` of `disc(fake)`, where the gradients that the first backward leaves there are zeroed before any step."""
    trained = set(modules((forward.obj,))) if isinstance(forward.obj, (Module, Wrapped)) else set()
    if first.frame is not second.frame or first.frame is not forward.frame:
        return []
    if not _zeroed(facts, first, second, trained) or not isinstance(forward.stmt, cst.Assign):
        return []
    (target,) = [t.target for t in forward.stmt.targets][:1]
    names = bound_names(target)
    if len(names) != 1 or forward.stmt.value is not forward.node:
        return []
    source, name = forward.frame.source, next(iter(names))
    start, end = source.span(forward.stmt).end, source.span(first.stmt).end
    uses = [
        n
        for n in walk(forward.frame.node)
        if isinstance(n, (cst.Name, cst.Attribute)) and dotted(n) == name and start <= source.span(n).start < end
    ]
    return uses if uses and all(_given_to_a_model(facts, source.parents.get(n), n) for n in uses) else []


def _given_to_a_model(facts: Facts, parent: cst.CSTNode | None, name: cst.CSTNode) -> bool:
    """`disc(fake)`"""
    if not isinstance(parent, cst.Arg) or parent.value is not name:
        return False
    call = next((e for e in facts.after.log.of("forward") if parent in getattr(e.node, "args", ())), None)
    return call is not None


def _zeroed(facts: Facts, first: Event, second: Event, trained: set[Module]) -> bool:
    """Whether the gradients of the modules are zeroed between two backwards, and no step uses them before that."""
    source = first.frame.source
    start, end = source.span(first.stmt).end, source.span(second.stmt).start
    between = [
        e
        for e in facts.after.log.of("method")
        if e.frame is first.frame and start <= source.span(e.stmt).start < end and e.name in ("step", "zero_grad")
    ]
    for e in sorted(between, key=lambda e: source.span(e.stmt).start):
        held = set(e.obj.modules) if isinstance(e.obj, Optimizer) else set(modules((e.obj,))) if e.obj else set()
        if held & trained:
            return e.name == "zero_grad"
    return False
