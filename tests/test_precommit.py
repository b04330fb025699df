"""The hooks `ddpify-lint` and `ddpify-fix`, with the real pre-commit, as a user has them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PARTS = ("ddpify", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", ".pre-commit-hooks.yaml")
BAD = """\
import torch.distributed as dist

dist.init_process_group("gloo")
"""


def git(folder: Path, *args: str) -> str:
    command = ["git", "-c", "user.name=test", "-c", "user.email=test@example.com", "-c", "commit.gpgsign=false", *args]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def repository(folder: Path) -> str:
    """Everything in a folder as the first commit of a new repository; its hash."""
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "all")
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def hooks(tmp_path: Path) -> tuple[Path, str]:
    """ddpify's own repository, as it is in the working folder."""
    folder = tmp_path / "ddpify-repository"
    folder.mkdir()
    for name in PARTS:
        place = ROOT / name
        if place.is_dir():
            shutil.copytree(place, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(place, folder / name)
    return folder, repository(folder)


Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def user(tmp_path: Path, hooks: tuple[Path, str]) -> tuple[Path, Run]:
    """A repository with both hooks, and a way to run one of them on some of its files."""
    folder = tmp_path / "user"
    folder.mkdir()
    (folder / ".pre-commit-config.yaml").write_text(
        f"repos:\n- repo: {hooks[0]}\n  rev: {hooks[1]}\n  hooks:\n  - id: ddpify-lint\n  - id: ddpify-fix\n"
    )
    (folder / "good.py").write_text("print('nothing with torch')\n")
    (folder / "notes.txt").write_text(BAD)
    repository(folder)

    def run(hook: str, *files: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "pre_commit", "run", hook, "--verbose", *(["--files", *files] if files else [])],
            cwd=folder,
            env={**os.environ, "PRE_COMMIT_HOME": str(tmp_path / "cache")},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    return folder, run


@pytest.mark.slow
def test_hooks(user: tuple[Path, Run]) -> None:
    folder, run = user
    for name in ("bad.py", "two words.py", "größe/训练.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(BAD)
    git(folder, "add", "--all")

    failed = run("ddpify-lint", "bad.py", "two words.py", "größe/训练.py", "good.py", "notes.txt")
    assert failed.returncode == 1, failed.stdout
    for name in ("bad.py", "two words.py", "größe/训练.py"):
        assert f"{name}:3:1: DDP102 warning" in failed.stdout
    assert "found 3 (3 warnings) in 4 files" in failed.stdout

    passed = run("ddpify-lint", "good.py")
    assert passed.returncode == 0, passed.stdout
    assert "found 0 in 1 file" in passed.stdout

    for nothing in (["notes.txt"], []):  # no file is staged that the hook is for
        if not nothing:
            git(folder, "commit", "--quiet", "--no-verify", "--message", "more")
        skipped = run("ddpify-lint", *nothing)
        assert skipped.returncode == 0, skipped.stdout
        assert "no files to check" in skipped.stdout

    mendable = BAD + 'import os\nos.makedirs("out")\ndist.destroy_process_group()\n'
    (folder / "two words.py").write_text(mendable)
    mended = run("ddpify-fix", "two words.py")
    assert mended.returncode == 1, mended.stdout  # pre-commit fails where a hook changes files
    assert "files were modified by this hook" in mended.stdout
    assert (folder / "two words.py").read_text() == mendable.replace('"out")', '"out", exist_ok=True)')
    assert run("ddpify-fix", "two words.py").returncode == 0


@pytest.mark.slow
def test_a_submodule_is_left_alone(user: tuple[Path, Run], tmp_path: Path) -> None:
    folder, run = user
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "bad.py").write_text(BAD)
    repository(inner)
    git(folder, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(inner), "inner")
    result = run("ddpify-lint")
    assert result.returncode == 0, result.stdout
