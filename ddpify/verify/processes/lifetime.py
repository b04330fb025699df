"""Parent and children of this process -> none of them outlives the run."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LINUX = sys.platform == "linux"


def _prctl(option: int, value: int) -> None:
    if _LINUX:
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies (Linux; elsewhere the guard alone sees to it)."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies, so that none can get away."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _parents() -> dict[int, int]:
    """Parent of each process, from /proc (empty where there is none)."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*") if _LINUX else ():
        with contextlib.suppress(OSError, ValueError, IndexError):
            # the name may hold spaces and brackets: fields are counted from its last bracket
            found[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    return found


def descendants(root: int) -> list[int]:
    """All processes below root."""
    parents = _parents()
    below, grew = {root}, True
    while grew:
        new = {pid for pid, parent in parents.items() if parent in below} - below
        grew = bool(new)
        below |= new
    return sorted(below - {root})


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def left_running(seconds: float) -> list[str] | None:
    """The command lines of what is still below this process after a while; None where that cannot be known."""
    if not _LINUX:
        return None
    limit = time.monotonic() + seconds
    while True:
        _reap()
        left = {pid: _command(pid) for pid in descendants(os.getpid())}
        if not any(left.values()) or time.monotonic() > limit:
            return [line for line in left.values() if line]
        time.sleep(0.05)


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    return b" ".join(words).decode(errors="replace").strip()[:120]


def kill_all(leaders: Iterable[int]) -> None:
    """Kill everything below this process and wait until it is gone; without /proc, the groups of the leaders."""
    for leader in () if _LINUX else leaders:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, signal.SIGKILL)
    for _ in range(200):
        _reap()
        left = descendants(os.getpid())
        if not left:
            return
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
