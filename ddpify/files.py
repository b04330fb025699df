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
_TORCH = re.compile(rb"torch|apex")
_SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages", "dist-packages"})


def python_files(
    paths: Iterable[Path], skips: Callable[[Path, bool], bool] | None = None, seen: dict[str, Path] | None = None
) -> Iterator[Path]:
    """Files as they are given; of folders every `*.py`, without hidden folders, environments and installed packages.

    `skips` says of what is found below a folder whether it is left out (a file's path and False, a folder's and True);
    `seen` keeps the files that came before by their real paths, so that each comes once.
    """
    seen = {} if seen is None else seen
    for path in paths:
        every = _below(path, skips) if path.is_dir() else [(path, os.path.realpath(path))]
        for found, key in every:
            if key not in seen:
                seen[key] = found
                yield found


def _below(folder: Path, skips: Callable[[Path, bool], bool] | None) -> Iterator[tuple[Path, str]]:
    """The files below a folder, each with its real path."""
    for top, folders, files in os.walk(folder):
        here, real = Path(top), os.path.realpath(top)
        folders[:] = sorted(f for f in folders if not (_is_skipped(here, f) or (skips and skips(here / f, True))))
        for name in sorted(files):
            if name.endswith(".py") and not name.startswith(".") and not (skips and skips(here / name, False)):
                full = os.path.join(real, name)
                yield here / name, os.path.realpath(full) if os.path.islink(full) else full


def _is_skipped(top: Path, name: str) -> bool:
    return name.startswith(".") or name in _SKIPPED or (top / name / "pyvenv.cfg").is_file()


def may_matter(data: bytes) -> bool:
    """Whether a file may join a process group or wrap a model by itself: a search for bytes, nothing is parsed."""
    if _TORCH.search(data) is None:
        return False
    if (b"istributed" in data or b"DDP" in data) and _MATTERS.search(data) is not None:
        return True
    # a script whose modules do it all: its comments tell
    return b"__main__" in data and b"istributed" in data and _SAYS.search(data) is not None
