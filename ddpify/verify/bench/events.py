"""Lines of ranks that were timed -> the events that the numbers are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from ..trace import Event


@dataclass(frozen=True, kw_only=True)
class Timed(Event):
    """An optimizer step: the samples since the step before, and the seconds of each phase.

    `exchange` are the seconds of `compute` in which nothing was computed, because gradients were on their way; `beside`
    those in which both went on. None: torch did not measure it.
    """

    kind: ClassVar[str] = "timed"
    number: int = 0
    samples: int = 0
    started: int = 0  # passes whose workers were started
    loading: float = 0.0
    compute: float = 0.0
    meeting: float = 0.0
    evaluation: float = 0.0
    script: float = 0.0
    exchange: float | None = None
    beside: float | None = None

    @property
    def seconds(self) -> float:
        """All of it, without evaluations."""
        return self.loading + self.compute + self.meeting + self.script

    @property
    def together(self) -> float:
        """What one rank spent with the others, or waiting for them."""
        return self.meeting + (self.exchange or 0.0)


@dataclass(frozen=True, kw_only=True)
class Loader(Event):
    """A DataLoader, when it is first read."""

    kind: ClassVar[str] = "loader"
    loader: int = 0
    workers: int = 0
    pinned: bool = False
    persistent: bool = False
    batch: int | None = None
    dataset: str = ""


@dataclass(frozen=True, kw_only=True)
class Fetched(Event):
    """A batch was put together, here or in a worker: how long it took, and how long a core was busy with it."""

    kind: ClassVar[str] = "fetched"
    loader: int = 0
    samples: int = 0
    worker: int | None = None
    seconds: float = 0.0
    busy: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Evaluated(Event):
    """A pass over a loader that no backward followed."""

    kind: ClassVar[str] = "evaluated"
    loader: int = 0
    samples: int = 0
    seconds: float = 0.0
    step: int = 0


@dataclass(frozen=True, kw_only=True)
class Wrapper(Event):
    """The gradients that a wrapper exchanges: how many bytes, those of the largest parameter, and of each bucket."""

    kind: ClassVar[str] = "wrapper"
    module: str = ""
    bytes: int = 0
    largest: str = ""
    largest_bytes: int = 0
    buckets: tuple[int, ...] = ()
    cap: int = 0
    find_unused: bool = False


@dataclass(frozen=True, kw_only=True)
class Lines(Event):
    """The user's lines at which the main thread was met, and how often, by phase."""

    kind: ClassVar[str] = "lines"
    phases: Mapping[str, tuple[tuple[str, int], ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Memory(Event):
    """Bytes on the GPU, and the seconds that the last batch takes there: as it comes, and from pinned memory."""

    kind: ClassVar[str] = "memory"
    most: int = 0
    total: int = 0
    plain: float = 0.0
    pinned: float = 0.0
