"""Wrapped models in, the draws behind them that must still be alike on all ranks out: of data, splits and orders."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.externals import role_of
from ddpify.facts.frames import Event, Loop

if TYPE_CHECKING:
    from ddpify.facts import Facts


def late_draws(facts: Facts) -> list[Event]:
    """Draws outside the epochs that happen behind the last wrap, or happen again behind it (in a loop over folds)."""
    after = {id(w.after) for w in facts.wrap_points}
    wrapped = [e for e in facts.flow.log.events if id(e.stmt) in after or any(id(u) in after for u in e.under)]
    if not wrapped:
        return []
    last = max(e.seq for e in wrapped)
    again = {id(lp.node) for e in wrapped for loops in e.all_loops() for lp in loops}
    return [
        e
        for e in construction_draws(facts)
        if e.seq > last or any(id(lp.node) in again for loops in e.all_loops() for lp in loops)
    ]


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


def epoch_loop_behind(facts: Facts, draws: list[Event]) -> tuple[Event, cst.CSTNode] | None:
    """The one loop over epochs that begins behind all of these draws and is in no other loop, with its start."""
    loops = {id(lp.node): lp for lp in _epochs(facts)}
    if len(loops) != 1:
        return None
    (loop,) = loops.values()
    starts = [e for e in facts.flow.log.of("loop") if e.node is loop.node and e.name == "start"]
    if not starts or any(list(outer) for e in starts for outer in e.all_loops()):
        return None
    return (starts[0], loop.node) if all(d.seq < starts[0].seq for d in draws) else None
