"""Trace -> did the ranks share the training set out among them?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..trace import Pass, Trace
from ._base import Check, Result, at, count

#: samplers that draw every sample of the data set
_WHOLE = ("RandomSampler", "SequentialSampler")


class DisjointShards(Check):
    """In every training pass the ranks draw different samples, and together the whole training set.

    Catches loaders without a DistributedSampler: every rank does the same work. At most world - 1 samples may be drawn
    twice, as padding; of whole batches that are dealt out, world - 1 batches. Contract 2.2.
    """

    section = "2.2"
    likely = ("DDP301",)

    def check(self, trace: Trace) -> Result:
        """Compare the k-th training pass of every rank."""
        if trace.world < 2:
            return self.not_tried("one rank has nothing to share out")
        by_rank = [rank.training_passes for rank in trace.ranks]
        if not any(by_rank):
            return self.not_tried("no training pass over a DataLoader was seen to its end")
        held = 0
        for number, passes in enumerate(zip(*by_rank, strict=False), 1):
            found = self._pass(number, passes)
            if isinstance(found, str):
                return self.failed(f"training pass {number}{at(passes[0].at)}: {found}")
            held += found
        if not held:
            return self.not_tried("the samples have no number to compare, or are drawn with replacement")
        whole = all(p.complete for passes in by_rank for p in passes)
        return self.held(f"disjoint in {count(held, 'training pass')}" + ("" if whole else ", not all read to the end"))

    def _pass(self, number: int, passes: Sequence[Pass]) -> str | bool:
        """What is wrong, or whether there was anything to compare."""
        if len({p.split for p in passes}) > 1 and "Distributed" in passes[0].sampler:
            return False  # each rank has a split of its own: `same_split` says so
        shards = [p.indices for p in passes if p.indices is not None]
        if len(shards) < len(passes) or any(len(s) < p.drawn for s, p in zip(shards, passes, strict=True)):
            return False
        if shards[0] and all(shard == shards[0] for shard in shards):
            return f"every rank drew the same {count(len(shards[0]), 'sample')} ({passes[0].sampler})"
        if any(len(s) > len(set(s)) + 1 for s in shards) and "Distributed" not in passes[0].sampler:
            return False  # with replacement
        drawn = Counter(index for shard in shards for index in set(shard))
        shared = sum(n - 1 for n in drawn.values())
        size, padding = passes[0].size, (len(passes) - 1) * max(1, *(p.batch for p in passes))
        whole = passes[0].sampler in _WHOLE or "Distributed" in passes[0].sampler
        if shared > padding:
            if not whole and size and sum(map(len, shards)) <= size + padding:
                return False  # a sampler of the script's own may draw a sample twice
            return f"{count(shared, 'sample')} drawn by more than one rank ({passes[0].sampler})"
        if whole and size and all(p.complete and not p.drop_last for p in passes) and len(drawn) < size:
            return f"the ranks together drew {len(drawn):,} of {count(size, 'sample')}"
        return True
