"""Trace -> did an evaluation count each sample once, whatever the number of ranks?"""

from __future__ import annotations

from collections import Counter

from ..trace import Trace
from ._base import Check, Result, at, count
from ._passes import Together, common_size, evaluations


class EvaluatedOnce(Check):
    """An evaluation reads each sample once over all ranks, or in full on every rank.

    DistributedSampler repeats samples to make equal shards (or drops some): a metric over them depends on the number
    of GPUs. Looked at: passes without a step that are read to the end. Contract 3.1.
    """

    section = "3.1"
    likely = ("DDP304",)

    def check(self, trace: Trace) -> Result:
        """Count the samples of each evaluation over all ranks."""
        if trace.world < 2:
            return self.not_tried("one rank counts alone")
        held = 0
        for passes in evaluations(trace):
            found = self._evaluation(trace, passes)
            if isinstance(found, str):
                first = next(iter(passes.values()))
                return self.failed(f"the evaluation{at(first.at)} {found} ({first.sampler})")
            held += found
        if not held:
            return self.not_tried("no evaluation with numbered samples was read to its end")
        return self.held(f"each sample once, or all on every rank, in {count(held, 'evaluation')}")

    def _evaluation(self, trace: Trace, passes: Together) -> str | bool:
        listed = [p.indices for p in passes.values()]
        if not all(p.complete and p.indices is not None and len(p.indices) == p.drawn for p in passes.values()):
            return False
        shards = [sorted(shard) for shard in listed if shard is not None]
        size = common_size(trace, passes)
        if all(shard == shards[0] for shard in shards):
            return True
        if any("Weighted" in p.sampler for p in passes.values()):
            return False
        drawn = Counter(index for shard in shards for index in shard)
        again = sum(n - 1 for n in drawn.values())
        if again:
            return f"counts {count(again, 'sample')} more than once"
        # a rank with an empty share may leave no trace of its pass
        if size is not None and len(passes) == trace.world and len(drawn) < size:
            return f"leaves out {size - len(drawn):,} of {count(size, 'sample')}"
        return True
