"""A script -> its Trace on N ranks. The only place that starts processes."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import DdpifyError
from ..package import package_of, python_path
from .trace import RankTrace, Trace, read_rank

PROCESSES = Path(__file__).parent / "processes"
_ALONE_ON_CPU = {"DDPIFY_VERIFY_CPU": "1", "CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
_STEPS = (b'{"kind": "step"', b'{"kind": "timed"')
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Launch:
    """What to run."""

    script: Path
    args: Sequence[str]
    nproc: int
    timeout: float
    max_steps: int | None = None
    max_batches: int | None = None
    nnodes: int = 1  # launchers, each with nproc ranks
    pretend: bool = False  # GPUs
    synthetic: bool = False  # made-up data where the real one is not here
    fault: str = ""  # of --stress
    timed: int | None = None  # steps that warm up, of a run that is timed and not watched
    #: more of the environment, and another working folder
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: Path | None = None
    #: as `python SCRIPT` and not under torchrun; on the CPU, or where it likes
    alone: bool = False
    cpu: bool = True
    #: what else is to be removed when this process is killed
    room: Path | None = None

    def environment(self) -> dict[str, str]:
        """What the processes are told of it."""
        told = {
            "MAX_STEPS": self.max_steps or "",
            "MAX_BATCHES": self.max_batches or "",
            "NNODES": self.nnodes,
            "PRETEND": "1" if self.pretend else "",
            "SYNTHETIC": "1" if self.synthetic else "",
            "FAULT": self.fault,
            "TIMED": "" if self.timed is None else self.timed,
            "PACKAGE": _package(self.script),
        }
        return {f"DDPIFY_VERIFY_{name}": str(value) for name, value in told.items()} | _path(self.script)


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="ddpify-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _package(script: Path) -> str:
    """What a script is run in that imports from its own package: the folder above, and the package."""
    try:
        found = package_of(script, script.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return ""
    return f"{found.root}{os.pathsep}{found.name}" if found is not None else ""


def _path(script: Path) -> dict[str, str]:
    """The folder above that a script imports from, which it is run with as its PYTHONPATH."""
    try:
        above = python_path(script, script.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return {}
    given = os.environ.get("PYTHONPATH", "")
    return {"PYTHONPATH": os.pathsep.join([str(above), *([given] if given else [])])} if above is not None else {}


@contextlib.contextmanager
def _guarded(launch: Launch, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The guard over torchrun. It ends everything when its standard input closes, whatever becomes of this process."""
    python = [sys.executable, "-u", str(PROCESSES)]
    script = [str(launch.script), *launch.args]
    ranks = ["rank", str(folder), *script] if launch.alone else ["torchrun", str(folder), str(launch.nproc), *script]
    guard = subprocess.Popen(
        [*python, "guard", str(folder), str(launch.timeout), *python, *ranks],
        stdin=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is ours to handle
        # what torch and the script put among the temporary files goes with ours, also when they are killed
        env={
            **os.environ,
            "TMPDIR": str(folder),
            **launch.environment(),
            **(_ALONE_ON_CPU if launch.alone and launch.cpu else {}),
            **({"DDPIFY_VERIFY_ROOM": str(launch.room)} if launch.room is not None else {}),
            **launch.env,
        },
        cwd=launch.cwd,
    )
    try:
        yield guard
    finally:
        assert guard.stdin is not None
        guard.stdin.close()
        guard.wait()


class _Follow:
    """Counts the steps in the event files as they grow."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}
        self._steps: dict[Path, int] = {}

    def line(self, seconds: float) -> str:
        """`rank 0: step 12, 3.4 s`."""
        for path in self._folder.glob("rank*.jsonl"):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                new = file.read()
            whole = new[: new.rfind(b"\n") + 1]
            self._read[path] = self._read.get(path, 0) + len(whole)
            self._steps[path] = self._steps.get(path, 0) + sum(map(whole.count, _STEPS))
        if not self._steps:
            return f"starting, {seconds:.1f} s"
        slowest = min(self._steps, key=lambda path: (self._steps[path], path.name))
        return f"rank {slowest.stem[len('rank') :]}: step {self._steps[slowest]}, {seconds:.1f} s"


def _wait(guard: subprocess.Popen[bytes], folder: Path, progress: Progress | None) -> None:
    begun = time.monotonic()
    follow = _Follow(folder)
    while True:
        try:
            guard.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            if progress is not None:
                progress(follow.line(time.monotonic() - begun))
        else:
            return


def _json(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found


def run(launch: Launch, progress: Progress | None = None) -> Trace:
    """Run the script under torchrun and read what its ranks did."""
    with _folder() as folder:
        with _guarded(launch, folder) as guard:
            _wait(guard, folder, progress)
        start, end = _json(folder / "launch.json"), _json(folder / "guard.json")
        if "error" in start:
            raise DdpifyError(f"torch cannot be imported by {sys.executable}: {start['error']}")
        log = (folder / "launch.log").read_text(errors="replace") if (folder / "launch.log").exists() else ""
        ranks: list[RankTrace] = [
            read_rank(folder, rank, launch.script) for rank in range(launch.nproc * launch.nnodes)
        ]
    return Trace(
        tuple(ranks),
        backend=start.get("backend", "gloo"),
        timed_out=end.get("how") == "timeout",
        timeout=launch.timeout,
        deadline=end.get("deadline", 0.0),
        max_steps=launch.max_steps,
        log=log,
        left=None if end.get("left") is None else tuple(end["left"]),
    )
