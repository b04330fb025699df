"""Trace -> did every rank make the same number of steps?"""

from __future__ import annotations

from ..trace import Pass, Trace
from ._base import Check, Result, at, count


class SameStepCount(Check):
    """Every rank makes the same number of backward passes and optimizer steps.

    A rank that skips a step leaves the parameters equal and shifts every later collective by one: epochs drift apart
    and the run dies, or hangs, at its end. With drop_last, a share that is smaller than a batch trains nothing, and
    nothing says so. Contract 2.2, 2.3.
    """

    section = "2.3"
    likely = ("DDP503", "DDP301", "DDP512")

    def check(self, trace: Trace) -> Result:
        """Compare the counts of ranks that ended; a rank that was killed proves nothing by having fewer."""
        if trace.world < 2:
            return self.not_tried("one rank has nobody to differ from")
        steps = [len(rank.steps) for rank in trace.ranks]
        if not any(steps):
            return self._by_hand(trace)
        done = [rank for rank in trace.ranks if rank.ended_well]
        if not done:
            return self.not_tried("no rank came to its end")
        fewest = min(done, key=lambda rank: len(rank.steps))
        most = max(trace.ranks, key=lambda rank: len(rank.steps))
        if len(fewest.steps) < len(most.steps):
            last = at(most.steps[-1].at)
            made = f"rank {fewest.rank} made {count(len(fewest.steps), 'step')}, rank {most.rank} {len(most.steps)}"
            return self.failed(f"{made}{last}")
        for rank in trace.ranks:
            if rank.end and fewest.end and not rank.ended_well and rank.end.backwards > fewest.end.backwards:
                ended = f"rank {fewest.rank} ended after {count(len(fewest.steps), 'step')}"
                return self.failed(f"{ended}, rank {rank.rank} was in another{at(rank.end.at)}")
        if len(done) < trace.world:
            return self.not_tried("not every rank came to its end")
        backwards = {rank.steps[-1].backwards for rank in trace.ranks}
        if len(backwards) > 1:
            return self.failed(f"as many steps, but {' and '.join(map(str, sorted(backwards)))} backward passes")
        return self.held(f"{count(steps[0], 'step')} and {count(backwards.pop(), 'backward pass')} on every rank")

    def _by_hand(self, trace: Trace) -> Result:
        """Without an optimizer (`p.data.add_(p.grad, alpha=-lr)`) the backward passes are counted."""
        passes = [rank.end.backwards for rank in trace.ranks if rank.end and rank.ended_well]
        empty = next((p for rank in trace.ranks for p in rank.of(Pass) if _left_out(p)), None)
        if empty is not None and not any(passes):
            what = f"a rank's share of {count(empty.size or 0, 'sample')} makes no whole batch"
            return self.failed(f"nothing is trained: {what}, and drop_last leaves it out{at(empty.at)}")
        if len(passes) < trace.world or not any(passes):
            return self.not_tried("no optimizer stepped")
        if len(set(passes)) > 1:
            return self.failed(f"{' and '.join(map(str, passes))} backward passes on the ranks")
        return self.held(f"{count(passes[0], 'backward pass')} on every rank, and no optimizer")


def _left_out(one: Pass) -> bool:
    """A pass that had samples, and gave no batch."""
    return one.complete and one.drop_last and not one.drawn and bool(one.size)
