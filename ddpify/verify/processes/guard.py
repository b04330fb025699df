"""A command and a deadline -> the command's whole process tree, ended at the deadline or when the caller goes.

    guard FOLDER SECONDS COMMAND...

The caller holds the other end of standard input. When that closes (also because the caller was killed) everything
below the guard is killed and FOLDER removed. In the end FOLDER/guard.json says how the command ended.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from .lifetime import adopt_orphans, die_with_parent, kill_all, left_running

LINGER = 1.0  # seconds that processes get to follow their parent
GRACE = 1.0  # seconds after the deadline in which the ranks write down where they stand


def _pids(folder: Path) -> list[int]:
    """Ranks announce themselves by a file each; they lead process groups of their own."""
    return [int(path.suffix[1:]) for path in folder.glob("rank*.pid.*")]


def _caller_is_gone(wait: float) -> bool:
    ready, _, _ = select.select([sys.stdin.fileno()], [], [], wait)
    return bool(ready) and not os.read(sys.stdin.fileno(), 1)


def _watch(child: subprocess.Popen[bytes], folder: Path, deadline: float) -> str:
    """Wait for the first of: the command ended, the deadline passed, the caller went away."""
    while child.poll() is None:
        if _caller_is_gone(0.1):
            return "caller gone"
        if time.time() > deadline + GRACE:
            return "timeout"
    return "ended"


def _terminated(*_: object) -> None:
    raise SystemExit(1)


def main(argv: list[str]) -> None:
    """Run the command; leave no process behind, and no folder where nobody is left to read it."""
    folder, deadline, command = Path(argv[0]), time.time() + float(argv[1]), argv[2:]
    adopt_orphans()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the caller's; its end closes our standard input
    for name in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, _terminated)
    how = "caller gone"
    child: subprocess.Popen[bytes] | None = None
    try:
        with (folder / "launch.log").open("wb") as log:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with_parent,
                env={**os.environ, "DDPIFY_VERIFY_DEADLINE": str(deadline)},
            )
        how = _watch(child, folder, deadline)
    finally:
        code = child.poll() if child is not None else None
        left = left_running(LINGER) if how == "ended" and code == 0 else None
        kill_all([*_pids(folder), *([child.pid] if child is not None else [])])
        if how == "caller gone":
            for room in (folder, os.environ.get("DDPIFY_VERIFY_ROOM", folder)):
                shutil.rmtree(room, ignore_errors=True)
        else:
            (folder / "guard.json").write_text(
                json.dumps({"how": how, "code": code, "deadline": deadline, "left": left})
            )
