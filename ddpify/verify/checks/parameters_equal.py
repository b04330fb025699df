"""Trace -> did the ranks have the same parameters, bit by bit, after every step?"""

from __future__ import annotations

from ..trace import Final, Step, Trace
from ._base import Check, Result, at, count


class ParametersEqual(Check):
    """After every optimizer step, and in the end, all trained parameters are bit-equal on all ranks.

    Catches training forwards that go around the wrapper, parameters outside it, learning rates decided by one rank,
    weights loaded or changed on one rank after the wrap: all of them silent. Buffers may differ. Contract 2.1.
    """

    section = "2.1"
    likely = ("DDP205", "DDP201", "DDP503")

    def check(self, trace: Trace) -> Result:
        """Compare the checksums of the same step on all ranks, then those of the end."""
        if trace.world < 2:
            return self.not_tried("one rank has nobody to differ from")
        compared = 0
        first = {step.number: step for step in trace.ranks[0].steps if step.checksum}
        for rank in trace.ranks[1:]:
            for step in rank.steps:
                other = first.get(step.number)
                if other is None or step.checksum is None:
                    continue
                compared += 1
                if (other.optimizer, other.checksum) != (step.optimizer, step.checksum):
                    return self._apart(rank.rank, step)
        finals = [(rank.rank, rank.of(Final)[0].sums) for rank in trace.ranks if rank.of(Final)]
        by_hand = [rank.end.backwards for rank in trace.ranks if rank.end is not None and rank.end.backwards]
        if not compared and (len(finals) < trace.world or not finals[0][1] or len(by_hand) < trace.world):
            return self.not_tried("no optimizer stepped on two ranks")
        for number, sums in finals[1:]:
            for what in sums.keys() & finals[0][1].keys():
                if sums[what] != finals[0][1][what]:
                    when = "equal after the last step, but in the end" if compared else "in the end"
                    return self.failed(f"{when} {what} differs on rank {number}")
        if not compared:
            return self.held("bit-equal on all ranks in the end; no optimizer steps them")
        seen = "" if len(finals) == trace.world else "; the end was not reached"
        return self.held(f"bit-equal on all ranks after {count(len(first), 'step')} looked at{seen}")

    def _apart(self, rank: int, step: Step) -> Result:
        return self.failed(f"rank {rank} has other parameters than rank 0 after step {step.number}{at(step.at)}")
