"""DDP510: losses that divide by the weights of their own batch, or go by numbers of the batches before it."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddpify.facts import Facts
from ddpify.facts.controlled import controlled
from ddpify.facts.dependencies import read_names
from ddpify.facts.known_ways import behind_losses
from ddpify.facts.own import own
from ddpify.facts.weighted import weighted_losses
from ddpify.rules._base import Converts, Finding, Rule, Severity
from ddpify.source import Source


class LossWeighsItsBatch(Rule):
    """The loss divides by the weights of its batch, and each rank has a batch of its own.

    ## What it does
    Finds training losses that are weighted means: class weights (`CrossEntropyLoss(weight=...)`), ignored targets
    (`ignore_index`), masks (`(loss * mask).sum() / mask.sum()`). The report names them.

    ## Why is this bad?
    One process divides by the weights of all samples of a step. Each rank divides by those of its own batch, and DDP
    averages the results: a rank with few valid targets counts as much as one with many. Where batches are alike the
    difference is small; where some have almost no valid target it is not. A number that each rank keeps by itself
    drifts apart from the others': every rank then trains on another loss.

    ## Fix
    Divide the sum by the weights of all ranks: add them up with `dist.all_reduce`, and multiply by the world size.
    Average a number that is kept over the ranks before it is used.
    """

    code = "DDP510"
    severity = Severity.INFO
    references = ("https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html",)
    converts = (
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            loader = DataLoader(TensorDataset(torch.ones(8, 4), torch.ones(8).long()), batch_size=2)
            net = nn.Linear(4, 3)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            criterion = nn.CrossEntropyLoss(ignore_index=0)
            for x, y in loader:
                loss = criterion(net(x), y)
                loss.backward()
                optimizer.step()
            """,
            gives=("    loss.backward()",),
        ),
    )

    def check(self, facts: Facts) -> Iterator[Finding]:
        yield from self.kept(facts) if facts.converting else ()
        for source, node, by in weighted_losses(facts):
            if not facts.editable(source):
                continue
            code = source.code(node).split("\n")[0]
            if not facts.converting:
                if _is_shared(facts, source, node) or id(node) not in behind_losses(facts):
                    continue  # a number that is only shown
                yield self.finding(source, node, f"`{code}` divides by {by}, and each rank by those of its own batch")
                continue
            yield self.finding(
                source,
                node,
                f"`{code}` divides by {by}: each rank goes by its own batch there, so a step is not quite that of one "
                "process where batches differ in them",
                note=True,
            )

    def kept(self, facts: Facts) -> Iterator[Finding]:
        """`k += 0.001 * gap.item()`, and `real - k * fake` in the next step."""
        for source, node, name, call in controlled(facts):
            taken = source.code(call)
            if facts.editable(source):
                yield self.finding(
                    source,
                    node,
                    f"the next loss goes by `{name}`, which `{taken}` changes: each rank has one of its own batches",
                    left=f"average it over the ranks first: dist.all_reduce of `{taken}`, by dist.get_world_size()",
                )


def _is_shared(facts: Facts, source: Source, node: cst.CSTNode) -> bool:
    """`/ count`, where `count` has been added up over the ranks."""
    names = read_names(node.right) if isinstance(node, cst.BinaryOperation) else set()
    return any(names & met for met in own(facts).met.values())
