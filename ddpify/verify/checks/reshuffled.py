"""Trace -> did a shuffling sampler deal out another order in each epoch?"""

from __future__ import annotations

from itertools import pairwise

from ..trace import Pass, Trace
from ._base import Check, Result, at, count

_BY_CHANCE = 8  # two orders of so few samples may be equal by chance


class Reshuffled(Check):
    """A shuffling sampler gives another order in each training pass.

    DistributedSampler shuffles by seed and epoch: without `set_epoch` every epoch has the order of the first, and
    each rank sees the same shard for ever. Contract 2.2.
    """

    section = "2.2"
    likely = ("DDP302",)

    def check(self, trace: Trace) -> Result:
        """Compare each training pass with the one before it over the same loader."""
        compared: set[tuple[int, int]] = set()
        for rank in trace.ranks:
            passes = [p for p in rank.training_passes if p.shuffle]
            for loader in {p.loader for p in passes}:
                for before, after in pairwise([p for p in passes if p.loader == loader]):
                    if self._same(before, after):
                        why = f"; the sampler's epoch stayed {after.epoch}" if before.epoch == after.epoch else ""
                        return self.failed(f"rank {rank.rank} drew the same order in two epochs{at(after.at)}{why}")
                    if before.indices and after.indices:
                        compared |= {(loader, before.order), (loader, after.order)}
        if not compared:
            return self.not_tried("no shuffling loader was read twice in training")
        return self.held(f"another order in each of {count(len(compared), 'training pass')}")

    def _same(self, before: Pass, after: Pass) -> bool:
        shorter = min(len(before.indices or ()), len(after.indices or ()))
        if not shorter or before.indices is None or after.indices is None:
            return False
        same = before.indices[:shorter] == after.indices[:shorter]
        if before.sampler == "DistributedSampler" and before.epoch == after.epoch:
            return same
        return same and shorter >= _BY_CHANCE
