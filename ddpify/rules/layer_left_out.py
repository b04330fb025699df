"""DDP220: layers that forward does not use."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddpify.edits import SetArgument
from ddpify.facts import Facts
from ddpify.facts.contents import constants, modules
from ddpify.facts.frames import Event
from ddpify.facts.unused import left_out
from ddpify.facts.values import Module, Wrapped
from ddpify.rules._base import Bad, Finding, Good, Rule, Severity
from ddpify.source import walk

_KNOWN = ("find_unused_parameters", "static_graph")


_HARD = Severity.ERROR


class LayerLeftOut(Rule):
    """A wrapped model has layers that some forwards, or all, leave out.

    ## What it does
    Finds layers that `__init__` makes and nothing reads, layers that forward calls only under a random test, one of its
    data or one of an argument that is None at times, and layers of an output that a loss leaves out, in models that are
    wrapped without `find_unused_parameters=True`, and wraps of models that are frozen.

    ## Why is this bad?
    DDP refuses to wrap a model of which nothing is trained, and waits for the gradients of all parameters of others:
    the first step is made with gradients that were not averaged, and the second forward raises "Expected to have
    finished reduction in the prior iteration".

    ## Fix
    Take the layer out, or wrap with `find_unused_parameters=True`.
    """

    code = "DDP220"
    severity = Severity.WARNING
    references = (
        "https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html",
        "https://github.com/pytorch/pytorch/issues/43259",
    )
    good = (
        Good("""
            class Net(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.first = nn.Linear(8, 8)
                    self.last = nn.Linear(8, 1)
                def forward(self, x):
                    return self.last(self.first(x))
            ddp = DDP(Net())
            """),
        Good("""
            class Net(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.last = nn.Linear(8, 1)
                    self.spare = nn.Linear(8, 1)
                def forward(self, x):
                    return self.last(x)
            ddp = DDP(Net(), find_unused_parameters=True)
            """),
    )
    bad = (
        Bad("""
            class Net(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.last = nn.Linear(8, 1)
                    self.spare = nn.Linear(8, 1)
                def forward(self, x):
                    return self.last(x)
            ddp = DDP(Net())
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            for x, y in DataLoader(dataset, sampler=DistributedSampler(dataset, shuffle=False)):
                ddp(x).mean().backward()
                optimizer.step()
            """),
        Bad("""
            class Net(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.last = nn.Linear(8, 1)
                    self.label = nn.Linear(8, 8)
                def forward(self, x, y=None):
                    if y is not None:
                        x = x + self.label(y)
                    return self.last(x)
            ddp = DDP(Net())
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            for x, y in DataLoader(dataset, sampler=DistributedSampler(dataset, shuffle=False)):
                if torch.rand(()) < 0.1:
                    y = None
                ddp(x, y).mean().backward()
                optimizer.step()
            """),
    )

    def check(self, facts: Facts) -> Iterator[Finding]:
        if facts.converting:
            return  # the wrap knows (DDP201)
        seen: set[int] = set()
        trained = set(facts.roles.trained)
        for e in facts.flow.log.of("new"):
            w, source = e.obj, e.frame.source
            if not isinstance(w, Wrapped) or id(e.node) in seen or not facts.editable(source):
                continue
            call = e.node if isinstance(e.node, cst.Call) else None
            given = [a for a in call.args if a.keyword is not None and a.keyword.value in _KNOWN] if call else []
            if any(constants(facts.flow.values.get(a.value, ())) != [False] for a in given) or _splat(e.node):
                continue
            inner = list(modules((w,)))
            if inner and all(m.frozen for m in inner) and not self.thaws(facts) and not self.asks(facts, e, inner):
                seen.add(id(e.node))
                yield self.finding(
                    source, e.node, "none of this model is trained: DDP refuses to wrap it", severity=_HARD
                )
                continue
            held = [m for m in inner if m in trained]
            name = next((n for m in held if (n := left_out(facts, m)) and not _is_frozen(m, n)), "")
            if name:
                seen.add(id(e.node))
                edits = (SetArgument(source, call, _KNOWN[0], "True"),) if call is not None and not given else ()
                message = f"forward leaves out `{name}` of the model that is wrapped here, at times or always"
                yield self.finding(source, e.node, message, *edits, unsafe=True)

    def thaws(self, facts: Facts) -> bool:
        """Whether anything is made to need gradients: what could not be followed may be a part of the model."""
        sets = facts.flow.log.of("set", "method")
        return any(e.name in ("requires_grad", "requires_grad_") and constants(e.value) != [False] for e in sets)

    def asks(self, facts: Facts, e: Event, inner: list[Module]) -> bool:
        """`if any(p.requires_grad for p in net.parameters()): net = DDP(net)`, or a new layer: `net.fc = ...`"""
        tests = [above.test for above in e.frame.source.ancestors(e.node) if isinstance(above, cst.If)]
        if any(isinstance(n, cst.Attribute) and n.attr.value == "requires_grad" for t in tests for n in walk(t)):
            return True
        given = [s for s in facts.flow.log.of("set") if s.obj in inner and modules(s.value)]
        return any(s.frame.func is None or s.frame.func.owner is None for s in given)


def _splat(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Call) and any(a.star for a in node.args)


def _is_frozen(module: Module, name: str) -> bool:
    held = modules(module.fields.get(name.rsplit(".", 1)[-1], ()))
    return bool(held) and all(m.frozen for m in held)
