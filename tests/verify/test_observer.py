"""The observer on forked ranks: it sees the harm in real scripts, and gets in nobody's way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from ddpify.verify.checks import Result, Status, run_checks
from ddpify.verify.trace import Init, Pass, SetDevice, SetEpoch, Wrap
from tests.ranks import Job, JobResult, run_batch

pytestmark = pytest.mark.torchrun

SCRIPTS = Path(__file__).parent / "scripts"
RIGHT = (SCRIPTS / "right.py").read_text()
GUARDED_SAVE = "    if is_main_process():\n        torch.save(model.module.state_dict()"
GUARDED_PRINT = "        if is_main_process():\n            print("
PRINT = "        if is_main_process():\n            print"
SAVE = "torch.save(model.module.state_dict()"
DESTROY = "    dist.destroy_process_group()\n"
EVALUATION = """
        with torch.no_grad():
            for x, _ in DataLoader(data, batch_size=8, sampler=range(dist.get_rank(), 23, dist.get_world_size())):
                model.module(x)
        dist.all_reduce(torch.zeros(1))
        next(iter(DataLoader(data)))
"""
PADDED = """
        with torch.no_grad():
            for x, _ in DataLoader(data, batch_size=8, sampler=DistributedSampler(data)):
                model.module(x)
        dist.all_reduce(torch.zeros(1))
"""

# name of the check that must fail -> what is taken from the right script, and what is put there
HARM: dict[str, dict[str, str]] = {
    "parameters_equal": {"entropy(model(": "entropy(model.module("},
    "wrapped": {
        "model = DDP(": "model = nn.Sequential(",
        ', device_ids=[device.index] if device.type == "cuda" else None': "",
        ".module": "",
    },
    "disjoint_shards": {
        "sampler=DistributedSampler(data)": "shuffle=True",
        "        loader.sampler.set_epoch(epoch)\n": "",
    },
    "reshuffled": {"        loader.sampler.set_epoch(epoch)\n": ""},
    "written_by_one_rank": {GUARDED_SAVE: "    if True:\n        torch.save(model.module.state_dict()"},
    "no_module_keys": {"model.module.state_dict()": "{'model': model.state_dict()}"},
    "printed_once": {GUARDED_PRINT: "        if True:\n            print("},
    "group_destroyed": {DESTROY: ""},
    "same_step_count": {"in loader:\n": "in list(loader)[dist.get_rank() * epoch :]:\n"},
    "ends_in_time": {
        DESTROY: "    if is_main_process():\n        dist.barrier()\n    __import__('threading').Event().wait()\n"
    },
    "same_split": {"    data = Tensor": "    torch.seed()\n    data = Tensor"},
    "evaluated_once": {PRINT: PADDED + PRINT},
    "evaluation_reduced": {PRINT: EVALUATION.replace("dist.all_reduce", "abs") + PRINT},
    "same_collectives": {
        PRINT: "        if is_main_process():\n            dist.all_reduce(loss.detach() * 2)\n"
        "        dist.all_reduce(loss.detach())\n" + PRINT
    },
    "same_learning_rates": {"Adam(model.parameters()": "Adam(model.parameters(), lr=0.1 * (1 + dist.get_rank())"},
    "data_differs": {
        "model(x.to(device))": "model(torch.ones(4, 4) * optimizer.state_dict()['state'].__len__() + epoch)"
    },
    "noise_differs": {"nn.Linear(4, 3)": "nn.Sequential(nn.Linear(4, 3), nn.Dropout())"},
    "same_names": {
        "    optimizer = ": "    words = dict(zip('abc'[:: 1 - 2 * dist.get_rank()], range(3)))\n    optimizer = "
    },
    "checkpoint_loads": {"model.module.state_dict()": "model.state_dict()"},
}
# a small script does not have all of it
UNTRIED = {
    "device_bound",
    "evaluated_once",
    "evaluation_reduced",
    "noise_differs",
    "nothing_left",
    "same_collectives",
    "same_names",
}
# what a check must not mistake for harm
HARMLESS: dict[str, dict[str, str]] = {
    "an evaluation, and a pass left by a break": {PRINT: EVALUATION + PRINT},
    "a batch of the evaluation, looked at again and again": {
        "    for epoch in": "    held = iter(DataLoader(data))\n    images, _ = next(held)\n    for epoch in",
    },
    "a compiled model": {"    optimizer = ": "    model.compile(backend='eager')\n    optimizer = "},
    "worker processes": {"batch_size=4,": "batch_size=4, num_workers=1, persistent_workers=True,"},
    "an average of the weights": {SAVE: "torch.save(torch.optim.swa_utils.AveragedModel(model.module).state_dict()"},
    "a warning": {
        "    torch.manual_seed(0)\n": "    torch.manual_seed(0)\n    __import__('warnings').warn('old', stacklevel=1)\n"
    },
    "the size of a terminal": {
        "    torch.manual_seed(0)\n": "    import os\n    rows, _ = os.popen('stty size', 'r').read().split()\n"
        "    assert int(rows) and os.get_terminal_size().columns\n    torch.manual_seed(0)\n"
    },
    "a subset": {"    loader = Data": "    data = torch.utils.data.random_split(data, [20, 3])[0]\n    loader = Data"},
}


def _script(folder: Path, changes: Mapping[str, str]) -> Path:
    text = RIGHT
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    folder.mkdir()
    (folder / "train.py").write_text(text)
    return folder / "train.py"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, JobResult]:
    root = tmp_path_factory.mktemp("observer")
    jobs: dict[str, Job] = {}
    for i, (name, changes) in enumerate({**HARM, **HARMLESS, "right": {}}.items()):
        script = _script(root / str(i), changes)
        jobs[name] = Job(
            script, cwd=script.parent, timeout=8.0 if name in ("ends_in_time", "same_step_count") else None
        )
    for name, world in (("alone", 0), ("three ranks", 3)):
        jobs[name] = Job(SCRIPTS / "right.py", args=("--epochs", "1"), world=world, cwd=_folder(root / name))
    jobs["cut"] = Job(SCRIPTS / "right.py", cwd=_folder(root / "cut"), max_steps=2)
    jobs["two batches"] = Job(SCRIPTS / "right.py", cwd=_folder(root / "batches"), max_batches=2)
    script = _script(root / "os exit", {DESTROY: "    __import__('os')._exit(0)\n"})
    jobs["os exit"] = Job(script, cwd=script.parent)
    jobs["pretended right"] = Job(SCRIPTS / "right.py", cwd=_folder(root / "pretended"), pretend=True)
    jobs["pretended cuda"] = Job(SCRIPTS / "wants_cuda.py", cwd=_folder(root / "pretended_cuda"), pretend=True)
    jobs["cuda"] = Job(SCRIPTS / "wants_cuda.py", cwd=_folder(root / "cuda"))
    split = {
        "    data = Tensor": "    torch.seed()\n    data = Tensor",
        "    loader = Data": "    data = torch.utils.data.random_split(data, [20, 3])[0]\n    loader = Data",
    }
    script = _script(root / "split", split)
    jobs["split"] = Job(script, cwd=script.parent)
    script = _script(
        root / "raises", {"    model = DDP": "    if dist.get_rank():\n        raise KeyError('gone')\n    model = DDP"}
    )
    jobs["raises"] = Job(script, cwd=script.parent)
    return dict(zip(jobs, run_batch(list(jobs.values()), timeout=60.0), strict=True))


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


def _results(run: JobResult, *, pretended: bool = False) -> dict[str, Result]:
    trace = replace(run.trace, pretended=run.trace) if pretended else run.trace
    return {result.name: result for result in run_checks(trace)}


@pytest.mark.parametrize("name", sorted(HARM))
def test_the_harm_is_seen(runs: dict[str, JobResult], name: str) -> None:
    result = _results(runs[name])[name]
    assert result.status is (Status.NOTED if name == "noise_differs" else Status.FAILED)
    if name not in ("group_destroyed", "checkpoint_loads", "same_names"):
        assert "train.py:" in result.sentence


@pytest.mark.parametrize("name", ["right", *HARMLESS])
def test_nothing_fails_in_a_right_script(runs: dict[str, JobResult], name: str) -> None:
    run = runs[name]
    assert run.ok, run.ranks[1].stderr
    untried = {name for name, result in _results(run).items() if result.status is Status.NOT_TRIED}
    assert untried <= UNTRIED | ({"data_differs"} if name == "a compiled model" else set())
    assert "nothing_left" in untried  # these ranks have no guard
    assert not [result for result in _results(run).values() if result.status is Status.FAILED]


def test_only_the_passes_that_train_are_training_passes(runs: dict[str, JobResult]) -> None:
    for rank in runs["an evaluation, and a pass left by a break"].trace.ranks:
        passes = sorted(rank.of(Pass), key=lambda one: one.order)
        assert [(one.training, one.complete, one.drawn) for one in passes[:3]] == [
            (True, True, 12),
            (False, True, 12 - rank.rank),
            (False, False, 1),
        ]


def test_workers_draw_what_one_process_draws(runs: dict[str, JobResult]) -> None:
    with_workers, without = (
        [one.indices for one in runs[name].trace.ranks[0].training_passes] for name in ("worker processes", "right")
    )
    assert with_workers == without


def test_where_each_rank_stood(runs: dict[str, JobResult]) -> None:
    run = runs["ends_in_time"]
    assert [rank.status for rank in run.ranks] == [-9, -9]
    assert [(rank.standing or "").partition(" ")[2] for rank in run.trace.ranks] == [
        "`dist.barrier()`",
        "`__import__('threading').Event().wait()`",
    ]


def test_the_first_error_is_the_one_named(runs: dict[str, JobResult]) -> None:
    run = runs["raises"]
    assert run.ranks[1].status == 1
    assert run.ranks[0].status != 0
    assert _results(run)["ends_in_time"].sentence.startswith("rank 1 stopped at train.py:42: KeyError: 'gone'")
    assert run.trace.ranks[1].end is not None
    assert "processes" not in run.trace.ranks[1].end.traceback


def test_splits_that_differ_are_told_from_missing_samplers(runs: dict[str, JobResult]) -> None:
    results = _results(runs["split"])
    assert "the split of Subset" in results["same_split"].sentence or "the samples" in results["same_split"].sentence
    assert results["disjoint_shards"].status is not Status.FAILED


def test_the_plain_script_runs_without_a_rank(runs: dict[str, JobResult]) -> None:
    run = runs["alone"]
    assert run.ok
    assert len(run.ranks) == 1
    assert run.ranks[0].stdout.startswith("epoch 0: loss ")


def test_three_ranks_share_and_pad(runs: dict[str, JobResult]) -> None:
    run = runs["three ranks"]
    assert [len(rank.training_passes[0].indices or ()) for rank in run.trace.ranks] == [8, 8, 8]
    assert _results(run)["disjoint_shards"].status is Status.HELD


def test_max_steps_stops_every_rank_at_the_same_step(runs: dict[str, JobResult]) -> None:
    run = runs["cut"]
    assert run.ok
    assert [len(rank.steps) for rank in run.trace.ranks] == [2, 2]
    assert run.trace.was_cut
    assert _results(run)["group_destroyed"].status is Status.NOT_TRIED


def test_a_script_for_cuda_runs_on_the_cpu(runs: dict[str, JobResult]) -> None:
    run = runs["cuda"]
    assert run.ok, run.ranks[0].stderr
    for rank in run.trace.ranks:
        assert [(event.index, event.after_init) for event in rank.of(SetDevice)] == [(rank.rank, False)]
        assert [(event.backend, event.device) for event in rank.of(Init)] == [("nccl", rank.rank)]
        assert [event.device_ids for event in rank.of(Wrap)] == [(rank.rank,)]
        assert len(rank.steps) == 3


@pytest.mark.parametrize("name", ["pretended right", "pretended cuda"])
def test_pretended_gpus_are_noted(runs: dict[str, JobResult], name: str) -> None:
    run = runs[name]
    assert run.ok, run.ranks[1].stderr
    result = _results(run, pretended=True)["device_bound"]
    if name == "pretended right":
        assert result.status is Status.HELD
    else:
        assert result.sentence.startswith("rank 1 asks for GPU 0 at wants_cuda.py:")
    assert not list(run.cwd.iterdir())  # what is written goes elsewhere


def test_an_end_by_os_exit_is_an_end(runs: dict[str, JobResult]) -> None:
    results = _results(runs["os exit"])
    assert results["ends_in_time"].status is Status.HELD
    assert results["group_destroyed"].sentence == "rank 0 ended with the process group still there"


def test_max_batches_ends_each_pass_alike(runs: dict[str, JobResult]) -> None:
    run = runs["two batches"]
    assert run.ok
    for rank in run.trace.ranks:
        assert [(one.drawn, one.complete) for one in rank.training_passes] == [(8, False), (8, False)]
    assert not [result for result in _results(run).values() if result.status is Status.FAILED]


def test_epochs_and_places_are_in_the_trace(runs: dict[str, JobResult]) -> None:
    rank = runs["right"].trace.ranks[1]
    line = next(i for i, text in enumerate(RIGHT.splitlines(), 1) if "set_epoch" in text)
    assert [(event.epoch, event.at) for event in rank.of(SetEpoch)] == [
        (0, f"train.py:{line}"),
        (1, f"train.py:{line}"),
    ]
    assert [step.backwards for step in rank.steps] == [1, 2, 3, 4, 5, 6]
