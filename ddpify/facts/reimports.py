"""Flow in, what a worker process runs again out: one that is spawned imports the script, up to its main guard."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddpify.facts.contents import constants
from ddpify.facts.externals import role_of
from ddpify.facts.fetches import is_fetch
from ddpify.facts.frames import Event
from ddpify.facts.placing import is_guard, steps
from ddpify.facts.values import Const, Data, Loader, Module, Thing, Value

if TYPE_CHECKING:
    from ddpify.facts import Facts

_METHODS = frozenset({"spawn", "forkserver"})


def started_workers(facts: Facts) -> str:
    """How DataLoader workers are started: `spawn` where the script says so, `any` where there are some, else empty."""
    told = [e.value for e in facts.flow.log.of("external") if e.name.endswith((".set_start_method", ".get_context"))]
    loaders = [e.obj for e in facts.flow.log.of("loader") if isinstance(e.obj, Loader)]
    told += [ld.arguments.get("multiprocessing_context", ()) for ld in loaders]
    if any(_METHODS & set(constants(v) or ()) for v in told):
        return "spawn"
    return "any" if any(_some(ld.arguments.get("num_workers", ())) for ld in loaders) else ""


def _some(number: Value) -> bool:
    return any(not (isinstance(o, Const) and not o.value) for o in number)


def first_that_needs_group(facts: Facts) -> Event | None:
    """The first thing outside the main guard that is not the same with and without a process group."""
    for e in facts.flow.log.events:
        if e.seq >= facts.flow.main_end:
            return None
        if _needs_group(e):
            frame, stmt, _ = steps(e)[0]
            if frame.source is facts.source and not any(is_guard(a) for a in facts.source.ancestors(stmt)):
                return e
    return None


def _needs_group(event: Event) -> bool:
    """A loader gets a sampler, a split is rank 0's, a GPU is this process's own."""
    if event.kind in ("loader", "forward") or is_fetch(event):
        return True
    if event.kind == "method":
        return event.name in ("to", "cuda") and isinstance(event.obj, (Module, Data, Thing))
    return event.kind == "external" and role_of(event.name) == "random-split"
