"""The parts of a comparison that need no run: plans, printed lines, the folder that runs work in."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ddpify.verify import Status
from ddpify.verify.equivalence import Equivalence, Still, _Runs
from ddpify.verify.equivalence.alone import of_one
from ddpify.verify.equivalence.events import Line
from ddpify.verify.equivalence.pair import Pair
from ddpify.verify.equivalence.plan import plan_of
from ddpify.verify.equivalence.printed import compare_lines, near
from ddpify.verify.equivalence.report import table
from ddpify.verify.equivalence.rows import rows
from ddpify.verify.equivalence.shadow import shadow
from ddpify.verify.launch import Launch
from ddpify.verify.trace import Trace
from tests.verify.traces import end, step, trace

ORDER = {"kind": "order", "loader": 0, "number": 0, "size": 5, "length": 2, "batch_size": 2, "training": True}


def test_one_process_reads_the_batches_of_the_ranks_one_behind_the_other() -> None:
    run = trace([{**ORDER, "batches": [[0, 2], [4]]}], [{**ORDER, "batches": [[1, 3], [0]]}])
    entry = plan_of(run)["0"]
    assert entry["passes"]["0"] == {"batches": [[0, 2, 1, 3], [4, 0]], "sizes": [[2, 2], [1, 1]]}
    assert (entry["batch_size"], entry["length"], entry["size"]) == (4, 2, 5)


@pytest.mark.parametrize("change", [{"training": False}, {"collated": False}])
def test_what_does_not_train_or_has_no_batches_is_not_planned(change: dict[str, bool]) -> None:
    assert plan_of(trace([{**ORDER, "batches": [[0]], **change}])) == {}


def _lines(*texts: str) -> list[Line]:
    return [Line(text=text) for text in texts]


def test_numbers_are_held_against_those_of_the_same_line() -> None:
    found = compare_lines(
        _lines("loss 0.5", "[GPU0] epoch 1: 3 of 4", "took 3 s", "end"),
        _lines("loss 0.7", "[GPUcpu] epoch 1: 3 of 4", "took 9 s", "epoch 2: 4 of 4"),
        0.0,
    )
    assert [(d.one, d.mine) for d in found.differ] == [(0.5, 0.7)]
    assert (found.equal, found.missing) == (3, ("end",))


@pytest.mark.parametrize(
    ("a", "b", "alike"),
    [
        ("0.1234", "0.1235", True),  # the last place may be rounded either way
        ("0.1234", "0.1236", False),
        ("12", "12", True),
        ("12", "13", False),  # a count is exact
        ("1.5e-3", "1.6e-3", True),
        ("nan", "nan", True),
        ("nan", "1.0", False),
    ],
)
def test_how_near_printed_numbers_must_be(a: str, b: str, alike: bool) -> None:
    assert near(a, b, 0.0) is alike


def test_a_run_writes_into_a_copy_of_the_folder(tmp_path: Path) -> None:
    work = tmp_path / "project" / "work"
    (work / "data").mkdir(parents=True)
    (work / "data" / "few.txt").write_text("1")
    (work / "large.bin").write_bytes(b"0" * 1_000_001)
    (work / "many").mkdir()
    for i in range(600):
        (work / "many" / str(i)).touch()
    (work.parent / "shared.txt").write_text("beside")
    made = shadow(work, tmp_path / "room")
    assert sorted(os.listdir(made)) == ["data", "large.bin", "many"]
    assert [(made / name).is_symlink() for name in ("data", "large.bin", "many")] == [False, True, True]
    assert (made / ".." / "shared.txt").read_text() == "beside"
    (made / "data" / "few.txt").write_text("2")
    assert (work / "data" / "few.txt").read_text() == "1"


def test_temporary_files_below_the_working_folder_are_not_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "work"
    for name in ("tmp/ddpify-mine/1", "tmp/ddpify-of-another", "tmp/kept", "ddpify-notes"):
        (work / name).mkdir(parents=True)
    monkeypatch.setattr("tempfile.tempdir", str(work / "tmp"))
    made = shadow(work, work / "tmp" / "ddpify-mine" / "1" / "work")
    assert sorted(str(p.relative_to(made)) for p in made.rglob("*")) == ["ddpify-notes", "tmp", "tmp/kept"]


@pytest.mark.parametrize(
    ("order", "why"),
    [
        ({"shapes": ["[3]"]}, ""),
        ({"shapes": ["[3]"], "collated": False}, "the batches come from a stream"),
        ({"shapes": ["[4]"]}, "samples are padded to the longest of their batch"),
    ],
)
def test_what_one_process_cannot_do_is_no_difference(order: dict[str, Any], why: str) -> None:
    def rank(value: float, **more: Any) -> list[dict[str, Any]]:
        read = {**ORDER, "batches": [[0, 1]], "shapes": ["[3]"], **more}
        return [read, {"kind": "loss", "number": 1, "step": 1, "value": value}, step(1), end()]

    pair = Pair(trace(rank(0.5), rank(0.6, **order)), trace(rank(0.7)), True)
    found = {result.name: result for result in rows(pair)}["same_losses"]
    assert found.status is (Status.NOT_TRIED if why else Status.FAILED)
    assert why in found.sentence


@pytest.mark.parametrize(
    ("one", "batch_size", "sampler", "status"),
    [
        (0.5, None, "RandomSampler", Status.NOT_TRIED),  # (3 * 0.4 + 1 * 0.8) / 4: each sample counts alike
        (0.55, None, "RandomSampler", Status.FAILED),
        (0.5, 2, "DistributedSampler", Status.FAILED),
        (0.5, 2, "PairSampler", Status.NOT_TRIED),
    ],
)
def test_whole_batches_of_different_sizes_count_alike(
    one: float, batch_size: int | None, sampler: str, status: Status
) -> None:
    def rank(value: float, *samples: int) -> list[dict[str, Any]]:
        read = {**ORDER, "batches": [list(samples)], "batch_size": batch_size, "sampler": sampler}
        return [read, {"kind": "loss", "number": 1, "step": 1, "value": value}, step(1), end()]

    pair = Pair(trace(rank(0.4, 0, 1, 2), rank(0.8, 3)), trace(rank(one, 0, 1, 2, 3)), True)
    found = {result.name: result for result in rows(pair)}["same_losses"]
    assert found.status is status
    assert ("each counts alike on the ranks" in found.sentence) is (status is Status.NOT_TRIED)


@pytest.mark.parametrize(
    ("mine", "status"), [("0.1234567890123457", Status.HELD), ("0.1234577890123456", Status.FAILED)]
)
def test_numbers_that_are_printed_in_full_may_differ_as_losses_may(mine: str, status: Status) -> None:
    def printed(number: str) -> list[dict[str, Any]]:
        return [
            {**ORDER, "batches": [[0]]},
            {"kind": "line", "text": f"held out {number}", "place": "evaluated"},
            end(),
        ]

    pair = Pair(trace(*[printed(mine)] * 2), trace(printed("0.1234567890123400")), True)
    assert {r.name: r for r in rows(pair)}["same_numbers"].status is status


@pytest.mark.parametrize(
    ("mine", "one", "status"),
    [
        ("3.0000", "2.0000", Status.HELD),  # the loss itself
        ("12.0000", "8.0000", Status.HELD),  # what it was before it was divided by 4
        ("12.0000", "9.0000", Status.FAILED),
        ("8.0100", "8.0000", Status.FAILED),
    ],
)
def test_a_loss_that_was_divided_before_it_went_back_is_rank_0s_own(mine: str, one: str, status: Status) -> None:
    def printed(loss: float, number: str) -> list[dict[str, Any]]:
        went = {"kind": "loss", "number": 1, "step": 1, "at": None, "value": loss}
        line = {"kind": "line", "text": f"step 1: loss {number}", "place": "between", "number": 1}
        return [{**ORDER, "batches": [[0]]}, went, line, end()]

    pair = Pair(trace(printed(3.0, mine), printed(1.0, mine)), trace(printed(2.0, one)), True)
    assert {r.name: r for r in rows(pair)}["same_numbers"].status is status


@pytest.mark.parametrize(("mine", "status"), [("0.735", Status.HELD), ("0.733", Status.FAILED)])
def test_a_number_over_the_padded_set_may_differ_by_the_padding_and_what_printing_cuts_off(
    mine: str, status: Status
) -> None:
    def printed(number: str) -> list[dict[str, Any]]:
        return [{**ORDER, "batches": [[0]]}, {"kind": "line", "text": f"right {number}", "place": "evaluated"}, end()]

    own = {"kind": "own_order", "loader": 0, "number": 0, "known": True, "size": 101, "extra": 1}
    pair = Pair(trace(*[printed(mine)] * 2), trace([own, *printed("0.743")]), True)
    assert {r.name: r for r in rows(pair)}["same_numbers"].status is status


@pytest.mark.parametrize(("cut", "status"), [(True, Status.NOT_TRIED), (False, Status.FAILED)])
def test_numbers_of_evaluations_that_were_cut_short_are_not_compared(cut: bool, status: Status) -> None:
    def printed(number: str) -> list[dict[str, Any]]:
        looked = {**ORDER, "loader": 1, "training": False, "complete": not cut, "cut": cut}
        line = {"kind": "line", "text": f"right {number}", "place": "evaluated"}
        return [{**ORDER, "batches": [[0]]}, looked, line, end()]

    found = {r.name: r for r in rows(Pair(trace(*[printed("0.5")] * 2), trace(printed("0.7")), True))}["same_numbers"]
    assert found.status is status
    assert ("--max-batches" in found.sentence) is cut


@pytest.mark.parametrize(("done", "length", "told"), [(12, 21, True), (2, 2, False), (10, 10, False), (5, 50, False)])
def test_schedules_that_come_to_a_half_of_their_length_are_told(done: int, length: int, told: bool) -> None:
    lines = [
        {**ORDER, "batches": [[0]], "batch_size": 1},
        {"kind": "rates", "number": 1, "optimizer": 0, "rates": [0.1]},
    ]
    own = {"kind": "own_order", "loader": 0, "number": 0, "batch_size": 1}
    schedule = {"kind": "schedule", "name": "LinearLR", "done": done, "length": length, "at": "train.py:9"}
    pair = Pair(trace([*lines, schedule, end()], [*lines, end()]), trace([*lines, own, end()]), True)
    assert ({r.name: r for r in rows(pair)}["same_rates"].status is Status.FAILED) is told


def test_the_table_shows_where_the_losses_part() -> None:
    curve = [(step, 1.0 / step, 1.0 / step + (0.1 if step > 20 else 0.0)) for step in range(1, 41)]
    rows = [row.split()[0] for row in table(curve, 2)]
    assert rows == ["step", "1", "2", "3", "4", "...", "20", "21", "22", "23", "...", "40"]
    assert "ranks (mean)" in table(curve, 2)[0]
    assert "one process" in table(curve, 1)[0]


# -- where the original takes no batches of several ranks ---------------------------------------------------------


def _scripted(folder: Path, *, neither: bool = False, **answers: Trace) -> tuple[Equivalence | None, list[str]]:
    """A comparison whose runs are answered from a list, and which runs it asked for."""
    asked = list[str]()

    class Runs(_Runs):
        def _run(self, double: bool, plan: dict[str, Any] | None, padded: bool = False, **changes: Any) -> Trace:
            who = "original" if "script" in changes else "alone" if "alone" in changes else "ranks"
            asked.append(who)
            return answers[f"{who}_given_one" if "alone" in asked and who == "original" else who]

    launch = Launch(folder / "train_ddp.py", (), 2, 60.0)
    runs = Runs(folder / "train.py", launch, Still(), folder, None)
    return runs.compared(double=True) or (runs.neither() if neither else None), asked


def _trained(value: float, ranks: int = 1) -> Trace:
    lines = [{**ORDER, "batches": [[0, 1]]}, {"kind": "loss", "number": 1, "step": 1, "value": value}, step(1), end()]
    return trace(*[lines] * ranks)


STOPS = trace([end("error", error="RuntimeError: Expected hidden size (1, 4, 8)", at="train.py:30")])


@pytest.mark.parametrize(("value", "status"), [(0.5, Status.HELD), (0.6, Status.FAILED)])
def test_an_original_for_one_batch_size_is_compared_as_one_process(
    tmp_path: Path, value: float, status: Status
) -> None:
    found, asked = _scripted(
        tmp_path, ranks=_trained(0.5, 2), original=STOPS, alone=_trained(0.5), original_given_one=_trained(value)
    )
    assert asked == ["ranks", "original", "alone", "original"]
    assert found is not None
    assert "both as one process" in found.head()
    results = {result.name: result for result in found.results}
    assert results["same_alone"].status is status
    assert results["same_losses"].status is Status.NOT_TRIED
    assert "at train.py:30: RuntimeError: Expected hidden size (1, 4, 8)" in results["same_losses"].sentence


def test_an_original_that_does_not_run_at_all_is_not_compared(tmp_path: Path) -> None:
    found, _ = _scripted(
        tmp_path, ranks=_trained(0.5, 2), original=STOPS, alone=_trained(0.5), original_given_one=STOPS
    )
    assert found is None  # it may run in float32


def test_what_nobody_could_look_at_is_not_said_to_hold() -> None:
    found = {result.name: result for result in rows(Pair(trace([end()], [end()]), trace([end()]), True))}
    found["same_alone"] = of_one(Pair(trace([end()]), trace([end()]), True))
    assert not [result for result in found.values() if result.status is Status.HELD]
    assert found["same_gradients"].sentence == "no optimizer stepped"


def test_ranks_that_train_nothing_fail_against_an_original_that_trains(tmp_path: Path) -> None:
    found, asked = _scripted(tmp_path, ranks=trace([end()], [end()]), original=_trained(0.5))
    assert asked == ["ranks", "original"]
    assert found is not None
    assert [(r.name, r.status) for r in found.results] == [("same_losses", Status.FAILED)]
    assert "makes no backward pass, the original 1 backward pass" in found.results[0].sentence
    assert found.curve == ()  # there is nothing to hold the original's against


def test_a_run_without_an_end_in_float64_is_not_said_to_have_run_in_float32(tmp_path: Path) -> None:
    found, asked = _scripted(tmp_path, ranks=trace([step(1)], [step(1)], timed_out=True, timeout=60.0))
    assert asked == ["ranks"]
    assert found is not None
    assert "(float64" in found.head()
    assert "has no end after 60 s (give --max-steps)" in found.results[0].sentence


def test_neither_trains(tmp_path: Path) -> None:
    found, _ = _scripted(tmp_path, ranks=trace([end()], [end()]), original=trace([end()]))
    assert found is not None
    assert [r.status for r in found.results] == [Status.NOT_TRIED]


@pytest.mark.parametrize(("original", "said"), [(STOPS, "the original does not run here either"), (_trained(0.5), "")])
def test_whether_the_original_runs_is_said_where_the_ranks_do_not(tmp_path: Path, original: Trace, said: str) -> None:
    found, asked = _scripted(tmp_path, neither=True, ranks=STOPS, original=original)
    assert asked == ["ranks", "original"]
    assert found is not None
    assert found.results[0].sentence.startswith("not compared: the converted script stops at train.py:30")
    assert said in found.results[0].sentence
    assert ("does not run here" in found.results[0].sentence) is bool(said)
