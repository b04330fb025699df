"""A script that held in a run as it is -> one Result for each fault that it is run with again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from .checks import Result, Status, run_checks
from .checks._base import count
from .checks._passes import data_of, evaluations
from .checks.ends_in_time import first_error
from .launch import Launch, Progress, run
from .processes.stress import MESSAGE
from .trace import Trace

#: what has to hold whatever happens
_ALWAYS = ("same_step_count", "same_collectives", "same_learning_rates")
_DATA = (*_ALWAYS, "parameters_equal", "evaluated_once", "disjoint_shards")
# what the others say when a rank has gone, or a rank waits for one that does not come
_LOST = ("Connection closed", "Connection reset", "Timed out", "Broken pipe", "Read error")
# what a script says that knows its lengths by heart
_FIXED = ("Sum of input lengths", "out of range", "out of bounds")


_NO_EVALUATION = Result(
    "stress_small", "3.1", Status.NOT_TRIED, "no evaluation of other data than the training's was read to its end"
)


@dataclass(frozen=True)
class Stress:
    """A fault, the section of the contract that it tries, and what it is in words."""

    fault: str
    section: str
    words: str
    checks: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"stress_{self.fault.split()[0]}"


def faults(trace: Trace) -> Iterator[Stress]:
    """What to try, after a run as it is."""
    yield Stress("odd", "2.2", "every dataset has a length that the ranks cannot share equally", _DATA)
    for kind, size in _evaluated(trace):
        yield Stress(f"small {kind} {size}", "3.1", f"{kind}, which is evaluated, has one sample", _DATA)
    yield Stress("nan", "2.3", "outputs are NaN on one rank in one step", _ALWAYS)
    yield Stress("slow", "4.2", "one rank is late at a step, rank 0 at each save", _DATA)
    yield Stress("raise", "1.6", "one rank raises in a training step", _ALWAYS)


def _evaluated(trace: Trace) -> list[tuple[str, int]]:
    """Class and length of the datasets that are evaluated, of none of the training."""
    trained = {
        level[:2]
        for i, rank in enumerate(trace.ranks)
        for one in rank.training_passes
        if (data := data_of(trace, i, one)) is not None
        for level in data.levels
    }
    found: dict[tuple[str, int], None] = {}
    for passes in evaluations(trace):
        chains = [data.levels for rank, one in passes.items() if (data := data_of(trace, rank, one)) is not None]
        for levels in zip(*(reversed(chain) for chain in chains), strict=False):
            kind, size, _ = levels[0]
            if len(set(levels)) == 1 and size is not None and size > 1 and (kind, size) not in trained:
                found[kind, size] = None
    return list(found)[:2]


def judge(stress: Stress, trace: Trace) -> Result:
    """Did the run with the fault end cleanly?"""

    def result(status: Status, sentence: str) -> Result:
        return Result(stress.name, stress.section, status, f"{stress.words}: {sentence}")

    broken = first_error(trace)
    error = broken.end.error if broken is not None and broken.end is not None else ""
    if trace.timed_out:
        stands = "; ".join(f"rank {r.rank} at {r.standing}" for r in trace.ranks if r.standing)
        return result(Status.FAILED, f"no end after {trace.timeout:g} s ({stands})")
    if MESSAGE in error:
        return result(Status.HELD, "its error ended the run on all ranks")
    failed = [r for r in run_checks(trace) if r.name in stress.checks and r.status is Status.FAILED]
    if failed:
        return result(Status.FAILED, failed[0].sentence)
    if any(word in error for word in _LOST):
        return result(Status.FAILED, f"one rank waited for another: {error.splitlines()[0]}")
    if error and stress.fault == "nan":
        return result(Status.HELD, f"the script ended itself: {error.splitlines()[0]}")
    if any(word in error for word in _FIXED):
        return result(Status.NOT_TRIED, f"the script knows its lengths by heart: {error.splitlines()[0]}")
    if error:
        return result(Status.FAILED, error.splitlines()[0])
    if not trace.ended_well:
        return result(Status.FAILED, "a rank was killed")
    if trace.was_cut:
        return result(Status.HELD, f"every rank was stopped after {count(trace.max_steps or 0, 'step')} by --max-steps")
    return result(Status.HELD, "every rank came to its end")


def stressed(launch: Launch, trace: Trace, progress: Callable[[str], Progress | None]) -> tuple[Result, ...]:
    """Run the script with each fault in turn."""
    if not trace.ended_well:
        return (Result("stress", "2.3", Status.NOT_TRIED, "the run as it is did not come to its end"),)
    results = [judge(one, run(replace(launch, fault=one.fault), progress(one.words))) for one in faults(trace)]
    if not _evaluated(trace):
        results.insert(1, _NO_EVALUATION)
    return tuple(results)
