"""Paths in, the Python files to look at out."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

#: as it stands in code: of "evenly distributed" a comment may speak
_MATTERS = re.compile(
    rb"Distributed|DDP|[\w.]distributed|distributed(\w|\.\w|\(|\s*[=:)])|,\s*distributed|distributed\s+(as|import|and|or)\b"
    rb"|\b(import|from|if|elif|not|and|or)\s+distributed\b"
)
#: in the comments and words of a script, but for those of a licence
_SAYS = re.compile(rb"[Dd]istributed(?! (under the Lic|on an \"AS))")
_SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages", "dist-packages"})
#: says of what is found below a folder whether it is left out: a file's path and False, a folder's and True
Skips = Callable[[str, bool], bool]


def python_files(paths: Iterable[Path], skips: Skips | None = None) -> Iterator[Path]:
    """Files as they are given; of folders every `*.py`, without hidden folders, environments and installed packages."""
    return map(Path, python_names(paths, skips, {}))


def python_names(paths: Iterable[Path], skips: Skips | None, seen: dict[str, str]) -> Iterator[str]:
    """The same as text, for few are worth a Path; `seen` keeps each by its real path, so that it comes once."""
    for path in paths:
        every = _below(str(path), skips) if path.is_dir() else [(str(path), os.path.realpath(path))]
        for found, key in every:
            if key not in seen:
                seen[key] = found
                yield found


def _below(folder: str, skips: Skips | None) -> Iterator[tuple[str, str]]:
    """The files below a folder, each with its real path; those of the folder itself first."""
    todo = [("" if folder == os.curdir else folder, os.path.realpath(folder))]
    while todo:
        here, real = todo.pop()
        files, folders = _entries(here)
        for name, linked in sorted(files):
            full = os.path.join(here, name)
            if not (skips and skips(full, False)):
                key = os.path.join(real, name)
                yield full, os.path.realpath(key) if linked else key
        below = [(os.path.join(here, name), os.path.join(real, name)) for name in sorted(folders, reverse=True)]
        todo += [(full, key) for full, key in below if not (_is_environment(full) or (skips and skips(full, True)))]


def _entries(folder: str) -> tuple[list[tuple[str, bool]], list[str]]:
    """The Python files in a folder, each with whether it is a link, and the folders in it that are no links."""
    files: list[tuple[str, bool]] = []
    folders: list[str] = []
    try:
        with os.scandir(folder or os.curdir) as entries:
            for entry in entries:
                name = entry.name
                if name.startswith("."):
                    continue
                if entry.is_dir():
                    if name not in _SKIPPED and not entry.is_symlink():
                        folders.append(name)
                elif name.endswith(".py"):
                    files.append((name, entry.is_symlink()))
    except OSError:
        pass  # a folder that may not be read has no files
    return files, folders


def _is_environment(folder: str) -> bool:
    return os.path.isfile(os.path.join(folder, "pyvenv.cfg"))


def may_matter(data: bytes) -> bool:
    """Whether a file may join a process group or wrap a model by itself: a search for bytes, nothing is parsed."""
    if b"torch" not in data and b"apex" not in data:
        return False
    if (b"istributed" in data or b"DDP" in data) and _MATTERS.search(data) is not None:
        return True
    # a script whose modules do it all: its comments tell
    return b"__main__" in data and b"istributed" in data and _SAYS.search(data) is not None
