"""Two values of a training step and what is done with them in, what the result is over the rows out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

import libcst as cst

from ddpify.source import Source


class Over(Enum):
    """What a value is over the rows of the tensors that a step trains on."""

    #: the same on all ranks: parameters, numbers of the script
    NONE = "none"
    #: one entry, or more, for each row
    ROWS = "rows"
    MEAN = "mean"
    SUM = "sum"
    #: how many rows there are: of one rank, where the rows are shared out
    COUNT = "count"
    #: the shape of a tensor of rows, which has their number in it
    SHAPE = "shape"
    #: one row, or its number, in a loop over the rows
    EACH = "each"
    #: computed from several rows in another way, or not followed
    MIXED = "mixed"


@dataclass(frozen=True, eq=False)
class Kind:
    """What a value is over the rows; and where it was mixed, in words."""

    over: Over
    source: Source | None = None
    node: cst.CSTNode | None = None
    why: str = ""
    #: the tensors of rows that it is, in another shape
    names: frozenset[str] = frozenset()
    #: rows of several entries, put behind one another: `out.view(-1, classes)` of (rows, time, classes)
    flat: bool = False
    #: the dimension that runs along the rows, and how many dimensions there are, where that is known
    axis: int = 0
    rank: int | None = None
    #: of (time, rows, classes): the rows of one time behind those of another
    steps: bool = False
    #: a list of such tensors, and what its parts are where they differ
    many: bool = False
    items: tuple[Kind, ...] = ()
    #: the argument of a training forward that it is, where it is none of the rows
    given: cst.BaseExpression | None = None
    #: `None`
    absent: bool = False

    @property
    def mixed(self) -> bool:
        return self.over is Over.MIXED


ABSENT = Kind(Over.NONE, absent=True)
NONE, ROWS, MEAN, SUM, COUNT, EACH = (
    Kind(o) for o in (Over.NONE, Over.ROWS, Over.MEAN, Over.SUM, Over.COUNT, Over.EACH)
)
_TOTALS = (Over.MEAN, Over.SUM)


def aligned(kinds: Iterable[Kind], why: Kind) -> Kind:
    """What tensors of rows and others give entry by entry: their rows have to lie along one dimension."""
    found = list(kinds)
    rows = [k for k in found if k.over is Over.ROWS]
    rank = max((k.rank for k in found if k.rank is not None), default=None)
    ends = {k.rank - k.axis if k.rank is not None else None for k in rows}
    known = None not in ends
    if len(ends if known else {k.axis for k in rows}) > 1:
        return replace(why, why="{} takes rows that lie along different dimensions together")
    if len({k.steps for k in rows if k.flat}) > 1:
        return replace(why, why="{} takes rows that are flattened in different orders together")
    end = next(iter(ends))
    axis = rank - end if known and rank is not None and end is not None else rows[0].axis
    names, flat = frozenset[str]().union(*(k.names for k in rows)), any(k.flat for k in rows)
    return Kind(
        Over.ROWS, names=names, flat=flat, axis=axis, rank=rank if known else None, steps=any(k.steps for k in rows)
    )


def added(a: Kind, b: Kind, why: Kind) -> Kind:
    """`a + b`, `a - b`"""
    kinds = {a.over, b.over}
    if Over.MIXED in kinds:
        return a if a.mixed else b
    if kinds == {Over.ROWS} or kinds == {Over.ROWS, Over.NONE}:
        return aligned((a, b), why)
    if kinds == {Over.NONE} or (len(kinds) == 1 and a.over is not Over.COUNT):
        return a
    if kinds == {Over.MEAN, Over.NONE} or kinds == {Over.EACH, Over.NONE}:
        return MEAN if Over.MEAN in kinds else EACH
    if Over.SUM in kinds and Over.ROWS not in kinds:
        return Kind(Over.MIXED, why.source, why.node, "{} adds a sum over the rows and something that is none")
    return why


def multiplied(a: Kind, b: Kind, why: Kind) -> Kind:
    """`a * b`"""
    kinds = {a.over, b.over}
    if Over.MIXED in kinds:
        return a if a.mixed else b
    if kinds == {Over.ROWS} or kinds == {Over.ROWS, Over.NONE}:
        return aligned((a, b), why)
    if Over.NONE in kinds:
        other = b if a.over is Over.NONE else a
        return replace(other, flat=True) if other.over is Over.COUNT else other  # rows times entries
    if kinds == {Over.EACH}:
        return EACH
    return SUM if kinds == {Over.MEAN, Over.COUNT} else why


def divided(a: Kind, b: Kind, why: Kind) -> Kind:
    """`a / b`"""
    if a.mixed or b.mixed:
        return a if a.mixed else b
    if Over.ROWS in (a.over, b.over) and {a.over, b.over} <= {Over.ROWS, Over.NONE}:
        return aligned((a, b), why)
    if b.over is Over.NONE or a.over is b.over is Over.EACH:
        return a
    return MEAN if (a.over, b.over) == (Over.SUM, Over.COUNT) else why


def by_entry(kinds: Iterable[Kind], why: Kind, linear: bool = False) -> Kind:
    """A function that works entry by entry: `exp(a)`, `where(a, b, c)`; of a mean only where it is a linear one."""
    found = list(kinds)
    mixed = next((k for k in found if k.mixed), None)
    if mixed is not None:
        return mixed
    overs = {k.over for k in found} - {Over.NONE}
    if not overs:
        return NONE
    if overs == {Over.ROWS}:
        return aligned(found, why)
    if overs == {Over.EACH}:
        return replace(EACH, names=frozenset().union(*(k.names for k in found)))
    if linear and len(overs) == 1:
        return next(k for k in found if k.over in overs)
    return why


def joined(kinds: Iterable[Kind], why: Kind) -> Kind:
    """A value that is one of several."""
    found = list(kinds)
    if not found:
        return NONE
    mixed = next((k for k in found if k.mixed), None)
    if mixed is not None:
        return mixed
    if any(k.items for k in found):
        sizes = {len(k.items) for k in found}
        if len(sizes) > 1:
            return why
        parts = tuple(joined(ways, why) for ways in zip(*(k.items for k in found), strict=True))
        return next((p for p in parts if p.mixed), None) or replace(found[0], items=parts)
    alike = len({(k.over, k.axis, k.steps and k.flat) for k in found}) == 1
    if not alike:
        return why
    ranks = {k.rank for k in found}
    names = frozenset[str]().union(*(k.names for k in found))
    flat = any(k.flat for k in found)
    return replace(found[0], rank=ranks.pop() if len(ranks) == 1 else None, names=names, flat=flat)


def reduced(kind: Kind, how: str, why: Kind) -> Kind:
    """`a.mean()` and `a.sum()` over all, or over the rows."""
    if kind.mixed or kind.over is Over.NONE:
        return kind
    if how == "mean":
        return kind if kind.over in _TOTALS else MEAN if kind.over is Over.ROWS else why
    if how == "sum":
        return kind if kind.over in _TOTALS else SUM if kind.over is Over.ROWS else why
    return why
