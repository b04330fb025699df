"""The expressions of a training step in, what they are over the rows of its tensors out."""

from __future__ import annotations

from dataclasses import replace

import libcst as cst

from ddpify.facts.axes import gives_tensor, product
from ddpify.facts.dependencies import read_names
from ddpify.facts.overrows import ABSENT, NONE, Kind, Over, added, by_entry, divided, joined, multiplied
from ddpify.facts.picked import picked, turn
from ddpify.facts.reshaped import SHAPING
from ddpify.facts.rowrun import Run
from ddpify.source import Source, dotted


class Expressions(Run):
    """What expressions are over the rows; what calls are is told by the class that extends it."""

    #: tensors that a model, a loss or a difference takes row by row
    by_row: set[str]

    def call(self, source: Source, node: cst.Call, why: Kind) -> Kind:
        raise NotImplementedError

    def of(self, source: Source, node: cst.BaseExpression) -> Kind:
        """What an expression is over the rows."""
        why = self.mixed(source, node)
        match node:
            case cst.Name():
                return ABSENT if node.value == "None" else self.env.get(node.value, NONE)
            case cst.Attribute(value=owner, attr=cst.Name(value=name)):
                if dotted(node) in self.env:
                    return self.env[dotted(node)]
                kind = self.of(source, owner)
                if kind.over is Over.ROWS and name in ("T", "mT"):
                    turned = replace(kind, axis=1 - kind.axis, rank=2)
                    return turned if kind.rank in (None, 2) and kind.axis < 2 and name == "T" else why
                if kind.over is Over.ROWS and name in ("shape", "values", "indices"):
                    shape = Kind(Over.SHAPE, axis=kind.axis, rank=kind.rank)
                    return shape if name == "shape" else turn(kind, why) if kind.many else why
                if kind.over is Over.NONE or name in ("data", "dtype", "device", "real", "grad"):
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
                mixed = next((k for k in rest if k.mixed), None)
                over = rest[0].over if rest else Over.NONE
                return mixed or Kind(over, items=tuple(kinds), names=frozenset().union(*(k.names for k in rest)))
            case cst.GeneratorExp(elt=elt, for_in=over) | cst.ListComp(elt=elt, for_in=over):
                self.bind(source, over.target, turn(self.of(source, over.iter), why), over.iter)
                return self.longer(NONE, self.of(source, elt), why)
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
            return a if a.over is b.over is Over.NONE else product(a, b, why)
        return by_entry([a, b], why)

    def item(self, source: Source, node: cst.Subscript, why: Kind) -> Kind:
        base = self.of(source, node.value)
        inner = [self.index(source, e.slice) for e in node.slice]
        if base.mixed:
            return base
        if base.over is Over.NONE and not base.items:
            return by_entry(inner, why) if not base.given else base
        if (
            isinstance(node.value, cst.Call)
            and base.over is Over.ROWS
            and not base.items
            and not self.turned(node.value)
        ):
            return base  # autograd.grad(...)[0], net(x)[0]
        return picked(self.facts, node, base, inner, why)

    def turned(self, call: cst.Call) -> bool:
        """`x.transpose(0, 1)[-1]`: of a tensor, not of several that a function gives."""
        name = call.func.attr.value if isinstance(call.func, cst.Attribute) else dotted(call.func)
        return name in SHAPING or gives_tensor(name)

    def index(self, source: Source, part: cst.BaseSlice) -> Kind:
        if isinstance(part, cst.Index):
            return self.of(source, part.value)
        limits = [p for p in (part.lower, part.upper) if p is not None] if isinstance(part, cst.Slice) else []
        return by_entry([self.of(source, p) for p in limits], self.mixed(source, part))
