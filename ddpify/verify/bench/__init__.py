"""A DDP script -> a BenchReport, by running it on several numbers of ranks and timing what each of them does."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ...errors import DdpifyError
from .. import needed
from ..checks._base import count
from ..checks.ends_in_time import EndsInTime
from ..equivalence.shadow import shadow
from ..launch import Launch, run
from ..report import made_up
from .advice import Advice, Machine
from .events import Timed
from .measured import Run
from .report import BenchReport

__all__ = ["Advice", "BenchReport", "Machine", "Run", "bench"]


def bench(
    script: Path,
    *,
    args: Sequence[str] = (),
    nproc: Sequence[int] = (1, 2),
    steps: int = 30,
    warm_up: int = 5,
    timeout: float = 300.0,
    synthetic: bool = False,
    progress: Callable[[str], None] | None = None,
) -> BenchReport:
    """Run the script on each number of ranks, for `steps` optimizer steps after `warm_up` that are not measured.

    This executes the script, in copies of the caller's working folder (large files are linked): what it writes is
    thrown away. `timeout` is for each run.
    """
    needed(script)
    if min(*nproc, steps, timeout, warm_up + 1) <= 0:
        raise DdpifyError("the numbers of ranks and steps and the timeout must be positive")
    cores = _cores()
    threads = None if "OMP_NUM_THREADS" in os.environ else max(cores // max(nproc), 1)
    # torchrun gives one thread to each of several ranks, and all of them to one: that would be no comparison
    env = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
    launch = Launch(
        script.resolve(), tuple(args), 1, timeout, warm_up + steps + 1, synthetic=synthetic, timed=warm_up, env=env
    )
    runs = [_run(replace(launch, nproc=ranks), progress) for ranks in dict.fromkeys(nproc)]
    gpu = all(one.trace.backend == "nccl" for one in runs)
    return BenchReport(script, tuple(runs), Machine(cores, gpu), threads, made_up(runs[-1].trace))


def _cores() -> int:
    """Those that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _run(launch: Launch, progress: Callable[[str], None] | None) -> Run:
    room = Path(tempfile.mkdtemp(prefix="ddpify-"))
    tell = None if progress is None else (lambda line: progress(f"{count(launch.nproc, 'rank')}: {line}"))
    try:
        trace = run(replace(launch, cwd=shadow(Path.cwd(), room / "work"), room=room), tell)
    finally:
        shutil.rmtree(room, ignore_errors=True)
    warm_up = launch.timed or 0
    found = Run(trace, warm_up)
    if found.ok and (trace.timed_out or trace.ended_well):
        return found
    if trace.ended_well:
        return replace(found, failure=_too_few(found, warm_up))
    return replace(found, failure=EndsInTime().check(trace).sentence)


def _too_few(found: Run, warm_up: int) -> str:
    made = max((len(rank.of(Timed)) for rank in found.trace.ranks), default=0)
    return (
        f"the script ends after {count(made, 'optimizer step')}, and {warm_up} of them warm up: let it train for longer"
    )
