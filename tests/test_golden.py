"""Each fixtures/convert/<case>: before.py -> after.py, changed modules and report.txt, byte for byte.

`--update-golden` writes them.
"""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from ddpify.convert import convert_source
from ddpify.errors import DdpifyError
from ddpify.report import Report
from ddpify.source import read_source
from tests.cases import CASES, FOLDER, NOWHERE, Case, conversion, each, is_output


def outcome(case: Case) -> dict[str, bytes]:
    """The files that a conversion gives: the result and the report, or the report alone with the refusal."""
    script = Path("before.py")  # as the user names it: no folder of this machine in any message
    try:
        found = convert_source(read_source(script))
    except DdpifyError as refusal:
        return {"report.txt": f"{refusal}\n".encode()}
    told = "".join(f"{click.unstyle(line)}\n" for line in Report(found, Path("after.py"), case.args).lines())
    modules = {path.as_posix(): changed.data for path, changed in found.files.items()}
    return {"after.py": found.data, **modules, "report.txt": told.encode()}


@each(CASES)
def test_golden(case: Case, update_golden: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(case.folder)
    files = outcome(case)
    report = files["report.txt"].decode()
    assert ("after.py" in files) == case.converts, report
    assert str(FOLDER) not in report
    assert "\x1b" not in report
    assert all(is_output(Path(name)) for name in files)
    if update_golden:
        for name in case.outputs.keys() - files.keys():
            (case.folder / name).unlink()
        for name, data in files.items():
            (case.folder / name).write_bytes(data)
    expected = case.outputs
    assert files.keys() == expected.keys(), "run `make goldens`, and read the diff"
    for name, data in files.items():
        # the lines first: they show where; then the bytes, which also tell line endings apart
        assert data.decode("latin-1").splitlines() == expected[name].decode("latin-1").splitlines()
        assert data == expected[name]


def test_folders_hold_nothing_else() -> None:
    """Beside scripts, outputs and case.toml only modules that the script imports."""
    for case in CASES:
        files = {p.relative_to(case.folder).as_posix() for p in case.folder.rglob("*") if p.is_file()}
        files = {name for name in files if "__pycache__" not in name}
        assert files == {"before.py", "case.toml"} | case.modules.keys() | case.outputs.keys(), case.name
        if case.converts and case.modules:
            read = {s.path.relative_to(NOWHERE).as_posix() for s in conversion(case).facts.project.files()}
            assert read == {"before.py"} | case.modules.keys()
    assert {p.parent for p in FOLDER.glob("*/before.py")} == {case.folder for case in CASES}


def test_cases_are_many() -> None:
    assert sum(case.converts and case.run for case in CASES) >= 15
    assert sum(not case.converts for case in CASES) >= 5
