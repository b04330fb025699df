"""verify() through the real torchrun, and nothing left of it: after a normal end, a timeout and a kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ddpify.verify import Status, VerifyReport, verify

pytestmark = [
    pytest.mark.torchrun,
    pytest.mark.skipif(sys.platform != "linux", reason="looks for what is left in /proc"),
]

SCRIPTS = Path(__file__).parent / "scripts"
RIGHT = (SCRIPTS / "right.py").read_text()
CALL = """
import sys
from pathlib import Path
from ddpify.verify import verify
verify(Path(sys.argv[1]), args=sys.argv[2:])
"""


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder of its own, with the folder for temporary files next to it; no GPU."""
    (tmp_path / "work").mkdir()
    (tmp_path / "tmp").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return tmp_path


def _with(word: str) -> list[int]:
    """The processes that have the word on their command line."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if word.encode() in line and int(entry.name) != os.getpid():
            found.append(int(entry.name))
    return found


def _until(done: Callable[[], bool], seconds: float) -> bool:
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        if done():
            return True
        time.sleep(0.1)
    return done()


def _changed(room: Path, old: str, new: str) -> Path:
    assert old in RIGHT
    script = room / "work" / "train.py"
    script.write_text(RIGHT.replace(old, new))
    return script


def _failed(report: VerifyReport) -> dict[str, str]:
    return {result.name: result.sentence for result in report.results if result.status is Status.FAILED}


def _left(room: Path, word: str) -> list[object]:
    return [*_with(word), *(room / "tmp").iterdir()]


def test_a_right_script_holds_everything(room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)  # another test may have imported it
    lines: list[str] = []
    report = verify(SCRIPTS / "right.py", args=["--epochs", "3"], progress=lines.append)
    assert report.ok, report.failure
    assert {r.name for r in report.results if r.status is Status.HELD} >= {"wrapped", "nothing_left", "data_differs"}
    assert (report.backend, report.cpu_fallback, report.failure) == ("gloo", True, "")
    assert lines
    assert os.listdir() == ["model.pt"]
    assert not _left(room, "right.py")
    assert "torch" not in sys.modules  # only the ranks import it


def test_an_unguarded_save_is_named(room: Path) -> None:
    script = _changed(room, "    if is_main_process():\n        torch.save(", "    if True:\n        torch.save(")
    failed = _failed(verify(script, max_steps=None))
    assert set(failed) == {"written_by_one_rank"}
    assert failed["written_by_one_rank"].endswith(": model.pt")
    assert "train.py:" in failed["written_by_one_rank"]


def test_divergence_is_named_with_the_step(room: Path) -> None:
    report = verify(_changed(room, "entropy(model(", "entropy(model.module("))
    assert "rank 1 has other parameters than rank 0 after step 1 at train.py:" in _failed(report)["parameters_equal"]


def test_a_hang_ends_at_the_timeout_with_where_each_rank_stood(room: Path) -> None:
    word = uuid.uuid4().hex
    for seconds in (7.0, 30.0, 150.0):  # one of many on the machine starts slowly
        report = verify(SCRIPTS / "stays.py", args=[word], timeout=seconds)
        if "never started" not in report.failure:
            break
    assert report.seconds < seconds + 15
    assert f"no end after {seconds:g} s" in _failed(report)["ends_in_time"]
    assert "rank 0 stood at stays.py:17 `dist.barrier()`" in report.failure
    assert "rank 1 stood at stays.py:19 `time.sleep(0.1)`" in report.failure
    assert not _left(room, word)


def _listening(pids: list[int]) -> set[str]:
    """The addresses on which these processes listen, as /proc writes them."""
    sockets = set()
    for pid in pids:
        for handle in Path(f"/proc/{pid}/fd").iterdir():
            target = os.readlink(handle)
            if target.startswith("socket:["):
                sockets.add(target[8:-1])
    rows = [row.split() for name in ("tcp", "tcp6") for row in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return {row[1].partition(":")[0] for row in rows if row[3] == "0A" and row[9] in sockets}


def test_what_differs_on_a_second_machine_is_named(room: Path) -> None:
    """The rank on a machine as the main process, and the global rank as the index of the GPU."""
    text = RIGHT.replace('get("RANK", 0)) == 0', 'get("LOCAL_RANK", 0)) == 0')
    text = text.replace('device("cuda", local_rank)', 'device("cuda", int(os.environ.get("RANK", 0)))')
    script = room / "work" / "train.py"
    script.write_text(text)
    report = verify(script, nproc=1, nnodes=2, devices=True)
    assert set(_failed(report)) == {"written_by_one_rank", "printed_once", "device_bound"}
    assert "rank 1 (local rank 0) chooses GPU 1 at train.py:" in _failed(report)["device_bound"]
    right = verify(SCRIPTS / "right.py", nproc=1, nnodes=2, devices=True)
    assert right.ok, right.failure
    assert {r.name for r in right.results if r.status is Status.HELD} >= {"device_bound", "nothing_left"}
    assert not _left(room, "train.py")


def test_what_only_torchrun_shows(room: Path) -> None:
    """Sets of strings have another order on each rank; a process outlives them."""
    text = RIGHT.replace(
        "    data = Tensor", "    word_to_id = {w: i for i, w in enumerate(set('abcdefgh'))}\n    data = Tensor"
    )
    command = "[__import__('sys').executable, '-c', 'import time; time.sleep(60)', 'stays behind']"
    text = text.replace("    dist.destroy", f"    __import__('subprocess').Popen({command})\n    dist.destroy")
    script = room / "work" / "train.py"
    script.write_text(text)
    failed = _failed(verify(script))
    assert set(failed) == {"same_names", "nothing_left"}
    assert failed["same_names"].startswith("word_to_id has the same entries")
    assert "stays behind" in failed["nothing_left"]
    assert not _left(room, "stays behind")


def test_two_runs_side_by_side(room: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        reports = list(pool.map(lambda _: verify(SCRIPTS / "right.py"), range(2)))
    assert [report.ok for report in reports] == [True, True], [report.failure for report in reports]


@pytest.mark.parametrize("how", ["kill", "interrupt", "terminate", "kill the guard"])
def test_nothing_is_left_when_it_is_killed(room: Path, how: str) -> None:
    word = uuid.uuid4().hex
    parent = subprocess.Popen(
        [sys.executable, "-c", CALL, str(SCRIPTS / "stays.py"), word],
        cwd=room / "work",
        env={**os.environ, "PYTHONPATH": str(SCRIPTS.parents[2])},
        stderr=subprocess.DEVNULL,
    )
    try:
        assert _until(lambda: len(list((room / "work").glob("started*"))) == 2, 60), "the ranks never started"
        # the caller, the guard, torchrun, two ranks and their two children
        assert _until(lambda: len(_with(word)) >= 7, 5)
        assert _listening(_with(word)) == {"0100007F"}
        if how == "kill the guard":
            guards = [pid for pid in _with(word) if b"\0guard\0" in Path(f"/proc/{pid}/cmdline").read_bytes()]
            os.kill(guards[0], signal.SIGKILL)
            expected = {pid for pid in _with("-c") if b"sleep(600)" in Path(f"/proc/{pid}/cmdline").read_bytes()}
        else:
            parent.send_signal({"kill": signal.SIGKILL, "interrupt": signal.SIGINT}.get(how, signal.SIGTERM))
            expected = set()
        parent.wait(timeout=60)  # it may be one of many on the machine
        assert _until(lambda: set(_with(word)) <= expected, 60), _with(word)
        assert _until(lambda: not list((room / "tmp").iterdir()), 5)
    finally:
        for pid in _with(word):
            os.kill(pid, signal.SIGKILL)
        parent.wait()
