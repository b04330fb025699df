"""DDP215: no_sync and the optimizer's step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from ddpify.facts import Facts
from ddpify.facts.frames import Event
from ddpify.facts.values import Optimizer, Thing, Wrapped
from ddpify.rules._base import Bad, Finding, Good, Rule, Severity
from ddpify.source import Source, walk

_LOOPS = (cst.For, cst.While)


@dataclass(frozen=True)
class Every:
    """`(i + 1) % k == 0`: true (or, not `equal`, false) where `i` leaves the rest `rest` by `k`."""

    name: str
    by: str
    rest: int
    equal: bool


@dataclass(frozen=True)
class Block:
    """A `with` over `no_sync()`; `test` decides whether it is no_sync, where it is `taken`, and None: always."""

    block: cst.With
    call: cst.BaseExpression
    source: Source
    test: cst.BaseExpression | None = None
    taken: bool = True


class NoSyncBesideStep(Rule):
    """`no_sync` does not go with the optimizer's steps.

    ## What it does
    Finds `with ddp.no_sync():` around every backward of a loop that steps, `no_sync` by another micro-batch than the
    one that steps (`i % k` here, `(i + 1) % k` there), and forwards that stand outside of it.

    ## Why is this bad?
    Gradients are averaged in the backward of a forward that ran outside `no_sync`. Where that is not the last one
    before the step, the ranks step on gradients of their own and drift apart, silently; where the forward stands
    outside of it, nothing is saved.

    ## Fix
    Decide once, `last = (i + 1) % k == 0`, step by it, and run forward and backward under `nullcontext() if last else
    ddp.no_sync()`.
    """

    code = "DDP215"
    references = (
        "https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html#torch.nn.parallel.DistributedDataParallel.no_sync",
    )
    good = (
        Good("""
            ddp = DDP(model)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            loader = DataLoader(dataset, sampler=DistributedSampler(dataset, shuffle=False))
            for i, (x, y) in enumerate(loader):
                if (i + 1) % 4 != 0:
                    with ddp.no_sync():
                        ddp(x).mean().backward()
                else:
                    ddp(x).mean().backward()
                    optimizer.step()
            """),
        Good("""
            from contextlib import nullcontext
            import torch
            import torch.distributed as dist
            from torch import nn
            from torch.nn.parallel import DistributedDataParallel as DDP
            dist.init_process_group("gloo")
            ddp = DDP(nn.Linear(8, 1))
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            k = 4
            for i in range(8):
                x = torch.randn(2, 8)
                with ddp.no_sync() if i % k != k - 1 else nullcontext():
                    loss = ddp(x).mean()
                    loss.backward()
                if (i + 1) % k == 0:
                    optimizer.step()
            dist.destroy_process_group()
            """),
    )
    bad = (
        Bad("""
            ddp = DDP(model)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            for x, y in DataLoader(dataset, sampler=DistributedSampler(dataset, shuffle=False)):
                with ddp.no_sync():
                    ddp(x).mean().backward()
                optimizer.step()
            """),
        Bad("""
            from contextlib import nullcontext
            import torch
            import torch.distributed as dist
            from torch import nn
            from torch.nn.parallel import DistributedDataParallel as DDP
            dist.init_process_group("gloo")
            ddp = DDP(nn.Linear(8, 1))
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            k = 4
            for i in range(8):
                context = ddp.no_sync if i % k else nullcontext
                with context():
                    loss = ddp(torch.randn(2, 8)).mean()
                    loss.backward()
                if (i + 1) % k == 0:
                    optimizer.step()
            dist.destroy_process_group()
            """),
        Bad("""
            ddp = DDP(model)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            loader = DataLoader(dataset, sampler=DistributedSampler(dataset, shuffle=False))
            for i, (x, y) in enumerate(loader):
                loss = ddp(x).mean()
                if (i + 1) % 4 != 0:
                    with ddp.no_sync():
                        loss.backward()
                else:
                    loss.backward()
                    optimizer.step()
            """),
        Bad("""
            ddp = DDP(model)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            for step in range(8):
                for micro in range(4):
                    loss = ddp(torch.randn(2, 8)).mean()
                    ddp.require_backward_grad_sync = micro == 3
                    loss.backward()
                optimizer.step()
            """),
    )

    def check(self, facts: Facts) -> Iterator[Finding]:
        words = ("no_sync", "require_backward_grad_sync")
        sources = [s for s in facts.looked_at if any(w in s.text for w in words)]
        if facts.converting or not sources:
            return
        for block in (b for s in sources for b in self.blocks(facts, s)):
            inside = {id(n) for n in walk(block.block.body)}
            forwards = [e for e in facts.flow.log.of("forward") if isinstance(e.obj, Wrapped)]
            forward = any(_reaches(e, inside) for e in forwards)
            backward = any(_reaches(e, inside) for e in facts.roles.backwards)
            if backward and forwards and not forward:
                yield self.finding(
                    block.source,
                    block.call,
                    "`no_sync` acts at the forward, which stands outside of it: gradients are averaged all the same",
                    severity=Severity.WARNING,
                )
            elif backward and forward:
                yield from self.steps(facts, block, inside)
        yield from self.switched(facts)

    # -- blocks ---------------------------------------------------------------------------------------------------

    def blocks(self, facts: Facts, source: Source) -> Iterator[Block]:
        for node in source.of(cst.Attribute):
            if node.attr.value == "no_sync":
                held = facts.flow.values.get(node.value, ())
                if held and any(isinstance(o, Wrapped) for o in held):
                    yield from self.around(source, node)

    def around(self, source: Source, node: cst.Attribute) -> Iterator[Block]:
        """The `with` that a `ddp.no_sync` ends up in, by itself or through a name."""
        test: cst.BaseExpression | None = None
        taken = True
        below: cst.CSTNode = node
        for above in source.ancestors(node):
            if isinstance(above, cst.IfExp) and test is None:
                test, taken = above.test, below is above.body
            elif isinstance(above, cst.With):
                if any(below is item for item in above.items):
                    yield Block(above, node, source, *self.by_branch(source, above, test, taken))
                return
            elif isinstance(above, cst.Assign):
                names = [t.target.value for t in above.targets if isinstance(t.target, cst.Name)]
                owner = next((a for a in source.ancestors(above) if isinstance(a, cst.FunctionDef)), source.module)
                if test is None or len(names) != 1:
                    return
                for n in walk(owner):
                    if isinstance(n, cst.With) and any(_named(item.item, names[0]) for item in n.items):
                        yield Block(n, node, source, test, taken)
                return
            elif isinstance(above, (cst.BaseSmallStatement, cst.BaseCompoundStatement)):
                return
            below = above

    def by_branch(
        self, source: Source, block: cst.With, test: cst.BaseExpression | None, taken: bool
    ) -> tuple[cst.BaseExpression | None, bool]:
        """`if (i + 1) % k: with ddp.no_sync():`"""
        below: cst.CSTNode = block
        for above in source.ancestors(block):
            if test is not None or isinstance(above, (*_LOOPS, cst.FunctionDef)):
                break
            if isinstance(above, cst.If):
                test, taken = above.test, below is above.body
            below = above
        return test, taken

    # -- steps ----------------------------------------------------------------------------------------------------

    def steps(self, facts: Facts, block: Block, inside: set[int]) -> Iterator[Finding]:
        loop = next((a for a in block.source.ancestors(block.block) if isinstance(a, _LOOPS)), None)
        if loop is None:
            return
        around = {id(n) for n in walk(loop)}
        steps = [e for e in facts.flow.log.of("method") if _is_step(e) and id(e.node) in around]
        others = [e for e in facts.roles.backwards if _reaches(e, around) and not _reaches(e, inside)]
        code = block.source.code(block.call)
        if block.test is None:
            if steps and not others:
                message = f"every backward of this loop is under `{code}`: no gradient is averaged before the step"
                yield self.finding(block.source, block.call, message)
            return
        synced = every(block.source, block.test)
        if synced is None or synced.equal is block.taken:
            return
        for e in steps:
            test = next(
                (a.test for a in block.source.ancestors(e.node) if isinstance(a, cst.If) and id(a) in around), None
            )
            stepped = every(block.source, test) if test is not None else None
            if stepped is None or not stepped.equal or (stepped.name, stepped.by) != (synced.name, synced.by):
                continue
            if stepped.rest != synced.rest and test is not None:
                text, by = block.source.code(block.test), block.source.code(test)
                message = f"`{code}` goes by `{text}`, and the step by `{by}`: gradients are averaged in another turn"
                yield self.finding(block.source, block.call, message)
                return

    def switched(self, facts: Facts) -> Iterator[Finding]:
        """`ddp.require_backward_grad_sync = last` between the forward and its backward."""
        events = [e for e in facts.flow.log.events if e.kind in ("forward", "backward", "set")]
        for at, e in enumerate(events):
            if e.kind != "set" or e.name != "require_backward_grad_sync" or not isinstance(e.obj, Wrapped):
                continue
            same = [x for x in events if x.loops == e.loops and x.frame is e.frame]
            place = same.index(e)
            before = next((x for x in reversed(same[:place]) if x.kind != "set"), None)
            after = next((x for x in same[place:] if x.kind != "set"), None)
            late = before is not None and before.kind == "forward" and before.obj is e.obj
            if late and after is not None and after.kind == "backward" and facts.editable(e.frame.source) and at:
                code = e.frame.source.code(e.node)
                message = f"`{code}` is read at the forward, which has run: set it before"
                yield self.finding(e.frame.source, e.node, message, severity=Severity.WARNING)


def every(source: Source, test: cst.BaseExpression) -> Every | None:
    """`i % k`, `not i % k`, `(i + 1) % k == 0`, `i % k != k - 1`"""
    equal, rest = False, 0
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        found = every(source, test.expression)
        return Every(found.name, found.by, found.rest, not found.equal) if found is not None else None
    if isinstance(test, cst.Comparison) and len(test.comparisons) == 1:
        target = test.comparisons[0]
        if not isinstance(target.operator, (cst.Equal, cst.NotEqual)):
            return None
        equal, right, test = isinstance(target.operator, cst.Equal), target.comparator, test.left
    else:
        right = cst.Integer("0")
    if not isinstance(test, cst.BinaryOperation) or not isinstance(test.operator, cst.Modulo):
        return None
    by = source.code(test.right)
    match right:
        case cst.Integer():
            rest = right.evaluated_value
        case cst.BinaryOperation(left=left, operator=cst.Subtract(), right=cst.Integer() as less):
            if source.code(left) != by:
                return None
            rest = -less.evaluated_value
        case _:
            return None
    match test.left:
        case cst.Name(value=name):
            return Every(name, by, rest, equal)
        case cst.BinaryOperation(left=cst.Name(value=name), operator=cst.Add(), right=cst.Integer() as more):
            return Every(name, by, rest - more.evaluated_value, equal)
    return None


def _named(item: cst.BaseExpression, name: str) -> bool:
    item = item.func if isinstance(item, cst.Call) else item
    return isinstance(item, cst.Name) and item.value == name


def _is_step(e: Event) -> bool:
    scaler = isinstance(e.obj, Thing) and e.obj.name == "scaler"
    return e.name == "step" and (isinstance(e.obj, Optimizer) or scaler)


def _reaches(e: Event, inside: set[int]) -> bool:
    """Whether an event happens at some nodes, or in a function that is called there."""
    return id(e.node) in inside or any(id(entry.call) in inside for chain in e.frame.chains() for entry in chain)
