"""DDP217: BatchNorm that becomes SyncBatchNorm."""

from __future__ import annotations

from collections.abc import Iterator

from ddpify.facts import Facts
from ddpify.facts.layers import mentions
from ddpify.facts.setup import SetUp, find_setup
from ddpify.facts.values import Wrapped
from ddpify.rules._base import Bad, Finding, Good, Rule, Severity

_CONVERTS = "torch.nn.SyncBatchNorm.convert_sync_batchnorm"


class SyncBatchnormBehindWrap(Rule):
    """BatchNorm is converted to SyncBatchNorm behind the DDP wrap.

    ## What it does
    Finds `SyncBatchNorm.convert_sync_batchnorm(ddp)` of a model that is in its DDP wrapper already.

    ## Why is this bad?
    The layers are exchanged for new ones behind the wrapper's back, and a wrapper learns what it holds when it is made.

    ## Fix
    Convert the model before it is wrapped, and only where it is on a GPU: on the CPU SyncBatchNorm cannot train.

    ## Edit
    A conversion with `--sync-bn` writes
    `if device.type == "cuda": model = nn.SyncBatchNorm.convert_sync_batchnorm(model)` before each wrap of a model that
    has BatchNorm, or that cannot be looked into. Without the option BatchNorm counts per process.
    """

    code = "DDP217"
    severity = Severity.WARNING
    references = ("https://docs.pytorch.org/docs/stable/generated/torch.nn.SyncBatchNorm.html",)
    good = (
        Good("""
            net = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
            if torch.cuda.is_available():
                net = nn.SyncBatchNorm.convert_sync_batchnorm(net)
            ddp = DDP(net)
            """),
    )
    bad = (
        Bad("""
            net = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
            ddp = DDP(net)
            if torch.cuda.is_available():
                ddp = nn.SyncBatchNorm.convert_sync_batchnorm(ddp)
            """),
    )

    def check(self, facts: Facts) -> Iterator[Finding]:
        if facts.converting:
            yield from self.without(facts) if facts.sync_bn else ()
            return
        for e in facts.external(_CONVERTS):
            given = [o for value in e.extra.values() for o in value]
            if given and all(isinstance(o, Wrapped) for o in given) and facts.editable(e.frame.source):
                yield self.finding(e.frame.source, e.node, "SyncBatchNorm comes behind the DDP wrap of the same model")

    def without(self, facts: Facts) -> Iterator[Finding]:
        """What `--sync-bn` leaves as it is, and why."""
        setup = facts.cached("setup", find_setup)
        having = [w for w in facts.wrap_points if any(mentions(m, ("BatchNorm",)) for m in w.modules)]
        for w in having or facts.wrap_points[:1]:
            if not having:
                why = "no trained model has BatchNorm: --sync-bn changes nothing"
            elif not isinstance(setup, SetUp) or not setup.cuda:
                why = f"`{w.target}` trains on the CPU, where SyncBatchNorm cannot: its BatchNorm counts per process"
            elif w.made is not None:
                why = f"`{w.target}` has no name before it trains, so that its BatchNorm counts per process"
            else:
                continue
            yield self.finding(w.source, w.after, why, note=True)
