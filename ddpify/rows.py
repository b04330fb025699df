"""Facts in, the rows of their listing out: what plays a role, where it stands, and what tells so."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import libcst as cst

from ddpify.errors import Way
from ddpify.facts import Facts
from ddpify.facts.frames import Event
from ddpify.facts.values import Heap, Obj
from ddpify.source import Source


@dataclass(frozen=True)
class Row:
    """One thing that plays a role."""

    source: Source
    node: cst.CSTNode
    evidence: str


def made(obj: Obj, evidence: str) -> Iterator[Row]:
    if isinstance(obj, Heap) and obj.site.node in obj.site.source.parents:
        yield Row(obj.site.source, obj.site.node, evidence)


def at(obj: Obj | None, facts: Facts) -> str:
    """`line 12`, or `data.py:12` in another file."""
    if not isinstance(obj, Heap) or obj.site.node not in obj.site.source.parents:
        return "an unknown line"
    return line_of(obj.site.source, obj.site.node, facts)


def line_of(source: Source, node: cst.CSTNode, facts: Facts) -> str:
    line = source.line(node)
    return f"line {line}" if source is facts.source else f"{source.path}:{line}"


def event_line(event: Event, facts: Facts) -> str:
    return line_of(event.frame.source, event.node, facts)


def lines_of(events: Iterable[Event], facts: Facts) -> str:
    return ", ".join(dict.fromkeys(event_line(e, facts) for e in events))


def way_of(way: Way) -> str:
    """The steps of a way in one clause."""
    return "; ".join(f"`{s.what}` {s.how} `{s.made_by}` ({s.place})" for s in way.steps)
