"""Trace -> the passes over loaders that belong together on all ranks, and what they are passes over."""

from __future__ import annotations

from collections import defaultdict

from ..observed import Data
from ..trace import Pass, RankTrace, Trace

#: one pass, by the rank that made it
Together = dict[int, Pass]


def is_evaluation(one: Pass, rank: RankTrace) -> bool:
    """Read for numbers: no step, and gradients off or a loader of its own."""
    if one.training or one.statistics or not one.drawn:
        return False
    return not one.grad or one.loader not in {p.loader for p in rank.training_passes}


def evaluations(trace: Trace) -> list[Together]:
    """The k-th evaluation that begins at a line, on every rank that makes it."""
    found: dict[tuple[str | None, int], Together] = {}
    for rank in trace.ranks:
        seen: defaultdict[str | None, int] = defaultdict(int)
        for one in sorted(rank.of(Pass), key=lambda p: p.order):
            if is_evaluation(one, rank):
                found.setdefault((one.at, seen[one.at]), {})[rank.rank] = one
                seen[one.at] += 1
    return list(found.values())


def data_of(trace: Trace, rank: int, one: Pass) -> Data | None:
    """What is behind the loader of a pass."""
    return next((data for data in trace.ranks[rank].of(Data) if data.loader == one.loader), None)


def common_size(trace: Trace, passes: Together) -> int | None:
    """The length of the outermost dataset that is the same on all ranks: what an evaluation is over as a whole."""
    behind = [data_of(trace, rank, one) for rank, one in passes.items()]
    if any(data is None for data in behind):
        return None
    size = None
    # from the bottom up; zip stops at the shortest
    for level in zip(*(reversed(data.levels) for data in behind if data is not None), strict=False):
        if len(set(level)) > 1:
            break
        size = level[0][1]
    return size
