"""A training step in, what it depends on in each frame on the way to it out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.definitions import argument_of
from ddpify.facts.dependencies import bindings, closure, read_names
from ddpify.facts.frames import Entry, Event, Frame, Loop

if TYPE_CHECKING:
    from ddpify.facts import Facts


@dataclass(frozen=True, eq=False)
class Level:
    """One frame on the way from a training step up to the script's own code: what the step depends on there."""

    frame: Frame
    #: the loops of this frame around the step, outermost first
    loops: tuple[Loop, ...]
    names: frozenset[str]

    @property
    def body(self) -> cst.CSTNode:
        """The code that runs again for each step: the outermost loop of the frame, or the function."""
        return getattr(self.loops[0].node, "body", self.frame.node) if self.loops else self.frame.node


def levels(facts: Facts, event: Event, names: frozenset[str], chain: tuple[Entry, ...] | None = None) -> list[Level]:
    """What an event depends on in each frame on the way to it, innermost first.

    `chain`: on this of the ways that lead to it, not on the first.
    """
    around = {id(n) for n in facts.roles.training_loops}
    around -= _made_anew(facts)
    way = tuple(reversed(next(event.frame.chains(), ()) if chain is None else chain))
    steps = [(event.frame, event.loops), *((e.frame, e.loops) for e in way)]
    found = []
    for at, (frame, running) in enumerate(steps):
        loops = tuple(lp for lp in running if id(lp.node) in around and lp.frame is frame)
        level = Level(frame, loops, names)
        level = Level(frame, loops, closure(names, bindings(level.body)))
        found.append(level)
        names = outside(level, way[at].call if chain is not None and at < len(way) else None)
    return found


def outside(level: Level, call: cst.CSTNode | None = None) -> frozenset[str]:
    """The names of a function's frame in terms of its caller: arguments for parameters, free names as they are."""
    found: set[str] = set()
    for name in level.names:
        base = name.split(".")[0]
        if base in level.frame.arguments:
            own = argument_of(call, level.frame, base) if call is not None else None
            given = own if own is not None else level.frame.arguments[base]
            found |= read_names(given) if given is not None else ({name} if "." in name else set())
        elif base not in level.frame.assigned or "." in name:
            found.add(name)
    return frozenset(found)


def _made_anew(facts: Facts) -> set[int]:
    """`for fold in range(5): net = Net()`: the loops in which a model is made; each pass is a training of its own."""
    trained = {id(m.site.node) for m in facts.roles.trained}
    made = [e for e in facts.flow.log.of("new", "call") if id(e.node) in trained]
    return {id(lp.node) for e in made for loops in e.all_loops() for lp in loops}
