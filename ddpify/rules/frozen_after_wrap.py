"""DDP213: parameters frozen or thawed after the wrap."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddpify.facts import Facts
from ddpify.facts.contents import constants, modules
from ddpify.facts.frames import Event
from ddpify.facts.roles import root
from ddpify.facts.values import Module, Parameters, Wrapped
from ddpify.rules._base import Bad, Finding, Good, Rule

_NAMES = ("requires_grad", "requires_grad_")


class FrozenAfterWrap(Rule):
    """A part of a wrapped model is frozen or unfrozen.

    ## What it does
    Finds `p.requires_grad = ...` and `requires_grad_()` for a part of a model that is in a DDP wrapper already, and
    that is trained on in the same wrapper. A model that is frozen as a whole is fine.

    ## Why is this bad?
    The wrapper learns which parameters it has to average when it is made. Those that are unfrozen later are never
    averaged, silently; those that are frozen later leave their bucket unfinished, and the next step raises.

    ## Fix
    Freeze before the wrap, and wrap the model anew, on all ranks, where that changes.
    """

    code = "DDP213"
    references = ("https://docs.pytorch.org/docs/stable/notes/ddp.html#internal-design",)
    good = (
        Good("""
            net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
            for p in net[0].parameters():
                p.requires_grad = False
            ddp = DDP(net)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            for x, y in DataLoader(dataset, sampler=DistributedSampler(dataset, shuffle=False)):
                ddp(x).mean().backward()
                optimizer.step()
            """),
        Good("""
            ddp = DDP(model)
            critic = DDP(nn.Linear(1, 1))
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            for x, y in DataLoader(dataset, sampler=DistributedSampler(dataset, shuffle=False)):
                for p in critic.parameters():
                    p.requires_grad = False
                critic(ddp(x)).mean().backward()
                optimizer.step()
            """),
    )
    bad = (
        Bad("""
            class Net(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.body = nn.Linear(8, 8)
                    self.head = nn.Linear(8, 1)
                def forward(self, x):
                    return self.head(self.body(x))
            net = Net()
            for p in net.body.parameters():
                p.requires_grad = False
            ddp = DDP(net)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            loader = DataLoader(dataset, sampler=DistributedSampler(dataset, shuffle=False))
            for epoch in range(4):
                if epoch == 2:
                    for p in ddp.module.body.parameters():
                        p.requires_grad = True
                for x, y in loader:
                    ddp(x).mean().backward()
                    optimizer.step()
            """),
    )

    def check(self, facts: Facts) -> Iterator[Finding]:
        if facts.converting:
            return
        wraps = [e for e in facts.flow.log.of("new") if isinstance(e.obj, Wrapped)]
        seen: set[int] = set()
        for e in facts.flow.log.of("set", "method"):
            if e.name not in _NAMES or id(e.node) in seen or e.seq >= facts.flow.main_end:
                continue
            wrap = next((w for w in reversed(wraps) if w.seq < e.seq and self.is_part(e, w)), None)
            anew = any(w.seq > e.seq and self.is_part(e, w) for w in wraps)
            if wrap is None or anew or not self.trains(facts, e, wrap) or not facts.editable(e.frame.source):
                continue
            if constants(e.value) == [False] and constants(wrap.extra.get("find_unused_parameters", ())) == [True]:
                continue
            if constants(e.value) == [True] and not self.frozen_before(facts, wrap):
                continue
            seen.add(id(e.node))
            source = e.frame.source
            line = wrap.frame.source.line(wrap.node)
            yield self.finding(
                source,
                e.node,
                f"`{source.code(e.node)}` changes what the wrapper of line {line} has to average, after it was made",
            )

    def frozen_before(self, facts: Facts, wrap: Event) -> bool:
        """Whether anything was frozen before the wrapper was made: what was not frozen then is averaged."""
        sets = (e for e in facts.flow.log.of("set", "method") if e.name in _NAMES and e.seq < wrap.seq)
        return any(constants(e.value) != [True] for e in sets)

    def is_part(self, e: Event, wrap: Event) -> bool:
        """Whether an event freezes a part of what a wrapper holds, by its name or by a test of parameters' names."""
        inside = {id(m) for o in (wrap.obj,) if isinstance(o, Wrapped) for m in modules(o.module)}
        obj = e.obj
        held = obj.modules if isinstance(obj, Parameters) else (obj,) if isinstance(obj, Module) else ()
        ours = [m for m in held if id(root(m)) in inside or id(m) in inside]
        if not ours or len(ours) != len(held):
            return False
        if all(id(m) not in inside for m in ours):
            return True
        source = e.frame.source
        loop = next((a for a in source.ancestors(e.stmt) if isinstance(a, cst.For)), None)
        between = [a for a in source.ancestors(e.stmt) if isinstance(a, cst.If)]
        return loop is not None and any(loop in set(source.ancestors(b)) for b in between)

    def trains(self, facts: Facts, e: Event, wrap: Event) -> bool:
        """Whether the wrapper is trained on afterwards."""
        around = {id(lp.node) for loops in e.all_loops() for lp in loops}
        through = (f for f in facts.flow.log.of("forward") if f.obj is wrap.obj)
        return any(
            f.seq > e.seq or any(id(lp.node) in around for loops in f.all_loops() for lp in loops)
            for f in through
            if f.node in facts.roles.training_forwards
        )
