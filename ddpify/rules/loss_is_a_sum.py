"""DDP505: losses that are sums."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddpify.facts import Facts
from ddpify.facts.contents import data_of, modules
from ddpify.facts.handmade import Rows, hand_fed
from ddpify.facts.values import FromForward
from ddpify.facts.worldsize import counts_ranks
from ddpify.rules._base import Converts, Finding, Rule, Severity
from ddpify.rules._shared import times_world_size


class LossIsASum(Rule):
    """The loss is a sum over samples, and DDP averages gradients over ranks.

    ## What it does
    Finds losses with `reduction="sum"` (or the like) that are backpropagated. With `--global-batch keep` the loss is
    multiplied by the world size; otherwise the report names it.

    ## Why is this bad?
    DDP divides the summed gradients by the world size. That is right for a mean; of a sum it makes the gradient of a
    batch one world-th of what one process gets from the same samples.

    ## Fix
    Use the mean over the batch, or multiply the loss by `dist.get_world_size()` and retune the learning rate.

    ## Edit
    `(loss * dist.get_world_size()).backward()`, with `--global-batch keep` only: with the batch size per process kept,
    the gradient's scale is that of the original's batch.
    """

    code = "DDP505"
    severity = Severity.INFO
    references = ("https://github.com/pytorch/pytorch/issues/37359",)
    converts = (
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
            net = nn.Linear(4, 1)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for (x,) in loader:
                loss = net(x).sum()
                loss.backward()
                optimizer.step()
            """,
            gives=("    loss.backward()",),
        ),
    )

    def check(self, facts: Facts) -> Iterator[Finding]:
        if not facts.converting:
            yield from self.lint(facts)
            return
        # DDP308 keeps a step over all rows what it was
        done = {id(b.node) for h in hand_fed(facts) if isinstance(h, Rows) for b in h.backwards}
        for e in facts.roles.backwards:
            known = data_of(e.value)
            if known is None or known.agg != "sum" or id(e.node) in done or not facts.editable(e.frame.source):
                continue
            done.add(id(e.node))
            func = e.node.func if isinstance(e.node, cst.Call) else None
            if not isinstance(func, cst.Attribute):
                continue
            loss = e.frame.source.code(func.value)
            if facts.global_batch == "keep":
                yield self.finding(
                    e.frame.source,
                    e.node,
                    f"`{loss}` is a sum over the batch: it is multiplied by the number of processes",
                    *times_world_size(facts, e.frame.source, func.value),
                    reason="DDP averages over ranks what one process would add up",
                )
            else:
                yield self.finding(
                    e.frame.source,
                    e.node,
                    f"`{loss}` is a sum over the batch, and DDP averages gradients over the ranks: a step is as "
                    "large as the original's with the same batch size per process",
                    note=True,
                )

    def lint(self, facts: Facts) -> Iterator[Finding]:
        """A sum that nothing multiplies by the number of ranks, of a model that is wrapped."""
        done: set[int] = set()
        inner = set(modules(tuple(facts.roles.wrapped)))
        for e in facts.roles.backwards:
            known = data_of(e.value)
            func = e.node.func if isinstance(e.node, cst.Call) else None
            if known is None or known.agg != "sum" or not isinstance(func, cst.Attribute) or id(e.node) in done:
                continue
            trains = any(isinstance(o, FromForward) and o.module in inner for o in known.origins)
            if trains and facts.editable(e.frame.source) and not counts_ranks(facts, func.value, e.frame):
                done.add(id(e.node))
                code = e.frame.source.code(func.value)
                message = f"`{code}` is a sum over the batch, and DDP averages gradients over ranks"
                yield self.finding(e.frame.source, e.node, message)
