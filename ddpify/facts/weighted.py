"""Training loops in, losses that divide by the weights of their own batch out: class weights, ignored places, masks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.contents import constants, data_of, is_of_batches, origins
from ddpify.facts.frames import Event
from ddpify.facts.values import Ext, FromForward, Func, Module
from ddpify.source import Source, dotted, walk

if TYPE_CHECKING:
    from ddpify.facts import Facts

_WEIGHED = re.compile(
    r"torch\.nn\.(modules\.\w+\.)?(CrossEntropyLoss|NLLLoss)|torch\.nn\.functional\.(cross_entropy|nll_loss)"
)


def weighted_losses(facts: Facts) -> Iterator[tuple[Source, cst.CSTNode, str]]:
    """Each with its place and what it divides by."""
    training = {id(p.loop.node) for p in facts.roles.passes if p.training}
    done: set[int] = set()
    for e in facts.flow.log.of("forward", "external"):
        if e.grad is False or e.seq >= facts.flow.main_end or id(e.node) in done:
            continue
        if any(id(lp.node) in training for loops in e.all_loops() for lp in loops) and (by := _divisor(facts, e)):
            done.add(id(e.node))
            yield e.frame.source, e.node, by
    for source, tree in _trained(facts, training):
        for node in walk(tree):
            if isinstance(node, cst.BinaryOperation) and id(node) not in done and _is_masked(facts, source, node):
                done.add(id(node))
                yield source, node, f"`{source.code(node.right)}`"


def _trained(facts: Facts, training: set[int]) -> Iterator[tuple[Source, cst.CSTNode]]:
    """The loops that train, and the functions of the project that are called in them (the forward of a loss, say)."""
    for p in facts.roles.passes:
        if p.training:
            yield p.start.frame.source, p.loop.node
    seen = set[int]()
    for e in facts.flow.log.of("call", "forward"):
        cls = e.obj.cls if isinstance(e.obj, Module) and e.kind == "forward" else None
        funcs = [e.callee.func] if e.callee is not None else cls.member("forward") if cls is not None else ()
        inside = any(id(lp.node) in training for loops in e.all_loops() for lp in loops)
        for func in funcs if inside and e.grad is not False and e.seq < facts.flow.main_end else ():
            if isinstance(func, Func) and id(func.node) not in seen:
                seen.add(id(func.node))
                yield func.source, func.node


def _divisor(facts: Facts, event: Event) -> str:
    made: cst.CSTNode = event.node
    name = event.name
    if event.kind == "forward":
        if not isinstance(event.obj, Module):
            return ""
        made, name = event.obj.site.node, event.obj.name
    if not isinstance(made, cst.Call) or not _WEIGHED.fullmatch(name):
        return ""
    named = {a.keyword.value: a.value for a in made.args if a.keyword is not None}
    if "reduction" in named and constants(facts.flow.values.get(named["reduction"], ())) != ["mean"]:
        return ""
    place = 0 if event.kind == "forward" else 2  # CrossEntropyLoss(weight), cross_entropy(out, y, weight)
    plain = [a for a in made.args if a.keyword is None]
    if "ignore_index" in named:
        return "the targets that are not ignored"
    weighs = "weight" in named and constants(facts.flow.values.get(named["weight"], ())) != [None]
    return "the weights of its classes" if weighs or len(plain) > place else ""


def _is_masked(facts: Facts, source: Source, node: cst.BinaryOperation) -> bool:
    """`(loss * mask).sum() / mask.sum()`"""
    if not isinstance(node.operator, cst.Divide) or _is_of_shape(source, node.right):
        return False
    left, right = (facts.flow.values.get(side, ()) for side in (node.left, node.right))
    funcs = (n.func for n in (node.left, *walk(node.left)) if isinstance(n, cst.Call))
    if any(isinstance(o, Ext) and o.name.startswith("numpy.") for f in funcs for o in facts.flow.values.get(f, ())):
        return False  # a metric: nothing flows back through numpy
    above, below = data_of(left), data_of(right)
    if above is None or below is None or above.agg != "sum" or below.agg not in ("sum", "other"):
        return False
    return any(isinstance(o, FromForward) and not o.cut for o in origins(left)) and is_of_batches(right)


def _is_of_shape(source: Source, node: cst.BaseExpression) -> bool:
    """`(n * c)` of `n, c, h, w = x.shape`: as much on every rank, but for the last batch."""
    owner = next((a for a in source.ancestors(node) if isinstance(a, cst.FunctionDef)), source.module)
    names = {n.value for n in (node, *walk(node)) if isinstance(n, cst.Name)}
    kept: dict[str, list[bool]] = {}
    for stmt in walk(owner):
        if not isinstance(stmt, cst.Assign):
            continue
        for t in stmt.targets:
            parts = [e.value for e in t.target.elements] if isinstance(t.target, cst.Tuple) else [t.target]
            for part in parts:
                kept.setdefault(dotted(part), []).append(_is_shape(stmt.value))
    return bool(names) and all(all(kept.get(n, [False])) for n in names)


def _is_shape(node: cst.CSTNode) -> bool:
    """`x.shape`, `x.size()`, `x.shape[0]`"""
    match node:
        case cst.Attribute(attr=cst.Name(value="shape")) | cst.Call(func=cst.Attribute(attr=cst.Name(value="size"))):
            return True
        case cst.Subscript(value=value):
            return _is_shape(value)
    return False
