"""Trace -> do all ranks mean the same samples by "training set" and "validation set"?"""

from __future__ import annotations

from collections import defaultdict

from ..trace import Pass, RankTrace, Trace
from ._base import Check, Result, at
from ._passes import data_of, is_evaluation


class SameSplit(Check):
    """The data is split the same way on all ranks, and no rank evaluates what another one trains on.

    A split that is drawn without a shared seed differs from rank to rank: validation samples leak into training, and
    the validation number is too good. Lengths agree, so nothing fails. Contract 2.5.
    """

    section = "2.5"
    likely = ("DDP305",)

    def check(self, trace: Trace) -> Result:
        """Compare what the loaders of the ranks are over, then the samples of training with those of evaluation."""
        if trace.world < 2:
            return self.not_tried("one rank has nobody to differ from")
        wrong = self._other_data(trace) or self._leak(trace)
        if wrong is not None:
            return self.failed(wrong)
        passes = [p for rank in trace.ranks for p in rank.training_passes]
        if not passes or not any(data_of(trace, i, p) for i, r in enumerate(trace.ranks) for p in r.training_passes):
            return self.not_tried("no training pass over a DataLoader was seen")
        return self.held("every rank has the same training data, and evaluates nothing that another trains on")

    def _other_data(self, trace: Trace) -> str | None:
        """A DistributedSampler deals out numbers: they must mean the same samples everywhere."""
        by_rank = [sorted(rank.of(Pass), key=lambda p: p.order) for rank in trace.ranks]
        for passes in zip(*by_rank, strict=False):
            if not all("Distributed" in p.sampler and p.at == passes[0].at for p in passes):
                continue
            found = [data_of(trace, rank, one) for rank, one in enumerate(passes)]
            levels = [data.levels for data in found if data is not None]
            if len(levels) < len(passes) or all(level == levels[0] for level in levels):
                continue
            bottom = {level[-1] for level in levels}
            kind = levels[0][-1][0] if len(bottom) > 1 else levels[0][0][0]
            what = "the samples" if len(bottom) > 1 else "the split"
            return f"{what} of {kind} that the DistributedSampler{at(passes[0].at)} shares out differ from rank to rank"
        return None

    def _leak(self, trace: Trace) -> str | None:
        trained = [_samples(trace, rank, training=True) for rank in trace.ranks]
        evaluated = [_samples(trace, rank, training=False) for rank in trace.ranks]
        for base in trained[0].keys() & evaluated[0].keys():
            if any(trained[i][base] & evaluated[i][base] for i in range(trace.world)):
                continue  # the script itself evaluates on what it trains on
            for i, mine in enumerate(trained):
                for j, its in enumerate(evaluated):
                    both = mine[base] & its[base]
                    if both:
                        sample = min(both)
                        return f"sample {sample} (and {len(both) - 1} more) is trained on by rank {i}, evaluated by {j}"
        return None


def _samples(trace: Trace, rank: RankTrace, *, training: bool) -> defaultdict[int, set[int]]:
    """The samples that a rank drew, by the dataset at the bottom."""
    found: defaultdict[int, set[int]] = defaultdict(set)
    for one in rank.of(Pass):
        if one.training if training else is_evaluation(one, rank):
            data = data_of(trace, rank.rank, one)
            if data is not None and one.indices is not None:
                found[data.base].update(one.indices)
    return found
