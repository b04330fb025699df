"""DDP208: a wrapped model that changes its device or type."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddpify.facts import Facts
from ddpify.facts.contents import constants
from ddpify.facts.frames import Event
from ddpify.facts.trails import shown, way_of_call
from ddpify.facts.values import Wrapped
from ddpify.rules._base import Bad, Finding, Good, Rule

_MOVES = frozenset({"cpu", "half", "double", "float", "bfloat16"})


class MovedAfterWrap(Rule):
    """A wrapped model changes its device or type, and is trained on.

    ## What it does
    Finds `.cpu()`, `.half()`, `.double()` and the like on a DDP wrapper (or its module) that trains again afterwards.

    ## Why is this bad?
    The move replaces what the wrapper's hooks sit on: gradients are no longer averaged, and nothing is said.

    ## Fix
    Move the model first, then wrap it.
    """

    code = "DDP208"
    references = ("https://github.com/pytorch/pytorch/issues/104336",)
    good = (
        Good("""
            ddp = DDP(model.double())
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            for x, y in DataLoader(dataset, sampler=DistributedSampler(dataset, shuffle=False)):
                ddp(x.double()).mean().backward()
                optimizer.step()
            """),
    )
    bad = (
        Bad("""
            ddp = DDP(model)
            ddp.double()
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            for x, y in DataLoader(dataset, sampler=DistributedSampler(dataset, shuffle=False)):
                ddp(x.double()).mean().backward()
                optimizer.step()
            """),
    )

    def check(self, facts: Facts) -> Iterator[Finding]:
        log = facts.after.log
        training = facts.after_roles.training_forwards
        through = [e for e in log.of("forward") if isinstance(e.obj, Wrapped) and e.grad is not False]
        trains = [e for e in through if e.node in training]
        seen: set[int] = set()
        for e in log.of("method"):
            if id(e.node) in seen or e.frame.source is not facts.source or not self.moves(e):
                continue
            if any(t.obj is e.obj and (t.seq > e.seq or self.loops(t) & self.loops(e)) for t in trains):
                seen.add(id(e.node))
                code = shown(e.frame.source, e.node)
                message = f"`{code}` moves a wrapped model that is trained on: its gradients are no longer averaged"
                left = "Save a copy instead: {k: v.cpu() for k, v in model.module.state_dict().items()}"
                refuse = way_of_call(facts.after, e) if facts.converting else None
                yield self.finding(e.frame.source, e.node, message, refuse=refuse, left=left if refuse else "")

    def moves(self, e: Event) -> bool:
        if not isinstance(e.obj, Wrapped) or not isinstance(e.node, cst.Call):
            return False
        return e.name in _MOVES or (e.name == "to" and constants(e.value) == ["cpu"])

    def loops(self, e: Event) -> set[int]:
        return {id(lp.node) for loops in e.all_loops() for lp in loops}
