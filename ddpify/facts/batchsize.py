"""An expression in, whether it is the size of a loader's batches, and what a sum is that it is multiplied into, out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.contents import constants, data_of
from ddpify.facts.frames import Frame
from ddpify.facts.operators import combined
from ddpify.facts.sharding import loader_facts
from ddpify.facts.values import Heap, Loader, Obj
from ddpify.source import walk

if TYPE_CHECKING:
    from ddpify.facts import Facts


def relation(facts: Facts, loader: Obj, frame: Frame, node: cst.BaseExpression, agg: str) -> str:
    """How an expression relates to the samples of one rank's batch, where a factor of it is the size of the batches.

    `loss.item() * args.batch_size` is a sum over the samples as `loss.item() * len(x)` is, `hits / loader.batch_size` a
    mean. A size that stands for all ranks together (`--global-batch keep`) is any number.
    """
    if not isinstance(loader, Loader) or not any(_counts(facts, loader, frame, n) for n in (node, *walk(node))):
        return agg
    return _of(facts, loader, frame, node)


def _of(facts: Facts, loader: Loader, frame: Frame, node: cst.BaseExpression) -> str:
    if _counts(facts, loader, frame, node):
        return "size"
    if isinstance(node, cst.BinaryOperation):
        sides = (_of(facts, loader, frame, side) for side in (node.left, node.right))
        return combined(type(node.operator).__name__, *sides)
    known = data_of(facts.flow.values.get(node, ()))
    return known.agg if known is not None else "other"


def _counts(facts: Facts, loader: Loader, frame: Frame, node: cst.CSTNode) -> bool:
    """Whether a number is that of the samples in one rank's batches."""
    if is_own(facts, loader, node):
        return True
    return facts.global_batch != "keep" and is_given(facts, loader, frame, node)


def is_own(facts: Facts, loader: Loader, node: cst.CSTNode) -> bool:
    """`loader.batch_size`"""
    named = isinstance(node, cst.Attribute) and node.attr.value == "batch_size"
    return named and isinstance(node, cst.Attribute) and loader in facts.flow.values.get(node.value, ())


def is_given(facts: Facts, loader: Loader, frame: Frame, node: cst.CSTNode) -> bool:
    """The number that the loader was given as its batch size."""
    if not isinstance(node, (cst.Name, cst.Attribute, cst.Subscript, cst.Integer)):
        return False
    known = loader_facts(facts, loader)
    size = known.batch_size if known is not None else None
    if size is None:
        return False
    numbers = constants(loader.arguments.get("batch_size", ()))
    if numbers is not None and len(numbers) == 1:
        return constants(facts.flow.values.get(node, ())) == numbers
    here = origin_of(facts, frame, node)
    return here is not None and here == origin_of(facts, loader.site.frame, size)


def is_named(facts: Facts, loader: Obj, frame: Frame, node: cst.CSTNode) -> bool:
    """The variable that the loader was given as its batch size, not just the same number."""
    known = loader_facts(facts, loader) if isinstance(loader, Loader) else None
    if known is None or known.batch_size is None or not isinstance(node, (cst.Name, cst.Attribute, cst.Subscript)):
        return False
    here = origin_of(facts, frame, node)
    return here is not None and here == origin_of(facts, known.loader.site.frame, known.batch_size)


def origin_of(facts: Facts, frame: Frame, node: cst.CSTNode | None) -> tuple[object, ...] | None:
    """Where a number comes from: the statement that bound its name, or the object and its field."""
    match node:
        case cst.Name(value=name) if name in frame.arguments and name not in frame.assigned:
            entry = frame.entries[0] if len(frame.entries) == 1 else None
            return origin_of(facts, entry.frame, frame.arguments[name]) if entry is not None else None
        case cst.Name(value=name):
            holder = frame.scope.holder(name)
            bound = holder.bound_at.get(name) if holder is not None else None
            if isinstance(bound, cst.Assign) and isinstance(bound.value, (cst.Name, cst.Attribute)):
                return origin_of(facts, frame, bound.value)
            return (bound, name) if bound is not None else None  # a, b = 1, 2
        case cst.Attribute(value=base, attr=cst.Name(value=field)):
            held = [o for o in facts.flow.values.get(base, ()) if isinstance(o, Heap)]
            return (held[0], field) if len(held) == 1 else None
        case cst.Subscript(value=base):
            held = [o for o in facts.flow.values.get(base, ()) if isinstance(o, Heap)]
            return (held[0], frame.source.code(node).partition("[")[2]) if len(held) == 1 else None
    return None
