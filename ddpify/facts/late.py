"""A wrap point in, the move of its model to a device out that comes only behind the wrap: in each epoch, say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddpify.facts.contents import modules
from ddpify.facts.frames import Event
from ddpify.facts.roles import root
from ddpify.facts.values import Ext
from ddpify.facts.wraps import WrapPoint

if TYPE_CHECKING:
    from ddpify.facts import Facts


def late_move(facts: Facts, w: WrapPoint) -> Event | None:
    """`model.to(device)` in `train(model)`, of a model that is on the CPU when it is wrapped: DDP refuses it."""
    if w.is_before:
        return None
    source, log = w.source, facts.flow.log
    here = [e.seq for e in log.events if e.frame is w.frame and w.after in (e.stmt, *source.ancestors(e.stmt))]
    forwards = [
        e.seq
        for e in log.of("forward")
        if e.node in facts.roles.training_forwards and e.obj is not None and _is_of(e, w) and e.grad is not False
    ]
    first = min(forwards, default=facts.flow.main_end)
    moves = [e for e in log.of("method") if e.seq < first and e.name in ("to", "cuda") and _is_of(e, w)]
    moves = [e for e in moves if not any(isinstance(o, Ext) for o in e.value)]  # .to(torch.float64)
    if not moves or min(e.seq for e in moves) <= max(here, default=0):
        return None
    return moves[0]


def _is_of(e: Event, w: WrapPoint) -> bool:
    return any(root(m) in w.modules for m in modules((e.obj,) if e.obj is not None else ()))
