"""Every fault that shows on a CPU is caught, its corrected twin is not: the table in `ddpify explain faults`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from ddpify.docs.__main__ import put
from ddpify.verify import Result, Status, verify
from ddpify.verify.checks import run_checks
from tests.ranks import Job, run_batch
from tests.verify.comparing import Scripts, compared
from tests.verify.fault import Fault
from tests.verify.faults import ELSEWHERE, FAULTS

ROOT = Path(__file__).resolve().parents[2]
WHOLE, ALONE = ((ROOT / "fixtures" / "verify" / name).read_text() for name in ("whole.py", "alone.py"))
PAGE = ROOT / "ddpify" / "docs" / "faults.md"
SECONDS = 20.0  # those that hang take all of it
CORE = ("01-forward-bypasses-wrapper", "11-padded-evaluation-sampler", "13-split-differs-per-rank")


def script(changes: Mapping[str, str], text: str = WHOLE) -> str:
    """`whole.py` with the changes."""
    for old, new in changes.items():
        assert text.count(old) == 1 or old == new, old
        text = text.replace(old, new)
    return text


@dataclass(frozen=True)
class Seen:
    """What verify said of a faulty script, and of its twin."""

    bad: tuple[Result, ...]
    good: tuple[Result, ...]

    @staticmethod
    def wrong(results: Iterable[Result]) -> list[str]:
        return [result.name for result in results if result.status in (Status.FAILED, Status.NOTED)]


def launch(job: Job) -> tuple[Result, ...]:
    """Under the real launcher, in the folder of the job."""
    before = Path.cwd()
    os.chdir(job.cwd)
    try:
        return verify(job.script, timeout=120).results
    finally:
        os.chdir(before)


def run(faults: Iterable[Fault]) -> dict[str, Seen]:
    """Run every script and its twin, those that are alike once."""
    wanted = list(faults)
    with tempfile.TemporaryDirectory() as name:
        root, jobs = Path(name), dict[tuple[str, str], Job]()
        for fault in wanted:
            for kind, changes in (("bad", fault.bad), ("good", fault.good)):
                folder = root / f"{fault.key}-{kind}"
                (folder / "work").mkdir(parents=True)
                path = folder / "train.py"
                path.write_text(script(changes))
                seconds = SECONDS if kind == "bad" else 120.0
                env = fault.env if kind == "bad" or fault.env_of_twin is None else fault.env_of_twin
                jobs[fault.key, kind] = Job(path, cwd=folder / "work", env=env, pretend=fault.pretend, timeout=seconds)
        launched = {key for key in jobs if any(f.hash_seeds and f.key == key[0] for f in wanted)}
        forked = {key: job for key, job in jobs.items() if key not in launched}
        found: dict[tuple[str, str], tuple[Result, ...]] = {key: launch(jobs[key]) for key in launched}
        pretended = {fault.key for fault in wanted if fault.pretend}
        for key, result in zip(forked, run_batch(list(forked.values())), strict=True):
            trace = result.trace
            found[key] = run_checks(replace(trace, pretended=trace) if key[0] in pretended else trace)
        for key, results in compare(wanted, jobs, root).items():
            found[key] += results
    return {fault.key: Seen(found[fault.key, "bad"], found[fault.key, "good"]) for fault in wanted}


def compare(
    faults: Iterable[Fault], jobs: Mapping[tuple[str, str], Job], root: Path
) -> dict[tuple[str, str], tuple[Result, ...]]:
    """Those that only show against the script that they were made from."""
    pairs = dict[str, Scripts]()
    for fault in faults:
        for kind in ("bad", "good") if fault.original is not None else ():
            own = fault.original_of_twin if kind == "good" else None
            path = root / f"{fault.key}-{kind}-alone" / "train.py"
            path.parent.mkdir()
            path.write_text(script((fault.original or {}) if own is None else own, ALONE))
            pairs[f"{fault.key} {kind}"] = Scripts(path, jobs[fault.key, kind].script)
    seen = compared(pairs, alone=()) if pairs else {}
    return {(name.split()[0], name.split()[1]): tuple(results.values()) for name, results in seen.items()}


def table(seen: Mapping[str, Seen]) -> str:
    """The table as it stands in the documentation."""
    rows = ["| fault | harm | caught by | false alarms in its corrected twin |", "| --- | --- | --- | --- |"]
    caught = alarms = 0
    for fault in FAULTS:
        told = [name for name in fault.shows if name in Seen.wrong(seen[fault.key].bad)]
        said = [
            r.name for r in seen[fault.key].bad if r.name in fault.shows and fault.says and fault.says in r.sentence
        ]
        wrong = Seen.wrong(seen[fault.key].good)
        caught, alarms = caught + bool(told or said), alarms + len(wrong)
        by = (
            ", ".join(f"`{name}`" for name in told[:1])
            or ", ".join(f"`{name}` holds, and says so" for name in said[:1])
            or "**missed**"
        )
        rows.append(f"| {fault.number:02} {fault.name} | {fault.harm} | {by} | {', '.join(wrong) or 'none'} |")
    rows.append("")
    rows.append(f"{caught} of {len(FAULTS)} caught, {len(FAULTS) - caught} missed, {alarms} false alarms.")
    return "\n".join(rows)


@pytest.fixture(scope="module")
def core() -> dict[str, Seen]:
    return run(fault for fault in FAULTS if fault.key in CORE)


@pytest.mark.torchrun
@pytest.mark.parametrize("key", CORE)
def test_a_fault_is_caught_and_its_twin_passes(core: dict[str, Seen], key: str) -> None:
    [fault] = [fault for fault in FAULTS if fault.key == key]
    assert set(fault.shows) & set(Seen.wrong(core[key].bad))
    assert not Seen.wrong(core[key].good)


@pytest.mark.slow
@pytest.mark.torchrun
def test_the_table_is_true(update_golden: bool) -> None:
    """Which faults are caught is what the page says; none of the twins is blamed."""
    seen = run(FAULTS)
    text = PAGE.read_text(encoding="utf-8")
    made = put(text, "faults", table(seen))
    if update_golden:
        PAGE.write_text(made, encoding="utf-8")
    else:
        assert made == text
    blamed = {key: Seen.wrong(one.good) for key, one in seen.items() if Seen.wrong(one.good)}
    assert not blamed


def test_every_fault_is_in_the_table() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for fault in FAULTS:
        assert f"| {fault.number:02} {fault.name} |" in text
        script(fault.bad)
        script(fault.good)
        for changes in (fault.original, fault.original_of_twin):
            script(changes or {}, ALONE)
    assert all(f"| {name} | {why} |" in text for name, why in ELSEWHERE.items())
    assert {fault.number for fault in FAULTS} | {int(name[:2]) for name in ELSEWHERE} == set(range(1, 41))
