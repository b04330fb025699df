"""What the ranks drew -> what one process is to read: as its k-th batch, the ranks' k-th, one behind the other."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from ..trace import Trace
from .events import Order

Plan = dict[str, dict[str, Any]]


def orders(trace: Trace) -> dict[tuple[int, int], tuple[Order, ...]]:
    """The passes that every rank made over a loader and trained with, by loader and number."""
    by_rank = [{(o.loader, o.number): o for o in rank.of(Order) if o.training} for rank in trace.ranks]
    shared = set(by_rank[0]).intersection(*by_rank[1:]) if by_rank else set()
    return {key: tuple(ranks[key] for ranks in by_rank) for key in sorted(shared)}


def joined(passes: Sequence[Order]) -> tuple[list[list[int | str]], list[list[int]]]:
    """The batches of the ranks as one process reads them, and how many samples of each are whose."""
    batches, sizes = list[list[int | str]](), list[list[int]]()
    for parts in zip_longest(*(p.batches for p in passes), fillvalue=()):
        batches.append([sample for part in parts for sample in part])
        sizes.append([len(part) for part in parts])
    return batches, sizes


def plan_of(trace: Trace) -> Plan:
    """For each loader that trained: the size of a batch, the number of batches, and the batches of each pass."""
    plan: Plan = {}
    for (loader, number), passes in orders(trace).items():
        if not all(p.collated for p in passes):
            continue
        sizes = [p.batch_size for p in passes]
        entry = plan.setdefault(
            str(loader),
            {
                "size": passes[0].size,
                "batch_size": sum(s for s in sizes if s) if all(sizes) else None,
                "length": passes[0].length,
                "passes": {},
            },
        )
        batches, counts = joined(passes)
        entry["passes"][str(number)] = {"batches": batches, "sizes": counts}
    return plan
