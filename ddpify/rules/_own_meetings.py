"""Tests of the clock and of one rank's numbers in, those out under which the converted script's ranks have to meet."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddpify.facts import Facts
from ddpify.facts.contents import modules
from ddpify.facts.frames import Event, Frame
from ddpify.facts.locality import locality
from ddpify.facts.metrics import loop_facts
from ddpify.facts.moments import moments
from ddpify.facts.reads import Paths, find_reads, written_before
from ddpify.facts.roles import loaders_in, root
from ddpify.facts.values import Loader


def tests_before_meetings(facts: Facts) -> Iterator[tuple[cst.If, Frame]]:
    """`if time.time() - last > 600: evaluate(net)`: ranks that came to it alone would wait for the others in it.

    In it means in any function that it calls: an evaluation gives all ranks rank 0's buffers and adds up their numbers,
    a file that was just written is waited for.
    """
    seen: set[tuple[int, int]] = set()
    for e in (*_evaluations(facts), *_waits(facts)):
        for chain in e.frame.chains():
            way = [(x.frame, x.stmt, x.loops) for x in chain] + [(e.frame, e.stmt, e.loops)]
            outer: list[cst.CSTNode] = []
            for frame, stmt, loops in way:
                above = _around(frame, stmt)
                for test in (a for a in reversed(above) if isinstance(a, cst.If)):
                    around = {id(a) for a in _around(frame, test)}
                    within = [lp for lp in loops if id(lp.node) in around]
                    trains = any(n in facts.roles.training_loops for n in (*outer, *(lp.node for lp in within)))
                    dealt = any(_reads_other(facts, lp.iterates) for lp in within)
                    if trains and not dealt and (id(test), id(frame)) not in seen:
                        seen.add((id(test), id(frame)))
                        yield test, frame
                outer += [lp.node for lp in loops]
                if any(_reads_other(facts, lp.iterates) for lp in loops):
                    break  # in the turns of an evaluation each rank is by itself


def _evaluations(facts: Facts) -> Iterator[Event]:
    """The loops over other loaders, and trained models' forwards without gradients, between the epochs' batches."""
    for loop in facts.cached("loops", loop_facts):
        if not loop.training:
            yield loop.start
    trained = {root(m) for m in facts.roles.trained}
    for e in facts.flow.log.of("forward"):
        mine = {root(m) for m in modules((e.obj,))} & trained if e.obj is not None else set()
        if mine and e.grad is False and not locality(facts).batch_loops(tuple(lp for a in e.all_loops() for lp in a)):
            yield e


def _waits(facts: Facts) -> Iterator[Event]:
    """What reads a file that the script writes: all ranks wait for rank 0 there."""
    paths, when = Paths(facts), moments(facts.flow)
    for read in find_reads(facts):
        for e in read.call.events:
            if any(written_before(facts, read, e, m, paths, certain=False) for m in when.of(e)):
                yield e


def _reads_other(facts: Facts, value: object) -> bool:
    """Whether a loop iterates over a loader that trains nothing."""
    held = loaders_in(value)  # type: ignore[arg-type]
    return any(isinstance(o, Loader) and o not in facts.roles.training_loaders for o in held)


def _around(frame: Frame, stmt: cst.CSTNode) -> list[cst.CSTNode]:
    """What stands around a statement in its function, the innermost first."""
    found = []
    for above in frame.source.ancestors(stmt):
        if isinstance(above, (cst.FunctionDef, cst.Lambda, cst.ClassDef)):
            break
        found.append(above)
    return found
