"""DDP219: BatchNorm statistics that are computed over one rank's shard."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddpify.edits import AddHelper, InsertAfter
from ddpify.facts import Facts
from ddpify.facts.frames import Event
from ddpify.facts.placing import following
from ddpify.facts.values import Loader, Module, Sampler, Value, Wrapped
from ddpify.facts.work import work
from ddpify.rules._base import Bad, Converts, Finding, Good, Rule, Severity

_UPDATES = "torch.optim.swa_utils.update_bn"


class BatchnormOfOneShard(Rule):
    """BatchNorm statistics are computed over one rank's shard.

    ## What it does
    Finds `update_bn(loader, averaged_model)` where each rank's loader reads a shard of its own.

    ## Why is this bad?
    Every rank computes other statistics, and those of rank 0, of a part of the data, are saved.

    ## Fix
    Average the buffers over the ranks behind it, or read the whole set there.

    ## Edit
    `average_buffers(averaged_model)` behind it: `update_bn` averages what its batches give, so that the average over
    the ranks is the average over the batches of all of them.
    """

    code = "DDP219"
    severity = Severity.WARNING
    references = ("https://docs.pytorch.org/docs/stable/optim.html#taking-care-of-batch-normalization",)
    good = (
        Good("""
            loader = DataLoader(dataset, batch_size=8)
            torch.optim.swa_utils.update_bn(loader, model)
            """),
        Good("""
            loader = DataLoader(dataset, sampler=DistributedSampler(dataset, shuffle=False))
            torch.optim.swa_utils.update_bn(loader, model)
            for buffer in model.buffers():
                dist.broadcast(buffer, src=0)
            """),
    )
    bad = (
        Bad("""
            loader = DataLoader(dataset, sampler=DistributedSampler(dataset, shuffle=False))
            torch.optim.swa_utils.update_bn(loader, model)
            """),
    )
    converts = (
        Converts(
            """
            import torch
            from torch import nn
            from torch.optim.swa_utils import AveragedModel, update_bn
            from torch.utils.data import DataLoader, TensorDataset
            loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
            net = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2))
            mean = AveragedModel(net)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for (x,) in loader:
                net(x).mean().backward()
                optimizer.step()
                mean.update_parameters(net)
            update_bn(loader, mean)
            """,
            gives=("update_bn(loader, mean)\naverage_buffers(mean)",),
        ),
    )

    def check(self, facts: Facts) -> Iterator[Finding]:
        done: set[int] = set()
        for e in facts.external(_UPDATES, flow=facts.after):
            loader, model = (self.given(e, at, name) for at, name in enumerate(("loader", "model")))
            if id(e.node) in done or loader is None or model is None or not facts.editable(e.frame.source):
                continue
            done.add(id(e.node))
            values = facts.after.values
            if not any(isinstance(o, Loader) and self.is_shard(facts, o) for o in values.get(loader, ())):
                continue
            source = e.frame.source
            code = source.code(e.node)
            if facts.converting:
                helper = facts.names_of(source)["average_buffers"]
                yield self.finding(
                    source,
                    e.node,
                    f"`{code}` sees this rank's shard",
                    InsertAfter(source, e.stmt, (f"{helper}({source.code(model)}{_bare(values.get(model, ()))})",)),
                    AddHelper(source, "average_buffers"),
                    reason="the statistics of all batches are the average over the ranks",
                )
            elif not self.met(facts, e):
                yield self.finding(source, e.node, f"`{code}` computes the statistics of this rank's shard")

    def met(self, facts: Facts, e: Event) -> bool:
        """Whether the ranks meet behind it, in its block, before the end of the group."""
        later = (s for s in following(e.frame.source, e.stmt) if "destroy_process" not in e.frame.source.code(s))
        return any(work(facts.flow).exchanges(s) for s in later)

    def given(self, e: Event, at: int, name: str) -> cst.BaseExpression | None:
        """An argument by its place or its name."""
        args = e.node.args if isinstance(e.node, cst.Call) else ()
        named = (a.value for a in args if a.keyword is not None and a.keyword.value == name)
        plain = [a.value for a in args if a.keyword is None]
        return next(named, plain[at] if at < len(plain) else None)

    def is_shard(self, facts: Facts, loader: Loader) -> bool:
        """The plan gives the training loaders a sampler of this rank; in lint they have one."""
        if facts.converting:
            return any(loader.site.node is o.site.node for o in facts.roles.training_loaders)
        samplers = loader.arguments.get("sampler", ())
        return any(isinstance(o, Sampler) and o.name.endswith(".DistributedSampler") for o in samplers)


def _bare(held: Value) -> str:
    kinds = {type(o) for o in held} & {Module, Wrapped}
    return ".module" if kinds == {Wrapped} else ""
