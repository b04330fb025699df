"""Each check fails on the trace of the harm that it is for, holds on a good one, and says when it could not look."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

import ddpify.verify
from ddpify.rules import all_rules
from ddpify.verify.checks import Check, Result, Status, all_checks, run_checks
from ddpify.verify.trace import Trace
from tests.verify.traces import GONE, INIT, WRAP, Line, drawn, end, evaluated, forward, meets, over, step, trace

SAVE: Line = {"kind": "save", "path": "model.pt", "at": "train.py:50"}
BIND: Line = {"kind": "set_device", "at": "train.py:19"}
ASKED: Line = {"kind": "request", "bound": True, "at": "train.py:22"}


TRAINING_SET = ("TensorDataset", 4, "t")
TEST_SET = ("TensorDataset", 3, "e")
BASE = ("TensorDataset", 9, "b")


def _rank(first: tuple[int, ...], second: tuple[int, ...], tested: tuple[int, ...], *more: Line) -> list[Line]:
    passes = [drawn(*first, epoch=0, order=0), drawn(*second, epoch=1, order=1)]
    evaluation = [over(("Subset", len(tested), str(tested)), TEST_SET, loader=1, base=1), evaluated(*tested)]
    chance = [forward(0, f"x{first}", f"r{first}"), forward(1, f"y{first}", f"s{first}")]
    names = {"kind": "names", "names": {"classes": ["a", "b"]}}
    steps = [step(1, "aa", backwards=1, rates=[0.1]), step(2, "bb", backwards=2, rates=[0.1])]
    final = {"kind": "final", "sums": {"optimizer 0": "cc"}}
    reduced = meets("all_reduce", "train.py:64", shape=[2], dtype="float64", time=9.0)
    lines = [INIT, WRAP, over(TRAINING_SET), names, *chance, *steps, *passes, *evaluation, reduced, *more]
    return [*lines, final, end(), GONE]


RELOAD: Line = {"kind": "reload", "path": "model.pt", "model": "Net"}
GOOD = trace(
    _rank((0, 2), (3, 1), (0, 2), SAVE, RELOAD),
    _rank((1, 3), (2, 0), (1,)),
    stdout=("epoch 0: loss 1.0\n",),
    left=(),
)
ON_GPUS = trace(
    [{**BIND, "index": 0}, INIT, {**WRAP, "device_ids": [0]}, end(devices=[0])],
    [{**BIND, "index": 1}, INIT, {**WRAP, "device_ids": [1]}, end(devices=[1])],
    backend="nccl",
)
EMPTY = trace([INIT, end("cut")], [INIT, end("cut")])


def _split(trained: tuple[int, ...], tested: tuple[int, ...]) -> list[list[Line]]:
    lines = [over(("Subset", 2, "s"), BASE, base=0), over(("Subset", 2, "v"), BASE, base=0, loader=1)]
    return [[*lines, drawn(*trained, sampler="RandomSampler"), evaluated(*tested)]]


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
    ("ends_in_time", "give a longer --timeout", trace([], [], timed_out=True, timeout=5.0, deadline=100.0)),
    ("ends_in_time", "rank 1 ended without a word", trace([end()], [INIT])),
    ("wrapped", "rank 0 trains at train.py:45 without", trace([step(1)], [step(1)])),
    ("wrapped", "rank 1 trains at train.py:45 without", trace([WRAP, step(1)], [step(1)])),
    ("wrapped", "rank 0 trains at train.py:45 without", trace(*[[step(1, "aa", outside=15)]] * 2)),
    (
        "wrapped",
        "rank 0 trains at train.py:45 without",
        trace(*[[meets("all_reduce", "train.py:44"), step(1, c, outside=15)] for c in ("aa", "bb")]),
    ),
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
        "parameters_equal",  # `p.data.add_(p.grad, alpha=-lr)`
        "in the end wrapped model 0 differs on rank 1",
        trace(*[[{"kind": "final", "sums": {"wrapped model 0": c}}, end(backwards=2)] for c in "ab"]),
    ),
    (
        "same_step_count",
        "nothing is trained: a rank's share of 9 samples makes no whole batch",
        trace(*[[drawn(drop_last=True, size=9, training=False), end()]] * 2),
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
    (
        "disjoint_shards",
        "4 samples drawn by more than one rank (Own)",
        trace([drawn(0, 1, 2, 3, sampler="Own")], [drawn(3, 2, 1, 0, sampler="Own")]),
    ),
    ("disjoint_shards", "together drew 3 of 4 samples", trace([drawn(0, 1)], [drawn(2)])),
    (
        "same_split",
        "the split of Subset that the DistributedSampler at train.py:40 shares out differ",
        trace([over(("Subset", 4, "a"), BASE), drawn(0, 1)], [over(("Subset", 4, "b"), BASE), drawn(2, 3)]),
    ),
    (
        "same_split",
        "the samples of TensorDataset that",
        trace([over(("TensorDataset", 4, "a")), drawn(0, 1)], [over(("TensorDataset", 4, "b")), drawn(2, 3)]),
    ),
    (
        "same_split",
        "sample 2 (and 1 more) is trained on by rank 1, evaluated by 0",
        trace(*_split((0, 1), (2, 3)), *_split((2, 3), (4,))),
    ),
    (
        "evaluated_once",
        "the evaluation at train.py:60 counts 1 sample more than once (DistributedSampler)",
        trace([evaluated(0, 2, sampler="DistributedSampler")], [evaluated(1, 0, sampler="DistributedSampler")]),
    ),
    (
        "evaluated_once",
        "leaves out 1 of 3 samples",
        trace(*[[over(TEST_SET, loader=1), evaluated(i)] for i in range(2)]),
    ),
    (
        "evaluation_reduced",
        "rank 0 evaluates its own share at train.py:60 and reduces nothing",
        trace([evaluated(0, 2), end()], [evaluated(1), end()]),
    ),
    (
        "same_collectives",
        "rank 0 alone makes collective 2: barrier at train.py:50",
        trace([meets("all_reduce", "a.py:1"), meets("barrier", "train.py:50"), end()], [meets("all_reduce", "a.py:1")]),
    ),
    (
        "same_collectives",
        "collective 1: rank 0 is in all_reduce of 2 at a.py:1, rank 1 in all_reduce of 3 at a.py:1",
        trace([meets("all_reduce", "a.py:1", shape=[2])], [meets("all_reduce", "a.py:1", shape=[3])]),
    ),
    (
        "same_collectives",
        "collective 2 pairs up two that do not belong together: rank 0 is in all_reduce at a.py:9",
        trace(
            [meets("all_reduce", "a.py:1"), meets("all_reduce", "a.py:9"), meets("all_reduce", "a.py:1")],
            [meets("all_reduce", "a.py:1"), meets("all_reduce", "a.py:1"), meets("all_reduce", "a.py:1")],
        ),
    ),
    (
        "same_learning_rates",
        "step 2 at train.py:45 has the learning rate 0.1 on rank 0, 0.01 on rank 1",
        trace([step(1, rates=[0.1]), step(2, rates=[0.1])], [step(1, rates=[0.1]), step(2, rates=[0.01])]),
    ),
    (
        "data_differs",
        "every rank gives the model the same input at train.py:43 in 2 of 2 training forwards",
        trace(*[[forward(0, "a"), forward(1, "b")]] * 2),
    ),
    (
        "noise_differs",
        "the same random numbers for the training forward at train.py:43",
        trace([forward(0, "a", "same")], [forward(0, "b", "same")]),
    ),
    (
        "noise_differs",
        "for a training batch (generator: numpy)",
        trace(
            *[[{"kind": "fetch", "loader": 0, "states": {"numpy": "n"}, "drew": ["numpy"]}, drawn(i)] for i in (0, 1)]
        ),
    ),
    (
        "same_names",
        "word_to_id has the same entries on every rank, but another order",
        trace(*[[{"kind": "names", "names": {"word_to_id": [order, "words"]}}] for order in "ab"]),
    ),
    (
        "checkpoint_loads",
        "model.pt of rank 0 does not load into Net: unexpected key fc.weight",
        trace([{**RELOAD, "error": "unexpected key fc.weight"}]),
    ),
    (
        "set_on_wrapper",
        "scale is set on the wrapper of Net, not on the model at train.py:31",
        trace([WRAP, {"kind": "attribute", "name": "scale", "model": "Net", "at": "train.py:31"}]),
    ),
    ("nothing_left", "1 process outlived the ranks: python server.py", trace([end()], left=("python server.py",))),
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
    (
        "device_bound",
        "rank 1 (local rank 0) chooses GPU 1 at train.py:19",
        trace(*[[{"kind": "start", "local_rank": 0}, {**BIND, "index": i}, INIT] for i in (0, 1)], backend="nccl"),
    ),
    (
        "device_bound",
        "rank 1 asks for GPU 0 at train.py:22",
        trace(pretended=trace(*[[{**BIND, "index": i}, INIT, {**ASKED, "index": 0}] for i in (0, 1)])),
    ),
    (
        "device_bound",
        "asks for the current GPU at train.py:22 before it is bound",
        trace(pretended=trace([{**ASKED, "bound": False}, {**BIND, "index": 0}, INIT])),
    ),
    (
        "device_bound",
        "before it is bound to a GPU",
        trace(pretended=trace(*[[{**INIT, "backend": "nccl"}, end()]] * 2)),
    ),
    (
        "device_bound",
        "before it is bound to a GPU",
        trace(pretended=trace(*[[INIT, ASKED, end()]] * 2)),
    ),
    ("device_bound", "rank 1 also holds memory on GPU 0", trace([], [end(devices=[0, 1])], backend="nccl")),
]


def _result(name: str, run: Trace) -> Result:
    return next(result for result in run_checks(run) if result.name == name)


@pytest.mark.parametrize(("name", "words", "run"), BAD, ids=[f"{name}-{i}" for i, (name, _, _) in enumerate(BAD)])
def test_fails_on_the_harm(name: str, words: str, run: Trace) -> None:
    result = _result(name, run)
    assert result.status is (Status.NOTED if name == "noise_differs" else Status.FAILED)
    assert words in result.sentence


def test_the_rules_that_verify_names_are_there() -> None:
    """`ddpify explain` is what the report sends its reader to."""
    known = {rule.code for rule in all_rules()}
    texts = [path.read_text() for path in (Path(ddpify.verify.__file__).parent).rglob("*.py")]
    assert {code for text in texts for code in re.findall(r"DDP[0-9]{3}", text)} <= known


def test_what_argparse_said_stands_beside_its_exit() -> None:
    run = trace([end("exit", error="SystemExit: 2", at="train.py:9")])
    said = replace(run.ranks[0], stderr="usage: train.py\ntrain.py: error: unrecognized arguments: --bogus\n")
    found = _result("ends_in_time", replace(run, ranks=(said,)))
    assert found.sentence.endswith("SystemExit: 2 (train.py: error: unrecognized arguments: --bogus)")


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
    assert set(cls.likely) <= {rule.code for rule in all_rules()}


@pytest.mark.parametrize(
    ("name", "run"),
    [
        # one sample twice is the padding of an odd dataset
        ("disjoint_shards", trace([drawn(0, 1, size=3)], [drawn(2, 0, size=3)])),
        # a sampler that drops the last samples need not deal them all out
        ("disjoint_shards", trace([drawn(0, drop_last=True)], [drawn(1, drop_last=True)])),
        # whole batches that are dealt out: the first one again where they do not divide
        ("disjoint_shards", trace([drawn(0, 1, sampler="B", batch=2)], [drawn(0, 1, 2, sampler="B", batch=2)])),
        # a sampler of the script's own need not draw every sample
        ("disjoint_shards", trace([drawn(0, sampler="ShardedSampler")], [drawn(1, sampler="ShardedSampler")])),
        # stepped by hand
        (
            "parameters_equal",
            trace(*[[{"kind": "final", "sums": {"wrapped model 0": "a"}}, end(backwards=2)]] * 2),
        ),
        # what the script keeps equal itself may stay outside the wrapper
        ("wrapped", trace([WRAP, step(1, "aa", outside=4)], [WRAP, step(1, "aa", outside=4)])),
        # a prompt before a frozen model: nothing to wrap, its gradient is averaged by hand
        ("wrapped", trace(*[[meets("all_reduce", "train.py:44"), step(1, "aa", outside=15)]] * 2)),
        # a share that the script took itself is no split
        ("disjoint_shards", trace(*[[drawn(i, i + 1, split=str(i), sampler="RandomSampler")] for i in (0, 2)])),
        # pretended GPUs, each rank on its own
        ("device_bound", trace(pretended=trace(*[[{**BIND, "index": i}, INIT, ASKED, end()] for i in (0, 1)]))),
        # the first rank of another machine downloads too
        (
            "written_by_one_rank",
            trace(*[[{"kind": "start", "local_rank": 0}, {**SAVE, "kind": "write"}, step(1, time=9.0)]] * 2),
        ),
        # two branches of one `if`, always the same two, are one meeting
        (
            "same_collectives",
            trace(*[[meets("broadcast", f"a.py:{line}"), meets("broadcast", f"a.py:{line}")] for line in (3, 5)]),
        ),
        # every rank evaluates everything, in an order of its own
        ("evaluated_once", trace([evaluated(0, 1, 2)], [evaluated(2, 1, 0)])),
        # rank 0 alone evaluates
        ("evaluated_once", trace([evaluated(0, 1, 2)], [])),
        # other words on each rank: a share of the files
        ("same_names", trace(*[[{"kind": "names", "names": {"files": [x, x], "c": ["", ""]}}] for x in "ab"])),
        # one batch that the ranks happen to share
        ("data_differs", trace(*[[forward(0, "a"), forward(1, x), forward(2, x * 2)] for x in "bc"])),
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
        ("disjoint_shards", trace([drawn(0, 1, sampler="ShardedSampler")], [drawn(1, 0, sampler="ShardedSampler")])),
        # killed ranks prove nothing by having fewer steps
        ("same_step_count", trace([step(1), step(2)], [step(1)], timed_out=True)),
        ("group_destroyed", trace([INIT, end("cut"), {**GONE, "initialized": None}])),
        # an evaluation that a break leaves
        ("evaluated_once", trace([evaluated(0, complete=False)], [evaluated(0, complete=False)])),
        # update_bn reads the training loader for statistics, of which no number is printed
        ("evaluated_once", trace([evaluated(0, 1, statistics=True)], [evaluated(1, 2, statistics=True)])),
        # everything on every rank: there is nothing to reduce
        ("evaluation_reduced", trace([evaluated(0, 1), end()], [evaluated(1, 0), end()])),
        # an input that never changes is no data
        ("data_differs", trace(*[[forward(0, "a"), forward(1, "a")]] * 2)),
        # what fails only because the GPUs are not there
        ("device_bound", trace(pretended=trace([{**BIND, "index": 0}, INIT, end("error", error="no such GPU")]))),
        # a script for the CPU, with gloo, has nothing to be bound to
        ("device_bound", trace(pretended=trace(*[[INIT, end()]] * 2))),
        ("device_bound", trace(*[[INIT, end()]] * 2, backend="nccl")),
        # of a run that was cut short
        ("nothing_left", trace([end("cut")], left=("python worker.py",))),
    ],
)
def test_does_not_claim_what_it_cannot_know(name: str, run: Trace) -> None:
    assert _result(name, run).status is Status.NOT_TRIED
