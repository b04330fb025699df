"""A training step on whole tensors in, what its loss and its other numbers are over their rows out.

The statements of the step are run once, in their order, with what each name is over the rows; functions, closures and
losses of the project are followed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.dependencies import bound_names, named, read_names
from ddpify.facts.externals import role_of
from ddpify.facts.overrows import (
    COUNT,
    NONE,
    ROWS,
    Kind,
    Over,
    added,
    by_entry,
    divided,
    joined,
    multiplied,
)
from ddpify.facts.rowwise import mixes_rows, number
from ddpify.facts.torchrows import of_function, of_loss
from ddpify.facts.values import Ext, Func, Module, Wrapped
from ddpify.source import Source, children, dotted

if TYPE_CHECKING:
    from ddpify.facts import Facts

_DEPTH = 6


class Step:
    """One run of a step's statements, with what its losses and its other means and sums are over the rows."""

    def __init__(self, facts: Facts, names: Sequence[str], backwards: Sequence[cst.CSTNode]) -> None:
        self.facts = facts
        self.env: dict[str, Kind] = {n: Kind(Over.ROWS, names=frozenset({n})) for n in names}
        #: tensors that a model, a loss or a difference takes row by row
        self.by_row: set[str] = set()
        #: whether gradients of the tensors themselves are taken
        self.of_inputs = False
        self.backwards = {id(n) for n in backwards}
        self.losses: dict[int, Kind] = {}
        #: the names that get a mean or a sum over the rows
        self.totals: dict[int, tuple[Source, cst.CSTNode, Kind]] = {}
        self.depth = 0
        self.returned: list[Kind] = []

    def mixed(self, source: Source, node: cst.CSTNode, why: str = "") -> Kind:
        return Kind(Over.MIXED, source, node, why)

    # -- statements -------------------------------------------------------------------------------------------

    def run(self, source: Source, node: cst.CSTNode) -> None:
        """A statement, or all statements of a block."""
        match node:
            case cst.FunctionDef() | cst.ClassDef():
                return
            case cst.Assign(targets=targets, value=value):
                kind = self.of(source, value)
                for target in targets:
                    self.bind(source, target.target, kind, value)
            case cst.AnnAssign(target=target, value=cst.BaseExpression() as value):
                self.bind(source, target, self.of(source, value), value)
            case cst.AugAssign(target=target, operator=operator, value=value):
                old, new, why = self.of(source, target), self.of(source, value), self.mixed(source, node)
                if isinstance(operator, (cst.AddAssign, cst.SubtractAssign)):
                    kind = added(old, new, why)
                elif isinstance(operator, cst.MultiplyAssign):
                    kind = multiplied(old, new, why)
                else:
                    kind = divided(old, new, why) if isinstance(operator, cst.DivideAssign) else why
                self.bind(source, target, kind, value)
            case cst.If(test=test, body=body, orelse=orelse):
                self.of(source, test)
                self.either(source, [body, orelse])
            case cst.For(target=target, iter=over, body=body):
                kind = self.of(source, over)
                self.bind(source, target, kind if kind.over is Over.NONE else self.mixed(source, over), over)
                self.run(source, body)
                self.run(source, body)
            case cst.Return(value=value):
                self.returned.append(self.of(source, value) if value is not None else NONE)
            case cst.BaseExpression():
                self.of(source, node)
            case cst.WithItem(item=item):
                self.of(source, item)
            case _:
                for child in children(node):
                    self.run(source, child)

    def either(self, source: Source, ways: Sequence[cst.CSTNode | None]) -> None:
        before, ends = dict(self.env), []
        for way in ways:
            self.env = dict(before)
            if way is not None:
                self.run(source, way)
            ends.append(self.env)
        self.env = {}
        for name in {n for end in ends for n in end}:
            found = [end[name] for end in ends if name in end]
            node = next((w for w in ways if w is not None), None)
            self.env[name] = joined(found, self.mixed(source, node) if node is not None else found[0])

    def bind(self, source: Source, target: cst.CSTNode, kind: Kind, value: cst.BaseExpression) -> None:
        if isinstance(target, (cst.Tuple, cst.List)):
            parts = value.elements if isinstance(value, (cst.Tuple, cst.List)) else ()
            for i, element in enumerate(target.elements):
                one = parts[i].value if len(parts) == len(target.elements) else None
                self.bind(source, element.value, self.of(source, one) if one is not None else kind, one or value)
        elif isinstance(target, cst.Subscript):
            for name in bound_names(target):
                self.env[name] = joined([self.env.get(name, kind), kind], self.mixed(source, target))
        elif named(target):
            self.env[dotted(target)] = kind
            if kind.over in (Over.MEAN, Over.SUM):
                self.totals[id(target)] = (source, target, kind)

    # -- expressions ------------------------------------------------------------------------------------------

    def of(self, source: Source, node: cst.BaseExpression) -> Kind:
        """What an expression is over the rows."""
        why = self.mixed(source, node)
        match node:
            case cst.Name():
                return self.env.get(node.value, NONE)
            case cst.Attribute(value=owner, attr=cst.Name(value=name)):
                if dotted(node) in self.env:
                    return self.env[dotted(node)]
                kind = self.of(source, owner)
                if kind.over is Over.NONE or name in ("data", "shape", "dtype", "device", "real", "grad"):
                    return NONE if name in ("dtype", "device") else kind
                return why
            case cst.BinaryOperation(left=left, operator=operator, right=right):
                return self.operation(self.of(source, left), operator, self.of(source, right), why)
            case cst.UnaryOperation(expression=inner):
                return self.of(source, inner)
            case cst.Comparison(left=left, comparisons=comparisons):
                parts = [self.of(source, left), *(self.of(source, c.comparator) for c in comparisons)]
                return by_entry(parts, why)
            case cst.BooleanOperation(left=left, right=right):
                return joined([self.of(source, left), self.of(source, right)], why)
            case cst.IfExp(test=test, body=body, orelse=orelse):
                self.of(source, test)
                return joined([self.of(source, body), self.of(source, orelse)], why)
            case cst.Subscript():
                return self.item(source, node, why)
            case cst.Call():
                return self.call(source, node, why)
            case cst.Tuple(elements=elements) | cst.List(elements=elements):
                kinds = [self.of(source, e.value) for e in elements]
                rest = [k for k in kinds if k.over is not Over.NONE]
                return by_entry(rest, why, linear=True) if rest else NONE
            case cst.GeneratorExp(elt=elt, for_in=over) | cst.ListComp(elt=elt, for_in=over):
                kind = self.of(source, over.iter)
                self.bind(source, over.target, kind if kind.over is Over.NONE else why, over.iter)
                return self.of(source, elt)
            case cst.FormattedString() | cst.Lambda():
                return NONE
            case cst.NamedExpr(target=target, value=value):
                kind = self.of(source, value)
                self.bind(source, target, kind, value)
                return kind
        found = [self.env[n] for n in read_names(node) if n in self.env and self.env[n].over is not Over.NONE]
        return why if found else NONE

    def operation(self, a: Kind, operator: cst.BaseBinaryOp, b: Kind, why: Kind) -> Kind:
        if isinstance(operator, (cst.Add, cst.Subtract)):
            if a.over is b.over is Over.ROWS:
                self.by_row |= a.names | b.names
            return added(a, b, why)
        if isinstance(operator, cst.Multiply):
            return multiplied(a, b, why)
        if isinstance(operator, cst.Divide):
            return divided(a, b, why)
        if isinstance(operator, cst.MatrixMultiply):
            return a if b.over is Over.NONE and a.over in (Over.ROWS, Over.NONE) else why
        return by_entry([a, b], why)

    def item(self, source: Source, node: cst.Subscript, why: Kind) -> Kind:
        base = self.of(source, node.value)
        inner = [self.index(source, e.slice) for e in node.slice]
        first = node.slice[0].slice
        if base.mixed:
            return base
        if base.over is Over.NONE:
            return by_entry(inner, why)
        shape = isinstance(node.value, cst.Attribute) and node.value.attr.value == "shape"
        if shape:
            return COUNT if isinstance(first, cst.Index) and number(first.value) == 0 else NONE
        if any(k.over is not Over.NONE for k in inner):
            return self.mixed(source, node, "{} picks rows, and of each rank's rows it picks another number")
        full = isinstance(first, cst.Slice) and first.lower is None and first.upper is None and first.step is None
        outputs = isinstance(node.value, cst.Call)  # autograd.grad(...)[0], net(x)[0]
        if full or outputs or (isinstance(first, cst.Index) and dotted(first.value) == "Ellipsis"):
            return base
        return self.mixed(source, node, "{} takes some of the rows")

    def index(self, source: Source, part: cst.BaseSlice) -> Kind:
        if isinstance(part, cst.Index):
            return self.of(source, part.value)
        limits = [p for p in (part.lower, part.upper) if p is not None] if isinstance(part, cst.Slice) else []
        return by_entry([self.of(source, p) for p in limits], self.mixed(source, part))

    # -- calls ------------------------------------------------------------------------------------------------

    def call(self, source: Source, node: cst.Call, why: Kind) -> Kind:
        if id(node) in self.backwards and isinstance(node.func, cst.Attribute):
            self.losses[id(node)] = self.of(source, node.func.value)
            return NONE
        called = self.facts.flow.values.get(node.func, ())
        given = [(a.keyword.value if a.keyword else "", self.of(source, a.value)) for a in node.args]
        funcs = [o for o in called if isinstance(o, Func)]
        if isinstance(node.func, cst.Attribute) and node.func.attr.value == "step":
            for arg in node.args:  # optimizer.step(closure)
                for func in self.facts.flow.values.get(arg.value, ()):
                    if isinstance(func, Func):
                        self.follow(func, [], why)
            return NONE
        nets = [n for o in called for n in _networks(o)]
        if isinstance(node.func, cst.Attribute) and node.func.attr.value == "forward":
            nets += [n for o in self.facts.flow.values.get(node.func.value, ()) for n in _networks(o)]
        if nets:
            return joined([self.network(source, n, node, given, why) for n in nets], why)
        if funcs:
            return joined([self.follow(f, given, why) for f in funcs], why)
        return self.outside(source, node, given, why)

    def network(self, source: Source, net: Module, node: cst.Call, given: list[tuple[str, Kind]], why: Kind) -> Kind:
        kinds = [k for _, k in given]
        if role_of(net.name) == "loss-module":
            made = net.site.node
            return self.loss(net.name, made if isinstance(made, cst.Call) else None, given, why, net)
        if all(k.over is Over.NONE for k in kinds):
            return self.mixed(source, node, "{} computes a batch that is none of these rows")
        trained = any(n is net for n in self.facts.roles.trained)
        if net.cls is not None and not trained and not net.has_parameters:
            found = [self.follow(f, given, why) for f in net.cls.member("forward") if isinstance(f, Func)]
            return joined(found, why)
        mixed = mixes_rows(self.facts, net)
        if mixed is not None:
            return self.mixed(mixed.source, mixed.node, mixed.why)
        self.by_row.update(*(k.names for k in kinds))
        kind = by_entry(kinds, why)
        return kind if kind.mixed else ROWS

    def follow(self, func: Func, given: list[tuple[str, Kind]], why: Kind) -> Kind:
        """A function of the project: its statements, with its parameters for what they are given."""
        if self.depth >= _DEPTH or not isinstance(func.node, cst.FunctionDef):
            return why
        params = [p.name.value for p in (*func.node.params.posonly_params, *func.node.params.params)]
        if params and (func.bound is not None or params[0] == "self"):
            params = params[1:]
        outer, returned = self.env, self.returned
        mine = {p.name.value for p in func.node.params.params}
        self.env = {k: v for k, v in outer.items() if k.split(".")[0] not in mine or k.startswith("self.")}
        places = iter(params)
        for keyword, kind in given:
            name = keyword or next(places, "")
            if not name:
                self.env, self.returned = outer, returned
                return why
            self.env[name] = kind
        self.returned, self.depth = [], self.depth + 1
        self.run(func.source, func.node.body)
        found, self.returned, self.depth = self.returned, returned, self.depth - 1
        self.env = outer
        return joined(found, why)

    def loss(
        self, name: str, made: cst.Call | None, given: list[tuple[str, Kind]], why: Kind, net: Module | None
    ) -> Kind:
        """`F.cross_entropy(out, y)`, `criterion(out, y)`"""
        self.by_row.update(*(k.names for _, k in given))
        return of_loss(self.facts, name, made, given, why, net)

    def outside(self, source: Source, node: cst.Call, given: list[tuple[str, Kind]], why: Kind) -> Kind:
        """A function of torch or Python, or a method of a tensor."""
        called = self.facts.flow.values.get(node.func, ())
        ext = next((o.name for o in called if isinstance(o, Ext)), "")
        func = node.func
        name = func.attr.value if isinstance(func, cst.Attribute) else dotted(func)
        kinds = [k for _, k in given]
        if not ext and isinstance(func, cst.Attribute):
            owner = self.of(source, func.value)
            if owner.over is Over.NONE and all(k.over is Over.NONE for k in kinds):
                return NONE
            kinds = [owner, *kinds]
        if role_of(ext) == "loss":
            return self.loss(ext, node, given, why, None)
        if role_of(ext) == "random" and all(k.over is Over.NONE for k in kinds):
            return self.mixed(source, node, "{} draws numbers for all rows at once")
        if ext.endswith("autograd.grad"):
            self.of_inputs = True
            wanted = {kinds[0].over, kinds[1].over} if len(kinds) > 1 else set()
            self.by_row.update(*(k.names for k in kinds))
            return ROWS if wanted in ({Over.ROWS}, {Over.SUM, Over.ROWS}) and kinds[1].over is Over.ROWS else why
        if all(k.over is Over.NONE for k in kinds):
            return NONE
        return of_function(node, name, ext, kinds, why)


def _networks(obj: object) -> Iterator[Module]:
    if isinstance(obj, Module):
        yield obj
    elif isinstance(obj, Wrapped):
        yield from (m for m in obj.module if isinstance(m, Module))
