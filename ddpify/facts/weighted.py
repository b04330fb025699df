"""Training loops in, losses that divide by the weights of their own batch out: class weights, ignored places, masks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.contents import constants, data_of, origins
from ddpify.facts.frames import Event
from ddpify.facts.values import FromBatch, FromForward, Module, Value
from ddpify.source import Source, walk

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
    for p in facts.roles.passes:
        source = p.start.frame.source
        for node in walk(p.loop.node) if p.training else ():
            if isinstance(node, cst.BinaryOperation) and id(node) not in done and _is_masked(facts, node):
                done.add(id(node))
                yield source, node, f"`{source.code(node.right)}`"


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


def _is_masked(facts: Facts, node: cst.BinaryOperation) -> bool:
    """`(loss * mask).sum() / mask.sum()`"""
    if not isinstance(node.operator, cst.Divide):
        return False
    left, right = (facts.flow.values.get(side, ()) for side in (node.left, node.right))
    above, below = data_of(left), data_of(right)
    if above is None or below is None or above.agg != "sum" or below.agg not in ("sum", "other"):
        return False
    return any(isinstance(o, FromForward) and not o.cut for o in origins(left)) and _of_batch(right)


def _of_batch(value: Value) -> bool:
    return any(isinstance(o, (FromBatch, FromForward)) for o in origins(value))
