"""DDP204: evaluation through the wrapper."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddpify.facts import Facts
from ddpify.facts.cuts import uneven_cut
from ddpify.facts.frames import Event
from ddpify.facts.layers import BUFFERS, mentions
from ddpify.facts.ranks import by_one_process, on_some_ranks, ranks
from ddpify.facts.roles import loaders_in
from ddpify.facts.values import Loader, Module, Wrapped
from ddpify.rules._base import Bad, Converts, Finding, Good, Rule
from ddpify.rules.attribute_through_wrapper import raw_findings
from ddpify.source import walk


class EvaluationThroughWrapper(Rule):
    """The model is evaluated through the DDP wrapper on one rank.

    ## What it does
    Finds forwards of the wrapper under a rank condition; a conversion evaluates the module itself.

    ## Why is this bad?
    The wrapper's forward may broadcast buffers: a collective that the other ranks do not join, or join with one of
    another place. It works by luck, or hangs.

    ## Fix
    Evaluate `model.module` on that rank, or evaluate on all ranks.

    ## Edit
    `evaluate(model.module, loader)`: inside the function the name holds the raw module, which runs no hidden
    collective, so that ranks may have different numbers of batches.
    """

    code = "DDP204"
    references = ("https://github.com/pytorch/pytorch/issues/54059",)
    good = (
        Good(
            "ddp = DDP(model)\nif dist.get_rank() == 0:\n    with torch.no_grad():\n"
            "        ddp.module(torch.ones(1, 8))"
        ),
    )
    bad = (Bad("ddp = DDP(model)\nif dist.get_rank() == 0:\n    with torch.no_grad():\n        ddp(torch.ones(1, 8))"),)
    converts = (
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            def check(model):
                with torch.no_grad():
                    return model(torch.ones(1, 4)).item()
            loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
            net = nn.Linear(4, 1)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for (x,) in loader:
                net(x).mean().backward()
                optimizer.step()
            value = check(net)
            """,
            gives=("value = check(net.module)",),
        ),
    )

    def check(self, facts: Facts) -> Iterator[Finding]:
        if facts.converting:
            yield from raw_findings(self, facts, ("evaluation",), "the raw module runs no hidden collective")
            return
        seen: set[int] = set()
        for e in facts.flow.log.of("forward"):
            if not isinstance(e.obj, Wrapped) or not facts.editable(e.frame.source) or id(e.node) in seen:
                continue
            if e.node not in facts.roles.training_forwards and self.unevenly(facts, e):
                seen.add(id(e.node))
                message = "a forward of the DDP wrapper over shards of unequal length; use its `.module` there"
                yield self.finding(e.frame.source, e.node, message)
                continue
            if (
                e.node in facts.roles.training_forwards
                or not on_some_ranks(e, facts.flow)
                or by_one_process(e, facts.flow)
                or self.met_by_others(facts, e)
            ):
                continue  # a training loop stands under no test of the rank, whatever it looks like from outside
            if e.grad is False and self.without_buffers(e.obj):
                continue  # it broadcasts nothing
            seen.add(id(e.node))
            yield self.finding(
                e.frame.source,
                e.node,
                "a forward of the DDP wrapper runs on some ranks only; use its `.module` there",
            )

    def met_by_others(self, facts: Facts, e: Event) -> bool:
        """`if rank == 0: ... model(x)` and `else: ... model(x)`: all ranks run it, each in its branch."""
        same = [f for f in facts.flow.log.of("forward") if f.obj is e.obj]
        for node, frame in ((e.node, e.frame), *((x.call, x.frame) for c in e.frame.chains(8) for x in c)):
            for test, _ in ranks(facts.flow, strict=True).limits(node, frame):
                if not isinstance(test, cst.If) or test.orelse is None:
                    continue
                inner = set(walk(test.body))
                other = set(walk(test.orelse)) if node in inner else inner
                if any(f.node in other or any(x.call in other for c in f.frame.chains(8) for x in c) for f in same):
                    return True
        return False

    def unevenly(self, facts: Facts, e: Event) -> bool:
        """In a loop over data that each rank cuts out for itself; without gradients only the first forward meets."""
        if e.grad is False or not isinstance(e.obj, Wrapped) or self.without_buffers(e.obj):
            return False
        loaders = [o for loops in e.all_loops() for lp in loops for o in loaders_in(lp.iterates)]
        return any(isinstance(o, Loader) and uneven_cut(facts, o) is not None for o in loaders)

    def without_buffers(self, wrapper: Wrapped) -> bool:
        """A model of the project's own layers, none of which keeps statistics."""
        inner = [m for m in wrapper.module if isinstance(m, Module)]
        return bool(inner) and all(m.cls is not None and not mentions(m, BUFFERS) for m in inner)
