"""Each fixtures/convert/<case>: before.py -> after.py and report.txt, byte for byte (`--update-golden` writes them)."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from ddpify.convert import convert_source
from ddpify.errors import DdpifyError
from ddpify.report import Report
from ddpify.source import read_source
from tests.cases import CASES, FOLDER, Case, each


def outcome(case: Case) -> dict[str, bytes]:
    """The files that a conversion gives: the result and the report, or the report alone with the refusal."""
    script = Path("before.py")  # as the user names it: no folder of this machine in any message
    try:
        found = convert_source(read_source(script))
    except DdpifyError as refusal:
        return {"report.txt": f"{refusal}\n".encode()}
    told = "".join(f"{click.unstyle(line)}\n" for line in Report(found, Path("after.py"), case.args).lines())
    return {"after.py": found.data, "report.txt": told.encode()}


@each(CASES)
def test_golden(case: Case, update_golden: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(case.folder)
    files = outcome(case)
    report = files["report.txt"].decode()
    assert ("after.py" in files) == case.converts, report
    assert str(FOLDER) not in report
    assert "\x1b" not in report
    if update_golden:
        for name in {"after.py", "report.txt"} - files.keys():
            (case.folder / name).unlink(missing_ok=True)
        for name, data in files.items():
            (case.folder / name).write_bytes(data)
    expected = {p.name: p.read_bytes() for p in case.folder.glob("*") if p.name in ("after.py", "report.txt")}
    assert files.keys() == expected.keys(), "run `make goldens`, and read the diff"
    for name, data in files.items():
        # the lines first: they show where; then the bytes, which also tell line endings apart
        assert data.decode("latin-1").splitlines() == expected[name].decode("latin-1").splitlines()
        assert data == expected[name]


def test_folders_hold_nothing_else() -> None:
    known = {"before.py", "case.toml", "after.py", "report.txt"}
    assert {p.name for p in FOLDER.glob("*/*")} - {"__pycache__"} <= known
    assert {p.parent for p in FOLDER.glob("*/before.py")} == {case.folder for case in CASES}


def test_cases_are_many() -> None:
    assert sum(case.converts and case.run for case in CASES) >= 15
    assert sum(not case.converts for case in CASES) >= 5
