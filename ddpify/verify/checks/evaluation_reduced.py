"""Trace -> were the shares of an evaluation brought together?"""

from __future__ import annotations

from ..observed import Collective
from ..trace import Pass, RankTrace, Trace
from ._base import Check, Result, at, count
from ._passes import Together, evaluations

_REDUCING = ("all_gather", "all_reduce", "all_to_all", "gather", "reduce")


class EvaluationReduced(Check):
    """Where each rank evaluates a share, the numbers are reduced over the ranks before training goes on.

    Otherwise what is printed, and what picks the best checkpoint, is the number of one share: right in size, and
    another on each rank. Contract 3.1.
    """

    section = "3.1"
    likely = ("DDP501", "DDP304")

    def check(self, trace: Trace) -> Result:
        """Look for a reduction between the begin of the evaluation and the next optimizer step."""
        if trace.world < 2:
            return self.not_tried("one rank evaluates alone")
        held = 0
        for passes in evaluations(trace):
            if not _shared(passes):
                continue
            for number, one in passes.items():
                if trace.ranks[number].ended_well and not _reduced(trace.ranks[number], one):
                    told = f"rank {number} evaluates its own share{at(one.at)} and reduces nothing before it goes on"
                    return self.failed(told)
            held += 1
        if not held:
            return self.not_tried("no evaluation was shared out among the ranks")
        return self.held(f"reduced after each of {count(held, 'evaluation')} that the ranks shared")


def _shared(passes: Together) -> bool:
    shards = [sorted(p.indices) for p in passes.values() if p.indices is not None and p.complete]
    return len(passes) > 1 and len(shards) == len(passes) and any(shard != shards[0] for shard in shards)


def _reduced(rank: RankTrace, one: Pass) -> bool:
    steps = [step.time for step in rank.steps if step.time >= one.time]
    until = min(steps, default=float("inf"))
    return any(one.begun <= c.time <= until and c.op.startswith(_REDUCING) for c in rank.of(Collective))
