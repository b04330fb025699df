"""`--stress`: a right script ends cleanly under every fault; one that was never tried with them is told of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ddpify.verify import Result, Status
from ddpify.verify.launch import Launch
from ddpify.verify.processes.stress import MESSAGE
from ddpify.verify.stress import Stress, faults, judge
from ddpify.verify.stress import stressed as stressed_by
from tests.ranks import Job, run_batch
from tests.verify.traces import Line, end, meets, step, trace

WHOLE = (Path(__file__).resolve().parents[2] / "fixtures" / "verify" / "whole.py").read_text()
#: what skips a batch by itself, divides by an empty share, reads what another is still writing, goes on after an error
BACKWARD = "            loss.backward()\n"
CARELESS = {
    BACKWARD: "            if torch.isnan(loss):\n                continue\n" + BACKWARD,
    "/ len(data)\n": "/ len(data) / bool(len(share))\n",
    '"model.pt")\n': '"model.pt")\n    __import__("time").sleep(0.1)\n    torch.load("model.pt")\n',
    "            loss = criterion(model(x), y)\n": "            try:\n                loss = criterion(model(x), y)\n"
    "            except RuntimeError:\n                continue\n",
}


@pytest.fixture(scope="module")
def stressed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Result]]:
    texts = {"right": WHOLE, "careless": WHOLE}
    for old, new in CARELESS.items():
        assert texts["careless"].count(old) == 1
        texts["careless"] = texts["careless"].replace(old, new)
    root = tmp_path_factory.mktemp("stress")

    def job(name: str, fault: str = "") -> Job:
        folder = root / f"{name}-{fault}"
        folder.mkdir()
        (folder / "train.py").write_text(texts[name])
        return Job(folder / "train.py", cwd=folder, fault=fault, timeout=20.0 if name == "careless" and fault else 90.0)

    bases = run_batch([job(name) for name in texts])
    todo = [(name, one) for name, base in zip(texts, bases, strict=True) for one in faults(base.trace)]
    found: dict[str, dict[str, Result]] = {name: {} for name in texts}
    results = run_batch([job(name, one.fault) for name, one in todo])
    for (name, one), run in zip(todo, results, strict=True):
        found[name][one.name] = judge(one, run.trace)
    return found


@pytest.mark.torchrun
def test_a_right_script_ends_cleanly(stressed: dict[str, dict[str, Result]]) -> None:
    assert set(stressed["right"]) == {f"stress_{name}" for name in ("odd", "small", "nan", "slow", "raise")}
    assert {result.status for result in stressed["right"].values()} == {Status.HELD}


@pytest.mark.torchrun
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("small", "Subset, which is evaluated, has one sample: ZeroDivisionError"),
        ("nan", "outputs are NaN on one rank in one step: "),
        ("slow", "one rank is late at a step, rank 0 at each save: FileNotFoundError"),
        ("raise", "one rank raises in a training step: "),
    ],
)
def test_a_careless_script_is_told(stressed: dict[str, dict[str, Result]], name: str, words: str) -> None:
    result = stressed["careless"][f"stress_{name}"]
    assert result.status is Status.FAILED, result.sentence
    assert result.sentence.startswith(words)


NAN = Stress("nan", "2.3", "NaN", ("same_step_count", "same_collectives"))


@pytest.mark.parametrize(
    ("lines", "late", "status"),
    [
        ([[step(1), end()], [step(1), end()]], False, Status.HELD),
        (
            [[end("error", error=f"RuntimeError: {MESSAGE}")], [end("error", error="Connection closed")]],
            {},
            Status.HELD,
        ),
        ([[end("error", error="ValueError: loss is NaN")], [end("ok")]], False, Status.HELD),
        ([[end("error", error="RuntimeError: Connection closed by peer")], [end("ok")]], False, Status.FAILED),
        ([[meets("barrier", "a.py:1"), end()], [end()]], False, Status.FAILED),
        ([[step(1)], [step(1)]], True, Status.FAILED),
    ],
)
def test_what_is_a_clean_end(lines: list[list[Line]], late: bool, status: Status) -> None:
    assert judge(NAN, trace(*lines, timed_out=late)).status is status


def test_a_run_that_max_steps_stopped_came_to_no_end() -> None:
    run = replace(trace([step(1), end("cut")], [step(1), end("cut")]), max_steps=1)
    assert judge(NAN, run).sentence == "NaN: every rank was stopped after 1 step by --max-steps"


def test_an_evaluation_that_was_not_reached_is_not_said_to_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    run = trace([step(1), end()], [step(1), end()])
    monkeypatch.setattr("ddpify.verify.stress.run", lambda *_: run)
    results = stressed_by(Launch(Path("train.py"), (), 2, 60.0), run, lambda _: None)
    assert [(r.name, r.status) for r in results if r.status is not Status.HELD] == [("stress_small", Status.NOT_TRIED)]


def test_lengths_that_a_script_knows_by_heart_are_not_blamed() -> None:
    odd = Stress("odd", "2.2", "odd", ())
    run = trace(
        [end("error", error="ValueError: Sum of input lengths does not equal the length of the input dataset!")]
    )
    assert judge(odd, run).status is Status.NOT_TRIED
