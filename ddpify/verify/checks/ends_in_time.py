"""Trace -> did every rank come to its end?"""

from __future__ import annotations

import re
from itertools import pairwise

from ..trace import RankTrace, Trace
from ._base import Check, Result, at, count

# the message of the first error -> the rules that find such a cause in the text
_CAUSES: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"Default process group has not been initialized", ("DDP101",)),
    (r"'DistributedDataParallel' object has no attribute", ("DDP202",)),
    (r"module\.\w+.*(Missing|Unexpected) key|(Missing|Unexpected) key.*\"module\.", ("DDP203",)),
    (r"Expected to have finished reduction|mark a variable ready only once", ("DDP201", "DDP205")),
    (r"Attempting to deserialize object on", ("DDP105",)),
    (r"Expected all tensors to be on the same device|invalid device ordinal|Duplicate GPU", ("DDP103", "DDP104")),
    (r"mutually exclusive with shuffle", ("DDP301",)),
    (r"FileExistsError", ("DDP403",)),
    (r"FileNotFoundError|PytorchStreamReader|zip archive|UnpicklingError|Ran out of input", ("DDP404", "DDP401")),
    (r"EOFError", ("DDP402",)),
    (r"Connection closed|Timed out waiting|Broken pipe|Connection reset", ("DDP512", "DDP503", "DDP304")),
)
_SLACK = 0.5  # seconds


def first_error(trace: Trace) -> RankTrace | None:
    """The rank whose error came first: the errors of the others mostly follow from it."""
    broken = [r for r in trace.ranks if r.end is not None and r.end.status in ("error", "exit")]
    return min(broken, key=lambda r: r.end.time if r.end else 0.0, default=None)


def likely_rules(message: str) -> tuple[str, ...]:
    """The rules that an error message points to."""
    return next((codes for pattern, codes in _CAUSES if re.search(pattern, message, re.DOTALL)), ())


def _still_training(rank: RankTrace, deadline: float) -> bool:
    """Was the last step no longer ago than two of the slowest steps before?"""
    times = [step.time for step in rank.steps]
    slowest = max((after - before for before, after in pairwise(times)), default=None)
    return slowest is not None and deadline - times[-1] < 2 * slowest + _SLACK


def _last_words(rank: RankTrace) -> str:
    """What argparse says before it exits: the line of the error has only a number."""
    said = rank.stderr.strip().splitlines()
    ended_itself = rank.end is not None and rank.end.error.startswith("SystemExit")
    return f" ({said[-1].strip()})" if ended_itself and said else ""


class EndsInTime(Check):
    """Every rank comes to its end, without an error and within the time.

    Catches hangs (a collective that only some ranks reach, ranks with different numbers of batches) and crashes.
    Contract 1.6 and 2.3.
    """

    section = "1.6"
    likely = ("DDP512", "DDP503", "DDP304")

    def check(self, trace: Trace) -> Result:
        """Look at how each rank ended."""
        broken = first_error(trace)
        if broken is not None and broken.end is not None:
            lines = broken.end.error.splitlines() or ["an error without a message"]
            sentence = f"rank {broken.rank} stopped{at(broken.end.at)}: {lines[0]}{_last_words(broken)}"
            return self.failed(sentence, likely=likely_rules(broken.end.error))
        if trace.timed_out:
            return self._late(trace)
        missing = [str(r.rank) for r in trace.ranks if not r.ended_well]
        if missing:
            return self.failed(
                f"rank {', '.join(missing)} ended without a word: killed, or it never started", likely=()
            )
        steps = max((len(r.steps) for r in trace.ranks), default=0)
        if trace.was_cut:
            return self.held(f"every rank was stopped after {count(steps, 'step')}, as --max-steps asked")
        return self.held(f"every rank came to its end after {count(steps, 'step')}")

    def _late(self, trace: Trace) -> Result:
        left = [r for r in trace.ranks if not r.ended_well]
        stands = "; ".join(f"rank {r.rank} stood at {r.standing or 'an unknown line'}" for r in left)
        time = f"after {trace.timeout:g} s"
        if not any(r.events for r in trace.ranks):
            return self.failed(f"no rank had begun with the script {time}: give a longer --timeout", likely=())
        if left and all(_still_training(r, trace.deadline) for r in left):
            advice = "give --max-steps or a longer --timeout"
            return self.failed(f"every rank was still training {time}: {advice} ({stands})", likely=())
        return self.failed(f"no end {time}: {stands}")
