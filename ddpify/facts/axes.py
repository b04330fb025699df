"""A call of torch or numpy and what its arguments are over the rows in, where the result's rows lie out.

Where a function would compute one row from another, or may, the result says so.
"""

from __future__ import annotations

from dataclasses import replace

import libcst as cst

from ddpify.facts.overrows import NONE, Kind, Over, aligned, by_entry, joined, reduced
from ddpify.facts.reshaped import SHAPING, Given, place, without
from ddpify.facts.rowwise import BY_ENTRY

_MORE = """
masked_fill masked_fill_ eq ne gt lt ge le sign round floor ceil maximum minimum logical_and logical_or byte neg fill_
zero_ from_numpy as_tensor numpy data requires_grad_ retain_grad cosh sinh tan atan relu_ tanh_ sigmoid_ lerp log2 log10
rsqrt isnan nan_to_num expand_as view_as type_as zeros_like ones_like rand_like randn_like empty_like full_like
bernoulli
"""
_PLACES = """
conv1d conv2d conv3d max_pool1d max_pool2d avg_pool1d avg_pool2d adaptive_avg_pool1d adaptive_avg_pool2d interpolate pad
batch_norm max_unpool2d
"""
#: functions that take rows first, and the dimension behind them for channels
_ROWS_FIRST = frozenset(_PLACES.split())
_OTHERS = frozenset({"append", "linear", "layer_norm", "embedding", "one_hot"}) | frozenset(SHAPING)
_ENTRYWISE = (BY_ENTRY | frozenset(_MORE.split())) - _ROWS_FIRST - _OTHERS
_MAKES = frozenset(
    {"zeros", "ones", "empty", "full", "randn", "rand", "new_zeros", "new_ones", "new_empty", "new_full", "new"}
)
_ALONG = frozenset({"softmax", "log_softmax", "cumsum", "flip", "sort", "topk", "gather", "scatter", "normalize"})
_PICKS = frozenset({"max", "min", "median", "mode"})
_MEANS = """
sum mean argmax argmin norm std var logsumexp amax amin prod any all
"""
_REDUCES = _PICKS | frozenset(_MEANS.split())
_PARTS = frozenset({"chunk", "split", "unbind"})
_JOINS = frozenset({"cat", "concat", "concatenate", "stack"})
_PRODUCTS = frozenset({"matmul", "bmm", "mm", "mv", "dot", "inner"})


def gives_tensor(name: str) -> bool:
    """Not several, as `x.max(1)` and `x.chunk(2)` do."""
    return name in _JOINS | _PRODUCTS | _ENTRYWISE | (_REDUCES - _PICKS) | {"softmax", "log_softmax", "einsum"}


def of_axes(call: Given) -> Kind:
    """What a function of tensors gives, of which one at least has rows."""
    name, first = call.name, call.kinds[0]
    shape = SHAPING.get(name)
    if name in _MAKES:
        return _made(call)
    if name in _JOINS:
        return _joins(call)
    if name in _PRODUCTS and len(call.kinds) > 1:
        return product(call.kinds[0], call.kinds[1], call.refused(), batched=name == "bmm")
    if name == "einsum":
        return _einsum(call)
    if name == "where" and len(call.kinds) > 2:
        return by_entry(call.kinds, call.refused())
    if first.over is not Over.ROWS:
        if name in ("expand", "repeat") and first.over is Over.NONE:
            return _made(call)
        return by_entry(call.kinds, call.refused()) if name in _ENTRYWISE else call.refused()
    if shape is not None:
        return shape(call, first)
    if name in _ALONG:
        return _along(call, first)
    if name in _PARTS:
        along = call.dim("dim", "axis", at=0 if name == "unbind" else 1)
        along = 0 if along is None and not call.named else along
        if not isinstance(along, int) or place(first, along) == first.axis:
            return call.refused()
        part = without(first, [along]) if name == "unbind" else first
        return replace(part, many=True)
    if name in _REDUCES:
        return reduce_along(call, first)
    if name in ("triu", "tril"):
        return first if first.rank is not None and first.axis < first.rank - 2 else call.refused()
    if name in ("linear", "layer_norm"):
        return first if first.axis == 0 or (first.rank is not None and first.axis < first.rank - 1) else call.refused()
    if name in ("embedding", "one_hot"):
        return replace(first, rank=None if first.rank is None else first.rank + 1)
    if name in _ROWS_FIRST:
        return first if first.axis == 0 else call.refused()
    return by_entry(call.kinds, call.refused()) if name in _ENTRYWISE else call.refused()


def _along(call: Given, first: Kind) -> Kind:
    """`softmax(dim)`: each row by itself where the dimension is another than the rows'."""
    at = 1 if call.name == "topk" else 0
    along = call.dim("dim", "axis", "dims", at=at)
    if along is None and not any(k in call.named for k in ("dim", "axis", "dims")) and len(call.rest) <= at:
        last = call.name in ("sort", "topk")
        along = -1 if last else 1 if call.name in ("softmax", "log_softmax", "normalize") and first.rank != 3 else 0
    dims = along if isinstance(along, list) else [along]
    if any(d is None or place(first, d) == first.axis for d in dims):
        return call.refused()
    others = [k for k in call.kinds if k.over is Over.ROWS]
    if call.name in ("gather", "scatter"):
        return aligned(others, call.refused())
    return replace(first, many=True) if call.name in ("sort", "topk") else first


def reduce_along(call: Given, first: Kind) -> Kind:
    """`x.mean(1)`, `x.max(dim=1)`; without a dimension over all entries."""
    along = call.dim("dim", "axis", at=1 if call.name == "norm" else 0)
    if along is None:
        if call.rest or call.named.keys() & {"dim", "axis"} or call.name not in ("mean", "sum"):
            return (
                by_entry(call.kinds, call.refused())
                if call.name in ("max", "min") and _tensors(call)
                else call.refused()
            )
        return reduced(first, call.name, call.refused())
    dims = along if isinstance(along, list) else [along]
    if any(place(first, d) == first.axis for d in dims):
        return reduced(first, call.name, call.refused()) if call.name in ("mean", "sum") else call.refused()
    kept = "keepdim" in call.named or "keepdims" in call.named or len(call.rest) > 1
    return replace(first if kept else without(first, dims))


def _tensors(call: Given) -> bool:
    return len(call.kinds) > 1 and all(k.over is Over.ROWS for k in call.kinds)


# ---- making, joining, multiplying ----------------------------------------------------------------------------


def _made(call: Given) -> Kind:
    """`torch.zeros(layers, x.size(0), hidden)`: rows lie where their number stands."""
    method = call.name in ("expand", "repeat", "new_zeros", "new_ones", "new_empty", "new_full", "new")
    sizes = list(call.kinds[1:] if method else call.kinds)
    if sizes and sizes[0].items:
        sizes = list(sizes[0].items)
    if "size" in call.named:
        sizes = list(call.named["size"][1].items) or [call.named["size"][1]]
    if sizes and sizes[0].over is Over.SHAPE:
        return Kind(Over.ROWS, axis=sizes[0].axis, rank=sizes[0].rank)
    counted = [i for i, k in enumerate(sizes) if k.over is Over.COUNT]
    if len(counted) == 1 and not sizes[counted[0]].flat and all(k.over in (Over.NONE, Over.COUNT) for k in sizes):
        return Kind(Over.ROWS, axis=counted[0], rank=len(sizes))
    return NONE if not counted and call.kinds[0].over is Over.ROWS and call.name.startswith("new") else call.refused()


def _joins(call: Given) -> Kind:
    """`torch.cat((a, b), dim=1)`, `torch.stack(outputs)`"""
    first = call.kinds[0]
    if first.items:
        parts = list(first.items)
    elif first.many:
        parts = [replace(first, many=False)]
    else:
        return first if first.over in (Over.ROWS, Over.MEAN, Over.SUM) else call.refused()
    totals = {p.over for p in parts}
    if len(totals) == 1 and totals <= {Over.MEAN, Over.SUM}:
        return parts[0]
    if totals != {Over.ROWS}:
        why = "{} puts rows beside something that has as many for every number of processes"
        return next((p for p in parts if p.mixed), None) or call.refused(why)
    part = joined(parts, call.refused())
    along = call.dim("dim", "axis") if call.rest or call.named else 0
    if part.mixed or not isinstance(along, int):
        return part if part.mixed else call.refused()
    if call.name == "stack":
        rank = None if part.rank is None else part.rank + 1
        at = along if along >= 0 else rank + along if rank is not None else part.axis + 1
        return replace(part, axis=part.axis + (at <= part.axis), rank=rank)
    return call.refused() if place(part, along) == part.axis else part


def product(a: Kind, b: Kind, why: Kind, batched: bool = False) -> Kind:
    """`a @ b`: of two stacks of matrices, those of each row; of rows and a matrix, each row's product."""
    if a.mixed or b.mixed:
        return a if a.mixed else b
    if a.over is Over.ROWS and b.over is Over.NONE and not batched:
        inner = a.axis != 0 and (a.rank is None or a.axis >= a.rank - 1)
        return why if inner or (a.rank == 1) else a
    if a.over is Over.NONE and b.over is Over.ROWS and not batched:
        stacked = b.rank is not None and b.axis < b.rank - 2
        return b if stacked else why
    if a.over is b.over is Over.ROWS and a.axis == b.axis:
        ranks = [3, 3] if batched else [a.rank, b.rank]
        if all(r is not None and a.axis < r - 2 for r in ranks) and ranks[0] == ranks[1]:
            return Kind(Over.ROWS, axis=a.axis, rank=ranks[0])
    return why


def _einsum(call: Given) -> Kind:
    """`torch.einsum("bij,bjk->bik", a, b)`: the letter of the rows has to be in each, and in the result."""
    text = call.node.args[0].value
    code = str(text.evaluated_value).replace(" ", "") if isinstance(text, cst.SimpleString) else ""
    sides = code.split("->")
    letters = sides[0].split(",")
    kinds = call.kinds[1:]
    if len(sides) != 2 or len(letters) != len(kinds) or "." in code or not any(k.over is Over.ROWS for k in kinds):
        return call.refused()
    rows = {w[k.axis] if k.axis < len(w) else "" for w, k in zip(letters, kinds, strict=True) if k.over is Over.ROWS}
    letter = next(iter(rows))
    shared = any(letter in w for w, k in zip(letters, kinds, strict=True) if k.over is not Over.ROWS)
    if len(rows) != 1 or not letter or shared or sides[1].count(letter) != 1:
        return call.refused()
    return Kind(Over.ROWS, axis=sides[1].index(letter), rank=len(sides[1]))
