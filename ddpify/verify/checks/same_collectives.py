"""Trace -> did all ranks meet in the same collectives, in the same order?"""

from __future__ import annotations

from itertools import zip_longest

from ..observed import Collective
from ..trace import Trace
from ._base import Check, Result, at, count


class SameCollectives(Check):
    """Every rank makes the same collectives over the whole world, in the same order.

    A collective that only some ranks make pairs up with the next one of the others: where the shapes agree both get a
    number that nobody asked for, without an error, until the counts run out. Contract 2.3.
    """

    section = "2.3"
    likely = ("DDP512", "DDP204", "DDP503")

    def check(self, trace: Trace) -> Result:
        """Compare the k-th collective of each rank with that of rank 0."""
        if trace.world < 2:
            return self.not_tried("one rank meets nobody")
        first = trace.ranks[0].of(Collective)
        if not any(rank.of(Collective) for rank in trace.ranks):
            return self.not_tried("the script made no collective of its own")
        for rank in trace.ranks[1:]:
            wrong = self._compare(first, rank.of(Collective), rank.rank)
            if wrong is not None and (trace.ended_well or not trace.was_cut):
                return self.failed(wrong)
        if not trace.ended_well and len({len(rank.of(Collective)) for rank in trace.ranks}) > 1:
            return self.not_tried("not every rank came to its end")
        return self.held(f"the same {count(len(first), 'collective')} on every rank")

    def _compare(self, first: tuple[Collective, ...], other: tuple[Collective, ...], rank: int) -> str | None:
        """A line of one rank may meet another line of the other (two branches), but then always that one."""
        there: dict[tuple[str, ...], Collective] = {}
        here: dict[tuple[str, ...], Collective] = {}
        for number, (mine, its) in enumerate(zip_longest(first, other), 1):
            if mine is None or its is None:
                left, who = (mine, 0) if its is None else (its, rank)
                assert left is not None
                return f"rank {who} alone makes collective {number}: {left.op}{at(left.at)}"
            met = f"rank 0 is in {_told(mine)}, rank {rank} in {_told(its)}"
            if (mine.op, mine.shape, mine.dtype) != (its.op, its.shape, its.dtype):
                return f"collective {number}: {met}"
            before = there.setdefault(mine.through, its), here.setdefault(its.through, mine)
            if before[0].through != its.through or before[1].through != mine.through:
                return f"collective {number} pairs up two that do not belong together: {met}"
        return None


def _told(one: Collective) -> str:
    shape = f" of {'x'.join(map(str, one.shape)) or 'one number'}" if one.shape is not None else ""
    return f"{one.op}{shape}{at(one.at)}"
