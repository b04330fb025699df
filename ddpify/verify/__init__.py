"""A DDP script -> a VerifyReport, by running it under torchrun and watching from outside."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ..errors import DdpifyError
from .checks import Result, Status, run_checks
from .equivalence import Equivalence, Still, compare
from .launch import Launch, run
from .report import VerifyReport, describe_failure, loss_curves, made_up
from .stress import stressed

_SHORT, _FEW = 12, 2  # steps, and batches of each pass, of the run with pretended GPUs

__all__ = ["Equivalence", "Result", "Status", "Still", "VerifyReport", "verify"]


def needed(script: Path) -> None:
    """What running a script takes: torch, and the script."""
    if importlib.util.find_spec("torch") is None:
        raise DdpifyError('this runs the script, and torch is not installed here: pip install "ddpify[verify]"')
    if not script.is_file():
        raise DdpifyError(f"{script}: there is no such file to run")


def verify(
    script: Path,
    *,
    args: Sequence[str] = (),
    nproc: int = 2,
    timeout: float = 300.0,
    max_steps: int | None = None,
    original: Path | None = None,
    still: Still | None = None,
    max_batches: int | None = None,
    nnodes: int = 1,
    devices: bool = False,
    synthetic: bool = False,
    stress: bool = False,
    progress: Callable[[str], None] | None = None,
) -> VerifyReport:
    """Run the script on `nproc` ranks and say of each property of the contract whether it held.

    This executes the script, in the caller's working folder. `max_steps` stops every rank after so many optimizer
    steps, `max_batches` every pass over a loader; `nnodes` starts as many launchers with `nproc` ranks each, as on as
    many machines. With `devices`, a second, short run without GPUs pretends to have them and looks at which are asked
    for. `synthetic` makes up data that is not on this machine; `stress` runs the script again with a fault each time.
    `progress` gets a line about once a second. No process and no file of ours is left behind.

    With `original`, the single-process script that it was made from, both are also run on the same samples, in copies
    of the working folder, and held against each other; `still` says what is left as it is then.
    """
    needed(script)
    if min(nproc, nnodes, timeout, *(n for n in (max_steps, max_batches) if n is not None)) <= 0:
        raise DdpifyError("the numbers of ranks, machines, steps and batches and the timeout must be positive")
    if original is not None and not original.is_file():
        raise DdpifyError(f"{original}: there is no such file to compare with")
    begun = time.monotonic()
    launch = Launch(script, tuple(args), nproc, timeout, max_steps, max_batches, nnodes, synthetic=synthetic)

    def told(what: str) -> Callable[[str], None] | None:
        return None if progress is None else lambda line: progress(f"{what}: {line}")

    # first: the run that is only watched leaves its files in the working folder
    equivalence = None if original is None else compare(original, launch, still=still, progress=progress)
    trace = run(launch, progress)
    if devices and trace.backend != "nccl" and trace.ended_well:
        short = replace(launch, pretend=True, max_steps=min(max_steps or _SHORT, _SHORT), max_batches=_FEW)
        trace = replace(trace, pretended=run(short, told("with pretended GPUs")))
    results = run_checks(trace)
    if stress:
        results += stressed(launch, trace, told)
    return VerifyReport(
        script=script,
        nproc=nproc * nnodes,
        backend=trace.backend,
        results=results,
        seconds=time.monotonic() - begun,
        cpu_fallback=trace.backend != "nccl",
        equivalence=equivalence,
        failure=describe_failure(trace, results, synthetic=synthetic),
        curves=loss_curves(trace),
        standins=made_up(trace),
    )
