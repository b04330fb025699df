"""An event in, the moments at which it happens out: a call that was followed once stands for all calls like it."""

from __future__ import annotations

import functools

from ddpify.facts.flow import Flow
from ddpify.facts.frames import Event, Frame

#: More moments than these tell nothing new.
_MOST = 24
#: A place in the log; behind it, for what a later call does again, the place among what the first call did.
Moment = tuple[int, ...]


class Moments:
    """The moments of the events of a flow, in an order that compares."""

    def __init__(self, flow: Flow) -> None:
        self.calls: dict[int, list[Event]] = {}
        for event in flow.log.of("call"):
            if event.callee is not None:
                self.calls.setdefault(id(event.callee), []).append(event)
        self.entered: dict[int, list[Moment]] = {}

    def of(self, event: Event) -> list[Moment]:
        """When an event happens, the first time first."""
        first = (event.seq,)
        return [first, *sorted((*m, event.seq) for m in self.entries(event.frame) if m > first)]

    def entries(self, frame: Frame) -> list[Moment]:
        """When a frame is entered, by the call that was followed and by those like it."""
        if id(frame) not in self.entered:
            self.entered[id(frame)] = []  # a recursion
            found = {m for call in self.calls.get(id(frame), ()) for m in self.of(call)}
            self.entered[id(frame)] = sorted(found)[:_MOST]
        return self.entered[id(frame)]


@functools.lru_cache(maxsize=4)
def moments(flow: Flow) -> Moments:
    """The moments of a flow, kept."""
    return Moments(flow)
