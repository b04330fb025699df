"""DDP218: parameters that an optimizer has and no module."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddpify.edits import AddHelper, AddImport, InsertAfter
from ddpify.facts import Facts
from ddpify.facts.frames import Event, Frame
from ddpify.facts.placing import statement_of
from ddpify.facts.roles import expression_for
from ddpify.facts.trails import shown, way_back
from ddpify.facts.values import Optimizer, Thing
from ddpify.rules._base import Bad, Converts, Finding, Good, Rule
from ddpify.source import Source

_LOOPS = (cst.For, cst.While, cst.BaseComp)


class ParameterOfNoModule(Rule):
    """A parameter is trained that belongs to no module.

    ## What it does
    Finds `nn.Parameter(...)` and tensors with `requires_grad=True` that an optimizer has and no module: learned weights
    of several losses, a temperature, a prompt before a frozen model.

    ## Why is this bad?
    DDP averages the gradients of the module in its wrapper, and of nothing else. On every rank such a parameter follows
    the gradients of that rank's own batches, and with it the loss of all others.

    ## Fix
    Make it an attribute of the model, so that its forward uses it, or average its gradient behind each backward.

    ## Edit
    `dist.broadcast(scale.data, src=0)` behind the optimizer, as DDP does for a module, and `average_gradients(scale)`
    behind each `.backward()`, before anything reads the gradient.

    ## When not
    A parameter that is made in a loop, or that has no name where the optimizer is made or the backward stands, is
    refused.
    """

    code = "DDP218"
    references = ("https://docs.pytorch.org/docs/stable/notes/ddp.html#internal-design",)
    good = (
        Good("""
            scale = nn.Parameter(torch.ones(1))
            dist.broadcast(scale.data, src=0)
            ddp = DDP(model)
            optimizer = torch.optim.SGD([*ddp.parameters(), scale], lr=0.1)
            for x, y in DataLoader(dataset, sampler=DistributedSampler(dataset, shuffle=False)):
                (ddp(x) * scale).mean().backward()
                dist.all_reduce(scale.grad)
                scale.grad /= dist.get_world_size()
                optimizer.step()
            """),
    )
    bad = (
        Bad("""
            scale = nn.Parameter(torch.ones(1))
            ddp = DDP(model)
            optimizer = torch.optim.SGD([*ddp.parameters(), scale], lr=0.1)
            for x, y in DataLoader(dataset, sampler=DistributedSampler(dataset, shuffle=False)):
                (ddp(x) * scale).mean().backward()
                optimizer.step()
            """),
    )
    converts = (
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
            net, scale = nn.Linear(4, 1), nn.Parameter(torch.ones(()))
            optimizer = torch.optim.SGD(list(net.parameters()) + [scale], lr=0.1)
            for (x,) in loader:
                optimizer.zero_grad()
                (net(x) * scale).mean().backward()
                optimizer.step()
            """,
            gives=(
                "[scale], lr=0.1)\ndist.broadcast(scale.data, src=0)",
                "    (net(x) * scale).mean().backward()\n    average_gradients(scale)",
            ),
        ),
    )

    def check(self, facts: Facts) -> Iterator[Finding]:
        if not facts.roles.bare:
            return
        if not facts.converting:
            yield from self.lint(facts)
            return
        for parameter in facts.roles.bare:
            held = next(o for o in facts.roles.optimizers if parameter in o.bare)
            lines = self.behind(facts, parameter)
            start = self.start(facts, parameter, held)
            if lines is None or start is None:
                yield self.refused(facts, held)
                return
            yield self.broadcast(facts, held, *start)
        yield from self.averaged(facts)

    def lint(self, facts: Facts) -> Iterator[Finding]:
        reduced = [e for e in facts.flow.log.of("external") if e.name.startswith("torch.distributed.")]
        if not facts.roles.wrapped or any(_mentions_gradients(e) for e in reduced) or _sets_gradients(facts):
            return
        for parameter in facts.roles.bare:
            site = parameter.site
            if facts.editable(site.source) and site.node in site.source.parents:
                code = shown(site.source, site.node)
                yield self.finding(
                    site.source, site.node, f"`{code}` is trained, and nothing averages its gradients over the ranks"
                )

    def start(self, facts: Facts, parameter: Thing, held: Optimizer) -> tuple[str, cst.CSTNode] | None:
        """How the parameter is called where its optimizer is made, and that statement; made once, in one place."""
        site, source = parameter.site, held.site.source
        again = any(isinstance(a, _LOOPS) for a in site.source.ancestors(site.node))
        called = any(entry.loops for chain in site.frame.chains() for entry in chain)
        name = expression_for(parameter, held.site.frame, facts.flow)
        stmt = statement_of(source, held.site.node)
        if again or called or name is None or not facts.editable(source) or not isinstance(stmt, cst.Assign):
            return None
        return name, stmt

    def behind(self, facts: Facts, parameter: Thing) -> list[tuple[Source, cst.CSTNode, str]] | None:
        """Each backward, with what the parameter is called there."""
        found: list[tuple[Source, cst.CSTNode, str]] = []
        for e in _once(facts.roles.backwards):
            name = expression_for(parameter, e.frame, facts.flow) if facts.editable(e.frame.source) else None
            if name is None or not isinstance(e.stmt, cst.Expr):
                return None
            found.append((e.frame.source, e.stmt, name))
        return found

    def broadcast(self, facts: Facts, held: Optimizer, name: str, stmt: cst.CSTNode) -> Finding:
        source = held.site.source
        line = f"{facts.names_of(source)['dist']}.broadcast({name}.data, src=0)"
        return self.finding(
            source,
            stmt,
            f"`{name}` is rank 0's on every rank",
            InsertAfter(source, stmt, (line,)),
            AddImport(source, "dist"),
            reason="it is in no DDP wrapper, which would make it alike",
        )

    def averaged(self, facts: Facts) -> Iterator[Finding]:
        for e in _once(facts.roles.backwards):
            source, names = e.frame.source, facts.names_of(e.frame.source)
            each = [expression_for(p, e.frame, facts.flow) for p in facts.roles.bare]
            line = f"{names['average_gradients']}({', '.join(n for n in each if n is not None)})"
            options = frozenset({"host"} if any(map(_on_cpu, facts.roles.bare)) else ())
            yield self.finding(
                source,
                e.stmt,
                "parameters that are in no DDP wrapper have gradients of their own on each rank",
                InsertAfter(source, e.stmt, (line,)),
                AddHelper(source, "average_gradients"),
                *([AddHelper(facts.source, "setup_distributed", options)] if options else []),
                reason="DDP averages the gradients of the modules in its wrappers only",
            )

    def refused(self, facts: Facts, held: Optimizer) -> Finding:
        source, node = held.site.source, held.site.node
        over = node.args[0].value if isinstance(node, cst.Call) and node.args else node
        about = way_back(facts.flow, over, source, held.site.frame, value=shown(source, node))
        return self.finding(
            source,
            node,
            f"`{about.value}` trains parameters that belong to no model: DDP would not average their gradients",
            refuse=about,
            left="Make them part of the model (an attribute of its class), so that its forward uses them",
        )


def _once(backwards: list[Event]) -> list[Event]:
    """A function that is called twice has one text."""
    return list({id(e.node): e for e in reversed(backwards)}.values())[::-1]


def _on_cpu(parameter: Thing) -> bool:
    """`nn.Parameter(torch.tensor(0.07))`: a single number may stay on the CPU beside a model on the GPU."""
    code = parameter.site.source.code(parameter.site.node)
    return not any(word in code for word in (".to(", ".cuda(", "device="))


def _sets_gradients(facts: Facts) -> bool:
    """`master.grad = flat([p.grad for p in group])`: copies in full precision get the model's averaged gradients."""
    return any(
        isinstance(t.target, cst.Attribute) and t.target.attr.value == "grad" and not isinstance(n.value, cst.Name)
        for source in facts.project.files()
        if ".grad" in source.text
        for n in source.of(cst.Assign)
        for t in n.targets
    )


def _mentions_gradients(e: Event) -> bool:
    """`dist.all_reduce(p.grad)`, or in a function about gradients."""
    frame: Frame = e.frame
    return ".grad" in frame.source.code(frame.node if frame.func is not None else e.stmt)
