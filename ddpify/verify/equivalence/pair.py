"""Two traces -> their losses, gradients, rates and parameters side by side, and how near is equal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from ..trace import RankTrace, Trace
from .events import Gradients, Initial, Loss, Order, OwnOrder, Parameters, Rates, Sketch
from .plan import joined, orders

#: relative; the second is contract 2.4's for scripts that do not run in float64
DOUBLE, SINGLE = 1e-9, 1e-5


@dataclass(frozen=True)
class LossPair:
    """The n-th backward pass: of each rank, and of the one process."""

    number: int
    step: int
    at: str | None
    ranks: tuple[float | None, ...]
    one: float | None

    @property
    def mean(self) -> float | None:
        """What DistributedDataParallel makes of the ranks' losses."""
        known = [value for value in self.ranks if value is not None]
        return math.fsum(known) / len(known) if len(known) == len(self.ranks) else None


@dataclass(frozen=True)
class Difference:
    """A tensor, or a number, that is not the same in both."""

    optimizer: int
    step: int
    names: tuple[str, ...]
    worst: float  # relative to the size of all gradients (parameters) together, or of the number
    ratio: float | None = None  # ranks to one process, where it is the same for every tensor


@dataclass(frozen=True)
class Pair:
    """A run on ranks, and one of a single process on the ranks' batches together."""

    ranks: Trace
    one: Trace
    double: bool
    scale: float = 1.0  # what the losses of the one process were multiplied by
    footing: str = ""  # how else it was made to take the losses as the ranks do

    @property
    def world(self) -> int:
        return self.ranks.world

    @property
    def tolerance(self) -> float:
        return DOUBLE if self.double else SINGLE

    def near(self, a: float, b: float) -> bool:
        """Equal, but for the order of sums; what is not finite is equal to itself."""
        if not (math.isfinite(a) and math.isfinite(b)):
            return a == b or (math.isnan(a) and math.isnan(b))
        return abs(a - b) <= self.tolerance * max(abs(a), abs(b)) + self.tolerance * 1e-3

    @cached_property
    def first(self) -> RankTrace:
        return self.ranks.ranks[0]

    @cached_property
    def other(self) -> RankTrace:
        return self.one.ranks[0]

    @cached_property
    def names(self) -> dict[int, tuple[str, ...]]:
        """What the original calls each optimizer's parameters."""
        return {event.optimizer: event.names for event in self.other.of(Initial)}

    @cached_property
    def losses(self) -> list[LossPair]:
        by_rank = [rank.of(Loss) for rank in self.ranks.ranks]
        found = []
        for one, *ranks in zip(self.other.of(Loss), *by_rank, strict=False):
            values = tuple(r.value for r in ranks)
            found.append(LossPair(one.number, one.step, ranks[0].at, values, one.value))
        return found

    @cached_property
    def sizes(self) -> list[list[int]]:
        """How many samples each rank had at each batch of its training passes, one behind the other."""
        return [counts for passes in orders(self.ranks).values() for counts in joined(passes)[1]]

    def unequal(self, loss: LossPair) -> list[int]:
        """The sizes of the ranks' batches, where the loss of one process is the ranks' by how many samples each has."""
        sizes = self.sizes[loss.number - 1] if len(self.sizes) >= loss.number else []
        values = [value for value in loss.ranks if value is not None]
        if len(set(sizes)) < 2 or len(values) != len(sizes) or loss.one is None:
            return []
        weighted = math.fsum(n * v for n, v in zip(sizes, values, strict=True)) / sum(sizes)
        return sizes if self.near(weighted, loss.one) else []

    @cached_property
    def padding(self) -> float:
        """How many of the samples that the ranks read in an epoch were padding, at most, as a share."""
        return max((e.extra / e.size for e in self.other.of(OwnOrder) if e.size), default=0.0)

    @cached_property
    def batch_sizes(self) -> set[int]:
        """Of the ranks' loaders."""
        return {o.batch_size for o in self.first.of(Order) if o.batch_size is not None}

    @property
    def factor(self) -> float:
        """How many times the original's own batch the ranks' batches together are."""
        sizes = {loader: sum(p.batch_size or 0 for p in ps) for (loader, _), ps in orders(self.ranks).items()}
        own = {e.loader: e.batch_size for e in self.other.of(OwnOrder) if e.batch_size}
        return next((sizes[k] / n for k, n in own.items() if n and sizes.get(k)), 1.0)

    def rates(self) -> Iterator[tuple[Rates, Rates]]:
        return zip(self.first.of(Rates), self.other.of(Rates), strict=False)

    def initial(self) -> Difference | None:
        """The first optimizer whose parameters did not begin alike."""
        mine = {event.optimizer: event for event in self.first.of(Initial)}
        for event in self.other.of(Initial):
            if event.optimizer in mine:
                found = self._differ(mine[event.optimizer].sketches, event.sketches, event.optimizer, 0)
                if found is not None:
                    return found
        return None

    def other_order(self, optimizer: int) -> bool:
        """Does an optimizer not hold the original's parameters, one behind the other?"""
        mine = {event.optimizer: event.names for event in self.first.of(Initial)}
        return mine.get(optimizer) != self.names.get(optimizer)

    def gradients(self, only: int | None = None) -> Difference | None:
        """The first step whose gradients differ (`only`: look at that one of each optimizer)."""
        for mine, theirs in zip(self.first.of(Gradients), self.other.of(Gradients), strict=False):
            if only is None or theirs.step == only:
                found = self._differ(mine.sketches, theirs.sketches, theirs.optimizer, theirs.step)
                if found is not None:
                    return found
        return None

    def between_ranks(self) -> bool:
        """Do the ranks step by different gradients?"""
        first = [rank.of(Gradients)[:3] for rank in self.ranks.ranks]
        return any(
            self._differ(a.sketches, b.sketches, 0, 0) is not None
            for r in first[1:]
            for a, b in zip(first[0], r, strict=False)
        )

    def parameters(self, *, settled: bool = False) -> Difference | None:
        """The first optimizer whose parameters do not end alike; `settled`: but for what has no gradient."""
        mine = {event.optimizer: event for event in self.first.of(Parameters)}
        for event in self.other.of(Parameters):
            if event.optimizer in mine:
                pair = mine[event.optimizer], event
                ours, theirs = (e.settled if settled and e.settled else e.sketches for e in pair)
                found = self._differ(ours, theirs, event.optimizer, 0)
                if found is not None:
                    return found
        return None

    def _differ(self, mine: Sequence[Sketch], theirs: Sequence[Sketch], optimizer: int, step: int) -> Difference | None:
        known = self.names.get(optimizer, ())
        whole = math.sqrt(math.fsum(t[0] ** 2 for t in theirs if t is not None and math.isfinite(t[0])))
        wrong, worst, ratios = list[str](), 0.0, list[float]()
        for i, (a, b) in enumerate(zip(mine, theirs, strict=False)):
            name = known[i] if i < len(known) else f"parameter {i}"
            off = _off(a, b, max(1e-6 * whole, b[0] if b is not None else 0.0))
            if off > self.tolerance * 10:
                wrong.append(name)
                worst = max(worst, off)
            if a is not None and b is not None and b[0] > 1e-9 * whole:
                ratios += [a[0] / b[0], a[1] / b[1] if abs(b[1]) > 1e-3 * b[0] else a[0] / b[0]]
        if len(mine) != len(theirs):
            wrong.append(f"{len(mine)} parameters instead of {len(theirs)}")
        if not wrong:
            return None
        alike = bool(ratios) and max(ratios) - min(ratios) <= 1e-6 * abs(ratios[0])
        return Difference(optimizer, step, tuple(wrong), worst, ratios[0] if alike else None)


def _off(a: Sketch, b: Sketch, scale: float) -> float:
    if a is None or b is None:
        return 0.0 if _nothing(a) and _nothing(b) else math.inf
    off = max(abs(x - y) for x, y in zip(a, b, strict=True))
    if not math.isfinite(off):
        return 0.0 if [repr(x) for x in a] == [repr(y) for y in b] else math.inf
    return off / scale if scale else (math.inf if off else 0.0)


def _nothing(sketch: Sketch) -> bool:
    """No gradient, or none but zeros: DistributedDataParallel makes zeros of what a rank did not use."""
    return sketch is None or sketch[0] == 0.0
