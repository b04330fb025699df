"""Trace -> was every file written by rank 0 alone?"""

from __future__ import annotations

from ..trace import RankTrace, Save, Trace, Write
from ._base import Check, Result, at, count


def _written(rank: RankTrace) -> dict[str, str | None]:
    """The files that a rank wrote, with the line that did it."""
    events: tuple[Write | Save, ...] = (*rank.of(Save), *rank.of(Write))
    written: dict[str, str | None] = {}
    for event in events:
        written.setdefault(event.path, event.at)
    return written


def _per_machine(rank: RankTrace, first: RankTrace) -> set[str]:
    """What the first rank of another machine wrote before training, as rank 0 did: downloads and caches."""
    if rank.local_rank != 0:
        return set()
    begun = min((step.time for step in rank.steps), default=float("inf"))
    early = {write.path for write in rank.of(Write) if write.time <= begun}
    return early & _written(first).keys() - {save.path for save in rank.of(Save)}


class WrittenByOneRank(Check):
    """Every file is written by global rank 0 only.

    Ranks that write one file at the same time leave a torn one; files with names of their own are left over. Looked
    at: files below the working folder, and torch.save anywhere. What the first rank of each machine downloads before
    training is its own matter. Contract 4.1, 4.2, 4.4.
    """

    section = "4.1"
    likely = ("DDP401", "DDP403")

    def check(self, trace: Trace) -> Result:
        """Look at what ranks other than 0 wrote."""
        if trace.world < 2:
            return self.not_tried("one rank writes alone")
        first = _written(trace.ranks[0])
        for rank in trace.ranks[1:]:
            allowed = _per_machine(rank, trace.ranks[0])
            for path, place in _written(rank).items():
                if path in allowed:
                    continue
                also = "writes too" if path in first else "writes"
                return self.failed(f"rank {rank.rank} {also}{at(place)}: {path}")
        if not first:
            return self.not_tried("nothing was written below the working folder")
        return self.held(f"rank 0 alone wrote {count(len(first), 'file')}")
