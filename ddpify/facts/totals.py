"""Means and sums over the rows of a step in, where they are shown, kept or decided by out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import libcst as cst

from ddpify.facts.dependencies import bindings, own_nodes, read_names
from ddpify.facts.overrows import Kind, Over
from ddpify.source import Source, dotted, walk

_NUMBERS = ("item", "numpy", "tolist")


@dataclass(frozen=True, eq=False)
class Use:
    """`loss.item()`, `float(loss)`, `loss < best`: a number; `losses.append(loss)`, `loss.detach()`: a tensor."""

    node: cst.BaseExpression
    tensor: bool


@dataclass(frozen=True, eq=False)
class Total:
    """A name that holds a mean or a sum over one rank's rows, and is used for more than the training."""

    source: Source
    name: str
    over: Over
    #: the statement that gives it its value
    bind: cst.CSTNode
    uses: tuple[Use, ...]

    def reads_in(self, loop: cst.CSTNode) -> list[cst.CSTNode]:
        """`while loss > 0.01:` around the statement that binds it."""
        inside = isinstance(loop, cst.While) and any(n is self.bind for n in walk(loop.body))
        if not inside or not isinstance(loop, cst.While):
            return []
        return [loop.test] if self.name in read_names(loop.test) else []


def made_alike(found: Iterable[Total]) -> set[int]:
    """The expressions and tests that go by the number of all rows once the totals are reduced."""
    known: set[int] = set()
    for total in found:
        for use in total.uses:
            for node in (use.node, *total.source.ancestors(use.node)):
                if isinstance(node, cst.BaseSmallStatement):
                    break
                known.add(id(node))
                if isinstance(node, cst.BaseCompoundStatement):
                    break
    return known


def totals(
    found: Iterable[tuple[Source, cst.CSTNode, Kind]], trains: Callable[[Source, cst.CSTNode], bool]
) -> Iterator[Total]:
    """Each such name, by the statement that binds it; `trains` knows the statements that lead to the backward."""
    for source, target, kind in found:
        bind = next(a for a in source.ancestors(target) if isinstance(a, cst.BaseSmallStatement))
        name, scope = dotted(target), _scope(source, target)
        uses = [
            u
            for u in _uses(source, scope, name)
            if not trains(source, u.node) and _bound_by(source, scope, name, u, bind)
        ]
        tested = [n for n in source.ancestors(target) if isinstance(n, cst.While) and name in read_names(n.test)]
        if (uses or tested) and trains(source, target):
            yield Total(source, name, kind.over, bind, tuple(uses))


def _scope(source: Source, node: cst.CSTNode) -> cst.CSTNode:
    function = next((a for a in source.ancestors(node) if isinstance(a, cst.FunctionDef)), None)
    return function.body if function is not None else source.module


def _bound_by(source: Source, scope: cst.CSTNode, name: str, use: Use, bind: cst.CSTNode) -> bool:
    """Whether a statement is the last in the text that gave a name its value."""
    start = source.span(use.node).start
    before = [b.node for b in bindings(scope) if name in b.targets and source.span(b.node).end <= start]
    return bool(before) and max(before, key=lambda n: source.span(n).start) is bind


def _uses(source: Source, scope: cst.CSTNode, name: str) -> Iterator[Use]:
    for node in own_nodes(scope):
        if not isinstance(node, (cst.Name, cst.Attribute)) or dotted(node) != name or not _is_read(source, node):
            continue
        outer, number = _whole(source, node)
        yield Use(outer, not number and _is_kept(source, outer))


def _is_read(source: Source, node: cst.CSTNode) -> bool:
    parent = source.parents.get(node)
    if isinstance(parent, cst.Attribute):
        return parent.value is node
    if isinstance(parent, cst.Arg):
        return parent.keyword is not node
    return not isinstance(parent, (cst.AssignTarget, cst.AnnAssign, cst.AugAssign, cst.Del, cst.Global)) or (
        isinstance(parent, (cst.AnnAssign, cst.AugAssign)) and parent.value is node
    )


def _whole(source: Source, node: cst.BaseExpression) -> tuple[cst.BaseExpression, bool]:
    """All of `loss.detach().cpu().item()` and `float(loss)`, and whether that is a number."""
    while True:
        parent = source.parents.get(node)
        if isinstance(parent, cst.Attribute) and parent.value is node:
            call = source.parents.get(parent)
            if parent.attr.value == "data":
                node = parent
                continue
            if isinstance(call, cst.Call) and call.func is parent and not call.args:
                if parent.attr.value in _NUMBERS:
                    return call, True
                if parent.attr.value in ("detach", "cpu", "clone"):
                    node = call
                    continue
        elif isinstance(parent, cst.Arg):
            call = source.parents.get(parent)
            if isinstance(call, cst.Call) and dotted(call.func) == "float" and len(call.args) == 1:
                return call, True
        return node, False


def _is_kept(source: Source, node: cst.BaseExpression) -> bool:
    """`losses.append(loss)`, `best = loss`, `return loss`, `print(loss)`: what wants a tensor, or shows one."""
    parent = source.parents.get(node)
    if isinstance(parent, cst.Arg):
        call = source.parents.get(parent)
        name = call.func.attr.value if isinstance(call, cst.Call) and isinstance(call.func, cst.Attribute) else ""
        return name not in ("step", "format")
    if isinstance(parent, cst.Element):
        above = source.parents.get(source.parents.get(parent) or parent)
        return not isinstance(above, cst.BinaryOperation)
    return not isinstance(parent, (cst.Comparison, cst.FormattedStringExpression, cst.BinaryOperation))


def within(nodes: Iterable[cst.CSTNode]) -> set[int]:
    """The identities of nodes and all below them."""
    return {id(n) for node in nodes for n in (node, *walk(node))}
