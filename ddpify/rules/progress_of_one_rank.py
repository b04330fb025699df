"""DDP504: progress counters in messages."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddpify.edits import AddImport, Surround
from ddpify.facts import Facts
from ddpify.facts.contents import data_of, origins
from ddpify.facts.loops import LoopFacts
from ddpify.facts.metrics import loop_facts
from ddpify.facts.values import FromLoop
from ddpify.rules._base import Converts, Finding, Rule, Severity
from ddpify.source import walk


class ProgressOfOneRank(Rule):
    """A progress counter in a message counts one rank's samples.

    ## What it does
    Multiplies `batch_idx * len(data)` in a message of the training loop by the world size.

    ## Why is this bad?
    The message says `[640/60000]` where all ranks together have seen `[1280/60000]`, and an epoch seems to end
    half-way.
    """

    code = "DDP504"
    severity = Severity.INFO
    converts = (
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
            net = nn.Linear(4, 1)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for i, (x,) in enumerate(loader):
                net(x).mean().backward()
                optimizer.step()
                print(f"{i * len(x)} of {len(loader.dataset)}")
            """,
            gives=("{i * len(x) * dist.get_world_size()} of",),
        ),
    )

    def check(self, facts: Facts) -> Iterator[Finding]:
        if not facts.converting:
            return
        loops = facts.cached("loops", loop_facts)
        done: set[int] = set()
        for loop in loops:
            if not loop.training or id(loop.node) in done or not facts.editable(loop.source):
                continue
            done.add(id(loop.node))
            for node in walk(loop.node.body):
                if (
                    isinstance(node, cst.BinaryOperation)
                    and isinstance(node.operator, cst.Multiply)
                    and self.counts(facts, loop, node)
                ):
                    edit = Surround(loop.source, node, "", f" * {facts.names_of(loop.source)['dist']}.get_world_size()")
                    yield self.finding(
                        loop.source,
                        node,
                        f"`{loop.source.code(node)}` counts the samples of all ranks",
                        edit,
                        AddImport(loop.source, "dist"),
                        reason="progress in messages stays true",
                    )

    def counts(self, facts: Facts, loop: LoopFacts, node: cst.BinaryOperation) -> bool:
        """The index of the batch (or one more) times the number of samples in one."""
        sides = [facts.flow.values.get(node.left, ()), facts.flow.values.get(node.right, ())]
        index = [any(isinstance(o, FromLoop) and o.loop is loop.node for o in origins(s)) for s in sides]
        sizes = [(d := data_of(s)) is not None and d.agg == "size" for s in sides]
        return (index[0] and sizes[1]) or (index[1] and sizes[0])
