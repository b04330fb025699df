"""The working folder -> a folder that looks like it, in which runs can write without meeting each other's files."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_COPIED = 1_000_000  # bytes; larger files are linked: they are data
_MANY = 500  # files in one folder: data too
_LEFT_OUT = {"__pycache__", ".git", ".venv", "node_modules", ".mypy_cache", ".pytest_cache"}


def shadow(of: Path, into: Path) -> Path:
    """Make the folder below `into`, with what lies beside it in reach as `../NAME`; return it."""
    of = of.resolve()
    beside = into / (of.parent.name or "root")
    beside.mkdir(parents=True)
    for entry in _entries(of.parent):
        if entry.name != of.name:
            (beside / entry.name).symlink_to(entry.path)
    made = beside / (of.name or "work")
    _fill(of, made)
    return made


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            yield from [entry for _, entry in zip(range(_MANY), found, strict=False)]
    except OSError:
        return


def _fill(of: Path, made: Path) -> None:
    made.mkdir()
    with os.scandir(of) as found:
        for entry in found:
            target = made / entry.name
            if entry.name in _LEFT_OUT or _is_ours(entry):
                continue
            if entry.is_dir(follow_symlinks=False) and not _holds_data(entry.path):
                _fill(Path(entry.path), target)
            elif entry.is_file(follow_symlinks=False) and entry.stat().st_size <= _COPIED:
                shutil.copy2(entry.path, target)
            elif entry.is_file() or entry.is_dir():
                target.symlink_to(os.path.realpath(entry.path))


def _is_ours(entry: os.DirEntry[str]) -> bool:
    """A folder of a verify that runs, this one or another: temporary files may be made below the working folder."""
    temporary = os.path.realpath(tempfile.gettempdir())
    return entry.name.startswith("ddpify-") and os.path.realpath(os.path.dirname(entry.path)) == temporary


def _holds_data(folder: str) -> bool:
    try:
        with os.scandir(folder) as found:
            return sum(1 for _ in zip(range(_MANY), found, strict=False)) >= _MANY
    except OSError:
        return True
