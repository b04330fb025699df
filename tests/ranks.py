"""Scripts -> what their ranks did, with torch imported once for all of them.

`python tests/ranks.py jobs.json` is the one process that imports torch; it forks a fresh group of ranks for each job.
`run_batch` is how a test asks for it. What torchrun does and this does not: hash seeds are alike on all ranks.
"""

from __future__ import annotations

import atexit
import importlib
import importlib.util
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ddpify.verify.trace import Trace

ROOT = Path(__file__).resolve().parent.parent
AT_ONCE = 2
GRACE = 1.0  # seconds after the time is up in which ranks say where they stand
TERMINATION = 2.0  # seconds that the other ranks get when one has failed, as torchrun gives them
_FROM_TORCHRUN = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"]


@dataclass(frozen=True)
class Job:
    """One script to run. World 0 is `python script`: alone, with no RANK in the environment."""

    script: Path
    args: Sequence[str] = ()
    world: int = 2
    cwd: Path = Path()
    env: Mapping[str, str] = field(default_factory=dict)
    max_steps: int | None = None
    #: whether its numbers are written down (tests/recorder.py), and the file of the batches that it is to draw
    record: bool = False
    given: Path | None = None
    #: how the run is made comparable with another (the fields of Wish)
    together: Mapping[str, Any] | None = None
    max_batches: int | None = None
    pretend: bool = False  # GPUs
    timeout: float | None = None  # that of the batch
    synthetic: bool = False
    fault: str = ""  # of --stress
    timed: int | None = None  # steps that warm up, of a run that is timed


@dataclass(frozen=True)
class RankResult:
    """How one rank ended (a negative status is the signal that killed it) and what it wrote."""

    status: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class JobResult:
    """How all ranks of a job ended, and the trace of what they did."""

    ranks: tuple[RankResult, ...]
    trace: Trace
    seconds: float
    #: what tests/recorder.py wrote down, by rank
    records: tuple[dict[str, Any], ...] = ()
    cwd: Path = Path()

    @property
    def ok(self) -> bool:
        """All ranks ended with status 0."""
        return all(rank.status == 0 for rank in self.ranks)


def run_batch(jobs: Sequence[Job], timeout: float = 60.0) -> list[JobResult]:
    """Run all jobs, at most two at a time, each with `timeout` seconds; what they leave in their cwd stays."""
    with tempfile.TemporaryDirectory(prefix="ddpify-ranks-") as name:
        folder = Path(name)
        listed = [
            {
                **asdict(job),
                "script": str(job.script.resolve()),
                "cwd": str(job.cwd.resolve()),
                "given": str(job.given.resolve()) if job.given is not None else "",
            }
            for job in jobs
        ]
        plan = {"folder": name, "timeout": timeout, "jobs": listed}
        (folder / "jobs.json").write_text(json.dumps(plan))
        done = subprocess.run(
            [sys.executable, __file__, str(folder / "jobs.json")],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            cwd=folder,
            env={**os.environ, "TMPDIR": name},
        )
        if done.returncode:
            raise RuntimeError(f"the rank runner failed:\n{done.stdout}{done.stderr}")
        return [_result(folder / str(i), job, timeout) for i, job in enumerate(jobs)]


def _result(folder: Path, job: Job, timeout: float) -> JobResult:
    from ddpify.verify.trace import Trace, read_rank

    facts = json.loads((folder / "job.json").read_text())
    ranks = tuple(read_rank(folder, rank, job.script.resolve()) for rank in range(max(job.world, 1)))
    results = tuple(
        RankResult(status, rank.stdout, rank.stderr) for status, rank in zip(facts["statuses"], ranks, strict=True)
    )
    trace = Trace(
        ranks,
        timed_out=facts["timed_out"],
        timeout=job.timeout or timeout,
        deadline=facts["deadline"],
        max_steps=job.max_steps,
    )
    written = [folder / f"rank{rank}.numbers.json" for rank in range(len(ranks))]
    records = tuple(json.loads(path.read_text()) for path in written if path.exists())
    return JobResult(results, trace, facts["seconds"], records, job.cwd)


# ---- the one process that imports torch ---------------------------------------------------------


def _from_file(name: str, path: Path) -> Any:
    """A module that no package of this process has."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _processes() -> Any:
    """The package of the observed rank, under the name that it has in a real run."""
    return _from_file("_ddpify_boot", ROOT / "ddpify" / "verify" / "processes" / "__main__.py").load()


def _warm_up() -> None:
    """Import what every script needs; nothing here may compute, or a forked child would wait for threads it lacks."""
    import torch

    torch.set_num_threads(1)
    for name in ("torch.distributed.run", "torch.nn.parallel", "torch.utils.data", "torch._dynamo"):
        importlib.import_module(name)
    _processes()
    for name in ("rank", "torchrun", "lifetime"):
        importlib.import_module(f"_ddpify_processes.{name}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _environment(job: dict[str, Any], rank: int, port: int) -> None:
    for name in _FROM_TORCHRUN:
        os.environ.pop(name, None)
    if job["world"]:
        world = str(job["world"])
        os.environ.update(
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=world,
            LOCAL_WORLD_SIZE=world,
            GROUP_RANK="0",
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
        )
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ.update(job["env"])


def _fresh_seeds() -> None:
    """A forked process has its parent's random state; one that was started has its own."""
    import torch

    random.seed()
    torch.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


def _be_rank(job: dict[str, Any], rank: int, port: int, folder: Path, deadline: float) -> int:
    """The forked child: from here on it is the script."""
    ours = sys.modules["_ddpify_processes.rank"]
    launcher = sys.modules["_ddpify_processes.torchrun"]
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(job["cwd"])
    _environment(job, rank, port)
    launcher.use_loopback()
    _fresh_seeds()
    recorder = _from_file("_recorder", ROOT / "tests" / "recorder.py").start(job["given"]) if job["record"] else None
    wish = ours.Wish(**job["together"]) if job["together"] else None
    settings = ours.Settings(
        folder=folder,
        cpu=True,
        deadline=deadline,
        max_steps=job["max_steps"],
        max_batches=job["max_batches"],
        pretend=job["pretend"],
        synthetic=job["synthetic"],
        together=wish,
        fault=job["fault"],
        timed=job["timed"],
    )
    code: int = ours.run(Path(job["script"]), job["args"], settings)
    if recorder is not None:
        recorder.write(folder / f"rank{rank}.numbers.json")
    return code


def _fork(job: dict[str, Any], rank: int, port: int, folder: Path, deadline: float) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        os.setsid()
        sys.modules["_ddpify_processes.lifetime"].die_with_parent()
        code = _be_rank(job, rank, port, folder, deadline)
        getattr(threading, "_shutdown")()  # noqa: B009  (as at a normal end: threads first, then atexit)
        getattr(atexit, "_run_exitfuncs")()  # noqa: B009
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class Group:
    """The ranks of one job while they run."""

    def __init__(self, job: dict[str, Any], folder: Path, timeout: float) -> None:
        folder.mkdir()
        self._folder, self._begun = folder, time.time()
        self._deadline = self._begun + timeout
        self._kill_at = self._deadline + GRACE
        port = _free_port()
        self._pids = [_fork(job, rank, port, folder, self._deadline) for rank in range(max(job["world"], 1))]
        self._statuses: dict[int, int] = {}
        self._failed = self._timed_out = False

    def _signal(self, number: signal.Signals) -> None:
        for pid in self._pids:
            if pid not in self._statuses:
                os.kill(pid, number)

    def _end(self) -> None:
        for pid in self._pids:
            try:
                os.killpg(pid, signal.SIGKILL)  # children that the script left
            except ProcessLookupError:
                continue
        facts = {
            "statuses": [self._statuses[pid] for pid in self._pids],
            "timed_out": self._timed_out,
            "deadline": self._deadline,
            "seconds": round(time.time() - self._begun, 2),
        }
        (self._folder / "job.json").write_text(json.dumps(facts))

    def poll(self) -> bool:
        """Look after the ranks; true when all have ended."""
        for pid in self._pids:
            if pid not in self._statuses:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    self._statuses[pid] = os.waitstatus_to_exitcode(status)
        if len(self._statuses) == len(self._pids):
            self._end()
            return True
        if not (self._failed or self._timed_out) and any(self._statuses.values()):
            self._failed = True
            self._signal(signal.SIGTERM)
            self._kill_at = min(self._kill_at, time.time() + TERMINATION)
        if time.time() > self._kill_at:
            self._timed_out = not self._failed
            self._signal(signal.SIGKILL)
        return False


def main() -> None:
    """Run the jobs of the file named on the command line."""
    plan = json.loads(Path(sys.argv[1]).read_text())
    del sys.path[0]  # the folder of the tests
    _warm_up()
    sys.modules["_ddpify_processes.lifetime"].die_with_parent()
    waiting, running = list(enumerate(plan["jobs"])), list[Group]()
    while waiting or running:
        while waiting and len(running) < AT_ONCE:
            number, job = waiting.pop(0)
            running.append(Group(job, Path(plan["folder"]) / str(number), job["timeout"] or plan["timeout"]))
        running = [group for group in running if not group.poll()]
        time.sleep(0.02)


if __name__ == "__main__":
    main()
