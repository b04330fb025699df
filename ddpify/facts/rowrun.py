"""The statements of a training step in, what each name is over the rows of its tensors out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.dependencies import bound_names, named
from ddpify.facts.overrows import NONE, ROWS, SUM, Kind, Over, added, divided, joined, multiplied
from ddpify.facts.picked import turn, unpacked
from ddpify.source import Source, children, dotted

if TYPE_CHECKING:
    from ddpify.facts import Facts


class Run:
    """Runs statements once, in their order; what expressions are is told by the class that extends it."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.env: dict[str, Kind] = {}
        #: the names that get a mean or a sum over the rows
        self.totals: dict[int, tuple[Source, cst.CSTNode, Kind]] = {}
        self.returned: list[Kind] = []

    def of(self, source: Source, node: cst.BaseExpression) -> Kind:
        raise NotImplementedError

    def mixed(self, source: Source, node: cst.CSTNode, why: str = "") -> Kind:
        return Kind(Over.MIXED, source, node, why)

    def run(self, source: Source, node: cst.CSTNode) -> None:
        """A statement, or all statements of a block."""
        match node:
            case cst.FunctionDef() | cst.ClassDef():
                return
            case cst.Assign(targets=targets, value=value):
                grown = self.grown(source, node)
                kind = self.of(source, value) if grown is None else grown
                for target in targets:
                    self.bind(source, target.target, kind, value)
            case cst.AnnAssign(target=target, value=cst.BaseExpression() as value):
                self.bind(source, target, self.of(source, value), value)
            case cst.AugAssign(target=target, operator=operator, value=value):
                old, new, why = self.of(source, target), self.of(source, value), self.mixed(source, node)
                if isinstance(operator, cst.AddAssign):
                    kind = self.more(old, new, why)
                elif isinstance(operator, cst.SubtractAssign):
                    kind = added(old, new, why)
                elif isinstance(operator, cst.MultiplyAssign):
                    kind = multiplied(old, new, why)
                else:
                    kind = divided(old, new, why) if isinstance(operator, cst.DivideAssign) else why
                self.bind(source, target, kind, value)
            case cst.If(test=test, body=body, orelse=orelse):
                self.of(source, test)
                known = self.is_none(test)
                self.either(source, [body, orelse] if known is None else [body] if known else [orelse])
            case cst.For(target=target, iter=over, body=body):
                kind = self.of(source, over)
                for _ in range(2):
                    self.bind(source, target, turn(kind, self.mixed(source, over)), over)
                    self.run(source, body)
                for name in [n for n, k in self.env.items() if k.over is Over.EACH]:
                    self.env[name] = self.mixed(source, node)  # the last row is another on each rank
            case cst.Return(value=value):
                self.returned.append(self.of(source, value) if value is not None else NONE)
            case cst.BaseExpression():
                self.of(source, node)
            case cst.WithItem(item=item):
                self.of(source, item)
            case _:
                for child in children(node):
                    self.run(source, child)

    def grown(self, source: Source, node: cst.Assign) -> Kind | None:
        """`loss = loss + criterion(out[i], y[i])`, which is `loss += ...`"""
        value, target = node.value, node.targets[0].target
        if not isinstance(value, cst.BinaryOperation) or not isinstance(value.operator, cst.Add):
            return None
        if len(node.targets) > 1 or not named(target) or dotted(value.left) != dotted(target):
            return None
        return self.more(self.of(source, value.left), self.of(source, value.right), self.mixed(source, node))

    def more(self, old: Kind, new: Kind, why: Kind) -> Kind:
        """`total += x`: of each row in a loop over the rows it is their sum; a list gets more parts."""
        if new.over is Over.EACH and old.over in (Over.NONE, Over.SUM):
            return SUM
        if old.many or new.many or new.items:
            return self.longer(old, turn(new, why), why)
        return added(old, new, why)

    def longer(self, old: Kind, part: Kind, why: Kind) -> Kind:
        """A list with one more part."""
        if part.over is Over.EACH:
            return ROWS  # one entry for each row
        part = replace(part, names=frozenset()) if part.items else replace(part, many=True)
        if old.over is Over.NONE:
            return part if not part.items else Kind(part.over, many=True, axis=part.axis)
        return joined([old, part], why) if not part.items else old

    def is_none(self, test: cst.BaseExpression) -> bool | None:
        """`if state is None:`, where it is known whether it is."""
        if not isinstance(test, cst.Comparison) or not named(test.left) or len(test.comparisons) != 1:
            return None
        other = test.comparisons[0]
        if not isinstance(other.operator, (cst.Is, cst.IsNot)) or dotted(other.comparator) != "None":
            return None
        kind = self.env.get(dotted(test.left))
        if kind is None or not (kind.absent or kind.over is Over.ROWS):
            return None
        return kind.absent is isinstance(other.operator, cst.Is)

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
            self.env[name] = joined(found, self.mixed(source, node)) if node is not None else found[0]

    def bind(self, source: Source, target: cst.CSTNode, kind: Kind, value: cst.BaseExpression) -> None:
        if isinstance(target, (cst.Tuple, cst.List)):
            parts = value.elements if isinstance(value, (cst.Tuple, cst.List)) else ()
            size = len(target.elements)
            for i, element in enumerate(target.elements):
                one = parts[i].value if len(parts) == size else None
                why = self.mixed(source, value)
                part = self.of(source, one) if one is not None else unpacked(kind, i, size, why)
                self.bind(source, element.value, part, one or value)
        elif isinstance(target, cst.Subscript):
            for name in bound_names(target):
                self.env[name] = joined([self.env.get(name, kind), kind], self.mixed(source, target))
        elif named(target):
            self.env[dotted(target)] = kind
            if kind.over in (Over.MEAN, Over.SUM):
                self.totals[id(target)] = (source, target, kind)
