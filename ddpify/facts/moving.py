"""Models without a wrapper in, those out whose statistics the steps change: each rank's by its own batches."""

from __future__ import annotations

from ddpify.facts.contents import modules, with_parts
from ddpify.facts.flow import Flow
from ddpify.facts.frames import Event
from ddpify.facts.layers import BUFFERS, mentions
from ddpify.facts.replay import replay
from ddpify.facts.roles import Roles, root
from ddpify.facts.routes import in_step
from ddpify.facts.values import Module


def find_moving(flow: Flow, roles: Roles) -> dict[Module, Event]:
    """Frozen networks and others that run in the steps in train mode: BatchNorm takes in what they see.

    Each with its first such forward. What a wrapper holds is left out: DDP gives rank 0's buffers to all.
    """
    inside = {root(part) for w in roles.wrapped for m in modules((w,)) for part in (m, m.inner or m)}
    switched: dict[Module, Event] = {}
    in_eval: list[tuple[Module, Event, Event]] = []
    trains: set[Module] = set()
    found: dict[Module, Event] = {}
    for e in replay(flow, "method", "forward"):
        if e.kind == "method" and e.name in ("train", "eval"):
            parts = [part for m in modules((e.obj,) if e.obj is not None else ()) for part in with_parts(m)]
            switched |= dict.fromkeys(parts, e)
            trains |= set() if _to_eval(flow, e) else set(parts)
        elif e.kind == "forward" and isinstance(e.obj, Module) and root(e.obj) not in inside and in_step(roles, e):
            last = switched.get(e.obj)
            if last is None or not _to_eval(flow, last):
                found.setdefault(e.obj, e)
            else:
                in_eval.append((e.obj, e, last))
    for module, e, last in in_eval:
        # eval() before the loop and train() in it: from the second turn on it is in train mode
        if module in trains and not _outermost(last) & _outermost(e):
            found.setdefault(module, e)
    return {m: e for m, e in found.items() if m.has_parameters and mentions(m, BUFFERS, written=True)}


def put_in_eval(flow: Flow) -> set[Module]:
    """All models that are in eval mode at some time, with their parts."""
    found: set[Module] = set()
    for e in flow.log.of("method"):
        if e.obj is not None and (
            e.name == "eval" or (e.name == "train" and e.value and flow.truth(e.value) is not True)
        ):
            found |= {part for m in modules((e.obj,)) for part in with_parts(m)}
    return found


def _to_eval(flow: Flow, e: Event) -> bool:
    return e.name == "eval" or flow.truth(e.value) is False


def _outermost(e: Event) -> set[int]:
    """The loops that stand around all others of an event, one for each way that leads to it."""
    return {id(loops[0].node) for loops in e.all_loops() if loops}
