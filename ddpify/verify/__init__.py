"""A DDP script -> a VerifyReport, by running it under torchrun and watching from outside."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ..errors import DdpifyError
from .checks import Result, Status, run_checks
from .equivalence import Equivalence, Still, compare
from .launch import Launch, run
from .report import VerifyReport, describe_failure

__all__ = ["Equivalence", "Result", "Status", "Still", "VerifyReport", "verify"]


def verify(
    script: Path,
    *,
    args: Sequence[str] = (),
    nproc: int = 2,
    timeout: float = 300.0,
    max_steps: int | None = None,
    original: Path | None = None,
    still: Still | None = None,
    progress: Callable[[str], None] | None = None,
) -> VerifyReport:
    """Run the script on `nproc` ranks and say of each property of the contract whether it held.

    This executes the script, in the caller's working folder. `max_steps` stops every rank after so many optimizer
    steps; `progress` gets a line about once a second. No process and no file of ours is left behind.

    With `original`, the single-process script that it was made from, both are also run on the same samples, in copies
    of the working folder, and held against each other; `still` says what is left as it is then.
    """
    if importlib.util.find_spec("torch") is None:
        raise DdpifyError('verify runs the script, and torch is not installed here: pip install "ddpify[verify]"')
    if not script.is_file():
        raise DdpifyError(f"{script}: there is no such file to run")
    if nproc < 1 or timeout <= 0 or (max_steps is not None and max_steps < 1):
        raise DdpifyError("the numbers of ranks and steps and the timeout must be positive")
    if original is not None and not original.is_file():
        raise DdpifyError(f"{original}: there is no such file to compare with")
    begun = time.monotonic()
    launch = Launch(script, tuple(args), nproc, timeout, max_steps)
    # first: the run that is only watched leaves its files in the working folder
    equivalence = None if original is None else compare(original, launch, still=still, progress=progress)
    trace = run(launch, progress)
    results = run_checks(trace)
    return VerifyReport(
        script=script,
        nproc=nproc,
        backend=trace.backend,
        results=results,
        seconds=time.monotonic() - begun,
        cpu_fallback=trace.backend != "nccl",
        equivalence=equivalence,
        failure=describe_failure(trace, results),
    )
