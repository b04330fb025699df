"""A flow in, its events in the order of time out, those of a function again for each call of it.

The flow runs a function once for each context and remembers the result: its log has the events of the first call only.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddpify.facts.flow import Flow
from ddpify.facts.frames import Event, Frame

#: More events than any script needs; deep nests of calls end here.
_MOST = 50_000


def replay(flow: Flow, *kinds: str) -> Iterator[Event]:
    """The events of some kinds, calls followed wherever they stand."""
    telling: dict[int, bool] = {}

    def tells(frame: Frame) -> bool:
        if id(frame) not in telling:
            telling[id(frame)] = False
            telling[id(frame)] = any(
                e.kind in kinds or (e.callee is not None and tells(e.callee)) for e in frame.events
            )
        return telling[id(frame)]

    def within(frame: Frame, running: frozenset[int]) -> Iterator[Event]:
        for e in frame.events:
            if e.kind in kinds:
                yield e
            elif e.callee is not None and id(e.callee) not in running and tells(e.callee):
                yield from within(e.callee, running | {id(e.callee)})

    given = 0
    roots = [f for f in flow.modules.values() if f.events]
    for root in sorted(roots, key=lambda f: f.events[0].seq):
        for event in within(root, frozenset({id(root)})):
            yield event
            given += 1
            if given >= _MOST:
                return
