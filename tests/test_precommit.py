"""The hook `ddpify-lint`, with the real pre-commit, as a user has it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
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


@pytest.mark.slow
def test_hook(tmp_path: Path, hooks: tuple[Path, str]) -> None:
    user = tmp_path / "user"
    user.mkdir()
    (user / "bad.py").write_text(BAD)
    (user / "good.py").write_text("print('nothing with torch')\n")
    (user / "notes.txt").write_text(BAD)
    (user / ".pre-commit-config.yaml").write_text(
        f"repos:\n- repo: {hooks[0]}\n  rev: {hooks[1]}\n  hooks:\n  - id: ddpify-lint\n"
    )
    repository(user)

    def run(*files: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "pre_commit", "run", "ddpify-lint", "--verbose", "--files", *files],
            cwd=user,
            env={**os.environ, "PRE_COMMIT_HOME": str(tmp_path / "cache")},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    failed = run("bad.py", "good.py", "notes.txt")
    assert failed.returncode == 1, failed.stdout
    assert "bad.py:3:1: DDP102 warning" in failed.stdout
    assert "found 1 (1 warning) in 2 files" in failed.stdout
    passed = run("good.py")
    assert passed.returncode == 0, passed.stdout
    assert "found 0 in 1 file" in passed.stdout
