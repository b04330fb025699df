"""DDP207: several forwards of one wrapper before the backward."""

from __future__ import annotations

from collections.abc import Iterator

from ddpify.facts import Facts
from ddpify.facts.contents import modules, origins
from ddpify.facts.frames import Event
from ddpify.facts.layers import BUFFERS, mentions
from ddpify.facts.values import FromForward, Wrapped
from ddpify.rules._base import Bad, Finding, Good, Rule


class SeveralForwardsBeforeBackward(Rule):
    """One wrapper runs forward several times before its losses are backpropagated one by one.

    ## What it does
    Finds two forwards of the same DDP wrapper that are followed by two backwards, and two forwards of a model with
    BatchNorm before one backward.

    ## Why is this bad?
    DDP reduces gradients once per forward-backward pair: of two backwards after two forwards the second leaves local
    gradients, silently. Two forwards of a model with buffers before one backward fail on CUDA: the second forward's
    buffer broadcast overwrites in place what the first one's backward needs.
    """

    code = "DDP207"
    references = ("https://github.com/pytorch/pytorch/issues/22095", "https://github.com/pytorch/pytorch/issues/47260")
    good = (
        Good("""
            ddp = DDP(model)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            for x, y in DataLoader(dataset, sampler=DistributedSampler(dataset, shuffle=False)):
                (ddp(x).mean() + ddp(y.expand(-1, 8)).mean()).backward()
                optimizer.step()
            """),
    )
    bad = (
        Bad("""
            ddp = DDP(model)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            for x, y in DataLoader(dataset, sampler=DistributedSampler(dataset, shuffle=False)):
                one = ddp(x).mean()
                two = ddp(y.expand(-1, 8)).mean()
                one.backward()
                two.backward()
                optimizer.step()
            """),
    )

    def check(self, facts: Facts) -> Iterator[Finding]:
        done: set[int] = set()
        for w in facts.after_roles.wrapped:
            pending: list[Event] = []
            split: Event | None = None
            for e in facts.after.log.of("forward", "backward"):
                if (
                    e.kind == "forward"
                    and e.obj is w
                    and e.grad is not False
                    and e.node in facts.after_roles.training_forwards
                ):
                    if split is not None:
                        pending, split = [], None
                    pending.append(e)
                elif e.kind == "backward" and len({id(p.node) for p in pending}) > 1:
                    nodes = {id(o.node) for o in origins(e.value) if isinstance(o, FromForward)}
                    mine = {id(p.node) for p in pending}
                    if split is not None and nodes & mine and id(e.node) not in done and e.frame.source is facts.source:
                        done.add(id(e.node))
                        yield self.second(facts, e, w)
                    elif split is None and mine <= nodes:
                        yield from self.buffers(facts, pending[-1], w, done)
                        pending = []
                    elif split is None and nodes & mine:
                        split = e
                elif e.kind == "backward":
                    pending = []

    def second(self, facts: Facts, e: Event, w: Wrapped) -> Finding:
        code = facts.source.code(e.node)
        return self.finding(
            facts.source,
            e.node,
            f"`{code}` is the second backward after several forwards of one DDP wrapper: its gradients stay local",
            refuse=facts.converting,
            left="Add the losses and call backward once" if facts.converting else "",
        )

    def buffers(self, facts: Facts, e: Event, w: Wrapped, done: set[int]) -> Iterator[Finding]:
        """Only where the class is known to have BatchNorm: a model that cannot be seen is not accused."""
        known = [m for m in modules((w,)) if m.cls is not None]
        if (
            id(e.node) in done
            or e.frame.source is not facts.source
            or not any(mentions(m, BUFFERS) for m in known)
            or not facts.converting
        ):
            return
        done.add(id(e.node))
        code = facts.source.code(e.node)
        yield self.finding(
            facts.source,
            e.node,
            f"`{code}` is another forward of a model with BatchNorm before the backward: on CUDA that fails under DDP",
            left="concatenate the inputs of both forwards, or use SyncBatchNorm",
        )
