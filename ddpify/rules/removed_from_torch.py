"""DDP106: idioms of torch before 0.4 that no torch 2 runs."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddpify.edits import Replace
from ddpify.facts import Facts
from ddpify.facts.roles import loaders_in
from ddpify.facts.values import Data, Iteration
from ddpify.rules._base import Converts, Finding, Rule, Severity
from ddpify.source import Source

#: what `.item()` may follow without parentheses
_PLAIN = (cst.Name, cst.Attribute, cst.Call, cst.Subscript)


class RemovedFromTorch(Rule):
    """The script asks for what torch 2 does not do any more.

    ## What it does
    Finds `loss.data[0]` of a number (an IndexError since torch 0.5), `it.next()` of a DataLoader's iterator (gone since
    torch 1.13) and `Variable(x, volatile=True)` (without effect since torch 0.4) in scripts that are converted.

    ## Why is this bad?
    The script stops at the first such line, distributed or not. What `volatile` kept out of the graph is in it again:
    an evaluation needs more memory.

    ## Fix
    Write what takes its place in torch 2, as the message says.

    ## Edit
    `loss.data[0]` becomes `loss.item()` where it is one number, and `it.next()` becomes `next(it)`.

    ## When not
    What torch 2 still runs stays as it is: `Variable(x)`, `size_average=False`, `loss.data.item()`.
    """

    code = "DDP106"
    severity = Severity.INFO
    references = ("https://pytorch.org/blog/pytorch-0_4_0-migration-guide/",)
    converts = (
        Converts(
            """
            import torch
            from torch import nn
            from torch.autograd import Variable
            from torch.utils.data import DataLoader, TensorDataset
            loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
            net = nn.Linear(4, 1)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for (x,) in loader:
                loss = net(Variable(x)).mean()
                loss.backward()
                optimizer.step()
                print(loss.data[0])
            """,
            gives=("        print(loss.item())",),
        ),
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2, shuffle=True)
            net = nn.Linear(4, 1)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for epoch in range(2):
                it = iter(loader)
                for step in range(len(loader)):
                    (x,) = it.next()
                    net(x).mean().backward()
                    optimizer.step()
            """,
            gives=("sampler=DistributedSampler(", ".set_epoch(", "(x,) = next(it)"),
        ),
    )

    def check(self, facts: Facts) -> Iterator[Finding]:
        if not facts.converting:
            return
        for source in facts.project.files():
            yield from self.items(facts, source)
            yield from self.nexts(facts, source)
            yield from self.volatile(facts, source)

    def items(self, facts: Facts, source: Source) -> Iterator[Finding]:
        for node in source.of(cst.Subscript):
            if self.is_item(facts, node) and isinstance(node.value, cst.Attribute):
                base = node.value.value
                number = source.code(base) if isinstance(base, _PLAIN) else f"({source.code(base)})"
                yield self.written(
                    facts, source, node, "is the item of a number, gone in torch 0.5", f"{number}.item()"
                )

    def nexts(self, facts: Facts, source: Source) -> Iterator[Finding]:
        """`it = iter(loader)`, and `it.next()`"""
        for node in source.of(cst.Call):
            if isinstance(node.func, cst.Attribute) and self.is_next(facts, node.func):
                owner = source.code(node.func.value)
                yield self.written(
                    facts, source, node, "asks a loader's iterator, gone in torch 1.13", f"next({owner})"
                )

    def written(self, facts: Facts, source: Source, node: cst.BaseExpression, why: str, text: str) -> Finding:
        """What takes its place; the converted script needs a torch that does not know the old one."""
        message = f"`{source.code(node)}` {why}"
        if not facts.editable(source):
            return self.finding(source, node, message, left=f"write `{text}`; no torch 2 runs it as it is")
        return self.finding(source, node, message, Replace(source, node, text), reason=f"`{text}` in torch 2")

    def is_next(self, facts: Facts, func: cst.Attribute) -> bool:
        held = facts.flow.values.get(func.value, ())
        loaded = bool(loaders_in(held)) and all(isinstance(o, Iteration) and o.how == "iter" for o in held)
        return func.attr.value == "next" and loaded

    def is_item(self, facts: Facts, node: cst.Subscript) -> bool:
        """`loss.data[0]`, where `loss` is a sum or a mean over the batch."""
        index = node.slice[0].slice if len(node.slice) == 1 else None
        first = isinstance(index, cst.Index) and isinstance(index.value, cst.Integer) and index.value.value == "0"
        base = node.value
        if not first or not isinstance(base, cst.Attribute) or base.attr.value != "data":
            return False
        held = facts.flow.values.get(base.value, ())
        losses = {id(o) for b in facts.roles.backwards for o in b.value}
        return bool(held) and all(isinstance(o, Data) and (o.agg in ("mean", "sum") or id(o) in losses) for o in held)

    def volatile(self, facts: Facts, source: Source) -> Iterator[Finding]:
        found = [
            n
            for n in source.of(cst.Call)
            if any(a.keyword is not None and a.keyword.value == "volatile" for a in n.args)
            and any(str(getattr(o, "name", "")).endswith(".Variable") for o in facts.flow.values.get(n.func, ()))
        ]
        if found:
            message = (
                f"`volatile=` has no effect since torch 0.4{self.also(source, found)}: torch.no_grad() saves memory"
            )
            yield self.finding(source, found[0], message, note=True)

    def also(self, source: Source, found: list[cst.Call]) -> str:
        lines = sorted({source.line(n) for n in found} - {source.line(found[0])})
        return f" (also on line {', '.join(map(str, lines))})" if lines else ""
