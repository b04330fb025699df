"""A statement of a distributed script in, the edits that leave it to rank 0 out: `if dist.get_rank() == 0:`."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from ddpify.edits import AddImport, Edit, Guard
from ddpify.facts import Facts
from ddpify.facts.frames import Event
from ddpify.rules._guards import guards
from ddpify.source import Source


def for_rank_0(
    facts: Facts, source: Source, stmt: cst.CSTNode | None, effect: cst.CSTNode, events: Sequence[Event]
) -> tuple[Edit, ...]:
    """The guard of a statement that no other rank needs any part of, where the process group is there by then."""
    joined, left = _times(facts, "init_process_group"), _times(facts, "destroy_process_group")
    if not joined or not events or not isinstance(stmt, cst.Expr):
        return ()
    if any(not joined[0] < e.seq < min([facts.flow.main_end, *left]) for e in events):
        return ()
    known = guards(facts)
    if known.obstacle(source, stmt, effect) or known.hoists(source, stmt, effect):
        return ()
    return Guard(source, stmt, f"if {facts.names_of(source)['dist']}.get_rank() == 0"), AddImport(source, "dist")


def _times(facts: Facts, function: str) -> list[int]:
    found = (e.seq for name, es in facts.identifiers.items() if name.endswith(f".{function}") for e in es)
    return sorted(found)
