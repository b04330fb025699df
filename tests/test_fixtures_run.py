"""Each fixture and its conversion, run on ranks: they end alike, print alike and leave the same files."""

from __future__ import annotations

import dataclasses
import importlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ddpify.verify import verify
from ddpify.verify.checks import Status, run_checks
from tests.cases import CONVERTED, Case, conversion, convert_bytes, each, written
from tests.ranks import Job, JobResult, run_batch
from tests.relocated import Relocate, all_moved, in_class, on_self
from tests.variants import renamed_files

pytestmark = pytest.mark.torchrun

RUN = tuple(case for case in CONVERTED if case.run)
ALONE = tuple(case for case in RUN if not case.needs)
AGAIN = tuple(case for case in RUN if case.again)
#: scripts that say no name in a text (as `"{val}".format(**self.__dict__)` does)
RENAMED = tuple(c for c in ALONE if c.name in ("language_model_methods", "plateau_early_stopping", "vae_sum_loss"))
#: who runs, by the name of its folder: the original and the conversion, on ranks or (world 0) under plain python;
#: STILL are both with every `shuffle=True` made False and a seed, so that they see the same samples in the same order
ORIGINAL, ONE, TWO, THREE = "original", "one", "two", "three"
STILL_ORIGINAL, STILL_PLAIN, STILL_RENAMED = "still_original", "still_plain", "still_renamed"
#: the conversion, on two ranks, of the script with its parts elsewhere
RELOCATED: dict[str, Relocate] = {"moved": all_moved, "class": in_class, "self": on_self}
ELSEWHERE = tuple(
    (case, who)
    for case in ALONE
    for who, names in (
        ("moved", ("accelerator_flag_kwargs", "resume_checkpoint")),
        ("class", ("crlf", "phases_dict")),
        ("self", ("adversarial_two_networks", "engine_and_networks")),
    )
    if case.name in names
)
WORLDS = {ONE: 1, TWO: 2, THREE: 3, **dict.fromkeys(RELOCATED, 2)}


def unshuffled(data: bytes) -> bytes:
    return re.sub(rb"shuffle=True|'shuffle': True|BATCH, True", lambda m: m[0].replace(b"True", b"False"), data)


def seeded(data: bytes) -> bytes:
    last = list(re.finditer(rb"^(import|from) .*\n", data, re.MULTILINE))[-1].end()
    return data[:last] + b"__import__('torch').manual_seed(0)" + b"\n" + data[last:]


def files_of(case: Case, who: str) -> dict[str, bytes]:
    """The scripts and modules that one of them runs; the script is before.py."""
    files = {"before.py": case.before.read_bytes(), **case.modules}
    if who.startswith("still"):
        files = {name: unshuffled(data) for name, data in files.items()}
        files["before.py"] = seeded(files["before.py"])
    if who == STILL_RENAMED:
        files = {name: text.encode() for name, text in renamed_files({n: d.decode() for n, d in files.items()}).items()}
    if who in (ONE, TWO, THREE):
        return files | written(conversion(case))
    if who in RELOCATED:
        source = conversion(case).source
        other = RELOCATED[who](source.text)
        assert other is not None
        files |= {name: source.encode(text) for name, text in other.files.items()}
    if who in (STILL_PLAIN, *RELOCATED):
        modules = dict(files)
        return files | written(convert_bytes(modules.pop("before.py"), modules))
    return files


class Runs:
    """The results of all runs, and the folders that they ran in."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.results: dict[tuple[str, str], JobResult] = {}

    def job(self, case: Case, who: str, args: Sequence[str] | None = None) -> Job:
        folder = self.root / case.name / f"{who}_scripts"
        cwd = self.folder(case, who)
        cwd.mkdir(exist_ok=True, parents=True)
        for name, data in files_of(case, who).items():
            path = folder / name
            path.parent.mkdir(exist_ok=True, parents=True)
            path.write_bytes(data)
        return Job(folder / "before.py", case.args if args is None else args, world=WORLDS.get(who, 0), cwd=cwd)

    def run(self, wanted: Sequence[tuple[Case, str]]) -> Runs:
        jobs = [self.job(case, who) for case, who in wanted]
        for (case, who), result in zip(wanted, run_batch(jobs, timeout=90), strict=True):
            self.results[case.name, who] = result
        return self

    def folder(self, case: Case, who: str) -> Path:
        return self.root / case.name / who

    def of(self, case: Case, who: str) -> JobResult:
        """A run that ended well."""
        result = self.results[case.name, who]
        assert result.ok, last_words(result)
        return result

    def files(self, case: Case, who: str) -> set[str]:
        folder = self.folder(case, who)
        return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if "__pycache__" not in p.parts}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Every fixture alone, its conversion under plain python and on two ranks: torch is imported once."""
    whos = (ORIGINAL, STILL_ORIGINAL, STILL_PLAIN, TWO)
    wanted = [(case, who) for case in RUN for who in whos if who == TWO or not case.needs]
    wanted += [(case, STILL_RENAMED) for case in RENAMED] + list(ELSEWHERE)
    return Runs(tmp_path_factory.mktemp("fixtures")).run(wanted)


@pytest.fixture(scope="module")
def more_runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """The conversions on one and three ranks, for `make test-all`."""
    return Runs(tmp_path_factory.mktemp("worlds")).run([(case, who) for case in RUN for who in (ONE, THREE)])


def last_words(result: JobResult) -> str:
    return "\n".join(f"rank {i}: {' '.join(r.stderr.splitlines()[-3:])}" for i, r in enumerate(result.ranks))


def check_properties(result: JobResult) -> None:
    failed = [r for r in run_checks(result.trace) if r.status is Status.FAILED]
    assert not failed, "\n".join(f"{r.name}: {r.sentence}" for r in failed)


def held(result: JobResult) -> set[str]:
    return {r.name for r in run_checks(result.trace) if r.status is Status.HELD}


#: held on any two ranks of a script that trains; the others depend on what it prints, saves and shuffles
ALWAYS = {"ends_in_time", "wrapped", "parameters_equal", "same_step_count", "group_destroyed", "printed_once"}


def always(case: Case) -> set[str]:
    """Where no optimizer holds the parameters (steps by hand), nothing says which are to be equal."""
    by_hand = "optim" not in case.before.read_text(errors="replace")
    return ALWAYS - ({"parameters_equal"} if by_hand else set())


@each(RUN)
def test_properties_hold_on_two_ranks(case: Case, runs: Runs) -> None:
    result = runs.of(case, TWO)
    check_properties(result)
    assert held(result) >= always(case)


def test_every_property_was_tried_by_some_fixture(runs: Runs) -> None:
    tried = set().union(*(held(runs.results[case.name, TWO]) for case in RUN))
    elsewhere = {"device_bound", "nothing_left"}  # need GPUs, and a launcher: see check_under_torchrun
    assert tried == {r.name for r in run_checks(runs.results[RUN[0].name, TWO].trace)} - elsewhere


# ---- what is printed -------------------------------------------------------------------------------------

NUMBER = re.compile(r"[-+]?(\d+\.?\d*(e[-+]?\d+)?|\binf\b|\bnan\b)%?")


def kinds(output: str, case: Case) -> list[str]:
    """The lines that are printed whatever the numbers are, without the numbers."""
    lines = [" ".join(NUMBER.sub("#", line).split()) for line in output.splitlines()]
    return [line for line in lines if not (case.sometimes and re.search(case.sometimes, line))]


@each(ALONE)
def test_rank_zero_prints_what_the_original_prints(case: Case, runs: Runs) -> None:
    before, after = runs.of(case, ORIGINAL).ranks[0], runs.of(case, TWO).ranks[0]
    # a line for every k batches comes less often: there are fewer batches
    assert list(dict.fromkeys(kinds(after.stdout, case))) == list(dict.fromkeys(kinds(before.stdout, case)))


@each(ALONE)
def test_plain_python_prints_what_the_original_prints(case: Case, runs: Runs) -> None:
    """To the last digit, where both see the samples in one order; a clock is no number of the training."""
    before, after = (runs.of(case, who).ranks[0].stdout for who in (STILL_ORIGINAL, STILL_PLAIN))
    if case.in_order:
        assert _without_clocks(after) == _without_clocks(before)
    else:
        assert kinds(after, case) == kinds(before, case)


def _without_clocks(output: str) -> str:
    return re.sub(r"\d+\.\d+ ?s\b|\d+:\d\d:\d\d(,\d+)?", "#", output)


@each(RUN)
def test_other_ranks_print_nothing(case: Case, runs: Runs) -> None:
    assert runs.of(case, TWO).ranks[1].stdout == ""


#: DDP says once that a forward left nothing out, where another one does: "your model has flow control"
SOME_FORWARDS_USE_ALL = frozenset({"heads_and_dropped_labels"})


@each(RUN)
def test_nothing_is_warned_of(case: Case, runs: Runs) -> None:
    """What a rank says on standard error, the original says too (numbers and places taken out)."""
    told = {_without_places(line) for r in runs.of(case, TWO).ranks for line in r.stderr.splitlines()}
    if case.name in SOME_FORWARDS_USE_ALL:
        told = {line for line in told if "did not find any unused parameters" not in line}
    if case in ALONE:
        told -= {_without_places(line) for line in runs.of(case, ORIGINAL).ranks[0].stderr.splitlines()}
    assert not told


def _without_places(line: str) -> str:
    return NUMBER.sub("#", re.sub(r"\S*_scripts/\S*\.py", "", line))


# ---- what is left -----------------------------------------------------------------------------------------


@each(ALONE)
def test_the_same_files_are_left(case: Case, runs: Runs) -> None:
    assert runs.files(case, STILL_PLAIN) == runs.files(case, STILL_ORIGINAL)
    # a file for every k steps comes less often: there are fewer steps
    after, before = runs.files(case, TWO), runs.files(case, ORIGINAL)
    assert {n for n in after if not (case.sometimes and re.search(case.sometimes, n))} <= before
    assert {NUMBER.sub("#", name) for name in after} == {NUMBER.sub("#", name) for name in before}


def contents(path: Path) -> Any:
    """What torch.save wrote, each tensor as its dtype and shape; None for what is no such file."""
    torch: Any = importlib.import_module("torch")
    try:
        return _shape(torch.load(path, map_location="cpu", weights_only=True))
    except Exception:  # a whole model, numpy, JSON: the names of files are all that is compared
        return None


def _shape(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _shape(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_shape(v) for v in value]
    return (str(value.dtype), tuple(value.shape)) if hasattr(value, "dtype") else type(value).__name__


@each(ALONE)
def test_checkpoints_have_the_keys_and_shapes_of_the_original(case: Case, runs: Runs) -> None:
    before, after = runs.folder(case, ORIGINAL), runs.folder(case, TWO)
    for name in runs.files(case, TWO):
        if (before / name).is_file():
            kept, original = contents(after / name), contents(before / name)
            assert kept == (_without(original, case.unprefixed) if case.unprefixed else original), name


def _without(value: Any, prefix: str) -> Any:
    """Nested states whose keys all began with `prefix`, without it."""
    if isinstance(value, dict) and value and all(str(key).startswith(prefix) for key in value):
        return {key.removeprefix(prefix): v for key, v in value.items()}
    if isinstance(value, dict):
        return {key: _without(v, prefix) for key, v in value.items()}
    return value


@pytest.fixture(scope="module")
def resumed(runs: Runs) -> dict[tuple[str, str], JobResult]:
    """Each script once more, in the folder that the other one left."""
    wanted = [(case, who, where) for case in AGAIN for who, where in ((ORIGINAL, TWO), (TWO, ORIGINAL))]
    jobs = [
        dataclasses.replace(runs.job(case, who, case.again), cwd=runs.folder(case, where))
        for case, who, where in wanted
    ]
    results = run_batch(jobs, timeout=90)
    return {(case.name, who): result for (case, who, _), result in zip(wanted, results, strict=True)}


@each(AGAIN)
def test_each_goes_on_from_the_files_of_the_other(case: Case, resumed: dict[tuple[str, str], JobResult]) -> None:
    before, after = resumed[case.name, ORIGINAL], resumed[case.name, TWO]
    assert before.ok, before.ranks[0].stderr
    assert after.ok, last_words(after)
    check_properties(after)
    assert kinds(after.ranks[0].stdout, case) == kinds(before.ranks[0].stdout, case)


# ---- the variants -----------------------------------------------------------------------------


@each(RENAMED)
def test_a_renamed_script_does_the_same(case: Case, runs: Runs) -> None:
    """The renaming that test_metamorphic.py relies on changes no behaviour."""
    before, after = (runs.of(case, who).ranks[0].stdout for who in (STILL_ORIGINAL, STILL_RENAMED))
    assert _without_clocks(after) == _without_clocks(before)


@pytest.mark.parametrize(("case", "who"), [pytest.param(c, w, id=f"{c.name}-{w}") for c, w in ELSEWHERE])
def test_with_its_parts_elsewhere_it_does_the_same(case: Case, who: str, runs: Runs) -> None:
    before, after = runs.of(case, TWO), runs.of(case, who)
    check_properties(after)
    assert held(after) == held(before)
    assert list(dict.fromkeys(kinds(after.ranks[0].stdout, case))) == list(
        dict.fromkeys(kinds(before.ranks[0].stdout, case))
    )
    assert after.ranks[1].stdout == ""
    assert runs.files(case, who) == runs.files(case, TWO)


# ---- real torchrun ------------------------------------------------------------------------------------------


def check_under_torchrun(case: Case, tmp_path: Path, nproc: int) -> None:
    for name, data in files_of(case, TWO).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    report = verify(tmp_path / "before.py", args=case.args, nproc=nproc, timeout=120)
    assert report.ok, report.failure
    assert {r.name for r in report.results if r.status is Status.HELD} >= (always(case) if nproc > 1 else {"wrapped"})
    if Path("/proc/self").exists():
        assert next(r for r in report.results if r.name == "nothing_left").status is Status.HELD


HANDFUL = tuple(c for c in RUN if c.name in ("argparse_functions", "crlf", "trainer_class_gpu_id"))


@each(HANDFUL)
def test_under_torchrun(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check_under_torchrun(case, tmp_path, 2)


@pytest.mark.slow
@each(c for c in RUN if c not in HANDFUL)
def test_all_under_torchrun(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check_under_torchrun(case, tmp_path, 2)


@pytest.mark.slow
@each(RUN)
@pytest.mark.parametrize("who", [ONE, THREE])
def test_properties_hold_on_other_worlds(case: Case, who: str, more_runs: Runs) -> None:
    result = more_runs.of(case, who)
    check_properties(result)
    if who == THREE:
        assert held(result) >= always(case)
        assert [r.stdout for r in result.ranks[1:]] == ["", ""]
