"""Directories whose names are searched for in, one name for all ranks out: rank 0 searches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from ddpify.edits import AddHelper, Edit, InsertAfter, Surround
from ddpify.facts import Facts
from ddpify.facts.searched import Searched, searched_paths
from ddpify.rules._base import Finding, Rule
from ddpify.rules._guards import joined_group
from ddpify.rules._run_names import Named

_REASON = "every rank has rank 0's name"


def searched_names(rule: Rule, facts: Facts, dated: Sequence[Named]) -> Iterator[Finding]:
    """`result = broadcast_value(first_free("runs") if is_main_process() else None)`, or a line behind the loop."""
    for searched in searched_paths(facts.flow):
        frame, name = searched.event.frame, searched.name
        source = frame.source
        message = f"`{name}` goes by what is there: once one rank has made its directory, the others find another name"
        whole = frame.node
        other = any(n.source is source and whole in source.ancestors(n.node) for n in dated)
        calls = bool(searched.calls) and all(facts.editable(c.frame.source) for c in searched.calls)
        alone = not searched.made_inside and not searched.calls
        if other or not joined_group(facts, searched.event) or not (calls or (alone and facts.editable(source))):
            yield rule.finding(
                source,
                searched.asks,
                message,
                left="let rank 0 search, and send its answer to all ranks (broadcast_object_list)",
            )
            continue
        yield from _by_rank_0(rule, facts, searched, message)


def _by_rank_0(rule: Rule, facts: Facts, searched: Searched, message: str) -> Iterator[Finding]:
    if not searched.calls:
        source, asks = searched.event.frame.source, searched.asks
        call = facts.names_of(source)["broadcast_value"]
        edit: Edit = (
            InsertAfter(source, asks, (f"{searched.name} = {call}({searched.name})",))
            if isinstance(asks, (cst.For, cst.While))
            else Surround(source, asks, f"{call}(", ")")
        )
        yield rule.finding(source, asks, message, edit, AddHelper(source, "broadcast_value"), reason=_REASON)
    for entry in searched.calls:
        source = entry.frame.source
        names = facts.names_of(source)
        yield rule.finding(
            source,
            entry.call,
            message,
            Surround(
                source, entry.call, f"{names['broadcast_value']}(", f" if {names['is_main_process']}() else None)"
            ),
            AddHelper(source, "broadcast_value"),
            AddHelper(source, "is_main_process"),
            reason=_REASON,
        )
