"""DDP205: training forwards around the wrapper."""

from __future__ import annotations

from collections.abc import Iterator

from ddpify.facts import Facts
from ddpify.facts.contents import modules
from ddpify.facts.roles import root
from ddpify.facts.trails import shown, way_of_call
from ddpify.facts.values import Module
from ddpify.rules._base import Bad, Finding, Good, Rule


class ForwardBypassesWrapper(Rule):
    """A training forward does not go through the DDP wrapper.

    ## What it does
    Finds forwards of a wrapped module (`model.module(x)`, a name that still holds the raw module, one of its parts, a
    method other than forward) whose loss is backpropagated.

    ## Why is this bad?
    Backward runs, nothing is reduced, every rank trains a model of its own, and nothing is said: the worst silent fault
    of DDP.

    ## Fix
    Call the wrapper itself; what is another method belongs into `forward`, or into a module around the model that
    is wrapped in its place.
    """

    code = "DDP205"
    references = ("https://pytorch.org/docs/stable/notes/ddp.html#internal-design",)
    good = (
        Good("""
            ddp = DDP(model)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            for x, y in DataLoader(dataset, sampler=DistributedSampler(dataset, shuffle=False)):
                ddp(x).mean().backward()
                optimizer.step()
            """),
    )
    bad = (
        Bad("""
            ddp = DDP(model)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            for x, y in DataLoader(dataset, sampler=DistributedSampler(dataset, shuffle=False)):
                ddp.module(x).mean().backward()
                optimizer.step()
            """),
    )

    def check(self, facts: Facts) -> Iterator[Finding]:
        flow, roles = facts.after, facts.after_roles
        wrapped = {part for w in roles.wrapped for m in modules(w.module) for part in (m, m.inner or m)}
        through = {id(b) for e in flow.log.of("forward") for b in [e.node] if not isinstance(e.obj, Module)}
        for e in flow.log.of("forward", "method"):
            if (
                not isinstance(e.obj, Module)
                or e.node not in roles.training_forwards
                or e.grad is False
                or id(e.node) in through
            ):
                continue
            if e.kind == "method" and e.name in ("to", "train", "eval"):
                continue
            core = root(e.obj)
            if (core in wrapped or e.obj in wrapped) and e.frame.source is facts.source:
                name = shown(facts.source, e.node)
                yield self.finding(
                    facts.source,
                    e.node,
                    f"`{name}` is trained without going through the DDP wrapper: no gradient is reduced",
                    refuse=way_of_call(flow, e) if facts.converting else None,
                    left="Compute the loss from a call of the model itself" if facts.converting else "",
                )
