"""Each check fails on the trace of the harm that it is for, holds on a good one, and says when it could not look."""

from __future__ import annotations

import pytest

from ddpify.verify.checks import Check, Result, Status, all_checks, run_checks
from ddpify.verify.trace import Trace
from tests.verify.traces import GONE, INIT, WRAP, Line, drawn, end, step, trace

SAVE: Line = {"kind": "save", "path": "model.pt", "at": "train.py:50"}
BIND: Line = {"kind": "set_device", "at": "train.py:19"}


def _rank(first: tuple[int, ...], second: tuple[int, ...], *more: Line) -> list[Line]:
    passes = [drawn(*first, epoch=0, order=0), drawn(*second, epoch=1, order=1)]
    final = {"kind": "final", "sums": {"optimizer 0": "cc"}}
    return [INIT, WRAP, step(1, "aa", backwards=1), step(2, "bb", backwards=2), *passes, *more, final, end(), GONE]


GOOD = trace(_rank((0, 2), (3, 1), SAVE), _rank((1, 3), (2, 0)), stdout=("epoch 0: loss 1.0\n",))
ON_GPUS = trace(
    [{**BIND, "index": 0}, INIT, {**WRAP, "device_ids": [0]}, end(devices=[0])],
    [{**BIND, "index": 1}, INIT, {**WRAP, "device_ids": [1]}, end(devices=[1])],
    backend="nccl",
)
EMPTY = trace([INIT, end("cut")], [INIT, end("cut")])

# name of the check, the words that its sentence must have, a trace that breaks it
BAD: list[tuple[str, str, Trace]] = [
    (
        "ends_in_time",
        "rank 1 stopped at train.py:9: ValueError: no",
        trace(
            [end("error", error="RuntimeError: Connection closed by peer", time=2.0, at="train.py:8")],
            [end("error", error="ValueError: no", time=1.0, at="train.py:9")],
        ),
    ),
    ("ends_in_time", "no end after 5 s", trace([INIT], [INIT], timed_out=True, timeout=5.0, deadline=100.0)),
    (
        "ends_in_time",
        "still training after 5 s: give --max-steps",
        trace(*[[step(1, time=97.0), step(2, time=98.5)]] * 2, timed_out=True, timeout=5.0, deadline=100.0),
    ),
    (
        "ends_in_time",
        "no end after 5 s",
        trace(*[[step(1, time=97.0), step(2, time=97.1)]] * 2, timed_out=True, timeout=5.0, deadline=100.0),
    ),
    ("ends_in_time", "rank 1 ended without a word", trace([end()], [INIT])),
    ("wrapped", "rank 0 trains at train.py:45 without", trace([step(1)], [step(1)])),
    ("wrapped", "rank 1 trains at train.py:45 without", trace([WRAP, step(1)], [step(1)])),
    (
        "wrapped",
        "4 of the 15 parameters that the optimizer steps at train.py:45",
        trace([WRAP, step(1, "aa", outside=4)], [WRAP, step(1, "bb", outside=4)]),
    ),
    (
        "parameters_equal",
        "rank 1 has other parameters than rank 0 after step 2 at train.py:45",
        trace([step(1), step(2, "aa")], [step(1), step(2, "bb")]),
    ),
    (
        "parameters_equal",
        "in the end optimizer 0 differs on rank 1",
        trace(
            [step(1), {"kind": "final", "sums": {"optimizer 0": "a"}}],
            [step(1), {"kind": "final", "sums": {"optimizer 0": "b"}}],
        ),
    ),
    (
        "same_step_count",
        "rank 1 made 1 step, rank 0 2 at train.py:45",
        trace([step(1), step(2), end()], [step(1), end()]),
    ),
    (
        "same_step_count",
        "rank 1 made 1 step, rank 0 2",
        trace([step(1), step(2), end("error")], [step(1), end()]),
    ),
    (
        "same_step_count",
        "1 and 2 backward passes",
        trace([step(1, backwards=1), end()], [step(1, backwards=2), end()]),
    ),
    (
        "disjoint_shards",
        "training pass 1 at train.py:40: every rank drew the same 4 samples",
        trace([drawn(3, 1, 0, 2, sampler="RandomSampler")], [drawn(3, 1, 0, 2, sampler="RandomSampler")]),
    ),
    ("disjoint_shards", "2 samples drawn by more than one rank", trace([drawn(0, 1, 2)], [drawn(1, 2, 3)])),
    ("disjoint_shards", "together drew 3 of 4 samples", trace([drawn(0, 1)], [drawn(2)])),
    ("disjoint_shards", "another split", trace([drawn(0, 1, split="a")], [drawn(2, 3, split="b")])),
    (
        "reshuffled",
        "rank 0 drew the same order in two epochs at train.py:40; the sampler's epoch stayed 0",
        trace([drawn(0, 1, epoch=0), drawn(0, 1, epoch=0, order=1)], [drawn(2, 3), drawn(3, 2, order=1)]),
    ),
    ("written_by_one_rank", "rank 1 writes too at train.py:50: model.pt", trace([SAVE], [SAVE])),
    (
        "written_by_one_rank",
        "rank 1 writes at train.py:51: log1.txt",
        trace([SAVE], [{"kind": "write", "path": "log1.txt", "at": "train.py:51"}]),
    ),
    (
        "no_module_keys",
        "rank 0 saves the key module.fc.bias at train.py:50",
        trace([{**SAVE, "prefixed": ["module.fc.bias"]}], []),
    ),
    ("no_module_keys", "pickles the wrapper of Net", trace([{**SAVE, "wrapper": "Net"}], [])),
    ("printed_once", "rank 1 prints too: loss 1", trace([], [], stdout=("loss 1\n", "loss 1\n"))),
    (
        "printed_once",
        "rank 1 prints too at train.py:48: epoch 0",
        trace([], [{"kind": "output", "stream": "stderr", "text": "epoch 0", "at": "train.py:48"}]),
    ),
    (
        "group_destroyed",
        "rank 1 ended with the process group",
        trace([INIT, end(), GONE], [INIT, end(), {**GONE, "initialized": True}]),
    ),
    (
        "device_bound",
        "rank 1 chooses GPU 0 at train.py:19",
        trace([{**BIND, "index": 0}, INIT], [{**BIND, "index": 0}, INIT], backend="nccl"),
    ),
    (
        "device_bound",
        "before it is bound to a GPU",
        trace([INIT, {**BIND, "index": 0, "after_init": True}], backend="nccl"),
    ),
    ("device_bound", "rank 0 wraps Net at train.py:30 for GPU 1", trace([{**WRAP, "device_ids": [1]}], backend="nccl")),
    ("device_bound", "rank 1 also holds memory on GPU 0", trace([], [end(devices=[0, 1])], backend="nccl")),
]


def _result(name: str, run: Trace) -> Result:
    return next(result for result in run_checks(run) if result.name == name)


@pytest.mark.parametrize(("name", "words", "run"), BAD, ids=[f"{name}-{i}" for i, (name, _, _) in enumerate(BAD)])
def test_fails_on_the_harm(name: str, words: str, run: Trace) -> None:
    result = _result(name, run)
    assert result.status is Status.FAILED
    assert words in result.sentence


def test_every_check_has_a_bad_trace() -> None:
    assert {cls.name() for cls in all_checks()} == {name for name, _, _ in BAD}


@pytest.mark.parametrize("cls", all_checks(), ids=lambda cls: cls.name())
def test_holds_on_a_good_run(cls: type[Check]) -> None:
    name = cls.name()
    result = _result(name, ON_GPUS if name == "device_bound" else GOOD)
    assert result.status is Status.HELD, result.sentence
    assert not result.likely


@pytest.mark.parametrize("cls", [cls for cls in all_checks() if cls.name() != "ends_in_time"], ids=lambda c: c.name())
def test_not_tried_where_there_was_nothing_to_see(cls: type[Check]) -> None:
    result = _result(cls.name(), EMPTY)
    assert result.status is Status.NOT_TRIED
    assert result.sentence


@pytest.mark.parametrize("cls", all_checks(), ids=lambda cls: cls.name())
def test_says_what_it_holds(cls: type[Check]) -> None:
    doc = cls.__doc__ or ""
    assert "Contract" in doc
    assert all(code.startswith("DDP") for code in cls.likely)


@pytest.mark.parametrize(
    ("name", "run"),
    [
        # one sample twice is the padding of an odd dataset
        ("disjoint_shards", trace([drawn(0, 1, size=3)], [drawn(2, 0, size=3)])),
        # a sampler that drops the last samples need not deal them all out
        ("disjoint_shards", trace([drawn(0, drop_last=True)], [drawn(1, drop_last=True)])),
        # what the script keeps equal itself may stay outside the wrapper
        ("wrapped", trace([WRAP, step(1, "aa", outside=4)], [WRAP, step(1, "aa", outside=4)])),
        # two orders of two samples may be alike by chance, with another epoch
        ("reshuffled", trace([drawn(0, 1, epoch=0), drawn(0, 1, epoch=1, order=1)])),
    ],
)
def test_is_not_over_strict(name: str, run: Trace) -> None:
    assert _result(name, run).status is Status.HELD


@pytest.mark.parametrize(
    ("name", "run"),
    [
        # a sampler with replacement deals out no partition
        ("disjoint_shards", trace([drawn(0, 0, 0, sampler="W")], [drawn(1, 0, 1, sampler="W")])),
        # killed ranks prove nothing by having fewer steps
        ("same_step_count", trace([step(1), step(2)], [step(1)], timed_out=True)),
        ("group_destroyed", trace([INIT, end("cut"), {**GONE, "initialized": None}])),
    ],
)
def test_does_not_claim_what_it_cannot_know(name: str, run: Trace) -> None:
    assert _result(name, run).status is Status.NOT_TRIED
