"""A training step in, the place in the data at which its batches are cut out, where that moves on from call to call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.dependencies import Binding, bindings, closure, read_names
from ddpify.facts.frames import Frame
from ddpify.facts.levels import Level
from ddpify.facts.trails import way_back
from ddpify.facts.values import Module
from ddpify.facts.whole import Unshared
from ddpify.source import Source, walk

if TYPE_CHECKING:
    from ddpify.facts import Facts


def own_positions(facts: Facts, level: Level) -> Iterator[Unshared]:
    """`data.next_batch()` with `self.pos += size`: a place in the data that is the same on every rank."""
    inside = {id(lp.node) for lp in level.loops}
    seen: set[int] = set()
    for e in facts.flow.log.of("augment", "set", "bind"):
        frame = e.frame
        if frame.func is None or isinstance(frame.func.bound, Module) or id(frame) in seen:
            continue
        if any(id(lp.node) in inside for loops in e.all_loops() for lp in loops):
            seen.add(id(frame))
            known = _moved_on(frame)
            if known is not None:
                yield _unshared(facts, frame, *known)


def _moved_on(frame: Frame) -> tuple[str, Binding] | None:
    """What outlives the function, goes on from where it was, and bounds a slice: `x[self.pos : self.pos + size]`."""
    own = list(bindings(frame.node))
    bounds = (n for n in walk(frame.node) if isinstance(n, cst.Slice))
    cut = closure(frozenset().union(*map(read_names, bounds)), own)
    for binding in own:
        for place in sorted(binding.targets & cut):
            goes_on = binding.keeps or place in closure(binding.reads, own)
            if goes_on and _outlives(frame, place):
                return place, binding
    return None


def _outlives(frame: Frame, place: str) -> bool:
    """`self.pos`, or a `global pos`."""
    params = frame.func.node.params.params if frame.func is not None and frame.func.bound is not None else ()
    return (bool(params) and place.startswith(f"{params[0].name.value}.")) or place in frame.scope.outer


def _unshared(facts: Facts, frame: Frame, place: str, binding: Binding) -> Unshared:
    source: Source = frame.source
    target = next((n for n in walk(binding.node) if source.code(n) == place), binding.node)
    why = f"the batches are cut at `{place}` (line {source.line(binding.node)}), which moves on alike on every rank"
    remedy = "cut the batches in a loop over their positions, or draw each at random"
    return Unshared(source, binding.node, why, remedy, way_back(facts.flow, target, source, frame, value=place))
