"""A training step in, what it goes on from that the step before it left out: such steps cannot be dealt out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from ddpify.errors import Way
from ddpify.facts.dependencies import bindings, bound_names, carried, closure
from ddpify.facts.externals import role_of
from ddpify.facts.frames import Event
from ddpify.facts.levels import Level
from ddpify.facts.trails import stands
from ddpify.facts.whole import Unshared
from ddpify.source import walk

if TYPE_CHECKING:
    from ddpify.facts import Facts


def left_behind(facts: Facts, way: list[Level]) -> Unshared | None:
    """`output, hidden = model(data, hidden)`: a step that goes on where the step before it stopped."""
    for level in way:
        source = level.frame.source
        for loop in reversed(level.loops):
            if not isinstance(loop.node, (cst.For, cst.While)):
                continue
            for name, node in carried(level.names, loop.node, source):
                if _is_fresh(facts, name, node, loop.node) or _is_outside(level, loop.node, node):
                    continue
                why = f"each step goes on from the `{name}` that the step before it left (line {source.line(node)})"
                remedy = (
                    "steps that hang together cannot be dealt out: compute the batch from the loop's variable, or, for "
                    "a recurrent state, give every rank columns of its own"
                )
                return Unshared(source, node, why, remedy, _left(facts, level, loop.node, name))
    return None


def _left(facts: Facts, level: Level, loop: cst.For | cst.While, name: str) -> Way:
    """Every statement that gives the name a value, up to the end of the loop."""
    source = level.frame.source
    end = source.span(loop).end
    mine = [b.node for b in bindings(level.frame.node) if name in b.targets and source.span(b.node).start < end]
    return Way(name, tuple(stands(source, node, name, "is set by") for node in mine))


def _is_fresh(facts: Facts, name: str, node: cst.CSTNode, loop: cst.For | cst.While) -> bool:
    """`x, y = get_batch()` behind the backward: the next batch is drawn early, from nothing that the pass had."""
    own = list(bindings(loop.body))
    mine = [b for b in own if b.node is node]
    target = bound_names(loop.target) if isinstance(loop, cst.For) else frozenset()
    draws = any(role_of(e.name) == "random" for e in facts.flow.log.of("external") if _runs_in(e, loop))
    reads = closure(frozenset().union(*(b.reads for b in mine)), own)
    return draws and not any(b.keeps for b in mine) and name not in reads and not reads & target


def _runs_in(event: Event, loop: cst.CSTNode) -> bool:
    return any(lp.node is loop for loops in event.all_loops() for lp in loops)


def _is_outside(level: Level, loop: cst.CSTNode, node: cst.CSTNode) -> bool:
    """`x, y = x[order], y[order]` once in an epoch, around the loop that is dealt out: the same on all ranks."""
    for inner in reversed(level.loops):
        if inner.node is loop:
            return False
        if isinstance(inner.node, cst.For) and bound_names(inner.node.target) & level.names:
            trained = any(n is node for n in walk(inner.node))
            return not trained
    return False
