"""The trace of a run that was timed -> a Run: samples per second, and what the ranks spent their time on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from ..trace import E, Trace
from .events import Evaluated, Fetched, Lines, Loader, Memory, Timed, Wrapper

#: the parts of the time of a step, in the order of the report
PARTS = ("loading", "compute", "communication", "waiting", "script")


@dataclass(frozen=True)
class Run:
    """What was measured on so many ranks, in the steps after those that warm up."""

    trace: Trace
    warm_up: int
    failure: str = ""  # why there is nothing, or not all of it

    @property
    def world(self) -> int:
        return self.trace.world

    @cached_property
    def steps(self) -> tuple[tuple[Timed, ...], ...]:
        """The measured steps: each as all ranks made it. What the last one exchanged is not known: it is left out."""
        by_rank = [{step.number: step for step in rank.of(Timed)} for rank in self.trace.ranks]
        numbers = sorted(set.intersection(*map(set, by_rank))) if by_rank else []
        return tuple(tuple(rank[n] for rank in by_rank) for n in numbers[:-1] if n > self.warm_up)

    @property
    def ok(self) -> bool:
        """There is something to report."""
        return bool(self.steps) and self.seconds > 0

    @cached_property
    def seconds(self) -> float:
        """Of training, on the clock of a rank."""
        return sum(rank.seconds for step in self.steps for rank in step) / self.world

    @property
    def step_seconds(self) -> float:
        """Of one step."""
        return self.seconds / len(self.steps)

    @property
    def batch(self) -> float:
        """Samples of a step on one rank."""
        return sum(rank.samples for step in self.steps for rank in step) / len(self.steps) / self.world

    @property
    def rate(self) -> float:
        """Samples per second, of all ranks."""
        return self.batch * self.world / self.step_seconds

    @cached_property
    def shares(self) -> Mapping[str, float]:
        """Of the time of training. The rank that comes last to a meeting does not wait: the others do."""
        found = dict.fromkeys(PARTS, 0.0)
        for step in self.steps:
            wire = min(rank.together for rank in step)
            for rank in step:
                found["loading"] += rank.loading
                found["compute"] += rank.compute - (rank.exchange or 0.0)
                found["communication"] += wire
                found["waiting"] += rank.together - wire
                found["script"] += rank.script
        return {part: seconds / self.world / self.seconds for part, seconds in found.items()}

    def of_rank(self, rank: int) -> Mapping[str, float]:
        """The seconds of a step of one rank, by part."""
        found = dict.fromkeys(PARTS, 0.0)
        for step in self.steps:
            own, wire = step[rank], min(other.together for other in step)
            found["loading"] += own.loading
            found["compute"] += own.compute - (own.exchange or 0.0)
            found["communication"] += wire
            found["waiting"] += own.together - wire
            found["script"] += own.script
        return {part: seconds / len(self.steps) for part, seconds in found.items()}

    def last(self, rank: int) -> float:
        """The share of the steps in which this rank came last, and did not wait."""
        return sum(step[rank].together == min(other.together for other in step) for step in self.steps) / len(
            self.steps
        )

    @property
    def exchange(self) -> float:
        """The share of the exchange of gradients in all that is communication."""
        both = [(min(r.exchange or 0.0 for r in s), min(r.together for r in s)) for s in self.steps]
        whole = sum(together for _, together in both)
        return min(sum(exchange for exchange, _ in both) / whole, 1.0) if whole else 0.0

    @property
    def beside(self) -> float:
        """The share of the exchange that went on while the backward computed."""
        hidden = sum(r.beside or 0.0 for s in self.steps for r in s)
        whole = hidden + sum(r.exchange or 0.0 for s in self.steps for r in s)
        return hidden / whole if whole else 0.0

    @property
    def exchange_known(self) -> bool:
        """Torch measured the exchange."""
        return any(rank.exchange is not None for step in self.steps for rank in step)

    def all(self, kind: type[E]) -> Iterator[E]:
        """The events of a kind, of all ranks."""
        for rank in self.trace.ranks:
            yield from rank.of(kind)

    # -- what could be set otherwise -----------------------------------------------------------------------------

    @cached_property
    def loader(self) -> Loader | None:
        """The loader that training reads from: it put the most samples together, evaluations apart."""
        evaluated = {event.loader for event in self.all(Evaluated)}
        counts: dict[int, int] = {}
        for event in self.all(Fetched):
            if event.loader not in evaluated:
                counts[event.loader] = counts.get(event.loader, 0) + event.samples
        known = {event.loader: event for event in self.trace.ranks[0].of(Loader)}
        best = max((n for n in known if n in counts), key=lambda n: counts[n], default=None)
        left = [event for n, event in known.items() if n not in evaluated]
        return known[best] if best is not None else next(iter(left), None)

    @property
    def fetch(self) -> tuple[float, float] | None:
        """Seconds to put a batch of the training loader together, and the share in which a core was busy with it."""
        found = [e for e in self.all(Fetched) if self.loader is not None and e.loader == self.loader.loader]
        found = found[len(found) // 5 :]  # the first ones warm up too
        seconds = sum(event.seconds for event in found)
        if not found or not seconds:
            return None
        return seconds / len(found), min(sum(event.busy for event in found) / seconds, 1.0)

    @property
    def wrapper(self) -> Wrapper | None:
        """The largest wrapped model."""
        return max(self.trace.ranks[0].of(Wrapper), key=lambda event: event.bytes, default=None)

    @property
    def memory(self) -> Memory | None:
        """Of the GPU that has the most on it."""
        return max(self.all(Memory), key=lambda event: event.most, default=None)

    def lines(self, phase: str, rank: int = 0) -> tuple[tuple[str, float], ...]:
        """The lines at which a rank was met in a phase, with their share of it."""
        met = next((event.phases.get(phase, ()) for event in self.trace.ranks[rank].of(Lines)), ())
        whole = sum(times for _, times in met)
        return tuple((line, times / whole) for line, times in met)

    @property
    def evaluated(self) -> float:
        """The share of evaluations in all that was measured."""
        seconds = sum(rank.evaluation for step in self.steps for rank in step) / self.world
        return seconds / (seconds + self.seconds)

    @property
    def evaluated_samples(self) -> int:
        """The samples of a rank's first evaluation."""
        return next((event.samples for event in self.trace.ranks[0].of(Evaluated)), 0)
