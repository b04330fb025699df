"""DDP504: progress counters in messages."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddpify.edits import AddImport, Surround
from ddpify.facts import Facts
from ddpify.facts.batchsize import is_named
from ddpify.facts.contents import data_of, origins
from ddpify.facts.loops import LoopFacts, divides
from ddpify.facts.metrics import loop_facts
from ddpify.facts.midway import counts_shown, shown_midway
from ddpify.facts.values import FromLoop, Iteration, Loader, Value
from ddpify.rules._base import Converts, Finding, Rule, Severity
from ddpify.source import Source, walk


class ProgressOfOneRank(Rule):
    """A progress counter in a message counts one rank's samples.

    ## What it does
    Multiplies `batch_idx * len(data)` in a message of the training loop by the world size, and `batch_idx * size`, of
    the size that the batches have, `batch_idx * args.size + len(data)` and a `count` to which each batch adds its
    samples likewise, also in a message behind the loop. What a message of the loop shows of running sums, means and
    meters is named in the report: it is rank 0's own there.

    ## Why is this bad?
    The message says `[640/60000]` where all ranks together have seen `[1280/60000]`, and an epoch seems to end
    half-way.

    ## Fix
    Multiply by `dist.get_world_size()`, or say that it counts one rank's samples.
    """

    code = "DDP504"
    severity = Severity.INFO
    converts = (
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            from tqdm import tqdm
            data = TensorDataset(torch.ones(8, 4))
            loader = DataLoader(data, batch_size=2)
            net = nn.Linear(4, 1)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            with tqdm(total=len(data)) as bar:
                for (x,) in loader:
                    net(x).mean().backward()
                    optimizer.step()
                    bar.update(x.shape[0])
            """,
            gives=("bar.update(x.shape[0] * dist.get_world_size())",),
        ),
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
            net = nn.Linear(4, 1)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for i, (x,) in enumerate(loader):
                net(x).mean().backward()
                optimizer.step()
                print(f"{i * len(x)} of {len(loader.dataset)}")
            """,
            gives=("{i * len(x) * dist.get_world_size()} of",),
        ),
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            data = TensorDataset(torch.ones(8, 4))
            loader = DataLoader(data, batch_size=2)
            net = nn.Linear(4, 1)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            seen, right, total = 0, 0, 0
            for (x,) in loader:
                loss = net(x).mean()
                loss.backward()
                optimizer.step()
                seen += len(x)
                print("{}/{} ({:.0f}%): {}".format(seen, len(data), 100 * seen / len(data), loss.item()))
                total += len(x)
                right += (net(x) > 0).sum().item()
                print("{}/{} right".format(right, total))
            """,
            gives=(
                ".format(seen * dist.get_world_size(), len(data), 100 * seen * dist.get_world_size() / len(data), loss",
                ".format(right, total))",
            ),
        ),
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            size = 2
            loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=size)
            net = nn.Linear(4, 1)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for i, (x,) in enumerate(loader):
                net(x).mean().backward()
                optimizer.step()
                print(i * size + len(x), i * loader.batch_size)
            """,
            gives=(
                "print((i * size + len(x)) * dist.get_world_size(), i * loader.batch_size * dist.get_world_size())",
            ),
        ),
        Converts(
            """
            import sys
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            def make(count):
                return DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=count)
            size, other = int(sys.argv[1]), int(sys.argv[2])
            net = nn.Linear(4, 1)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            total = 0.0
            for i, (x,) in enumerate(make(size), 1):
                loss = net(x).mean()
                loss.backward()
                optimizer.step()
                total += loss.item() * len(x)
                print(i * size, i * size + len(x), i * other)
                print(total / (i * size), total / (i * len(x)), total / i * len(x))
                if i * size < other:
                    rest = other - i * size
            print("images:", i * size + len(x))
            """,
            gives=(
                "print(i * size * dist.get_world_size(), (i * size + len(x)) * dist.get_world_size(), i * other)",
                "print(total / (i * size), total / (i * len(x)), total / i * len(x))",
                "if i * size < other:\n        rest = other - i * size",
                'print("images:", (i * size + len(x)) * dist.get_world_size())',
            ),
        ),
    )

    def check(self, facts: Facts) -> Iterator[Finding]:
        if not facts.converting:
            return
        loops = facts.cached("loops", loop_facts)
        done: set[int] = set()
        for loop in loops:
            if not loop.training or id(loop.node) in done or not facts.editable(loop.source):
                continue
            done.add(id(loop.node))
            yield from self.running(facts, loop)
            yield from self.bars(facts, loop)
            for name in counts_shown(facts, loop):
                yield self.scaled(facts, loop, name)
            whole_of: set[int] = set()
            for node in (*walk(loop.node.body), *_told_behind(loop)):
                if (
                    isinstance(node, cst.BinaryOperation)
                    and id(node) not in whole_of
                    and not divides(loop.source, node)  # total / (i * size): of this rank's own samples
                    and not _decides(loop.source, node)
                    and self.counts(facts, loop, node)
                ):
                    whole_of.add(id(node.left))  # i * size, of i * size + len(x)
                    counted = self.one_ranks_part(facts, node)
                    whole = isinstance(counted, cst.BinaryOperation) and isinstance(counted.operator, cst.Add)
                    before, after = ("(", ")") if whole and not counted.lpar else ("", "")
                    world = f" * {facts.names_of(loop.source)['dist']}.get_world_size()"
                    edit = Surround(loop.source, counted, before, after + world)
                    yield self.finding(
                        loop.source,
                        node,
                        f"`{loop.source.code(node)}` counts the samples of all ranks",
                        edit,
                        AddImport(loop.source, "dist"),
                        reason="progress in messages stays true",
                    )

    def running(self, facts: Facts, loop: LoopFacts) -> Iterator[Finding]:
        """`print(step, losses.avg)` in the loop: a note, since adding up at each message would cost a wait."""
        names, lines = shown_midway(facts, loop)
        if names:
            quoted = " and ".join(f"`{name}`" for name in names)
            places = f"line{'s' if len(lines) > 1 else ''} {', '.join(map(str, lines))}"
            what = f"{quoted} in what the loop shows while it runs ({places})"
            verb = "are" if len(names) > 1 else "is"
            yield self.finding(loop.source, loop.node, f"{what} {verb} rank 0's own, of its batches so far", note=True)

    def bars(self, facts: Facts, loop: LoopFacts) -> Iterator[Finding]:
        """`bar.update(len(x))`, of a bar over all samples (`tqdm(total=len(data))`)."""
        for node in walk(loop.node.body):
            match node:
                case cst.Call(func=cst.Attribute(value=bar, attr=cst.Name(value="update")), args=[cst.Arg(value=size)]):
                    held = facts.flow.values.get(bar, ())
                    known = data_of(facts.flow.values.get(size, ()))
                    over = any(isinstance(o, Iteration) and o.how == "progress" and not o.of for o in held)
                    if over and known is not None and known.agg == "size":
                        yield self.scaled(facts, loop, size)

    def scaled(self, facts: Facts, loop: LoopFacts, size: cst.BaseExpression) -> Finding:
        """`count * dist.get_world_size()`"""
        return self.finding(
            loop.source,
            size,
            f"`{loop.source.code(size)}` counts the samples of all ranks",
            Surround(loop.source, size, "", f" * {facts.names_of(loop.source)['dist']}.get_world_size()"),
            AddImport(loop.source, "dist"),
            reason="progress in messages stays true",
        )

    def counts(self, facts: Facts, loop: LoopFacts, node: cst.BinaryOperation) -> bool:
        """The index of the batch times the number of samples in one: `i * len(x)`, `i * args.size + len(x)`."""
        if isinstance(node.operator, cst.Add):
            rest = data_of(facts.flow.values.get(node.right, ()))
            known, left = rest is not None and rest.agg == "size", node.left
            if not known or not isinstance(left, cst.BinaryOperation):
                return False
            return self.times_index(facts, loop, left)
        return isinstance(node.operator, cst.Multiply) and self.counts_whole(facts, loop, node)

    def one_ranks_part(self, facts: Facts, node: cst.BinaryOperation) -> cst.BaseExpression:
        """What counts one rank's samples: with a batch size that all ranks share, only the last batch of `i * size`."""
        left = node.left
        if facts.global_batch != "keep" or not isinstance(node.operator, cst.Add):
            return node
        sides = (left.left, left.right) if isinstance(left, cst.BinaryOperation) else ()
        own = [d for s in sides if (d := data_of(facts.flow.values.get(s, ()))) is not None and d.agg == "size"]
        return node if own or any(self.is_batch_size(facts, s) for s in sides) else node.right

    def times_index(self, facts: Facts, loop: LoopFacts, node: cst.BaseExpression) -> bool:
        """`i * anything`"""
        if not isinstance(node, cst.BinaryOperation) or not isinstance(node.operator, cst.Multiply):
            return False
        sides = [facts.flow.values.get(side, ()) for side in (node.left, node.right)]
        return any(isinstance(o, FromLoop) and o.loop is loop.node for s in sides for o in origins(s))

    def is_batch_size(self, facts: Facts, node: cst.BaseExpression) -> bool:
        """`loader.batch_size`"""
        return (
            isinstance(node, cst.Attribute)
            and node.attr.value == "batch_size"
            and any(isinstance(o, Loader) for o in facts.flow.values.get(node.value, ()))
        )

    def counts_whole(self, facts: Facts, loop: LoopFacts, node: cst.BinaryOperation) -> bool:
        """`i * len(x)`, `(i + 1) * loader.batch_size`"""
        sides = [facts.flow.values.get(node.left, ()), facts.flow.values.get(node.right, ())]
        index = [
            self.is_index(loop, s) and not self.divided_by_index(facts, loop, n)
            for n, s in zip((node.left, node.right), sides, strict=True)
        ]
        sizes = [
            ((d := data_of(s)) is not None and d.agg == "size")
            or self.is_batch_size(facts, n)
            or (facts.global_batch != "keep" and is_named(facts, loop.loader, loop.frame, n))
            for n, s in zip((node.left, node.right), sides, strict=True)
        ]
        return (index[0] and sizes[1]) or (index[1] and sizes[0])

    def is_index(self, loop: LoopFacts, held: Value) -> bool:
        return any(isinstance(o, FromLoop) and o.loop is loop.node for o in origins(held))

    def divided_by_index(self, facts: Facts, loop: LoopFacts, node: cst.BaseExpression) -> bool:
        """`total / i * len(x)`: a mean of the batches so far, not their number."""
        return any(
            isinstance(n, cst.BinaryOperation)
            and isinstance(n.operator, (cst.Divide, cst.FloorDivide))
            and self.is_index(loop, facts.flow.values.get(n.right, ()))
            for n in (node, *walk(node))
        )


def _told_behind(loop: LoopFacts) -> Iterator[cst.CSTNode]:
    """`print(i * size + len(x))` behind the loop: the parts of what is handed to calls that give nothing back."""
    end = loop.source.span(loop.node).end
    for stmt in walk(loop.frame.node):
        if isinstance(stmt, cst.Expr) and isinstance(stmt.value, cst.Call) and loop.source.span(stmt).start >= end:
            yield from walk(stmt.value)


def _decides(source: Source, node: cst.BinaryOperation) -> bool:
    """`if i * size < limit: rest = limit - i * size`: what a rank does by its own count is no progress."""
    inner: cst.CSTNode = node
    for above in source.ancestors(node):
        if isinstance(above, (cst.Arg, cst.FormattedStringExpression, cst.BaseSmallStatement)):
            return False
        if isinstance(above, cst.Comparison):
            return True
        if isinstance(above, cst.BinaryOperation) and isinstance(above.operator, cst.Subtract) and above.right is inner:
            return True
        inner = above
    return False
