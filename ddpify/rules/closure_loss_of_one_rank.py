"""DDP508: LBFGS closures that return one rank's loss."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddpify.edits import InsertBefore, Replace
from ddpify.facts import Facts
from ddpify.facts.closures import searched_returns
from ddpify.facts.definitions import definitions
from ddpify.facts.handmade import Rows, hand_fed
from ddpify.facts.own import own
from ddpify.rules._base import Bad, Converts, Finding, Good, Rule
from ddpify.rules._shared import mean_helpers


class ClosureLossOfOneRank(Rule):
    """LBFGS goes by the loss that its closure returns, and each rank returns its own.

    ## What it does
    Finds the closures that are given to the `step` of an LBFGS optimizer, and returns the mean over the ranks.

    ## Why is this bad?
    LBFGS ends its iterations, and searches along a line, by that number. With losses of their own the ranks call the
    closure, and in it the backward, different numbers of times: the job hangs.

    ## Fix
    Return the loss averaged over the ranks from the closure.

    ## Edit
    `[mean_loss] = all_reduce_mean(loss.item())` before `return mean_loss`.
    """

    code = "DDP508"
    references = ("https://github.com/pytorch/pytorch/issues/30439",)
    good = (
        Good("""
            ddp = DDP(model)
            optimizer = torch.optim.LBFGS(ddp.parameters(), lr=0.1)
            for x, y in DataLoader(dataset, sampler=DistributedSampler(dataset, shuffle=False)):
                def closure():
                    optimizer.zero_grad()
                    loss = ddp(x).pow(2).mean()
                    loss.backward()
                    shared = loss.detach().clone()
                    dist.all_reduce(shared)
                    return shared / dist.get_world_size()
                optimizer.step(closure)
            """),
    )
    bad = (
        Bad("""
            ddp = DDP(model)
            optimizer = torch.optim.LBFGS(ddp.parameters(), lr=0.1)
            for x, y in DataLoader(dataset, sampler=DistributedSampler(dataset, shuffle=False)):
                def closure():
                    optimizer.zero_grad()
                    loss = ddp(x).pow(2).mean()
                    loss.backward()
                    return loss
                optimizer.step(closure)
            """),
    )
    converts = (
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
            net = nn.Linear(4, 1)
            optimizer = torch.optim.LBFGS(net.parameters(), lr=0.1)
            for (x,) in loader:
                def closure():
                    optimizer.zero_grad()
                    loss = net(x).pow(2).mean()
                    loss.backward()
                    return loss
                optimizer.step(closure)
            """,
            gives=("        [mean_loss] = all_reduce_mean(loss.item())", "        return mean_loss"),
        ),
    )

    def check(self, facts: Facts) -> Iterator[Finding]:
        if not facts.converting:
            yield from self.lint(facts)
            return
        if any(isinstance(h, Rows) for h in hand_fed(facts)):
            return  # DDP308 returns the loss of all rows
        for source, node in searched_returns(facts):
            if not facts.editable(source) or node.value is None:
                continue
            names = facts.names_of(source)
            text = source.code(node.value)
            mean = names.fresh(f"mean_{text}" if text.isidentifier() else "mean_loss")
            number = f"{text}.item()" if isinstance(node.value, (cst.Name, cst.Attribute)) else f"float({text})"
            yield self.finding(
                source,
                node,
                f"LBFGS goes by this rank's own `{text}`",
                InsertBefore(source, node, (f"[{mean}] = {names['all_reduce_mean']}({number})",)),
                Replace(source, node.value, mean),
                *mean_helpers(facts, source),
                reason="all ranks call the closure equally often",
            )

    def lint(self, facts: Facts) -> Iterator[Finding]:
        """`return loss`, where nothing has brought the ranks' losses together."""
        frames = definitions(facts.flow).frames
        for source, node in searched_returns(facts):
            function = next((a for a in source.ancestors(node) if isinstance(a, cst.FunctionDef)), None)
            ran = frames.get(id(function), [])
            if facts.editable(source) and node.value is not None and any(own(facts).is_own(node.value, f) for f in ran):
                code = source.code(node.value)
                yield self.finding(
                    source, node, f"LBFGS goes by this rank's own `{code}`: the ranks search on their own"
                )
