"""DDP514: losses that compare the samples of a batch with each other."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddpify.facts import Facts
from ddpify.facts.contents import constants, origins, with_parts
from ddpify.facts.trails import shown
from ddpify.facts.values import Class, Ext, FromBatch, FromForward, Func, Loader, Method, Value
from ddpify.rules._base import Converts, Finding, Good, Rule, Severity
from ddpify.source import Source, walk

_PRODUCTS = frozenset({"torch.matmul", "torch.mm", "torch.cdist", "torch.nn.functional.linear"})
_METHODS = frozenset({"matmul", "mm", "__matmul__", "addmm", "addmm_"})


class BatchComparedWithItself(Rule):
    """A loss compares the samples of a batch with each other, and each rank has only its own batch.

    ## What it does
    Finds products of the outputs of a batch with the outputs of the same batch, turned (`z @ z.t()`,
    `torch.mm(a, b.T)`, `torch.cdist(z, z)`), where a DataLoader gives the batch: contrastive and metric losses.

    ## Why is this bad?
    It may not be. The negatives of a sample are those of its own rank: a step on N processes is the mean of N losses
    over `batch_size` samples, not one loss over N times as many. With `batch_size` per process each sample meets as
    many others as before; with `--global-batch keep` it meets fewer, and the loss is another one.

    ## Fix
    Where the negatives of all ranks are wanted, gather the outputs before the product, with gradients:
    `torch.distributed.nn.functional.all_gather`.
    """

    code = "DDP514"
    severity = Severity.INFO
    references = ("https://arxiv.org/abs/2002.05709",)
    good = (
        Good("""
            ddp = DDP(model)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            for x, y in DataLoader(dataset, sampler=DistributedSampler(dataset, shuffle=False)):
                (ddp(x) @ torch.ones(1, 4)).mean().backward()
                optimizer.step()
            """),
    )
    converts = (
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            loader = DataLoader(TensorDataset(torch.ones(8, 4), torch.ones(8, 4)), batch_size=4)
            net = nn.Linear(4, 2)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for one, other in loader:
                alike = torch.matmul(net(one), net(other).T)
                nn.functional.cross_entropy(alike, torch.arange(len(one))).backward()
                optimizer.step()
            """,
            gives=("    alike = torch.matmul(net(one), net(other).T)",),
        ),
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            class Pair(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.one, self.other = nn.Linear(4, 2), nn.Linear(4, 2)
                def forward(self, x, y):
                    alike = self.one(x) @ self.other(y).T
                    return nn.functional.cross_entropy(alike, torch.arange(len(x)))
            loader = DataLoader(TensorDataset(torch.ones(8, 4), torch.ones(8, 4)), batch_size=4)
            net = Pair()
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for x, y in loader:
                net(x, y).backward()
                optimizer.step()
            """,
            gives=("        alike = self.one(x) @ self.other(y).T",),
        ),
    )

    def check(self, facts: Facts) -> Iterator[Finding]:
        training = {id(n) for n in facts.after_roles.training_forwards}
        said: set[int] = set()
        for source in facts.project.files() if facts.roles.training_loaders else ():
            for node in source.of(cst.BinaryOperation, cst.Call):
                pair = _operands(facts, node)
                if pair is None or not facts.editable(source):
                    continue
                inside = facts.converting and _is_in_model(facts, source, node)
                if not all(_of_batch(facts, training, p, inside) for p in pair):
                    continue
                if not facts.converting and any(_gathered(facts, source, p) for p in pair):
                    continue
                home = next((a for a in source.ancestors(node) if isinstance(a, cst.FunctionDef)), source.module)
                if not facts.converting or id(home) not in said:  # one note for each loss
                    said.add(id(home))
                    yield self.finding(source, node, self.said(facts, source, node), note=facts.converting)

    def said(self, facts: Facts, source: Source, node: cst.CSTNode) -> str:
        many = "fewer than before" if facts.global_batch == "keep" else "as many as before"
        others = f"{many}, and not N times as many" if facts.converting else "not those of the others"
        return (
            f"`{shown(source, node)}` compares the samples of a batch with each other: each rank has those of its own "
            f"batch, {others}; torch.distributed.nn.functional.all_gather brings in the other ranks' outputs"
        )


def _operands(facts: Facts, node: cst.CSTNode) -> tuple[cst.BaseExpression, cst.BaseExpression] | None:
    """Of `a @ b.t()`, `torch.mm(a, b.T)`, `a.matmul(b.t())`, `torch.cdist(a, b)`: both sides, the turned one bare."""
    one: cst.BaseExpression | None = None
    other: cst.BaseExpression | None = None
    apart = False
    match node:
        case cst.BinaryOperation(operator=cst.MatrixMultiply(), left=left, right=right):
            one, other = left, right
        case cst.Call(func=func, args=args):
            called = facts.flow.values.get(func, ())
            names = {o.name for o in called if isinstance(o, Ext)}
            if names & _PRODUCTS and len(args) >= 2:
                one, other, apart = args[0].value, args[1].value, "torch.cdist" in names
            elif any(isinstance(o, Method) and o.name in _METHODS for o in called) and isinstance(func, cst.Attribute):
                plain = [a.value for a in args if a.keyword is None]
                one, other = (plain[-2], plain[-1]) if len(plain) > 1 else (func.value, plain[0] if plain else None)
    if one is None or other is None:
        return None
    if apart:
        return one, other
    turned = _turned(facts, other)
    return (one, turned) if turned is not None else None


def _turned(facts: Facts, node: cst.BaseExpression) -> cst.BaseExpression | None:
    """`z` of `z.t()`, `z.T`, `z.transpose(0, 1)`; of `k.transpose(-2, -1)` the rows may be words of one sample."""
    match node:
        case cst.Attribute(value=value, attr=cst.Name(value="T")):
            return value
        case cst.Call(func=cst.Attribute(value=value, attr=cst.Name(value="t")), args=[]):
            return value
        case cst.Call(func=cst.Attribute(value=value, attr=cst.Name(value="transpose" | "permute")), args=[a, b]):
            known = [constants(facts.flow.values.get(x.value, ())) for x in (a, b)]
            return value if known in ([[0], [1]], [[1], [0]]) else None
        case cst.Call(func=cst.Attribute(value=value, attr=cst.Name(value="contiguous" | "clone" | "detach")), args=[]):
            return _turned(facts, value)
    return None


def _of_batch(facts: Facts, training: set[int], node: cst.BaseExpression, inside: bool) -> bool:
    """The outputs of a training forward, or of a layer inside one, of a batch of a loader."""
    found = _known(facts, node)
    batch = any(isinstance(o, FromBatch) and isinstance(o.loader, Loader) for o in found)
    return batch and any(isinstance(o, FromForward) and (inside or id(o.node) in training) for o in found)


def _is_in_model(facts: Facts, source: Source, node: cst.CSTNode) -> bool:
    """`loss = contrast(image @ text.T)` in the forward of the model that trains."""
    own = {id(part.cls.node) for m in facts.roles.trained for part in with_parts(m) if part.cls is not None}
    return any(isinstance(a, cst.ClassDef) and id(a) in own for a in source.ancestors(node))


def _known(facts: Facts, node: cst.BaseExpression) -> frozenset[object]:
    value: Value = facts.after.values.get(node, ())
    return frozenset(origins(value))


def _gathered(facts: Facts, source: Source, node: cst.BaseExpression) -> bool:
    """`all_z = Gather.apply(z)` above it, a function of autograd (or of the project) that gathers."""
    owner = next((a for a in source.ancestors(node) if isinstance(a, cst.FunctionDef)), source.module)
    name = source.code(node)
    assigned = (n for n in walk(owner) if isinstance(n, cst.Assign))
    given = [n.value for n in assigned if any(name in _names(source, t.target) for t in n.targets)]
    return any(_gathers(facts, value) for value in (node, *given)) or _alone(facts, source, node)


def _names(source: Source, target: cst.BaseExpression) -> list[str]:
    """What an assignment binds: `all_a, all_b = gather(a, b)`."""
    parts = [e.value for e in target.elements] if isinstance(target, (cst.Tuple, cst.List)) else [target]
    return [source.code(p) for p in parts]


def _gathers(facts: Facts, tree: cst.CSTNode) -> bool:
    for call in (n for n in walk(tree) if isinstance(n, cst.Call)):
        parts = (call.func, call.func.value) if isinstance(call.func, cst.Attribute) else (call.func,)
        for obj in (o for part in parts for o in facts.after.values.get(part, ()) if isinstance(o, (Class, Func))):
            if "all_gather" in obj.source.code(obj.node):
                return True
    return False


def _alone(facts: Facts, source: Source, node: cst.BaseExpression) -> bool:
    """The other side of a test whose first one gathers: `if self.world_size > 1: ... else: a @ b.T`."""
    below: cst.CSTNode = node
    for above in source.ancestors(node):
        if isinstance(above, cst.If) and below is above.orelse and _gathers(facts, above.body):
            return True
        if isinstance(above, cst.FunctionDef):
            return False
        below = above
    return False
