"""Wrapped models in, the draws behind them that must still be alike on all ranks out: of data, splits and orders."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.contents import modules
from ddpify.facts.externals import role_of
from ddpify.facts.frames import Event, Frame, Loop
from ddpify.facts.placing import steps
from ddpify.facts.roles import root
from ddpify.facts.values import Module

if TYPE_CHECKING:
    from ddpify.facts import Facts


def late_draws(facts: Facts) -> list[Event]:
    """Draws outside the epochs that happen behind the last wrap, or happen again behind it (in a loop over folds)."""
    behind = wrapped(facts)
    if not behind:
        return []
    last = max(e.seq for e in behind)
    trained = max((b.seq for b in facts.roles.backwards), default=facts.flow.main_end)
    again = {id(lp.node) for e in behind for loops in e.all_loops() for lp in loops}
    return [
        e
        for e in (*construction_draws(facts), *_networks(facts))
        if last < e.seq < trained or any(id(lp.node) in again for loops in e.all_loops() for lp in loops)
    ]


def wrapped(facts: Facts) -> list[Event]:
    """What happens in the statements that models are wrapped behind."""
    after = {id(w.after) for w in facts.wrap_points}
    return [e for e in facts.flow.log.events if id(e.stmt) in after or any(id(u) in after for u in e.under)]


def _networks(facts: Facts) -> Iterator[Event]:
    """`teacher = Net()` outside the epochs, of a network that no wrapper makes alike: its weights are drawn, too."""
    inside = {root(m) for w in facts.wrap_points for m in w.modules}
    run = (m for e in facts.flow.log.of("forward") if e.obj is not None for m in modules((e.obj,)))
    own = (m for m in run if m.has_parameters and root(m) not in inside and not _is_copy(m))
    made = {id(m.site.node) for m in own}
    epochs = {id(lp.node) for lp in _epochs(facts)}
    for e in facts.flow.log.of("new", "external", "call"):
        again = any(id(lp.node) in epochs for loops in e.all_loops() for lp in loops)
        if id(e.node) in made and e.seq < facts.flow.main_end and not again:
            yield e


def _is_copy(module: Module) -> bool:
    """A copy or an average of a model: it begins with weights that are alike."""
    return module.evidence.startswith("a copy") or role_of(module.name) == "copy-module" or module.inner is not None


def construction_draws(facts: Facts) -> Iterator[Event]:
    """`torch.randn(...)`, `random_split(...)` outside the epochs, from the generators that a seed fixes for all."""
    epochs = {id(lp.node) for lp in _epochs(facts)} | {id(x.batch_loop.node) for x in facts.roles.epoch_loops}
    for e in facts.flow.log.of("external"):
        if role_of(e.name) not in ("random", "random-split", "split") or e.seq >= facts.flow.main_end:
            continue
        if {"generator", "random_state"} & set(e.extra) or e.grad is False:
            continue
        if not any(id(lp.node) in epochs for loops in e.all_loops() for lp in loops):
            yield e


def _epochs(facts: Facts) -> list[Loop]:
    """The loops over epochs; where no loader tells them apart, the outermost loops that train."""
    known = [x.loop for x in facts.roles.epoch_loops if x.loop is not None]
    return known or [loops[0] for b in facts.roles.backwards for loops in b.all_loops() if loops]


def places_behind(facts: Facts, draws: list[Event]) -> list[tuple[Frame, cst.CSTNode]]:
    """The one loop over epochs that begins behind all of these draws and the wraps and is in no other loop.

    And the calls that lead to it, as far as none of them comes to a draw or a wrap first.
    """
    loops = {id(lp.node): lp for lp in _epochs(facts)}
    if len(loops) != 1:
        return []
    (loop,) = loops.values()
    starts = [e for e in facts.flow.log.of("loop") if e.node is loop.node and e.name == "start"]
    if len(starts) != 1 or any(list(outer) for outer in starts[0].all_loops()):
        return []
    (start,) = starts
    before = [*draws, *wrapped(facts)]
    if not all(e.seq < start.seq for e in draws):
        return []
    found = [(start.frame, loop.node)]
    for entry in reversed(next(start.frame.chains(1), ())):
        if any(entry.stmt is stmt for e in before for _, stmt, _ in steps(e)):
            break
        found.append((entry.frame, entry.stmt))
    return found
