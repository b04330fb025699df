"""The main thread of a rank -> a record for each optimizer step: the seconds that went into each phase.

loading      waiting for a batch (without workers: putting it together), and starting workers
compute      forward to backward, and the optimizer's step; what of it was the exchange of gradients stands beside it
meeting      collectives of the script itself, and buffers that a forward broadcasts
evaluation   passes without a step, all of them
script       everything else: copies, logging, saving, metrics

Each moment belongs to one phase. On a GPU the moments are events on its stream, so that a phase has the time that the
GPU spent on it or waited in it; elsewhere they are readings of a clock.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import torch

Stamp = Any  # a float, or a torch.cuda.Event
PHASES = ("loading", "compute", "meeting", "evaluation", "script")


def _seconds(a: Stamp, b: Stamp) -> float:
    if isinstance(a, float) and isinstance(b, float):
        return b - a
    if isinstance(a, float) or isinstance(b, float):
        return 0.0  # the step in which the GPU was first used
    return float(a.elapsed_time(b)) / 1e3


class Stopwatch:
    """The phases of this process's main thread."""

    def __init__(self) -> None:
        self._owner, self._thread = os.getpid(), threading.get_ident()
        self._stack = ["script"]
        self._gpu = False
        self._marks: list[tuple[str, Stamp]] = [("script", self._stamp())]

    @property
    def phase(self) -> str:
        """What the main thread is at."""
        return self._stack[-1]

    @property
    def here(self) -> bool:
        """Neither a worker process nor another thread."""
        return os.getpid() == self._owner and threading.get_ident() == self._thread

    def _stamp(self) -> Stamp:
        if not self._gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _mark(self) -> None:
        if self._marks[-1][0] != self._stack[-1]:
            self._marks.append((self._stack[-1], self._stamp()))

    def begin(self, phase: str) -> None:
        """Until `end`, all time is this phase's; an evaluation keeps what it loads and computes."""
        self._stack.append("evaluation" if self._stack[0] == "evaluation" else phase)
        self._mark()

    def end(self) -> None:
        """Back to the phase before."""
        if len(self._stack) > 1:
            self._stack.pop()
        self._mark()

    def between(self, phase: str) -> None:
        """What the time belongs to when no phase has begun."""
        self._stack[0] = phase
        self._mark()

    @contextlib.contextmanager
    def in_phase(self, phase: str) -> Iterator[None]:
        """The body is of the phase."""
        if not self.here:
            yield
            return
        self.begin(phase)
        try:
            yield
        finally:
            self.end()

    @property
    def place(self) -> int:
        """A place among the marks, for `call`."""
        return len(self._marks)

    def call(self, phase: str, since: int) -> None:
        """All time since that place was of this phase, as is known only now."""
        self._marks[since:] = [(phase, stamp) for _, stamp in self._marks[since:]]
        self._marks.append((self._stack[-1], self._stamp()))

    def cut(self) -> Callable[[], dict[str, float]]:
        """A step is over: what gives the seconds of each phase in it, to be asked later (a GPU is behind)."""
        marks = [*self._marks, ("", self._stamp())]
        self._gpu = self._gpu or torch.cuda.is_initialized()
        self._marks = [(self._stack[-1], self._stamp())]

        def seconds() -> dict[str, float]:
            if not isinstance(marks[-1][1], float):
                marks[-1][1].synchronize()
            found = dict.fromkeys(PHASES, 0.0)
            for (phase, begun), (_, ended) in pairwise(marks):
                found[phase] += _seconds(begun, ended)
            return {phase: round(value, 6) for phase, value in found.items()}

        return seconds


class Lines:
    """Which line of the user's code the main thread is at, looked at every now and then from another thread."""

    EVERY = 0.01  # seconds

    def __init__(self, watch: Stopwatch, line: Callable[[Any], str | None]) -> None:
        self._watch, self._line = watch, line
        self._main = threading.get_ident()
        self._seen: dict[tuple[str, str], int] = {}
        self._over = threading.Event()
        self._looker = threading.Thread(target=self._look, name="ddpify-lines", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._looker.start()

    def _look(self) -> None:
        import sys

        while not self._over.wait(self.EVERY):
            frame = sys._current_frames().get(self._main)
            line = self._line(frame) if frame is not None else None
            if line is not None:
                key = self._watch.phase, line
                self._seen[key] = self._seen.get(key, 0) + 1

    def forget(self) -> None:
        """The steps that warm up are over."""
        self._seen.clear()

    def finish(self, most: int = 5) -> dict[str, list[list[object]]]:
        """The lines that were met most, and how often, by phase."""
        self._over.set()
        found: dict[str, list[list[object]]] = {}
        for (phase, line), times in sorted(dict(self._seen).items(), key=lambda item: -item[1]):
            if len(found.setdefault(phase, [])) < most:
                found[phase].append([line, times])
        return found
