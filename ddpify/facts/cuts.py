"""A loader in, the expression by which each rank cuts its own data out, where the shards may differ in length, out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.frames import Frame
from ddpify.facts.ranks import depends_on_rank
from ddpify.facts.shards import parts_of
from ddpify.facts.values import Ext, Loader
from ddpify.facts.worldsize import counts_ranks
from ddpify.source import Source

if TYPE_CHECKING:
    from ddpify.facts import Facts

_DATA = ("dataset", "sampler", "batch_sampler")
_SPLITS = frozenset({"torch.split", "torch.chunk", "torch.tensor_split", "numpy.array_split"})


def uneven_cut(facts: Facts, loader: Loader) -> tuple[cst.CSTNode, Source] | None:
    """`data[rank::world_size]`, `range(rank, len(data), world_size)`, with its file."""
    args = loader.call.args if loader.call is not None else ()
    kept = [a.value for a in args if a.keyword is None or a.keyword.value in _DATA]
    parts = (part for given in kept for part in parts_of(facts, given, loader.site.frame))
    return next(((node, frame.source) for node, frame in parts if _is_uneven(facts, node, frame)), None)


def _is_uneven(facts: Facts, node: cst.CSTNode, frame: Frame) -> bool:
    match node:
        case cst.Call(func=func, args=[cst.Arg(value=start), cst.Arg(value=end), cst.Arg(value=step)]):
            ours = any(isinstance(o, Ext) and o.name == "builtins.range" for o in facts.flow.values.get(func, ()))
            return ours and _strides(facts, start, step, frame) and not _trims(facts, end, frame)
        case cst.Subscript(slice=[cst.SubscriptElement(slice=cst.Slice(lower=lower, step=step, upper=upper))]):
            if lower is not None and step is not None:
                cut = upper is not None and _trims(facts, upper, frame)
                return _strides(facts, lower, step, frame) and not cut and not _trims(facts, node.value, frame)
            return lower is not None and depends_on_rank(lower, frame, facts.flow) and _rounds_up(facts, lower, frame)
        case cst.Subscript(value=cst.Call(func=func), slice=[cst.SubscriptElement(slice=cst.Index(value=index))]):
            splits = any(isinstance(o, Ext) and o.name in _SPLITS for o in facts.flow.values.get(func, ()))
            return splits and depends_on_rank(index, frame, facts.flow) and not _trims(facts, node.value, frame)
    return False


def _strides(facts: Facts, start: cst.CSTNode, step: cst.CSTNode, frame: Frame) -> bool:
    return depends_on_rank(start, frame, facts.flow) and counts_ranks(facts, step, frame)


def _trims(facts: Facts, node: cst.CSTNode, frame: Frame) -> bool:
    """`len(data) // world * world`, `n - n % world`: cut, or filled up, to a multiple."""
    cuts = (cst.FloorDivide, cst.Modulo)
    return any(
        (isinstance(n, cst.BinaryOperation) and isinstance(n.operator, cuts)) or _is_ceil(facts, n)
        for n, _ in (parts_of(facts, node, frame, 3) if isinstance(node, cst.BaseExpression) else ())
    )


def _rounds_up(facts: Facts, node: cst.BaseExpression, frame: Frame) -> bool:
    """`data[rank * size : (rank + 1) * size]` with `size = ceil(len(data) / world)`"""
    return any(_is_ceil(facts, n) and counts_ranks(facts, n, f) for n, f in parts_of(facts, node, frame, 3))


def _is_ceil(facts: Facts, node: cst.CSTNode) -> bool:
    held = facts.flow.values.get(node.func, ()) if isinstance(node, cst.Call) else ()
    return any(isinstance(o, Ext) and o.name in ("math.ceil", "numpy.ceil") for o in held)
