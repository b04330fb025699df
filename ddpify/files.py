"""Paths in, the Python files to look at out."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from ddpify.source import Source, read_source

_SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages", "dist-packages"})


def python_files(paths: Iterable[Path]) -> Iterator[Path]:
    """Files as they are given; of folders every `*.py`, without hidden folders, environments and installed packages."""
    seen: set[str] = set()
    for path in paths:
        for found in _below(path) if path.is_dir() else [path]:
            key = os.path.realpath(found)
            if key not in seen:
                seen.add(key)
                yield found


def _below(folder: Path) -> Iterator[Path]:
    for top, folders, files in os.walk(folder):
        folders[:] = sorted(f for f in folders if not _is_skipped(Path(top), f))
        for name in sorted(files):
            if name.endswith(".py") and not name.startswith("."):
                yield Path(top, name)


def _is_skipped(top: Path, name: str) -> bool:
    return name.startswith(".") or name in _SKIPPED or (top / name / "pyvenv.cfg").is_file()


def read_torch(path: Path) -> Source | None:
    """A file that mentions torch; None for the others: they are most of a repository, and are not parsed.

    Raises:
        DdpifyError: where it cannot be read, or is no Python 3.
    """
    with contextlib.suppress(OSError):  # read_source has a sentence for each
        if b"torch" not in path.read_bytes():
            return None
    return read_source(path)
