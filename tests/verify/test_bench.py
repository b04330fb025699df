"""`ddpify bench`: what is slow is what the report names, in real runs and in made-up ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ddpify.verify.bench import Advice, BenchReport, Machine, Run
from ddpify.verify.bench.advice import advise
from ddpify.verify.trace import Trace
from tests.ranks import Job, run_batch
from tests.verify.traces import Line, trace

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).parent / "scripts" / "timed.py"
MACHINE = Machine(8, gpu=False)
WARM_UP = 2


# -- real runs ---------------------------------------------------------------------------------------------------


def line(text: str) -> str:
    """The place in the script where this stands first."""
    return f"timed.py:{SCRIPT.read_text().split(text)[0].count(chr(10)) + 1}"


SLOW = {
    "loading": ("loading", "num_workers=", line("time.sleep(self.pause)")),
    "compute": ("compute", "mixed precision", "forward, backward and step"),
    "exchange": ("communication", "batch size", "19.1 MB of gradients"),
    "script": ("script", "less between the steps", line("time.sleep(pause(")),
    "rank": ("waiting for rank 1", "what rank 1 does", line("time.sleep(pause(")),
    "collective": ("collectives", "fewer collectives", line("dist.barrier()")),
}


def command(folder: Path, *options: str, **env: str) -> subprocess.CompletedProcess[str]:
    """`ddpify bench train.py OPTIONS` in the folder."""
    return subprocess.run(
        [sys.executable, "-m", "ddpify", "bench", "train.py", *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", **env},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Runs on two ranks in each of which another part is slow."""
    names = [*SLOW, "evaluation"]
    folder = tmp_path_factory.mktemp("timed")
    jobs = [Job(SCRIPT, ["--slow", name], 2, folder, max_steps=30, timed=WARM_UP) for name in names]
    results = run_batch(jobs, 120)
    return {name: Run(result.trace, WARM_UP) for name, result in zip(names, results, strict=True)}


@pytest.mark.torchrun
@pytest.mark.parametrize("part", SLOW)
def test_the_part_that_is_slow_comes_first(timed: dict[str, Run], part: str) -> None:
    run = timed[part]
    assert len(run.steps) == 27
    assert run.batch == 4
    assert sum(run.shares.values()) == pytest.approx(1.0, abs=0.01)
    first = advise([run], MACHINE)[0]
    cause, change, sentence = SLOW[part]
    assert first.cause == cause, (first, run.shares)
    assert first.change.startswith(change)
    assert sentence in first.sentence


@pytest.mark.torchrun
def test_an_option_of_the_loader_is_asked_for_where_it_is_made(timed: dict[str, Run]) -> None:
    told = advise([timed["loading"]], MACHINE)[0].sentence
    assert f"give the loader at {line('loader = DataLoader(data')} num_workers=" in told


@pytest.mark.torchrun
def test_an_evaluation_is_no_part_of_the_steps(timed: dict[str, Run]) -> None:
    run = timed["evaluation"]
    assert run.evaluated > 0.5
    assert run.evaluated_samples == 48
    assert run.shares["loading"] < 0.3
    assert run.batch == 4
    found = {advice.cause: advice.sentence for advice in advise([replace(run), run], MACHINE)}
    assert "every rank evaluates all 48 samples" in found["evaluation"]


@pytest.mark.torchrun
def test_the_command_measures_each_number_of_ranks_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    (tmp_path / "work").mkdir()
    text = SCRIPT.read_text().replace("    dist.destroy", '    open("left", "w").close()\n    dist.destroy')
    (tmp_path / "work" / "train.py").write_text(text)
    options = ["--nproc", "2,1", "--steps", "5", "--warm-up", "1", "--format", "json"]
    args = ["--slow", "loading", "--workers", "1", "--epochs", "1"]
    done = command(tmp_path / "work", *options, "--", *args, TMPDIR=str(tmp_path / "tmp"))
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert [(run["nproc"], run["steps"], run["backend"]) for run in report["runs"]] == [(2, 5, "gloo"), (1, 5, "gloo")]
    assert report["runs"][1]["efficiency"] == 1.0
    assert report["runs"][0]["shares"]["loading"] > 0.4
    assert report["advice"][0]["change"].startswith("num_workers=")
    assert "1 workers do not keep up" in report["advice"][0]["sentence"]
    assert "not enough GPUs" in report["notes"][0]
    assert sorted(os.listdir(tmp_path / "work")) == ["train.py"]
    assert not os.listdir(tmp_path / "tmp")


@pytest.mark.torchrun
@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("import torch\nraise ValueError('no data')\n", "rank 0 stopped at train.py:2: ValueError: no data"),
        ("import torch\n", "the script ends after 0 optimizer steps, and 5 of them warm up: let it train for longer"),
    ],
)
def test_a_run_without_numbers_is_said_to_be_one(tmp_path: Path, script: str, said: str) -> None:
    (tmp_path / "train.py").write_text(script)
    done = command(tmp_path, "--nproc", "1")
    assert done.returncode == 1
    assert said in done.stdout
    assert "Why is it not faster" not in done.stdout


@pytest.mark.parametrize("numbers", ["0", "1,x", "", "1,,2", "-1"])
def test_numbers_of_ranks_are_numbers(tmp_path: Path, numbers: str) -> None:
    done = command(tmp_path, f"--nproc={numbers}")
    assert done.returncode == 2
    assert "is no list of numbers" in done.stderr


# -- made-up runs ------------------------------------------------------------------------------------------------


def steps(count: int = 8, **seconds: Any) -> list[Line]:
    """So many steps of four samples, alike but for a warm-up that nothing may hang on."""
    slow: Line = {"kind": "timed", "samples": 4, "script": 9.0}
    return [{**slow, "number": n} for n in range(1, WARM_UP + 1)] + [
        {"kind": "timed", "number": WARM_UP + n, "samples": 4, "exchange": 0.0, **seconds} for n in range(1, count + 1)
    ]


LOADER: Line = {"kind": "loader", "loader": 0, "workers": 0, "dataset": "Photos", "at": "train.py:12"}
FETCHED: Line = {"kind": "fetched", "loader": 0, "samples": 4, "seconds": 0.08, "busy": 0.08}
WRAPPER: Line = {"kind": "wrapper", "module": "Net", "bytes": 80 << 20, "largest": "head", "largest_bytes": 1 << 20}


def run(*ranks: list[Line]) -> Run:
    """What these ranks wrote, as a run."""
    return Run(trace(*ranks), WARM_UP)


def first(*runs: Run, machine: Machine = MACHINE) -> Advice:
    """What to change first."""
    return advise(list(runs), machine)[0]


def loading(fetched: Line = FETCHED, **loader: Any) -> Run:
    """Two ranks that wait for their batches for 60 of 80 ms."""
    lines = [{**LOADER, **loader}, *[fetched] * 10, *steps(loading=0.06, compute=0.02)]
    return run(lines, lines)


def test_the_numbers() -> None:
    one = run([*steps(loading=0.01, compute=0.09, exchange=0.03, meeting=0.02, script=0.08, evaluation=0.4)])
    assert len(one.steps) == 7  # what the last one exchanged is told by the forward that follows
    assert one.step_seconds == pytest.approx(0.2)
    assert one.rate == pytest.approx(4 / 0.2)
    assert one.shares == pytest.approx(
        {"loading": 0.05, "compute": 0.3, "communication": 0.25, "waiting": 0.0, "script": 0.4}
    )
    assert one.evaluated == pytest.approx(2 / 3)


def test_who_comes_last_does_not_wait() -> None:
    quick, slow = steps(compute=0.09, exchange=0.08), steps(compute=0.03, exchange=0.02, script=0.06)
    both = run(quick, slow)
    assert both.shares["communication"] == pytest.approx(0.02 / 0.09)
    assert both.shares["waiting"] == pytest.approx(0.03 / 0.09)
    assert first(both).cause == "waiting for rank 1"


@pytest.mark.parametrize(
    ("one", "machine", "change"),
    [
        (loading(), MACHINE, "num_workers=4"),
        (loading(workers=2), MACHINE, "num_workers=4"),
        (loading(), Machine(4, gpu=False), "num_workers=2"),
        (loading(workers=2), Machine(4, gpu=False), "a cheaper dataset"),
        (loading({**FETCHED, "busy": 0.001}, workers=2), Machine(4, gpu=False), "num_workers=4"),
        (loading({**FETCHED, "seconds": 0.02}, workers=2), MACHINE, "prefetch_factor"),
    ],
)
def test_workers(one: Run, machine: Machine, change: str) -> None:
    advice = first(one, machine=machine)
    assert (advice.cause, advice.change) == ("loading", change)
    assert advice.share == pytest.approx(0.75)
    assert advice.gain == pytest.approx(4.0)
    assert "train.py:12" in advice.sentence or "`Photos`" in advice.sentence


def test_workers_that_are_started_in_each_epoch() -> None:
    lines = [{**LOADER, "workers": 4}, *[FETCHED] * 10, *steps(loading=0.06, compute=0.02, started=1)]
    assert first(run(lines, lines)).change == "persistent_workers=True"


@pytest.mark.parametrize(
    ("wrapper", "change"),
    [
        ({"buckets": [80 << 20]}, "bucket_cap_mb=10"),
        ({"buckets": [10 << 20] * 8}, None),
        ({"largest_bytes": 70 << 20, "buckets": [80 << 20]}, "comm hook"),
    ],
)
def test_gradients(wrapper: Line, change: str | None) -> None:
    lines = [*steps(compute=0.08, exchange=0.06), {**WRAPPER, **wrapper}]
    found = advise([run(lines, lines)], MACHINE)
    assert [advice.change for advice in found] == ["batch size", *([change] if change else [])]
    assert "80 MB of gradients, 60 ms of 80 ms" in found[0].sentence
    assert "some 30 times as many" in found[0].sentence


def test_an_exchange_beside_the_backward_needs_no_other_buckets() -> None:
    lines = [*steps(compute=0.08, exchange=0.02, beside=0.06), {**WRAPPER, "buckets": [80 << 20]}]
    assert [advice.change for advice in advise([run(lines, lines)], MACHINE)] == ["batch size", "mixed precision"]


def test_copies_to_the_gpu() -> None:
    memory: Line = {"kind": "memory", "most": 30 << 30, "total": 40 << 30, "plain": 0.03, "pinned": 0.01}
    lines = [LOADER, memory, *steps(compute=0.08)]
    found = {advice.change: advice.sentence for advice in advise([run(lines)], Machine(8, gpu=True))}
    assert "30 ms to the GPU, and 10 ms from pinned memory" in found["pin_memory=True"]
    assert "75% of the memory is used" in found["mixed precision"]
    lines[0] = {**LOADER, "pinned": True}
    assert [advice.cause for advice in advise([run(lines)], Machine(8, gpu=True))] == ["compute"]


def test_what_has_to_be_computed() -> None:
    alone, both = run(steps(compute=0.08)), run(*[steps(compute=0.08)] * 2)
    assert first(alone, both).cause == "compute"
    assert first(alone, both, machine=Machine(1, gpu=False)).cause == "cores"
    assert first(alone, run(*[steps(compute=0.2)] * 2)).cause == "contention"
    assert first(alone, run(*[steps(compute=0.08, samples=1)] * 2)).cause == "small batches"
    assert first(alone, both).gain is None


def report(machine: Machine, *runs: Run) -> str:
    """The text of a report."""
    console = Console(width=80, highlight=False)
    with console.capture() as captured:
        BenchReport(Path("train_ddp.py"), runs, machine, 1, ("CIFAR10 at train.py:5",)).render(console)
    return captured.get()


def test_the_report_says_what_the_numbers_are_worth() -> None:
    runs = run(steps(compute=0.08)), run(*[steps(3, compute=0.1)] * 4)
    text = report(Machine(2, gpu=False), *runs)
    assert " ".join(text.splitlines()[1].split()).startswith("ranks samples/s efficiency step batch loading")
    assert ["4", "160", "80%", "100", "ms", "4", "0%", "100%", "0%", "0%", "0%"] in [
        line.split() for line in text.splitlines()
    ]
    for said in ("there are not enough GPUs", "4 ranks share 2 cores", "2 steps after", "made-up data stood in"):
        assert said in text
    assert "share 2 cores" not in report(Machine(2, gpu=True), *runs)
    failed = replace(run([]), failure="rank 0 stopped")
    assert "1 rank: rank 0 stopped" in report(MACHINE, failed)


def test_a_rank_that_never_started_is_no_number() -> None:
    assert not Run(Trace(()), WARM_UP).ok
    assert not run([], steps()).ok
