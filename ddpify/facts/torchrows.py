"""A function of torch and what its arguments are over the rows in, what its result is over the rows out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.overrows import COUNT, MEAN, NONE, ROWS, SUM, Kind, Over, by_entry, reduced
from ddpify.facts.rowwise import BY_DIM, BY_ENTRY, PRODUCTS, SHAPES, dimension, number
from ddpify.facts.values import Const, Module

if TYPE_CHECKING:
    from ddpify.facts import Facts

_SHAPED = """
to cuda cpu float double half long int type type_as clone contiguous detach item requires_grad_ retain_grad numpy tolist
squeeze unsqueeze view reshape flatten expand from_numpy tensor as_tensor Variable neg
"""
#: functions and methods that give the same values in another shape or type, and what is linear
_SAME = frozenset(_SHAPED.split())
_MORE = """
cosh sinh tan tanh atan relu_ square logaddexp maximum minimum eq ne gt lt ge le sign round floor ceil logical_and
logical_or lerp log2 log10 rsqrt hypot xlogy isnan nan_to_num fill_ zero_ pairwise_distance cosine_similarity full_like
empty_like
"""
_ELEMENTWISE = BY_ENTRY | frozenset(_MORE.split())


def of_function(node: cst.Call, name: str, ext: str, kinds: list[Kind], why: Kind) -> Kind:
    """A function of torch or Python, or a method of a tensor, of values of which one at least is of the rows."""
    plain = bool(ext)
    first = kinds[0]
    if name in ("zeros", "ones", "full", "empty") and all(k.over in (Over.NONE, Over.COUNT) for k in kinds):
        return ROWS
    if name in ("len", "size", "numel"):
        other = [number(a.value) for a in node.args] if name == "size" else []
        return NONE if other and other[0] != 0 else COUNT
    if ext == "builtins.sum" or (name in ("mean", "sum") and not node.args[int(plain) :]):
        return first if ext == "builtins.sum" and first.over in (Over.MEAN, Over.SUM) else reduced(first, name, why)
    if ext.startswith("builtins."):
        return by_entry(kinds, why, linear=name in ("float", "print", "list", "tuple"))
    if name in ("cat", "concat", "stack", "hstack", "vstack") and first.over in (Over.MEAN, Over.SUM):
        return first
    if name in SHAPES and first.over is Over.ROWS:
        return why if any(k.mixed for k in kinds) else _shaped(node, name, first, kinds[1:], plain)
    if name in _SAME:
        return by_entry([k for k in kinds if k.over is not Over.COUNT], why, linear=True)
    if name in BY_DIM:
        along = dimension(node, plain)
        if along not in (0, None):
            return by_entry(kinds, why, linear=name in ("mean", "sum"))
        return reduced(first, name, why) if name in ("mean", "sum") else why
    if name in PRODUCTS:
        return kinds[0] if len(kinds) > 1 and kinds[1].over is Over.NONE else why
    along = [number(a.value) for a in node.args if a.keyword is not None and a.keyword.value in ("dim", "axis")]
    return by_entry(kinds, why) if name in _ELEMENTWISE and 0 not in along else why


def _shaped(node: cst.Call, name: str, first: Kind, sizes: list[Kind], plain: bool) -> Kind:
    """`y.view(-1)`: entry behind entry; `x.view(x.size(0), -1)`: row by row; of other shapes rows may become one."""
    given = [number(a.value) for a in node.args[int(plain) :]]
    flat = name in ("view", "reshape") and given[:1] == [-1]
    entries = flat and all(n == 1 for n in given[1:])
    rows = bool(sizes) and sizes[0].over is Over.COUNT
    return Kind(Over.ROWS, names=first.names if entries or rows else frozenset(), flat=first.flat or flat)


def of_loss(
    facts: Facts,
    name: str,
    made: cst.Call | None,
    given: list[tuple[str, Kind]],
    why: Kind,
    net: Module | None,
) -> Kind:
    """`F.cross_entropy(out, y)`, `criterion(out, y)`"""
    rows = [k for _, k in given if k.over is Over.ROWS]
    short = name.rsplit(".", 1)[-1].lower()
    by_class = "binary" not in short and any(n in short for n in ("crossentropy", "cross_entropy", "nll", "margin"))
    # classes are the second dimension of one argument, and the other has none
    kind = by_entry([replace(k, rank=None) if by_class else k for _, k in given], why)
    if by_class and any(k.axis == 1 for k in rows):
        return replace(why, why="{} takes the second dimension for classes, along which the rows lie")
    if kind.over is Over.EACH:
        return kind
    if kind.over is not Over.ROWS or any(k.over is Over.NONE for _, k in given[:2]):
        return kind if kind.mixed else why
    settings = {a.keyword.value: a.value for a in made.args if a.keyword is not None} if made is not None else {}
    how = _setting(facts, settings, net)
    if how in ("none", "sum"):
        return SUM if how == "sum" else ROWS
    weighs = "weight" in settings and ("cross_entropy" in short or "crossentropy" in short or "nll" in short)
    if net is not None and made is not None and ("crossentropy" in short or "nll" in short):
        weighs = weighs or any(a.keyword is None for a in made.args)
    if any(n == "pos_weight" and k.over is not Over.NONE for n, k in given):
        return why
    if (weighs and "binary" not in short) or "ignore_index" in settings:
        which = "ignore_index" if "ignore_index" in settings else "weight"
        text = f"{{}} divides by the weights of its rows (`{which}=`), and each rank has rows of other weights"
        return replace(why, why=text)
    if "ctc" in short or how not in ("mean", "batchmean"):
        return why
    return MEAN


def _setting(facts: Facts, settings: dict[str, cst.BaseExpression], net: Module | None) -> str:
    if net is not None:
        held = [o.value for o in net.fields.get("reduction", ()) if isinstance(o, Const)]
        return str(held[0]) if len(held) == 1 else "mean" if not held and not net.fields.get("reduction") else ""
    node = settings.get("reduction")
    if node is None:
        return "" if {"reduce", "size_average"} & set(settings) else "mean"
    held = [o.value for o in facts.flow.values.get(node, ()) if isinstance(o, Const)]
    return str(held[0]) if len(held) == 1 else ""
