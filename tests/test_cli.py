"""The command line: what goes where, which exit code, and one sentence for whatever goes wrong."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

import ddpify
import ddpify.verify
from ddpify import __version__
from ddpify.cli import cli
from ddpify.convert import convert_source
from ddpify.docs import pages
from ddpify.errors import DdpifyError
from ddpify.rules import Severity, all_rules
from ddpify.source import Source
from ddpify.verify import Still, VerifyReport
from ddpify.verify.checks import Result as Checked
from ddpify.verify.checks import Status


def run(*args: str | Path, stdin: bytes | None = None, color: bool = False) -> Result:
    return CliRunner().invoke(cli, [str(a) for a in args], input=stdin, color=color, prog_name="ddpify")


def told(result: Result) -> str:
    """The sentence of a run that could not do its work."""
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert result.stderr.count("\n") == 1
    return result.stderr


# -- convert: what goes where -------------------------------------------------------------------------------


def test_code_goes_to_stdout_and_the_report_to_stderr(train: Path) -> None:
    result = run(train)
    assert result.exit_code == 0, result.stderr
    compile(result.stdout, "out.py", "exec")
    assert "DistributedSampler" in result.stdout
    assert result.stderr.startswith("train.py: ")
    assert sorted(os.listdir()) == ["train.py"]


def test_output_file_has_what_stdout_would_have(train: Path) -> None:
    before = train.read_bytes()
    plain = run(train)
    result = run(train, "-o", "out.py")
    assert (result.exit_code, result.stdout) == (0, "")
    assert Path("out.py").read_bytes() == plain.stdout_bytes
    assert result.stderr.startswith("train.py -> out.py: ")
    assert train.read_bytes() == before


def test_convert_may_be_said(train: Path) -> None:
    assert run("convert", train).stdout == run(train).stdout
    assert run("--diff", train).stdout == run(train, "--diff").stdout


def test_stdin(train: Path) -> None:
    result = run("-", stdin=train.read_bytes())
    assert result.exit_code == 0
    assert result.stdout == run(train).stdout
    assert run("-", "-o", "-", stdin=train.read_bytes()).stdout == result.stdout


def test_diff_is_a_patch_and_writes_nothing(train: Path) -> None:
    result = run(train, "--diff")
    assert result.exit_code == 0
    assert result.stdout.startswith("--- train.py\n+++ train_ddp.py\n@@ ")
    assert "\x1b" not in result.stdout
    assert sorted(os.listdir()) == ["train.py"]


def test_diff_keeps_the_bytes_of_the_file(train: Path) -> None:
    text = train.read_text().replace("data = ", "data = ", 1) + "print('caf\xe9')  # fin\n"
    train.write_bytes(("# -*- coding: latin-1 -*-\n" + text).replace("\n", "\r\n").encode("latin-1"))
    result = run(train, "--diff")
    assert b"+import torch.distributed as dist\r\n" in result.stdout_bytes
    converted = run(train)
    assert b"'caf\xe9'" in converted.stdout_bytes


def test_check_writes_nothing_and_says_so_by_its_exit_code(train: Path) -> None:
    result = run(train, "--check")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("train.py would change: ")
    assert sorted(os.listdir()) == ["train.py"]


def test_in_place_keeps_mode_and_symbolic_link(train: Path) -> None:
    train.chmod(0o750)
    Path("link.py").symlink_to("train.py")
    expected = run(train).stdout_bytes
    assert run("link.py", "--in-place").exit_code == 0
    assert Path("link.py").is_symlink()
    assert train.read_bytes() == expected
    assert stat.S_IMODE(train.stat().st_mode) == 0o750


def test_new_output_has_the_mode_of_the_script_and_an_old_one_keeps_its_own(train: Path) -> None:
    train.chmod(0o755)
    Path("old.py").write_text("old")
    Path("old.py").chmod(0o640)
    assert run(train, "-o", "new.py").exit_code == run(train, "-o", "old.py").exit_code == 0
    assert stat.S_IMODE(Path("new.py").stat().st_mode) == 0o755
    assert stat.S_IMODE(Path("old.py").stat().st_mode) == 0o640
    assert Path("old.py").read_bytes() == Path("new.py").read_bytes()


def test_global_batch_keep_reaches_the_conversion(train: Path) -> None:
    result = run(train, "--global-batch", "keep")
    assert "batch_size=per_process(4)" in result.stdout
    assert "divided by the number of processes" in " ".join(result.stderr.split())


def test_names_with_spaces_and_letters(train: Path) -> None:
    train.rename("mein träning 1.py")
    result = run("mein träning 1.py", "-o", "mein träning 2.py")
    assert result.exit_code == 0
    assert "--nproc-per-node=N 'mein träning 2.py'" in result.stderr


# -- convert: the report -----------------------------------------------------------------------------------


def test_report_lists_every_edit_with_line_rule_and_reason(train: Path) -> None:
    report = run(train, "-o", "out.py")
    data = json.loads(run(train, "-o", "out.py", "--format", "json").stdout)
    assert len(data["edits"]) >= 5
    said = " ".join(report.stderr.split())
    for edit in data["edits"]:
        assert f"{edit['rule']} {edit['name']}: " in said
        assert " ".join((edit["reason"] or edit["message"]).split()) in said
        assert edit["line"] <= len(train.read_text().splitlines())
    assert max(map(len, report.stderr.splitlines())) <= 80


def test_report_ends_with_commands(train: Path) -> None:
    lines = run(train, "-o", "out.py").stderr.splitlines()
    assert "run it:       torchrun --standalone --nproc-per-node=N out.py" in lines
    assert lines[-1] == "not verified: ddpify verify out.py"
    assert run(train).stderr.splitlines()[-1] == "not verified: ddpify train.py -o train_ddp.py --verify"


def test_commands_have_room_for_the_arguments_of_the_script(train: Path) -> None:
    train.write_text(
        "import argparse\n"
        + train.read_text().replace("data = ", "args = argparse.ArgumentParser().parse_args()\ndata = ", 1)
    )
    lines = run(train, "-o", "out.py").stderr.splitlines()
    assert "run it:       torchrun --standalone --nproc-per-node=N out.py ..." in lines
    assert lines[-1] == "not verified: ddpify verify out.py -- ARGS"


def test_report_speaks_of_the_batch_size(train: Path) -> None:
    said = " ".join(run(train).stderr.split())
    assert "6 `batch_size=4` is per process: a step on N processes sees N times as many samples" in said


def with_left(monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], None]) -> None:
    """Conversions that have something changed about their plan."""
    real = convert_source

    def convert(*args: Any, **kwargs: Any) -> Any:
        conversion = real(*args, **kwargs)
        change(conversion)
        return conversion

    monkeypatch.setattr(sys.modules["ddpify.convert"], "convert_source", convert)


def test_what_is_left_is_listed_and_makes_exit_code_1(train: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(conversion: Any) -> None:
        rule = all_rules()[0]()
        node = conversion.source.module.body[-1]
        conversion.plan.left.append(
            rule.finding(conversion.source, node, "`x` is unclear", reason="it is new", left="look at `x`")
        )

    with_left(monkeypatch, leave)
    result = run(train, "-o", "out.py")
    assert result.exit_code == 1
    assert Path("out.py").exists()
    said = " ".join(result.stderr.split())
    rule = f"{all_rules()[0].code} {all_rules()[0].name()}"
    assert f"left for you (1): train.py:15 {rule}: `x` is unclear (it is new) what to do: look at `x`" in said
    (left,) = json.loads(run(train, "--format", "json").stdout)["left"]
    assert (left["line"], left["message"], left["remedy"]) == (15, "`x` is unclear", "look at `x`")


def test_left_findings_of_the_result_name_the_result(train: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(conversion: Any) -> None:
        result = Source(conversion.source.path, conversion.data)
        conversion.plan.left.append(all_rules()[0]().finding(result, result.module.body[-1], "at the end"))

    with_left(monkeypatch, leave)
    result = run(train, "-o", "out.py")
    last = len(Path("out.py").read_text().splitlines())
    assert f"  out.py:{last}  {all_rules()[0].code}" in result.stderr


def test_json(train: Path) -> None:
    result = run(train, "--format", "json")
    data = json.loads(result.stdout)
    assert result.stderr == ""
    assert data["code"] == run(train).stdout
    assert data["diff"] == run(train, "--diff").stdout
    assert data["command"] == "torchrun --standalone --nproc-per-node=N train_ddp.py"
    assert (data["script"], data["output"], data["changed"], data["verified"]) == ("train.py", None, True, None)
    for edit in data["edits"]:
        assert edit.keys() == {"file", "line", "column", "rule", "name", "message", "reason"}
    for options in (["-o", "out.py"], ["--diff"], ["--check"]):
        assert "code" not in json.loads(run(train, "--format", "json", *options).stdout)


def test_colours_on_a_terminal_only(train: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b" not in run(train).stderr
    assert "\x1b[" in run(train, color=True).stderr
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in run(train, color=True).stderr


# -- convert: what is refused --------------------------------------------------------------------------------

BAD_INPUTS = {
    "missing.py": (None, "no such file"),
    "empty.py": (b"", "empty"),
    "blank.py": (b"\n  \n", "empty"),
    "binary.py": (b"\x7fELF\0\0\0", "a binary file"),
    "broken.py": (b"import torch\ndef f(:\n", "broken.py:2:7: syntax error"),
    "old.py": (b"import torch\nprint 'x'\n", "Python 2 print statement"),
    "coding.py": (b"# -*- coding: klingon -*-\nimport torch\n", "klingon"),
    "bytes.py": (b"import torch\nx = '\xff'\n", "not utf-8 text"),
    "plain.py": (b"print(1)\n", "no PyTorch in it"),
    "infer.py": (b"import torch\nprint(torch.load('m.pt'))\n", "no training loop was found"),
    "ddp.py": (b"import torch.distributed as dist\ndist.init_process_group('gloo')\n", "already distributed"),
}


@pytest.mark.parametrize("name", BAD_INPUTS)
def test_bad_input_is_one_sentence(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data, expected = BAD_INPUTS[name]
    if data is not None:
        Path(name).write_bytes(data)
    sentence = told(run(name, "-o", "out.py"))
    assert sentence.startswith(f"ddpify: {name}")
    assert expected in sentence
    assert not Path("out.py").exists()


def test_a_folder_is_one_sentence(tmp_path: Path) -> None:
    assert "a folder" in told(run(tmp_path))


def test_a_word_that_is_neither_file_nor_command(train: Path) -> None:
    assert "no such file, and no such command" in told(run("lnit"))


def test_second_conversion_is_refused(train: Path) -> None:
    assert run(train, "-o", "out.py").exit_code == 0
    assert "already distributed" in told(run("out.py", "--in-place"))


def test_bad_output_is_one_sentence(train: Path) -> None:
    assert "no folder none to write into" in told(run(train, "-o", "none/out.py"))
    Path("folder").mkdir()
    assert "a folder" in told(run(train, "-o", "folder"))
    assert sorted(os.listdir()) == ["folder", "train.py"]


def test_output_onto_the_input_is_refused(train: Path) -> None:
    before = train.read_bytes()
    Path("link.py").symlink_to("train.py")
    os.link(train, "same.py")
    for target in ("train.py", "./train.py", "link.py", "same.py"):
        assert "--in-place" in told(run(train, "-o", target))
    assert train.read_bytes() == before


def test_output_onto_a_module_of_the_script_is_refused(train: Path) -> None:
    Path("nets.py").write_text("from torch import nn\n\n\ndef make():\n    return nn.Linear(4, 1)\n")
    train.write_text("from nets import make\n" + train.read_text().replace("nn.Linear(4, 1)", "make()"))
    before = Path("nets.py").read_bytes()
    assert "--in-place" in told(run(train, "-o", "nets.py"))
    assert Path("nets.py").read_bytes() == before


def test_a_write_that_fails_leaves_the_old_file(train: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("out.py").write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert "No space left on device" in told(run(train, "-o", "out.py"))
    assert Path("out.py").read_text() == "old"
    assert sorted(os.listdir()) == ["out.py", "train.py"]


@pytest.mark.skipif(not Path("/dev/null").is_char_device(), reason="needs /dev/null")
def test_a_device_is_written_to_and_stays_one(train: Path) -> None:
    assert run(train, "-o", "/dev/null").exit_code == 0
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize(
    "options",
    [
        ["--diff", "--check"],
        ["-o", "out.py", "--in-place"],
        ["--format", "xml"],
        ["--global-batch", "half"],
        ["extra"],
        ["--verify"],
        ["--verify", "--diff"],
        ["--verify", "-o", "-"],
        ["-o", "out.py", "--verify", "--nproc", "0"],
        ["-o", "out.py", "--verify", "--timeout", "0"],
        ["--nonsense"],
    ],
    ids=" ".join,
)
def test_bad_usage(train: Path, options: list[str]) -> None:
    result = run(train, *options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Error: " in result.stderr
    assert sorted(os.listdir()) == ["train.py"]


def test_stdin_cannot_be_written_in_place() -> None:
    assert run("-", "--in-place", stdin=b"import torch\n").exit_code == 2


@pytest.mark.parametrize("error", [RecursionError("too deep"), KeyError("x"), AssertionError()])
def test_a_fault_of_ddpify_is_one_sentence(train: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(sys.modules["ddpify.convert"], "convert_source", fail)
    sentence = told(run(train, "-o", "out.py"))
    assert f"internal error ({type(error).__name__}" in sentence
    assert "report" in sentence
    debugged = run(train, "--debug")
    assert debugged.exit_code == 2
    assert "Traceback" in debugged.stderr


def test_a_fault_of_a_rule_names_the_rule(train: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(*_: object) -> None:
        raise ZeroDivisionError("oops")

    broken = all_rules()[3]
    monkeypatch.setattr(broken, "check", check)
    sentence = told(run(train, "-o", "out.py"))
    assert f"internal error in rule {broken.code}" in sentence
    assert not Path("out.py").exists()


def test_ctrl_c(train: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["ddpify.convert"], "convert_source", stop)
    result = run(train)
    assert (result.exit_code, result.stderr) == (130, "ddpify: interrupted\n")


# -- verify ----------------------------------------------------------------------------------------------------


def fake_verify(monkeypatch: pytest.MonkeyPatch, status: Status) -> dict[str, Any]:
    """A run that is not made; what it was asked for is in the dict that comes back."""
    asked: dict[str, Any] = {}

    def verify(script: Path, **options: Any) -> VerifyReport:
        options["progress"]("rank 0: step 1, 0.5 s")
        asked.update(script=script, **options)
        results = (Checked("wrapped", "2.1", status, "a sentence", ("DDP201",)),)
        return VerifyReport(script, options["nproc"], "gloo", results, 1.5, True, "")

    monkeypatch.setattr(ddpify.verify, "verify", verify)
    return asked


@pytest.mark.parametrize(("status", "code"), [(Status.HELD, 0), (Status.NOT_TRIED, 0), (Status.FAILED, 1)])
def test_verify(train: Path, monkeypatch: pytest.MonkeyPatch, status: Status, code: int) -> None:
    asked = fake_verify(monkeypatch, status)
    result = run("verify", train, "--nproc", "3", "--timeout", "7", "--max-steps", "5", "--", "--epochs", "2")
    assert result.exit_code == code
    assert "a sentence" in result.stdout
    assert "rank 0: step 1" in result.stderr
    assert asked.pop("progress")
    assert (asked.pop("original"), asked.pop("still")) == (None, Still())
    given = {"nproc": 3, "timeout": 7.0, "max_steps": 5, "max_batches": None, "nnodes": 1, "devices": True}
    given |= {"synthetic": False, "stress": False}
    assert asked == {"script": train, "args": ("--epochs", "2"), **given}
    asked.clear()
    run("verify", train, "--nnodes", "2", "--max-batches", "4", "--no-devices", "--synthetic", "--stress")
    asked = {name: asked[name] for name in ("nnodes", "max_batches", "devices", "synthetic", "stress")}
    assert asked == {"nnodes": 2, "max_batches": 4, "devices": False, "synthetic": True, "stress": True}
    data = json.loads(run("verify", train, "--format", "json").stdout)
    assert data["ok"] is (code == 0)


@pytest.mark.parametrize(("status", "code"), [(Status.HELD, 0), (Status.FAILED, 1)])
def test_convert_and_verify(train: Path, monkeypatch: pytest.MonkeyPatch, status: Status, code: int) -> None:
    asked = fake_verify(monkeypatch, status)
    result = run(train, "-o", "out.py", "--verify", "--", "--epochs", "2", "-o", "x")
    assert (result.exit_code, result.stdout) == (code, "")
    assert "a sentence" in result.stderr
    assert "not verified" not in result.stderr
    assert "torchrun --standalone --nproc-per-node=N out.py --epochs 2 -o x" in result.stderr
    assert (asked["script"], asked["args"]) == (Path("out.py"), ("--epochs", "2", "-o", "x"))
    assert asked["original"] == train
    data = json.loads(run(train, "-o", "out.py", "--verify", "--format", "json").stdout)
    assert data["verified"]["ok"] is (code == 0)


def test_verify_against_the_original(train: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = fake_verify(monkeypatch, Status.HELD)
    assert run("verify", "out.py", "--original", train, "--keep-dropout").exit_code == 0
    assert (asked["original"], asked["still"]) == (train, Still(dropout=True))
    run(train, "--in-place", "--verify")
    assert asked["original"] is None  # it is there no longer


def test_reports_of_verify(train: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_verify(monkeypatch, Status.FAILED)
    assert run("verify", train, "--format", "junit", "--html", "report.html").stdout.startswith("<?xml")
    assert "a sentence" in Path("report.html").read_text()
    run(train, "-o", "out.py", "--verify", "--html", "both.html")
    assert "setup_distributed" in Path("both.html").read_text()
    assert "give both" in run(train, "--diff", "--html", "both.html").stderr
    assert "cannot be written" in run("verify", train, "--html", "no/such/folder.html").stderr


def test_verify_that_cannot_run(train: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def verify(*_: object, **__: object) -> None:
        raise DdpifyError('torch is not installed: pip install "ddpify[verify]"')

    monkeypatch.setattr(ddpify.verify, "verify", verify)
    assert "ddpify[verify]" in told(run("verify", train))


@pytest.mark.torchrun
def test_convert_and_verify_for_real(train: Path) -> None:
    # without a seed each rank draws a data set of its own, which verify reports
    train.write_text(train.read_text().replace("data = Tensor", "torch.manual_seed(0)\ndata = Tensor"))
    result = subprocess.run(
        [sys.executable, "-m", "ddpify", str(train), "-o", "out.py", "--verify", "--timeout", "120"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(ddpify.__file__).parents[1])},
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == ""
    assert "2 ranks under torchrun" in result.stderr
    assert "FAILED" not in result.stderr
    assert "same_parameters      in the end" in result.stderr
    assert "not tried device_bound" in result.stderr  # the script has no device code
    assert sorted(os.listdir()) == ["model.pt", "out.py", "train.py"]


# -- lint ------------------------------------------------------------------------------------------------------

LINTED = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group("gloo")
data = TensorDataset(torch.randn(8, 4))
loader = DataLoader(data, batch_size=4, shuffle=True)
model = DDP(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (x,) in loader:
    model(x).mean().backward()
    optimizer.step()
dist.destroy_process_group()
"""


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one pitfall, and places that are not to be looked at."""
    monkeypatch.chdir(tmp_path)
    for folder in ("src", "src/.hidden", "env/lib", "src/site-packages", "src/__pycache__"):
        Path(folder).mkdir(parents=True)
        Path(folder, "ddp.py").write_text(LINTED)
    Path("env/pyvenv.cfg").touch()
    Path("src/notes.txt").write_text("torch (")
    Path("src/other.py").write_text("this is ( no python\n")
    return tmp_path


@pytest.mark.parametrize("paths", [[], ["."], ["src"], ["src/ddp.py"], ["src", "src/ddp.py"]], ids=" ".join)
def test_lint(repository: Path, paths: list[str]) -> None:
    result = run("lint", *paths)
    assert result.exit_code == 1, result.stderr
    assert result.stdout.startswith("src/ddp.py:9:10: DDP301 error ")
    assert result.stdout.count("DDP301") == 1
    assert result.stderr.count("\n") == 2
    assert result.stderr.startswith("found 1 (1 error) in ")


def test_lint_of_a_right_script(train: Path) -> None:
    Path("good.py").write_text(
        LINTED.replace("shuffle=True", "sampler=torch.utils.data.distributed.DistributedSampler(data, shuffle=False)")
    )
    result = run("lint", train, "good.py")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "found 0 in 2 files\n")


def test_lint_goes_on_after_a_file_that_cannot_be_read(repository: Path) -> None:
    Path("src/aaa.py").write_text("import torch.distributed\nprint 'x'\n")
    Path("src/bbb.py").write_bytes(b"torch.distributed\0")
    result = run("lint", "src", "nowhere.py")
    assert result.exit_code == 2
    assert "Traceback" not in result.stderr
    said = result.stderr.splitlines()
    assert len(said) == 5
    assert [s.split(":")[1].strip() for s in said[:3]] == ["src/aaa.py", "src/bbb.py", "nowhere.py"]
    assert said[3].startswith("found 1 (1 error) in 5 files, 3 of them not checked")
    assert "src/ddp.py:9:10: DDP301" in result.stdout


def test_lint_survives_a_fault_in_one_file(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RecursionError("too deep")

    monkeypatch.setattr(sys.modules["ddpify.lint"], "ask_rules", fail)
    result = run("lint", "src/ddp.py")
    assert result.exit_code == 2
    assert "ddpify: src/ddp.py: internal error (RecursionError: too deep)" in result.stderr


@pytest.mark.parametrize(("severity", "code"), [(Severity.INFO, 0), (Severity.WARNING, 1), (Severity.ERROR, 1)])
def test_info_does_not_fail(repository: Path, monkeypatch: pytest.MonkeyPatch, severity: Severity, code: int) -> None:
    def find(facts: Any, **_: object) -> list[Any]:
        return [all_rules()[0]().finding(facts.source, facts.source.module.body[0], "said", severity=severity)]

    monkeypatch.setattr(sys.modules["ddpify.lint"], "ask_rules", find)
    result = run("lint", "src/ddp.py")
    assert result.exit_code == code
    assert result.stdout.startswith(f"src/ddp.py:1:1: {all_rules()[0].code} {severity.value} said\n")


# -- the other commands ---------------------------------------------------------------------------------------


def test_facts_names_every_role(train: Path) -> None:
    result = run("facts", train)
    assert result.exit_code == 0, result.stderr
    said = " ".join(result.stdout.split())
    assert "trained modules: 7 nn.Linear(4, 1)" in said
    assert "its output reaches .backward() at line 13" in said
    assert "wrap points: 7 model = nn.Linear(4, 1)" in said
    assert "training loaders: 6 DataLoader(data, batch_size=4, shuffle=True) its batches reach" in said
    assert "at line 13; shuffled" in said
    assert "evaluation loaders: none found" in said
    assert "datasets: 5 TensorDataset(torch.randn(16, 4), torch.randn(16, 1))" in said
    assert "optimizers: 8 torch.optim.SGD(model.parameters(), lr=0.1) torch.optim.SGD over the parameters of" in said
    assert (
        "criteria: 12 nn.functional.mse_loss(model(x), y) torch.nn.functional.mse_loss: gives the mean over the batch"
        in said
    )
    assert "epoch loops: 9 range(2) its variable is `epoch`" in said
    assert "batches: 10 x, y a batch of the training loader at line 6" in said
    assert "losses: 13 loss.backward() computed from the forward at line 12; the mean over the batch" in said


def test_facts_say_why_a_model_is_not_trained(train: Path) -> None:
    train.write_text("""\
import copy
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(16, 4)), batch_size=4)
student, teacher, judge = nn.Linear(4, 1), nn.Linear(4, 1), nn.Linear(4, 1)
for p in teacher.parameters():
    p.requires_grad = False
slow = copy.deepcopy(student)
optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
for (x,) in loader:
    with torch.no_grad():
        told = judge(x)
    loss = (student(x) - teacher(x)).pow(2).mean()
    loss.backward()
    optimizer.step()
""")
    said = " ".join(run("facts", train).stdout.split())
    assert "its output reaches .backward() at line 16; the optimizer at line 11 has its parameters models" in said
    assert "models that are not trained: 7 nn.Linear(4, 1) frozen at line 9: no wrapper" in said
    assert "7 nn.Linear(4, 1) only run with gradients off at line 14: no wrapper" in said
    assert "10 copy.deepcopy(student) a copy of a model: no wrapper wrap points:" in said


def test_facts_of_a_script_with_the_rest(train: Path) -> None:
    train.write_text("""\
import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

device = torch.device("cuda:0")
data = TensorDataset(torch.randn(16, 4), torch.randn(16, 1))
loader = DataLoader(data, batch_size=4, sampler=RandomSampler(data))
held_out = DataLoader(data, batch_size=4)
nets = [[nn.Linear(4, 1).cuda()]]
optimizer = torch.optim.SGD(nets[0][0].parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
criterion = nn.MSELoss(reduction="sum")
for epoch in range(2):
    for x, y in loader:
        loss = criterion(nets[0][0](x), y)
        loss.backward()
        optimizer.step()
    scheduler.step()
    total = 0.0
    with torch.no_grad():
        for x, y in held_out:
            total += criterion(nets[0][0](x), y).item()
""")
    said = " ".join(run("facts", train).stdout.split())
    assert "no wrap point: `nets[0]` is no model of a list or dict" in said
    assert "it has a sampler" in said
    assert "evaluation loaders: 8 DataLoader(data, batch_size=4) read at line 21; gradients are off there" in said
    assert "samplers: 7 RandomSampler(data)" in said
    assert "schedulers: 11 torch.optim.lr_scheduler.StepLR(optimizer, 1)" in said
    assert 'device choices: 5 torch.device("cuda:0") torch.device of kind cuda, index 0' in said
    assert "9 nn.Linear(4, 1).cuda() moves to CUDA" in said
    assert "torch.nn.MSELoss: gives the sum over the batch" in said
    assert "metric accumulators: 22 total += criterion(nets[0][0](x), y).item() collects a sum over" in said
    assert "over the loader at line 8" in said


def test_rules_lists_every_rule() -> None:
    lines = run("rules").stdout.splitlines()
    assert [line.split()[0] for line in lines] == [r.code for r in all_rules()]
    for line, rule in zip(lines, all_rules(), strict=True):
        assert line.split()[1:3] == [rule.severity.value, rule.name()]


def test_explain_knows_every_rule_by_code_and_name() -> None:
    for rule in all_rules():
        by_code, by_name = run("explain", rule.code.lower()), run("explain", rule.name())
        assert by_code.exit_code == 0
        assert by_code.stdout == by_name.stdout == run("explain", rule.name().replace("-", "_")).stdout
        assert by_code.stdout.startswith(f"# {rule.code} {rule.name()}")
        assert rule.title() in by_code.stdout


def test_explain_knows_every_page() -> None:
    listed = run("explain").stdout.split()
    assert {"batch-size", "contract", "faster", "launching", "reading-a-conversion"} <= set(pages())
    for page in pages():
        assert page in listed
        assert run("explain", page).stdout.startswith("# ")


def test_explain_of_something_else() -> None:
    assert "did you mean contract?" in told(run("explain", "contrakt"))
    assert "`ddpify rules` lists the rules" in told(run("explain", "zzzzzzz"))


def test_version_and_help() -> None:
    assert run("--version").stdout == f"ddpify, version {__version__}\n"
    assert "ddpify train.py -o train_ddp.py" in run("--help").stdout
    assert run("-h").stdout == run("--help").stdout
    assert "Usage: ddpify" in run().output
    for name, command in cli.commands.items():
        result = run(name, "--help")
        assert result.exit_code == 0
        assert f"Usage: ddpify {name}" in result.stdout
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.help


def test_python_m(train: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(Path(ddpify.__file__).parents[1])}
    command = [sys.executable, "-m", "ddpify", "train.py"]
    result = subprocess.run(command, capture_output=True, env=env)
    assert (result.returncode, result.stdout) == (0, run(train).stdout_bytes)
    assert b"\x1b" not in result.stdout + result.stderr
