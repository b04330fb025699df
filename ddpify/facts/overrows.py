"""Two values of a training step and what is done with them in, what the result is over the rows out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
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

    @property
    def mixed(self) -> bool:
        return self.over is Over.MIXED


NONE, ROWS, MEAN, SUM, COUNT = (Kind(o) for o in (Over.NONE, Over.ROWS, Over.MEAN, Over.SUM, Over.COUNT))
_TOTALS = (Over.MEAN, Over.SUM)


def added(a: Kind, b: Kind, why: Kind) -> Kind:
    """`a + b`, `a - b`"""
    kinds = {a.over, b.over}
    if kinds == {Over.NONE} or (len(kinds) == 1 and a.over is not Over.COUNT):
        return a
    if Over.MIXED in kinds:
        return a if a.mixed else b
    if kinds in ({Over.ROWS, Over.NONE}, {Over.MEAN, Over.NONE}):
        return ROWS if Over.ROWS in kinds else MEAN
    if Over.SUM in kinds and Over.ROWS not in kinds:
        return Kind(Over.MIXED, why.source, why.node, "{} adds a sum over the rows and something that is none")
    return why


def multiplied(a: Kind, b: Kind, why: Kind) -> Kind:
    """`a * b`"""
    kinds = {a.over, b.over}
    if Over.MIXED in kinds:
        return a if a.mixed else b
    if Over.NONE in kinds:
        return b if a.over is Over.NONE else a
    if kinds == {Over.ROWS}:
        return ROWS
    return SUM if kinds == {Over.MEAN, Over.COUNT} else why


def divided(a: Kind, b: Kind, why: Kind) -> Kind:
    """`a / b`"""
    if a.mixed or b.mixed:
        return a if a.mixed else b
    if b.over is Over.NONE:
        return a
    if b.over is Over.ROWS and a.over in (Over.ROWS, Over.NONE):
        return ROWS
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
        return Kind(Over.ROWS, names=frozenset().union(*(k.names for k in found)), flat=any(k.flat for k in found))
    if linear and len(overs) == 1:
        return next(k for k in found if k.over in overs)
    return why


def joined(kinds: Iterable[Kind], why: Kind) -> Kind:
    """A value that is one of several."""
    found = list(kinds)
    if not found:
        return NONE
    mixed = next((k for k in found if k.mixed), None)
    return mixed or (found[0] if len({k.over for k in found}) == 1 else why)


def reduced(kind: Kind, how: str, why: Kind) -> Kind:
    """`a.mean()` and `a.sum()` over all, or over the rows."""
    if kind.mixed or kind.over is Over.NONE:
        return kind
    if how == "mean":
        return kind if kind.over in _TOTALS else MEAN if kind.over is Over.ROWS else why
    if how == "sum":
        return kind if kind.over in _TOTALS else SUM if kind.over is Over.ROWS else why
    return why
