"""Trace -> is everything that is trained inside DistributedDataParallel?"""

from __future__ import annotations

from ..observed import Collective
from ..trace import Trace, Wrap
from ._base import Check, Result, at, count


class Wrapped(Check):
    """Every rank trains through DistributedDataParallel.

    Without it no gradient is averaged: each rank trains a model of its own and only rank 0's is saved. Parameters
    outside a wrapper are allowed only as long as the script keeps them equal itself. Contract 2.1.
    """

    section = "2.1"
    likely = ("DDP201",)

    def check(self, trace: Trace) -> Result:
        """Look at the wrappers and at what the optimizers hold."""
        stepping = [r for r in trace.ranks if r.steps]
        if not stepping:
            return self._without_optimizer(trace)
        by_hand = self._by_hand(trace)
        for rank in stepping:
            if not rank.of(Wrap) and not by_hand:
                first = rank.steps[0]
                return self.failed(f"rank {rank.rank} trains{at(first.at)} without DistributedDataParallel")
        for rank in stepping:
            outside = next((s for s in rank.steps if s.outside), None)
            if outside is not None and self._differ(trace, outside.optimizer):
                what = f"{outside.outside:,} of the {count(outside.parameters, 'parameter')}"
                return self.failed(
                    f"{what} that the optimizer steps{at(outside.at)} are outside the wrapper and differ"
                )
        if by_hand:
            return self.held(
                "what is trained is in no module: its gradients are averaged by hand, and equal on all ranks"
            )
        made = stepping[0].of(Wrap)
        inside = ", ".join(f"{w.module} ({count(w.parameters, 'parameter')})" for w in made[:3])
        return self.held(f"{inside} inside DistributedDataParallel on every rank")

    def _without_optimizer(self, trace: Trace) -> Result:
        """Where the script steps by hand, a wrapper on every rank is what can be seen."""
        trained = all(rank.end is not None and rank.end.backwards for rank in trace.ranks)
        if not trace.ranks or not trained or not all(rank.of(Wrap) for rank in trace.ranks):
            return self.not_tried("no optimizer stepped")
        made = ", ".join(f"{w.module} ({count(w.parameters, 'parameter')})" for w in trace.ranks[0].of(Wrap)[:3])
        return self.held(f"{made} inside DistributedDataParallel on every rank; no optimizer steps it")

    def _by_hand(self, trace: Trace) -> bool:
        """A prompt before a frozen model: nothing to wrap; every step has a reduction of its own, and ranks agree."""
        for rank in trace.ranks:
            steps, reduced = rank.steps, [c for c in rank.of(Collective) if c.op == "all_reduce"]
            alone = all(s.outside == s.parameters for s in steps)
            if rank.of(Wrap) or not steps or not alone or len(reduced) < len(steps):
                return False
        return not any(self._differ(trace, s.optimizer) for s in trace.ranks[0].steps)

    def _differ(self, trace: Trace, optimizer: int) -> bool:
        sums: dict[int, set[str]] = {}
        for rank in trace.ranks:
            for step in rank.steps:
                if step.optimizer == optimizer and step.checksum:
                    sums.setdefault(step.number, set()).add(step.checksum)
        return any(len(different) > 1 for different in sums.values())
