"""DDP311: batch sizes that are per rank."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddpify.facts import Facts
from ddpify.facts.sharding import loader_facts
from ddpify.facts.unreduced import shared_out
from ddpify.facts.values import Optimizer
from ddpify.facts.worldsize import counts_ranks
from ddpify.rules._base import Finding, Good, Rule, Severity


class BatchSizePerRank(Rule):
    """The batch size is one rank's, and the learning rate knows nothing of it.

    ## What it does
    Names the training loader with a DistributedSampler whose `batch_size` is not divided by the number of ranks, in a
    script in which no learning rate is computed with that number either. It is said once per script, and only where
    it is asked for (`--extend-select DDP311`): it is true of nearly every script.

    ## Why is this bad?
    With N ranks a step averages N times as many samples, and an epoch has one N-th of the steps: with the same learning
    rate a model often ends up worse the more GPUs there are.

    ## Fix
    Divide the batch size by `dist.get_world_size()`, or keep it and tune the learning rate for the global batch.
    """

    code = "DDP311"
    severity = Severity.INFO
    references = ("https://discuss.pytorch.org/t/big-accuracy-gap-with-ddp/160455",)
    good = (
        Good("""
            size = 32 // dist.get_world_size()
            ddp = DDP(model)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            for x, y in DataLoader(dataset, size, sampler=DistributedSampler(dataset, shuffle=False)):
                ddp(x).mean().backward()
                optimizer.step()
            """),
        Good("""
            ddp = DDP(model)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1 * dist.get_world_size())
            for x, y in DataLoader(dataset, 32, sampler=DistributedSampler(dataset, shuffle=False)):
                ddp(x).mean().backward()
                optimizer.step()
            """),
    )

    def check(self, facts: Facts) -> Iterator[Finding]:
        if facts.converting or not facts.roles.wrapped or self.scaled(facts):
            return
        for loader in facts.roles.training_loaders:
            known = loader_facts(facts, loader) if shared_out(loader) else None
            size = known.batch_size if known is not None else None
            if known is None or size is None or not facts.editable(known.source):
                continue
            if not counts_ranks(facts, size, loader.site.frame):
                code = known.source.code(size)
                message = f"`{code}` is per rank: a step takes world size times as many, with the learning rate of one"
                yield self.finding(known.source, size, message)
            return

    def scaled(self, facts: Facts) -> bool:
        """Whether a learning rate, or a batch that is accumulated, is computed with the number of ranks."""
        for e in facts.flow.log.of("new", "store", "external"):
            call = e.node
            value = getattr(e.stmt, "value", None) if e.kind == "store" and _names_rate(call) else None
            rates = [value] if isinstance(value, cst.BaseExpression) else []
            if isinstance(call, cst.Call) and (isinstance(e.obj, Optimizer) or "lr_scheduler" in e.name):
                rates += [a.value for a in call.args[1:]]
            if any(counts_ranks(facts, rate, e.frame) for rate in rates):
                return True
        return False


def _names_rate(node: cst.CSTNode) -> bool:
    """`group["lr"] = ...`"""
    index = node.slice[0].slice if isinstance(node, cst.Subscript) and len(node.slice) == 1 else None
    key = index.value if isinstance(index, cst.Index) else None
    return isinstance(key, cst.SimpleString) and key.evaluated_value == "lr"
