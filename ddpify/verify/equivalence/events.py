"""What a run that is compared with another writes down -> the events of its trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ..trace import Event

#: length of a tensor, and its product with a fixed vector; None: there is none
Sketch = Sequence[float] | None


@dataclass(frozen=True, kw_only=True)
class Loss(Event):
    """A backward pass began; `value` is None where it did not begin at one number."""

    kind: ClassVar[str] = "loss"
    number: int
    step: int = 0
    value: float | None = None


@dataclass(frozen=True, kw_only=True)
class Weighed(Event):
    """A training loss divides by the weights of its batch, which came from several ranks."""

    kind: ClassVar[str] = "weighed"


@dataclass(frozen=True, kw_only=True)
class Rates(Event):
    """The learning rates of an optimizer's groups as it steps; `fed`: a loader gave a batch since the step before."""

    kind: ClassVar[str] = "rates"
    number: int
    optimizer: int
    rates: tuple[float | None, ...]
    fed: bool = True


@dataclass(frozen=True, kw_only=True)
class Initial(Event):
    """What an optimizer's parameters are called, and what they were before its first step."""

    kind: ClassVar[str] = "initial"
    optimizer: int
    names: tuple[str, ...]
    sketches: tuple[Sketch, ...]


@dataclass(frozen=True, kw_only=True)
class Gradients(Event):
    """The gradients that an optimizer steps by."""

    kind: ClassVar[str] = "gradients"
    optimizer: int
    step: int
    sketches: tuple[Sketch, ...]


@dataclass(frozen=True, kw_only=True)
class Parameters(Event):
    """An optimizer's parameters in the end; `settled`: without the elements whose gradient was rounding only."""

    kind: ClassVar[str] = "parameters"
    optimizer: int
    sketches: tuple[Sketch, ...]
    settled: tuple[Sketch, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Schedule(Event):
    """How many steps a learning rate schedule made, and how many it was made for."""

    kind: ClassVar[str] = "schedule"
    name: str = ""
    done: int = 0
    length: int | None = None


@dataclass(frozen=True, kw_only=True)
class Line(Event):
    """A line was printed or logged; `place`: what a loader did last.

    inside: gave a batch to train with; trained, evaluated: came to the end of such a pass.
    """

    kind: ClassVar[str] = "line"
    text: str
    place: str = ""
    number: int = 0


@dataclass(frozen=True, kw_only=True)
class Order(Event):
    """The batches of one pass over a loader, as the numbers of their samples."""

    kind: ClassVar[str] = "order"
    loader: int
    number: int
    size: int | None = None
    length: int | None = None
    batch_size: int | None = None
    collated: bool = True
    sampler: str = ""
    training: bool = False
    complete: bool = False
    cut: bool = False  # by --max-batches
    ascending: bool = False
    shapes: tuple[str, ...] = ()  # of each batch, without the number of its samples
    batches: tuple[Sequence[int | str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class OwnOrder(Event):
    """How the ranks' samples of a pass compare with those that the original's loader would have drawn."""

    kind: ClassVar[str] = "own_order"
    loader: int
    number: int
    sampler: str = ""
    shuffle: bool = False
    drop_last: bool = False
    known: bool = False
    size: int = 0
    missing: int = 0
    extra: int = 0
    batch_size: int | None = None  # the original's own
