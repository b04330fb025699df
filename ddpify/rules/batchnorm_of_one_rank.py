"""DDP222: BatchNorm that sees one rank's batch."""

from __future__ import annotations

from collections.abc import Iterator

from ddpify.facts import Facts
from ddpify.facts.contents import constants, modules
from ddpify.facts.layers import normalises
from ddpify.facts.unreduced import shared_out
from ddpify.rules._base import Finding, Good, Rule, Severity

#: with fewer samples than these the statistics of a batch are poor
_FEW = 8


class BatchnormOfOneRank(Rule):
    """BatchNorm goes by the few samples of one rank.

    ## What it does
    Finds wrapped models with BatchNorm that train on at most 8 samples per rank.

    ## Why is this bad?
    Each rank normalises by its own batch. Where a batch of 32 was split over four GPUs, BatchNorm now sees 8, and the
    accuracy may fall.

    ## Fix
    On GPUs: `model = nn.SyncBatchNorm.convert_sync_batchnorm(model)` before the wrap.
    """

    code = "DDP222"
    severity = Severity.INFO
    references = ("https://docs.pytorch.org/docs/stable/generated/torch.nn.SyncBatchNorm.html",)
    good = (
        Good("""
            net = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Linear(8, 1), nn.BatchNorm1d(1)))
            ddp = DDP(net)
            """),
    )

    def check(self, facts: Facts) -> Iterator[Finding]:
        if facts.converting:
            return
        size = self.few(facts)
        if not size or any(n.endswith("convert_sync_batchnorm") for n in facts.identifiers):
            return
        for w in facts.roles.wrapped:
            norms = any(normalises(m) and m in facts.roles.trained for m in modules((w,)))
            if norms and facts.editable(w.site.source):
                message = f"BatchNorm sees the {size} samples of one rank; SyncBatchNorm would see those of all"
                yield self.finding(w.site.source, w.site.node, message)

    def few(self, facts: Facts) -> int:
        """The number of samples that a rank trains on at a time, where it is known and small."""
        sizes = [constants(ld.arguments.get("batch_size", ())) for ld in facts.roles.training_loaders if shared_out(ld)]
        known = [n for found in sizes for n in found or [0]]
        small = [n for n in known if isinstance(n, int) and 1 < n <= _FEW]
        return max(small) if small and len(small) == len(known) else 0
