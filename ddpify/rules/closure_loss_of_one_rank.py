"""DDP508: LBFGS closures that return one rank's loss."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddpify.edits import InsertBefore, Replace
from ddpify.facts import Facts
from ddpify.facts.closures import searched_returns
from ddpify.facts.handmade import Rows, hand_fed
from ddpify.rules._base import Converts, Finding, Rule
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
        if not facts.converting or any(isinstance(h, Rows) for h in hand_fed(facts)):
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
