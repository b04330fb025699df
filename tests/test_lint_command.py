"""`ddpify lint`: which files and rules, comments, settings, formats, mending, baselines."""

from __future__ import annotations

import importlib
import json
import subprocess
from importlib.resources import files
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner, Result

from ddpify.cli import cli
from ddpify.files import python_files
from ddpify.linting.ignores import ignores
from ddpify.linting.run import Run
from ddpify.linting.settings import Settings
from tests.shapes import SARIF, junit_faults

HEAD = """\
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
model = DDP(nn.Linear(4, 1))
"""
TAIL = "dist.destroy_process_group()\n"
SAVE = 'torch.save(model.module.state_dict(), "a.pt")'
BAD = f"{HEAD}{SAVE}\n{TAIL}"
FIXED = f"{HEAD}if dist.get_rank() == 0:\n    {SAVE}\n{TAIL}"


def run(*args: str | Path, stdin: str | None = None) -> Result:
    return CliRunner().invoke(cli, ["lint", *map(str, args)], input=stdin, prog_name="ddpify")


def codes(result: Result) -> list[str]:
    """`train.py:9 DDP401`, of a JSON report."""
    return [f"{p['file']}:{p['line']} {p['rule']}" for p in json.loads(result.stdout)["problems"]]


def lint(*args: str | Path, stdin: str | None = None) -> list[str]:
    return codes(run("--format", "json", *args, stdin=stdin))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(BAD)
    return tmp_path


def settings(text: str) -> None:
    Path("pyproject.toml").write_text(text)


# -- the text --------------------------------------------------------------------------------------


def test_text_shows_the_line_why_and_what_to_do(here: Path) -> None:
    Path("train.py").write_text(BAD + 'os.remove("b.pt")\n')
    result = run()
    assert result.exit_code == 1
    assert result.stdout.startswith(
        'train.py:9:1: DDP401 error every rank writes `"a.pt"` with `torch.save`\n'
        "  |\n"
        f"9 | {SAVE}\n"
        f"  | {'^' * len(SAVE)}\n"
        "  = why: The ranks write to one path"
    )
    assert result.stdout.count("= why:") == 1
    assert result.stdout.count("= fix: Let rank 0 alone write") == 2
    assert result.stderr == "found 2 (2 errors) in 1 file\n1 can be mended with --fix\n"


def test_caret_stands_under_tabs_and_stops_at_the_end_of_the_line(here: Path) -> None:
    text = BAD.replace(SAVE, 'if model:\n\ttorch.save(\n\t\tmodel.module.state_dict(), "ä.pt")')
    Path("train.py").write_text(text, encoding="utf-8")
    assert "10 |     torch.save(\n   |     ^^^^^^^^^^^\n" in run().stdout


def test_statistics(here: Path) -> None:
    Path("train.py").write_text(BAD + SAVE + "\nprint(1)\n")
    assert run("--statistics").stdout == "2  DDP401  unguarded-save\n1  DDP402  unguarded-output\n"


# -- which rules -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ([], ["DDP401", "DDP402"]),
        (["--select", "DDP401"], ["DDP401"]),
        (["--select", "unguarded-save, ddp3"], ["DDP401"]),
        (["--select", "DDP4", "--ignore", "DDP402"], ["DDP401"]),
        (["--ignore", "DDP4", "--extend-select", "DDP401"], ["DDP401"]),
        (["--ignore", "DDP401", "--extend-select", "DDP401"], ["DDP402"]),
        (["--ignore", "ALL"], []),
        (["--select", "DDP3", "--extend-select", "DDP402"], ["DDP402"]),
    ],
)
def test_which_rules(here: Path, options: list[str], found: list[str]) -> None:
    Path("train.py").write_text(BAD + "print(1)\n")
    assert [c.split()[1] for c in lint(*options)] == found


def test_settings(here: Path) -> None:
    Path("lib").mkdir()
    for name in ("lib/one.py", "lib/two.py", "train_old.py"):
        Path(name).write_text(BAD + "print(1)\n")
    settings(
        '[tool.ddpify]\nignore = ["DDP402"]\nexclude = ["train_*.py"]\n'
        '[tool.ddpify.per-file-ignores]\n"lib/t*.py" = ["unguarded-save"]\n'
    )
    assert lint() == ["train.py:9 DDP401", "lib/one.py:9 DDP401"]
    assert lint("lib/two.py", "train_old.py") == []
    assert lint("lib/two.py", "--extend-select", "DDP402") == []
    assert lint("lib/two.py", "--select", "DDP402") == ["lib/two.py:11 DDP402"]
    assert lint("-", "--stdin-filename", "lib/two.py", stdin=BAD) == []
    assert lint("-", "--stdin-filename", "lib/three.py", stdin=BAD) == []
    assert lint("-", "--stdin-filename", "lib/one.py", stdin=BAD) == ["lib/one.py:9 DDP401"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[tool.ddpify]\nselect = ["DDP999"]', "pyproject.toml: tool.ddpify.select: no rule 'DDP999'; did you mean"),
        ('[tool.ddpify]\nselekt = ["DDP401"]', "has no key 'selekt'; did you mean 'select'?"),
        ('[tool.ddpify]\nselect = "DDP401"', "tool.ddpify.select is a list of strings"),
        ("[tool.ddpify]\nbaseline = 3", "tool.ddpify.baseline is the name of a file"),
        ("[tool.ddpify]\nrespect-gitignore = 1", "tool.ddpify.respect-gitignore is true or false"),
        ("[tool.ddpify]\nper-file-ignores = []", "is a table of patterns"),
        ("[tool.ddpify]\nselect = [", "pyproject.toml: not a TOML file"),
        ('[tool.ddpify]\nbaseline = "nowhere.json"', "nowhere.json: no such baseline"),
        ("[tool]\nddpify = 3\n# [tool.ddpify]\n[tool.ddpify.x]\n", "not a TOML file"),
    ],
)
def test_wrong_settings_are_one_sentence(here: Path, text: str, said: str) -> None:
    settings(text)
    result = run()
    assert result.exit_code == 2
    assert result.stdout == ""
    assert said in result.stderr
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr


def test_a_wrong_code_on_the_command_line(here: Path) -> None:
    result = run("--select", "DDP4O1")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--select: no rule 'DDP4O1'; did you mean DDP401?" in result.stderr


def test_broken_toml_without_our_table_is_not_our_matter(here: Path) -> None:
    settings("ddpify is not = [ mentioned\n")
    assert lint() == ["train.py:9 DDP401"]


# -- comments --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"{SAVE}  # ddpify: ignore[DDP401]", []),
        (f"{SAVE}  # ddpify: ignore[DDP4]", []),
        (f"{SAVE}  # ddpify:ignore", []),
        (f"{SAVE}  # noqa  # ddpify: ignore[unguarded-save] because", []),
        (f"# ddpify: ignore-file[DDP401]\n{SAVE}", []),
        (f"# ddpify: ignore-file\n{SAVE}\nprint(1)", []),
        (f"# ddpify: ignore-file\n{SAVE}\nx = 1  # ddpify: ignore", []),
        (SAVE.replace('"a.pt")', '"a.pt",\n)  # ddpify: ignore[DDP401]'), []),
        (SAVE.replace('"a.pt")', '# ddpify: ignore[DDP401]\n"a.pt")'), []),
        (f"{SAVE}  # ddpify: ignore[DDP402]", ["DDP001", "DDP401"]),
        (f"{SAVE}  # ddpify: ignore[DDP401, DDP402]", ["DDP001"]),
        (f"{SAVE}  # ddpify: ignore[DDP999]", ["DDP001", "DDP401"]),
        (f"# ddpify: ignore[DDP401]\n{SAVE}", ["DDP001", "DDP401"]),
        (f"# ddpify: ignore-file[DDP402]\n{SAVE}", ["DDP001", "DDP401"]),
        (f'{SAVE}\nx = "# ddpify: ignore[DDP401]"', ["DDP401"]),
        (f"# ddpify: ignored\n{SAVE}", ["DDP401"]),
    ],
)
def test_comments(here: Path, text: str, found: list[str]) -> None:
    Path("train.py").write_text(f"{HEAD}{text}\n{TAIL}")
    assert sorted(c.split()[1] for c in lint()) == found


def test_a_comment_for_a_rule_that_is_not_selected_is_not_unused(here: Path) -> None:
    Path("train.py").write_text(BAD.replace(SAVE, f"{SAVE}  # ddpify: ignore[DDP401]"))
    assert lint("--select", "DDP0,DDP3") == []
    assert lint("--ignore", "DDP401") == []


def test_idle_comments_of_files_that_are_not_parsed(here: Path) -> None:
    Path("other.py").write_text("x = 1  # ddpify: ignore[DDP401]\ny = 'ddpify: ignore'\n")
    assert lint("other.py") == ["other.py:1 DDP001"]
    assert run("--fix", "other.py").exit_code == 0
    assert Path("other.py").read_text() == "x = 1\ny = 'ddpify: ignore'\n"


def test_comments_in_text_that_is_no_python() -> None:
    assert len(ignores("x = (  # ddpify: ignore\n")) <= 1


# -- which files -----------------------------------------------------------------------------------


def git(*args: str) -> None:
    subprocess.run(["git", *args], check=True, capture_output=True)


def test_what_git_ignores_is_left_out(here: Path) -> None:
    git("init", "--quiet")
    for name in ("build/a.py", "src/gen_a.py", "src/keep/gen_b.py", "src/new/a.py", "deep/out/a.py"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(BAD)
    Path(".gitignore").write_text("build/\ngen_*.py\n/out\n")
    Path("src/keep/.gitignore").write_text("!gen_b.py\n")
    Path(".git/info/exclude").write_text("src/new\n")
    assert lint("src", "deep") == ["src/keep/gen_b.py:9 DDP401", "deep/out/a.py:9 DDP401"]
    assert lint("build/a.py") == ["build/a.py:9 DDP401"]
    assert lint("build") == ["build/a.py:9 DDP401"]
    settings("[tool.ddpify]\nrespect-gitignore = false\n")
    assert len(lint()) == 6


def test_most_files_are_not_parsed(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("a.py").write_text("import torch\nthis is no python (\n")
    Path("b.py").write_text("Distributed = DDP = (\n")
    result = run()
    assert result.stderr.startswith("found 1 (1 error) in 3 files")


def test_processes_give_the_same_in_the_same_order(here: Path) -> None:
    for at in range(9):
        Path(f"train_{at}.py").write_text(BAD + "print(1)\n" * at)
    assert lint("--jobs", "3") == lint("--jobs", "1")
    assert len(list(Run(Settings(), jobs=2)([Path()]))) == len(list(python_files([Path()]))) == 10


def test_no_files(here: Path) -> None:
    Path("empty").mkdir()
    result = run("empty")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "found 0 in 0 files\n")


# -- standard input --------------------------------------------------------------------------------


def test_standard_input(here: Path) -> None:
    assert lint("-", stdin=BAD) == ["<stdin>:9 DDP401"]
    assert lint("-", "--stdin-filename", "new/x.py", stdin=BAD) == ["new/x.py:9 DDP401"]
    result = run("-", "--fix", stdin=BAD)
    assert (result.exit_code, result.stdout) == (0, FIXED)
    assert run("-", "--fix", stdin="x = 1\n").stdout == "x = 1\n"


@pytest.mark.parametrize(
    "args",
    [
        ["-", "train.py"],
        ["train.py", "--stdin-filename", "x.py"],
        ["--fix", "--diff"],
        ["--unsafe-fixes"],
        ["--write-baseline", "--fix"],
        ["--diff", "--format", "json"],
    ],
    ids=" ".join,
)
def test_usage(here: Path, args: list[str]) -> None:
    result = run(*args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Error: " in result.stderr


# -- mending ---------------------------------------------------------------------------------------

MENDS = [
    (SAVE, f"if dist.get_rank() == 0:\n    {SAVE}"),
    ("print(1)", "if dist.get_rank() == 0:\n    print(1)"),
    ('os.makedirs("a")', 'os.makedirs("a", exist_ok=True)'),
    ('os.mkdir("a")', 'os.makedirs("a", exist_ok=True)'),
    (
        'names = os.listdir("a")\nnumber = {n: i for i, n in enumerate(names)}',
        'names = sorted(os.listdir("a"))\nnumber = {n: i for i, n in enumerate(names)}',
    ),
    (
        'model.cuda()\nmodel.module.load_state_dict(torch.load("a"))',
        'model.cuda()\nmodel.module.load_state_dict(torch.load("a", map_location="cpu"))',
    ),
    ("model.tau = 0.5", "model.module.tau = 0.5"),
    ("x = model.weight", "x = model.module.weight"),
    ("x = 1  # ddpify: ignore", "x = 1"),
    ("# ddpify: ignore-file[DDP302]\nx = 1", "x = 1"),
]
UNSAFE = [
    (
        'if dist.get_rank() == 0:\n    torch.save(model.state_dict(), "a")',
        'if dist.get_rank() == 0:\n    torch.save(model.module.state_dict(), "a")',
    ),
    ('os.environ["CUDA_VISIBLE_DEVICES"] = "0"\nx = 1', "x = 1"),
    (
        "parts = torch.utils.data.random_split(range(4), [2, 2])",
        "parts = torch.utils.data.random_split(range(4), [2, 2], generator=torch.Generator().manual_seed(0))",
    ),
    (
        'if dist.get_rank() == 0:\n    torch.save(model.module.state_dict(), "a")\nx = torch.load("a")',
        'if dist.get_rank() == 0:\n    torch.save(model.module.state_dict(), "a")\ndist.barrier()\nx = torch.load("a")',
    ),
]


@pytest.mark.parametrize(("before", "after"), MENDS)
def test_safe_fixes(here: Path, before: str, after: str) -> None:
    Path("train.py").write_text(f"{HEAD}{before}\n{TAIL}")
    diff = run("--diff")
    assert diff.exit_code == 1
    assert Path("train.py").read_text() == f"{HEAD}{before}\n{TAIL}"
    result = run("--fix")
    assert (result.exit_code, result.stdout) == (0, ""), result.stdout
    assert Path("train.py").read_text() == f"{HEAD}{after}\n{TAIL}"
    assert diff.stdout.count("\n+++ ") == 1
    assert run("--diff").exit_code == 0


@pytest.mark.parametrize(("before", "after"), UNSAFE)
def test_unsafe_fixes(here: Path, before: str, after: str) -> None:
    Path("train.py").write_text(f"{HEAD}{before}\n{TAIL}")
    assert run("--fix").exit_code == 1
    assert Path("train.py").read_text() == f"{HEAD}{before}\n{TAIL}"
    assert run("--fix", "--unsafe-fixes").exit_code == 0
    assert Path("train.py").read_text() == f"{HEAD}{after}\n{TAIL}"


def test_a_loader_is_sharded_and_shuffled_anew(here: Path) -> None:
    body = (
        "data = torch.utils.data.TensorDataset(torch.ones(8, 4))\n"
        "loader = torch.utils.data.DataLoader(data, shuffle=True)\n"
        "optimizer = torch.optim.SGD(model.parameters())\n"
        "for epoch in range(2):\n    for (x,) in loader:\n"
        "        model(x).mean().backward()\n        optimizer.step()\n"
    )
    Path("train.py").write_text(HEAD + body + TAIL)
    assert run("--fix", "--unsafe-fixes").exit_code == 0
    text = Path("train.py").read_text()
    assert "DataLoader(data, sampler=DistributedSampler(data))" in text
    assert "range(2):\n    loader.sampler.set_epoch(epoch)\n" in text


@pytest.mark.parametrize(
    "kept",
    ["x = print(1)", "def late():\n    print(1)", "print(1) if model else None", "y = torch.save(model.module, 'a')"],
)
def test_what_cannot_be_mended_stays(here: Path, kept: str) -> None:
    Path("train.py").write_text(f"{HEAD}{kept}\n{TAIL}")
    run("--fix", "--unsafe-fixes")
    assert kept in Path("train.py").read_text()


def test_bytes_outside_the_edits_stay(here: Path) -> None:
    data = BAD.replace("\n", "\r\n").encode("utf-8-sig") + "# ünïcode".encode()
    Path("train.py").write_bytes(data)
    Path("train.py").chmod(0o755)
    assert run("--fix").exit_code == 0
    guarded = f"if dist.get_rank() == 0:\r\n    {SAVE}\r\n".encode()
    assert Path("train.py").read_bytes() == data.replace(f"{SAVE}\r\n".encode(), guarded)
    assert Path("train.py").stat().st_mode & 0o777 == 0o755


# -- formats ---------------------------------------------------------------------------------------


def report(form: str) -> Any:
    Path("bad%,.py").write_text(BAD)
    Path("broken.py").write_text("import torch.distributed (\n")
    result = run("--format", form)
    assert result.exit_code == 2
    return result.stdout if form in ("github", "junit") else json.loads(result.stdout)


def test_json(here: Path) -> None:
    data = report("json")
    assert list(data) == ["version", "problems", "errors"]
    first = data["problems"][0]
    assert first["file"] == "bad%,.py"
    assert (first["line"], first["column"], first["end_line"], first["end_column"]) == (9, 1, 9, 1 + len(SAVE))
    assert (first["rule"], first["name"], first["severity"], first["fixable"]) == (
        "DDP401",
        "unguarded-save",
        "error",
        "safe",
    )
    assert [e["file"] for e in data["errors"]] == ["broken.py"]


def test_json_is_as_its_schema_says(here: Path) -> None:
    """Keys may be added; each one that there is stands in the schema, which is what others build on."""
    jsonschema = importlib.import_module("jsonschema")
    schema = json.loads(files("ddpify.docs").joinpath("lint.schema.json").read_text(encoding="utf-8"))
    check = jsonschema.Draft202012Validator(schema)
    check.check_schema(schema)
    Path("comment.py").write_text(f"{HEAD}os.mkdir('out')\nx = 1  # ddpify: ignore\n{TAIL}")
    data = report("json")
    assert [e.message for e in check.iter_errors(data)] == []
    assert {p["rule"] for p in data["problems"]} >= {"DDP001", "DDP401", "DDP403"}
    for kind, items in (("problem", data["problems"]), ("error", data["errors"])):
        for item in items:
            assert item.keys() == schema["$defs"][kind]["properties"].keys()
            assert list(check.evolve(schema=schema["$defs"][kind]).iter_errors({**item, "file": 1})) != []


def test_sarif(here: Path) -> None:
    data = report("sarif")
    (found,) = data["runs"]
    assert data["version"] == "2.1.0"
    rules = found["tool"]["driver"]["rules"]
    for result in found["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"] == "DDP401"
    places = [r["locations"][0]["physicalLocation"] for r in found["results"]]
    assert [p["artifactLocation"]["uri"] for p in places] == ["bad%25%2C.py", "train.py"]
    assert places[0]["region"]["startLine"] == 9
    assert len({r["partialFingerprints"]["ddpify/v1"] for r in found["results"]}) == 2
    assert found["invocations"][0]["executionSuccessful"] is False


def test_reports_are_as_the_standards_say(here: Path) -> None:
    """SARIF and JUnit XML, also of a line with a form feed, a remark, and a file that is not text."""
    jsonschema = importlib.import_module("jsonschema")
    Path("größe \x07.py").write_text(
        f"{HEAD}\x0cos.environ['CUDA_VISIBLE_DEVICES'] = '0,1'\nos.mkdir('\x1b[1m')\n{TAIL}"
    )
    check = jsonschema.Draft202012Validator(SARIF)
    data = report("sarif")
    assert [e.message for e in check.iter_errors(data)] == []
    levels = {r["level"] for r in data["runs"][0]["results"]}
    assert levels >= {"error", "warning", "note"}
    text = run("--format", "junit").stdout
    assert junit_faults(text) == []
    assert text.count("<skipped") == 1
    assert junit_faults(run("--format", "junit", "--select", "DDP216").stdout) == []
    broken = text.replace(' tests="', ' test="', 1)
    assert junit_faults(broken) == ["testsuite without tests", "testsuite with test", "tests=None, not 5"]


def test_github(here: Path) -> None:
    first, *_, last = report("github").splitlines()
    assert first.startswith("::error title=ddpify (DDP401),file=bad%25%2C.py,line=9,col=1,endLine=9,")
    assert first.split("::")[2].startswith("bad%25,.py:9:1: DDP401 every rank writes")
    assert last.startswith("::error file=broken.py::broken.py:1:")


def test_junit(here: Path) -> None:
    (suite,) = ET.fromstring(report("junit"))
    assert suite.attrib == {"name": "ddpify", "tests": "3", "failures": "2", "errors": "1", "skipped": "0"}
    assert [case.get("file") for case in suite] == ["bad%,.py", "train.py", "broken.py"]
    Path("clean").mkdir()
    assert "no problems" in run("--format", "junit", "clean").stdout


# -- baselines -------------------------------------------------------------------------------------


def test_baseline(here: Path) -> None:
    settings('[tool.ddpify]\nbaseline = "known.json"\n')
    assert run("--write-baseline").exit_code == 0
    assert lint() == []
    Path("train.py").write_text("\n\n" + BAD.replace(SAVE, f"{SAVE}\n{SAVE}\nprint(1)"))
    assert lint() == ["train.py:12 DDP401", "train.py:13 DDP402"]
    Path("known.json").write_text("{}")
    result = run()
    assert result.exit_code == 2
    assert "known.json: not a baseline of ddpify" in result.stderr


def test_baseline_by_option(here: Path) -> None:
    run("--write-baseline", "--baseline", "one.json")
    assert lint("--baseline", "one.json") == []
    assert lint() == ["train.py:9 DDP401"]
    run("--write-baseline")
    assert Path("ddpify-baseline.json").exists()
