"""A call that gives a tensor another shape in, along which of its dimensions the rows lie then out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.contents import constants
from ddpify.facts.overrows import COUNT, NONE, Kind, Over
from ddpify.facts.rowwise import number

if TYPE_CHECKING:
    from ddpify.facts import Facts

FIXED = "fixes the number of rows, and each rank has rows of its own"
_TURNS = ("transpose", "swapaxes", "swapdims")


@dataclass(frozen=True, eq=False)
class Given:
    """A call: its name, and each argument with what it is over the rows; a method's own tensor is the first."""

    facts: Facts
    node: cst.Call
    name: str
    #: of the tensor, then of the arguments in their order
    kinds: Sequence[Kind]
    #: the arguments in their order, without the tensor
    rest: Sequence[cst.BaseExpression]
    named: dict[str, tuple[cst.BaseExpression, Kind]]
    why: Kind

    def refused(self, why: str = "") -> Kind:
        return replace(self.why, why=why) if why else self.why

    def dim(self, *names: str, at: int = 0) -> int | list[int] | None:
        """The `dim` of a call, by keyword or position."""
        node = next((self.named[n][0] for n in names if n in self.named), None)
        node = node if node is not None else self.rest[at] if at < len(self.rest) else None
        return whole_number(self.facts, node) if node is not None else None


def whole_number(facts: Facts, node: cst.BaseExpression) -> int | list[int] | None:
    """`1`, `-1`, `(0, 2)`, or a name that is one of these numbers."""
    if isinstance(node, (cst.Tuple, cst.List)):
        parts = [whole_number(facts, e.value) for e in node.elements]
        return [p for p in parts if isinstance(p, int)] if all(isinstance(p, int) for p in parts) else None
    found = number(node)
    known = [found] if found is not None else constants(facts.flow.values.get(node, ())) or []
    return known[0] if len(known) == 1 and isinstance(known[0], int) and not isinstance(known[0], bool) else None


def place(kind: Kind, dim: int) -> int | None:
    """A dimension counted from the first; None of one that is counted from the last and is not the rows'."""
    if dim >= 0:
        return dim
    if kind.rank is not None:
        return kind.rank + dim
    return None if kind.axis == 0 else kind.axis  # of an unknown number of dimensions it may be the rows'


def without(kind: Kind, dims: Sequence[int]) -> Kind:
    """A tensor with some of its dimensions left out."""
    places = [place(kind, d) for d in dims]
    before = sum(1 for p in places if p is not None and p < kind.axis)
    return replace(kind, axis=kind.axis - before, rank=None if kind.rank is None else kind.rank - len(dims))


def _turned(call: Given, first: Kind) -> Kind:
    a, b = call.dim("dim0", "axis0", at=0), call.dim("dim1", "axis1", at=1)
    if not isinstance(a, int) or not isinstance(b, int):
        return call.refused()
    one, two = place(first, a), place(first, b)
    if first.rank is None and (one is None or two is None) and first.axis in (one, two):
        return call.refused("{} swaps the rows with a dimension that could not be counted")
    axis = two if one == first.axis else one if two == first.axis else first.axis
    if first.rank is None and a < 0 and b < 0:
        axis = first.axis
    return call.refused() if axis is None else replace(first, axis=axis)


def _permuted(call: Given, first: Kind) -> Kind:
    dims = call.dim("dims", at=0) if len(call.rest) == 1 else [whole_number(call.facts, n) for n in call.rest]
    if not isinstance(dims, list) or not all(isinstance(d, int) for d in dims):
        return call.refused()
    places = [d % len(dims) for d in dims if isinstance(d, int)]
    if first.axis not in places:
        return call.refused()
    return replace(first, axis=places.index(first.axis), rank=len(places))


def _unsqueezed(call: Given, first: Kind) -> Kind:
    dim = call.dim("dim", "axis")
    if not isinstance(dim, int):
        return call.refused()
    rank = None if first.rank is None else first.rank + 1
    at = dim if dim >= 0 else rank + dim if rank is not None else first.axis + 1
    return replace(first, axis=first.axis + (at <= first.axis), rank=rank)


def _squeezed(call: Given, first: Kind) -> Kind:
    dim = call.dim("dim", "axis")
    if not call.rest and not call.named:
        return replace(first, rank=None) if first.axis == 0 else call.refused()
    if not isinstance(dim, int) or (dim < 0 and first.rank is None and first.axis != 0):
        return call.refused()
    if place(first, dim) == first.axis:
        return call.refused("{} takes the rows' own dimension away, which works with a single row only")
    return without(first, [dim])


def _flattened(call: Given, first: Kind) -> Kind:
    plain = call.name == "ravel" or (not call.rest and not call.named)
    start, end = call.dim("start_dim", at=0), call.dim("end_dim", at=1)
    start = 0 if plain or start is None else start
    end = -1 if end is None else end
    if not isinstance(start, int) or not isinstance(end, int) or start < 0:
        return call.refused()
    if start > first.axis:
        known = end == -1 or first.rank is not None
        size = (end if end >= 0 else (first.rank or 0) + end) - start if first.rank is not None else 0
        return replace(first, rank=first.rank - size if first.rank is not None and known else None)
    if start == first.axis == 0:
        return replace(first, flat=True, rank=None if end != -1 else 1)
    if start == 0 and end in (1, -1) and first.axis == 1:
        return replace(first, axis=0, flat=True, steps=True, rank=1 if end == -1 else None)
    return call.refused()


def _viewed(call: Given, first: Kind) -> Kind:
    """`x.view(x.size(0), -1)`, `out.view(-1, classes)`"""
    sizes, nodes = list(call.kinds[1:]), list(call.rest)
    if len(nodes) == 1 and isinstance(nodes[0], (cst.Tuple, cst.List)):
        nodes = [e.value for e in nodes[0].elements]
        sizes = list(sizes[0].items)
    if len(sizes) != len(nodes) or not sizes or any(k.mixed for k in sizes):
        return call.refused()
    if sizes[0].over is Over.SHAPE and len(sizes) == 1:
        return Kind(Over.ROWS, axis=sizes[0].axis, rank=sizes[0].rank)
    counted = [i for i, k in enumerate(sizes) if k.over is Over.COUNT]
    numbers = [whole_number(call.facts, n) for n in nodes]
    rank = len(sizes)
    if first.axis == 0 and not first.steps:
        if counted == [0] or (numbers[0] == -1 and not counted):
            return replace(first, rank=rank, flat=numbers[0] == -1 or sizes[0].flat)
        return call.refused("" if counted else f"{{}} {FIXED}")
    if not first.steps:
        return _viewed_behind(call, first, counted, numbers, nodes)
    if counted == [1] and not sizes[1].flat:
        return replace(first, axis=1, rank=rank, flat=False, steps=False)
    return replace(first, rank=1) if numbers == [-1] and first.rank == 2 else call.refused()


def _viewed_behind(
    call: Given,
    first: Kind,
    counted: list[int],
    numbers: Sequence[int | list[int] | None],
    nodes: Sequence[cst.BaseExpression],
) -> Kind:
    """Of (time, rows, features): `h.view(layers, batch, -1)`; `out.view(-1, out.size(-1))`."""
    rank = len(nodes)
    if counted == [first.axis] and not call.kinds[1 + first.axis].flat and -1 not in numbers[: first.axis]:
        return replace(first, rank=rank)
    behind = numbers[0] == -1 and (rank == 1 or (rank == 2 and _is_last(nodes[1], first)))
    behind = behind or (counted == [0] and numbers[1:] == [-1] and _is_times(nodes[0]))
    if first.axis != 1 or not behind:
        why = f"{{}} may make one row of parts of several: the rows lie along dimension {first.axis}"
        return call.refused(why)
    return replace(first, axis=0, rank=rank, flat=True, steps=True)


def _is_times(node: cst.BaseExpression) -> bool:
    """`x.size(0) * x.size(1)`"""
    sides = (node.left, node.right) if isinstance(node, cst.BinaryOperation) else ()
    dims = [number(s.args[0].value) for s in sides if isinstance(s, cst.Call) and len(s.args) == 1]
    return sorted(map(str, dims)) == ["0", "1"]


def _is_last(node: cst.BaseExpression, first: Kind) -> bool:
    """`out.size(-1)`, `out.shape[2]`"""
    dims = [-1] if first.rank is None else [-1, first.rank - 1]
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value == "size":
        return len(node.args) == 1 and number(node.args[0].value) in dims
    if isinstance(node, cst.Subscript) and isinstance(node.value, cst.Attribute) and node.value.attr.value == "shape":
        at = node.slice[0].slice
        return isinstance(at, cst.Index) and number(at.value) in dims
    return False


def _grown(call: Given, first: Kind) -> Kind:
    """`x.expand(-1, n, k)`, `mask.repeat(1, heads, 1, 1)`: the rows stay as many."""
    sizes, nodes = list(call.kinds[1:]), list(call.rest)
    if len(nodes) == 1 and isinstance(nodes[0], (cst.Tuple, cst.List)):
        nodes, sizes = [e.value for e in nodes[0].elements], list(sizes[0].items)
    rank = first.rank if first.rank is not None else len(nodes)
    at = first.axis + len(nodes) - rank
    if not 0 <= at < len(nodes) or len(sizes) != len(nodes):
        return call.refused()
    held = sizes[at].over is Over.COUNT or number(nodes[at]) == -1 if call.name == "expand" else number(nodes[at]) == 1
    if not held or any(k.over is Over.COUNT for i, k in enumerate(sizes) if i != at):
        return call.refused()
    return replace(first, axis=at, rank=len(nodes))


def _flipped(call: Given, first: Kind) -> Kind:
    return replace(first, axis=1 - first.axis, rank=2) if first.rank in (None, 2) and first.axis < 2 else call.refused()


def _asked(call: Given, first: Kind) -> Kind:
    """`x.size(0)`, `len(x)`, `x.size()`"""
    if call.name == "len":
        return COUNT if first.axis == 0 else NONE
    if call.name in ("dim", "ndimension"):
        return NONE
    if call.name == "numel":
        return COUNT
    dim = call.dim("dim")
    if dim is None:
        return call.refused() if call.rest else Kind(Over.SHAPE, axis=first.axis, rank=first.rank)
    if isinstance(dim, int) and dim < 0 and first.rank is None and first.axis != 0:
        return call.refused()
    return COUNT if isinstance(dim, int) and place(first, dim) == first.axis else NONE


SHAPING: dict[str, Callable[[Given, Kind], Kind]] = {
    **dict.fromkeys(_TURNS, _turned),
    **dict.fromkeys(("view", "reshape"), _viewed),
    **dict.fromkeys(("expand", "repeat"), _grown),
    **dict.fromkeys(("flatten", "ravel"), _flattened),
    **dict.fromkeys(("size", "len", "numel", "dim", "ndimension"), _asked),
    "permute": _permuted,
    "unsqueeze": _unsqueezed,
    "squeeze": _squeezed,
    "t": _flipped,
}
