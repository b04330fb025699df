"""Files of ranks are read as they are, torn ones too; the report says what, where and why."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ddpify.errors import DdpifyError
from ddpify.verify import VerifyReport, verify
from ddpify.verify.checks import run_checks
from ddpify.verify.report import describe_failure, loss_curves
from ddpify.verify.trace import Step, Trace, read_rank
from tests.verify.traces import INIT, end, step, trace


def _report(run: Trace) -> VerifyReport:
    results = run_checks(run)
    return VerifyReport(Path("train.py"), run.world, run.backend, results, 1.0, True, describe_failure(run, results))


def _shown(report: VerifyReport) -> str:
    console = Console(file=StringIO(), width=80)
    report.render(console)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_a_torn_line_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "rank0.jsonl").write_text(json.dumps(step(1)) + '\n{"kind": "other"}\n{"kind": "st')
    assert [type(event) for event in read_rank(tmp_path, 0, Path("train.py")).events] == [Step]


def test_a_rank_that_never_started_has_an_empty_trace(tmp_path: Path) -> None:
    rank = read_rank(tmp_path, 1, Path("train.py"))
    assert (rank.events, rank.stdout, rank.end, rank.standing) == ((), "", None, None)


def test_where_the_main_thread_stood(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import x\nx.wait()\n")
    (tmp_path / "rank0.jsonl").write_text('{"kind": "start", "thread": 255}\n')
    (tmp_path / "rank0.stand").write_text(
        "Timeout (0:00:05)!\n"
        f'Thread 0x00000000000000fe (most recent call first):\n  File "{script}", line 1 in other\n\n'
        'Thread 0x00000000000000ff (most recent call first):\n  File "/lib/site-packages/x.py", line 7 in wait\n'
        f'  File "{script}", line 2 in <module>\n'
    )
    assert read_rank(tmp_path, 0, script).standing == "train.py:2 `x.wait()`"


def test_the_failure_names_rank_traceback_line_and_rule() -> None:
    broken = end(
        "error", error="FileExistsError: runs", traceback="Traceback ...\nFileExistsError: runs", at="train.py:7"
    )
    report = _report(trace([INIT], [INIT, broken], stdout=("hello\n",)))
    shown = _shown(report)
    assert not report.ok
    assert "rank 1 stopped at train.py:7: FileExistsError: runs" in shown
    assert "likely DDP403: see `ddpify explain DDP403`" in shown
    assert "rank 1: Traceback ..." in shown
    assert "rank 0 printed last:\n    hello" in shown
    assert "Not tried: nccl" in shown


@pytest.mark.parametrize(
    ("error", "steps", "synthetic", "said"),
    [
        ("RuntimeError: Error downloading train-images.gz", 0, False, True),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'data/train.csv'", 0, False, True),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'best.pt'", 1, False, False),  # after the training
        ("RuntimeError: Error downloading train-images.gz", 0, True, False),
        ("ValueError: no", 0, False, False),
    ],
)
def test_where_data_is_not_there_the_option_that_makes_it_up_is_named(
    error: str, steps: int, synthetic: bool, said: bool
) -> None:
    run = trace([*[step(1)] * steps, end("error", error=error, at="train.py:9")])
    told = describe_failure(run, run_checks(run), synthetic=synthetic)
    assert ("--synthetic" in told) is said


def test_a_good_run_has_no_failure_and_json_says_the_same() -> None:
    report = _report(trace([step(1, outside=0), end()], max_steps=1))
    data = json.loads(json.dumps(report.to_json()))
    assert {r["name"]: r["status"] for r in data["results"]}["ends_in_time"] == "held"
    assert data["cpu_fallback"] is True
    assert data["ok"] == report.ok


def test_a_terminal_gets_a_table() -> None:
    report = _report(trace([step(1, loss=2.0), step(2, loss=1.5), end()]))
    console = Console(file=StringIO(), width=160, force_terminal=True, color_system=None)
    report.render(console)
    assert isinstance(console.file, StringIO)
    shown = console.file.getvalue()
    assert "what was seen" in shown
    assert all(result.name in shown for result in report.results)


def test_losses_are_kept_by_rank() -> None:
    run = trace([step(1, loss=2.0), step(2, loss=1.5)], [step(1)])
    assert loss_curves(run) == {"rank 0": [2.0, 1.5]}


def test_brackets_in_messages_are_no_markup() -> None:
    report = _report(trace([end("error", error="KeyError: [bold]x[/bold]", at="a.py:1")]))
    assert "KeyError: [bold]x[/bold]" in _shown(report)


@pytest.mark.parametrize("kwargs", [{"nproc": 0}, {"timeout": 0.0}, {"max_steps": 0}])
def test_numbers_that_make_no_sense(kwargs: dict[str, Any], tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()
    with pytest.raises(DdpifyError, match="must be positive"):
        verify(script, **kwargs)


def test_no_such_script(tmp_path: Path) -> None:
    with pytest.raises(DdpifyError, match="no such file"):
        verify(tmp_path / "train.py")


def test_without_torch_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DdpifyError, match=r'pip install "ddpify\[verify\]"'):
        verify(tmp_path / "train.py")
