"""`x[...]` and a turn of `for part in x` in, where the rows of `x` lie in what is picked out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.contents import data_of
from ddpify.facts.overrows import COUNT, EACH, NONE, Kind, Over, joined
from ddpify.facts.reshaped import place, whole_number
from ddpify.source import dotted

if TYPE_CHECKING:
    from ddpify.facts import Facts

_SOME = "{} takes some of the rows"
_PICKED = "{} picks rows, and of each rank's rows it picks another number"


def turn(kind: Kind, why: Kind) -> Kind:
    """What a loop over it gives at each turn, and each name of `a, b = x`."""
    if kind.items:
        return joined(kind.items, why)
    if kind.many or kind.over in (Over.NONE, Over.MIXED):
        return replace(kind, many=False)
    if kind.over is Over.ROWS:
        rank = None if kind.rank is None else kind.rank - 1
        return replace(kind, axis=kind.axis - 1, rank=rank) if kind.axis else replace(EACH, names=kind.names)
    return why


def unpacked(kind: Kind, at: int, size: int, why: Kind) -> Kind:
    """The part of `a, b, c = x` that one of the names gets."""
    if kind.items:
        return kind.items[at] if len(kind.items) == size else joined(kind.items, why)
    if kind.over is Over.SHAPE:
        return COUNT if at == kind.axis else NONE
    # of a model's output it is not known what it is made of, and the rows of a tensor are not given names
    return turn(kind, why) if kind.axis or kind.many else kind


def picked(facts: Facts, node: cst.Subscript, base: Kind, inner: Sequence[Kind], why: Kind) -> Kind:
    """`x[:, -1]`, `x[-1]`, `x[i]`, `(a, b)[0]`"""
    parts = [e.slice for e in node.slice]
    first = parts[0]
    single = whole_number(facts, first.value) if isinstance(first, cst.Index) and len(parts) == 1 else None
    if base.over is Over.SHAPE:
        if not isinstance(single, int):
            return why
        return COUNT if place(base, single) == base.axis else NONE
    if base.items:
        inside = isinstance(single, int) and -len(base.items) <= single < len(base.items)
        return base.items[single] if inside and isinstance(single, int) else joined(base.items, why)
    if base.many:
        return base if isinstance(first, cst.Slice) else replace(base, many=False)
    return _of_tensor(facts, parts, base, inner, why)


def _of_tensor(facts: Facts, parts: Sequence[cst.BaseSlice], base: Kind, inner: Sequence[Kind], why: Kind) -> Kind:
    axis, rank = -1, base.rank
    at = out = 0  # the dimension that comes next, of the tensor and of the result
    for i, (part, kind) in enumerate(zip(parts, inner, strict=True)):
        if kind.mixed:
            return kind
        if (isinstance(part, cst.Index) and dotted(part.value) == "Ellipsis") or _is_dots(part):
            left = sum(1 for p in parts[i + 1 :] if not _is_none(p))
            if base.axis >= at and (rank is None or base.axis < rank - left):
                axis = out + base.axis - at
            if base.rank is None and (at > base.axis or base.axis):
                return why
            step = (base.rank - left - at) if base.rank is not None else 1
            at, out = at + step, out + step
        elif _is_none(part):
            out, rank = out + 1, None if rank is None else rank + 1
        elif isinstance(part, cst.Slice):
            full = part.lower is None and part.upper is None and part.step is None
            if at == base.axis and not full:
                return replace(why, why=_SOME)
            axis = out if at == base.axis else axis
            at, out = at + 1, out + 1
        elif kind.over is Over.EACH:
            return replace(EACH, names=base.names) if at == base.axis else why
        elif kind.over is not Over.NONE:
            return replace(why, why=_PICKED)
        elif at == base.axis:
            return replace(why, why=_SOME)
        else:
            scalar = isinstance(part, cst.Index) and _is_number(facts, part.value)
            if not scalar and at < base.axis:
                return why
            rank = None if rank is None or not scalar else rank - 1
            at += 1
    axis = axis if axis >= 0 else out + base.axis - at
    return replace(base, axis=axis, rank=rank) if axis >= 0 else why


def _is_none(part: cst.BaseSlice) -> bool:
    return isinstance(part, cst.Index) and isinstance(part.value, cst.Name) and part.value.value == "None"


def _is_dots(part: cst.BaseSlice) -> bool:
    return isinstance(part, cst.Index) and isinstance(part.value, cst.Ellipsis)


def _is_number(facts: Facts, node: cst.BaseExpression) -> bool:
    """Not a tensor of places, which would keep the dimension."""
    if isinstance(whole_number(facts, node), int):
        return True
    held = data_of(facts.flow.values.get(node, ()))
    return held is not None and held.form == "int"


def counted(name: str, kinds: list[Kind], why: Kind) -> Kind:
    """`range(len(rows))`, `enumerate(rows)`, `zip(rows, others)`: what a loop over it gives is told by its parts."""
    mixed = next((k for k in kinds if k.mixed), None)
    if mixed is not None:
        return mixed
    if name == "range":
        rows = kinds[-1].over is Over.COUNT and not kinds[-1].flat and len(kinds) < 3
        return Kind(Over.EACH, many=True) if rows and all(k.over is Over.NONE for k in kinds[:-1]) else why
    parts = [turn(k, why) for k in kinds]
    if name == "enumerate":
        parts = [EACH if parts[0].over is Over.EACH else NONE, parts[0]]
    if len({p.over is Over.EACH for p in parts}) > 1 and any(p.over is Over.ROWS for p in parts):
        return why
    one = Kind(next((p.over for p in parts if p.over is not Over.NONE), Over.NONE), items=tuple(parts))
    return Kind(one.over, items=(one,)) if name != "reversed" else replace(kinds[0], names=frozenset())
