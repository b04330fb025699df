"""What is not imported costs nothing; what a conversion costs stays in proportion to the script."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import bench

ROOT = Path(__file__).parents[1]
FIXTURE = ROOT / "fixtures/convert/argparse_functions/before.py"
#: Runs the command line in this process, then tells which of the dear packages were imported.
PROBE = """
import json, sys
try:
    from ddpify.cli import main
    main()
except SystemExit as end:
    code = end.code
names = {m.partition(".")[0] for m in sys.modules}
print("\\n" + json.dumps([code, sorted(names & {"torch", "numpy", "libcst", "rich"})]), file=sys.stderr)
"""


def imported(*args: str) -> tuple[int, list[str]]:
    """The exit code of a command, and what it imported of torch, numpy, libcst and rich."""
    result = subprocess.run([sys.executable, "-c", PROBE, *args], capture_output=True, text=True, cwd=ROOT)
    code, names = json.loads(result.stderr.splitlines()[-1])
    return code or 0, names


@pytest.mark.parametrize("args", [["--version"], ["--help"], ["verify", "--help"], ["lint", "--help"]], ids=" ".join)
def test_starting_imports_nothing_dear(args: list[str]) -> None:
    assert imported(*args) == (0, [])


@pytest.mark.parametrize(
    "args",
    [
        [str(FIXTURE), "--diff"],
        [str(FIXTURE), "--check"],
        [str(FIXTURE), "--format", "json"],
        ["lint", str(ROOT / "fixtures")],
        ["facts", str(FIXTURE)],
        ["explain", "contract"],
    ],
    ids=lambda args: args[0].rsplit("/", 1)[-1] + args[-1].rsplit("/", 1)[-1],
)
def test_convert_and_lint_never_import_torch(args: list[str]) -> None:
    code, names = imported(*args)
    assert names == ["libcst"]
    assert code in (0, 1, 2)


def test_importing_the_package_imports_nothing_dear() -> None:
    dear = {"torch", "libcst", "click", "rich"}
    code = f"import ddpify, sys; print(ddpify.__version__, *sorted({dear} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert result.stdout.split() == ["0.1.0"]


@pytest.mark.parametrize("lines", [150, 500])
def test_the_scripts_of_the_benchmark_are_scripts(lines: int) -> None:
    text = bench.script(lines)
    assert text.count("\n") == lines
    compile(text, "train.py", "exec")


def test_a_broken_bound_is_told() -> None:
    measured = bench.Measured(150, 0.1, 0.3, 4.0, 50)
    assert measured.ok
    assert "ratio 3.0" in str(measured)
    assert not bench.Measured(150, 0.1, 0.5, 4.0, 50).ok
    assert not bench.Measured(150, 0.1, 0.3, 4.0, 250).ok


@pytest.mark.slow
def test_bounds_hold() -> None:
    assert bench.main(runs=5)


def test_a_tree_for_the_linter(tmp_path: Path) -> None:
    bench.plant(tmp_path, 200)
    assert len(list(tmp_path.rglob("*.py"))) == 200
    assert bench.seconds([sys.executable, "-m", "ddpify", "lint", str(tmp_path)]) > 0
    assert bench.Linted(100, 1.0, 2.0, 4.0).ok
    assert not bench.Linted(100, 1.0, 5.0, 4.0).ok
    assert "50 files/s" in str(bench.Linted(100, 1.0, 2.0, 4.0))


def test_what_is_not_installed_is_not_compared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(bench.TORCHFIX, str(tmp_path / "torchfix"))
    said = bench.torchfix()
    assert isinstance(said, str)
    assert "pip install torchfix" in said


def test_a_comparison_with_another_linter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program, tree = tmp_path / "torchfix", tmp_path / "tree"
    program.write_text(f"#!{sys.executable}\nsum(range(3_000_000))\n")
    program.chmod(0o755)
    tree.mkdir()
    bench.plant(tree, 3, share=100)
    monkeypatch.setenv(bench.TORCHFIX, str(program))
    monkeypatch.setenv(bench.TREE, str(tree))
    compared = bench.torchfix(least=0.0)
    assert isinstance(compared, bench.Compared)
    assert (compared.files, compared.ok) == (3, True)
    assert compared.other > 0.01
    assert not bench.Compared("tree", 10, 1.0, 1.0, 50.0).ok
