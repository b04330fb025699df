"""DDP221: gradients that are taken before DDP has averaged them."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddpify.facts import Facts
from ddpify.facts.contents import modules
from ddpify.facts.definitions import definitions
from ddpify.facts.frames import Event, Frame
from ddpify.facts.trails import shown
from ddpify.facts.values import Ext, Method, Module, Obj, Parameters, Seq, Wrapped
from ddpify.rules._base import Bad, Finding, Good, Rule, Severity
from ddpify.source import children, walk

_HOOKS = frozenset({"register_hook", "register_post_accumulate_grad_hook"})
_GRAD = "torch.autograd.grad"


class GradientOfOneRank(Rule):
    """A gradient is taken before DDP has averaged it over the ranks.

    ## What it does
    Finds hooks on the parameters of a wrapped model, `torch.autograd.grad` with respect to them, and a gradient penalty
    that is backpropagated alone.

    ## Why is this bad?
    Hooks of parameters run before the reduction: what they clip, log or step on is this rank's own.
    `torch.autograd.grad` never reduces. Of a penalty alone the last bias gets no gradient, and DDP waits for it: the
    first step is not averaged, the second raises.

    ## Fix
    Do it between `backward()` and `step()`; to change what is reduced, use `register_comm_hook`. Add `0 * out.mean()`
    to a penalty that stands alone.
    """

    code = "DDP221"
    severity = Severity.WARNING
    references = (
        "https://github.com/pytorch/pytorch/issues/47562",
        "https://docs.pytorch.org/docs/stable/ddp_comm_hooks.html",
    )
    good = (
        Good("""
            ddp = DDP(model)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            for x, y in DataLoader(dataset, sampler=DistributedSampler(dataset, shuffle=False)):
                z = x.clone().requires_grad_(True)
                out = ddp(z)
                g, = torch.autograd.grad(out.sum(), z, create_graph=True)
                (g.pow(2).mean() + 0 * out.mean()).backward()
                nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
                optimizer.step()
            """),
        Good("""
            other = nn.Linear(8, 1)
            ddp = DDP(model)
            for p in other.parameters():
                p.register_hook(lambda g: g.clamp(-1, 1))
            """),
    )
    bad = (
        Bad("""
            ddp = DDP(model)
            for p in ddp.parameters():
                p.register_hook(lambda g: g.clamp(-1, 1))
            """),
        Bad("""
            ddp = DDP(model)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            for x, y in DataLoader(dataset, sampler=DistributedSampler(dataset, shuffle=False)):
                z = x.clone().requires_grad_(True)
                out = ddp(z)
                g, = torch.autograd.grad(out.sum(), z, create_graph=True)
                g.pow(2).mean().backward()
                optimizer.step()
            """),
        Bad("""
            ddp = DDP(model)
            for x, y in DataLoader(dataset, sampler=DistributedSampler(dataset, shuffle=False, drop_last=True)):
                loss = ddp(x).mean()
                for p, g in zip(ddp.parameters(), torch.autograd.grad(loss, list(ddp.parameters()))):
                    p.data -= 0.1 * g
            """),
    )

    def check(self, facts: Facts) -> Iterator[Finding]:
        if facts.converting or not facts.roles.wrapped:
            return
        inner = set(modules(tuple(facts.roles.wrapped)))
        seen: set[int] = set()
        for e, message in (*self.hooks(facts, inner), *self.taken(facts, inner), *self.penalties(facts, inner)):
            if id(e.node) not in seen and facts.editable(e.frame.source):
                seen.add(id(e.node))
                yield self.finding(e.frame.source, e.node, message)

    def hooks(self, facts: Facts, inner: set[Module]) -> Iterator[tuple[Event, str]]:
        for e in facts.flow.log.of("method"):
            chosen = any(isinstance(u, cst.If) and any(u in set(walk(lp.node)) for lp in e.loops) for u in e.under)
            if e.name in _HOOKS and e.obj is not None and _of(e.obj, inner) and not chosen:
                code = shown(e.frame.source, e.node)
                yield e, f"`{code}` sees this rank's gradient, before DDP averages it"

    def taken(self, facts: Facts, inner: set[Module]) -> Iterator[tuple[Event, str]]:
        for e in facts.external(_GRAD):
            given = e.extra.get("inputs", e.extra.get("1", ()))
            held = [o for v in (given, *(v for o in given if isinstance(o, Seq) for v in (o.joined,))) for o in v]
            if any(m in inner for o in held if isinstance(o, Parameters) for m in o.modules):
                yield e, "`torch.autograd.grad` gives this rank's own gradients: DDP averages those of backward() only"

    def penalties(self, facts: Facts, inner: set[Module]) -> Iterator[tuple[Event, str]]:
        """`penalty.backward()`, where all of it comes from gradients with respect to the inputs."""
        if not facts.external(_GRAD):
            return
        known = definitions(facts.flow)

        def leads(node: cst.CSTNode, frame: Frame, depth: int) -> set[str]:
            found: set[str] = set()
            if isinstance(node, cst.Call):
                values = facts.flow.values.get(node.func, ())
                if any(isinstance(o, Ext) and o.name == _GRAD for o in values):
                    return {"gradient"}
                if any(isinstance(o, (Module, Wrapped)) for o in values):
                    return {"forward"}
            for d in known.of(node, frame):
                found |= leads(d.node, d.frame, depth - 1) if depth else {"forward"}
            for child in children(node) if not found else ():
                found |= leads(child, frame, depth)
            return found

        for e in facts.roles.backwards:
            func = e.node.func if isinstance(e.node, cst.Call) else None
            if isinstance(func, cst.Attribute) and leads(func.value, e.frame, 6) == {"gradient"}:
                code = e.frame.source.code(func.value)
                yield e, f"`{code}` is made of gradients alone: a parameter that does not enter them gets none"


def _of(obj: Obj, inner: set[Module]) -> bool:
    """`p` of `ddp.parameters()`, `ddp.module.head.weight`"""
    if isinstance(obj, Parameters):
        return any(m in inner for m in obj.modules)
    if isinstance(obj, Method) and isinstance(obj.obj, Module):
        top: Module | None = obj.obj
        while top is not None and top not in inner:
            top = top.part_of
        return top is not None and obj.name in ("weight", "bias")
    return False
