"""A folder in, an answer out: which files below it git ignores."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec


class Ignored:
    """The .gitignore files of a repository, each read when a file below its folder is asked for."""

    def __init__(self) -> None:
        self._specs: dict[str, GitIgnoreSpec | None] = {}
        self._roots: dict[str, str | None] = {}

    def __call__(self, path: Path | str, *, folder: bool = False) -> bool:
        """Whether git ignores a path itself; folders above it are asked on the way to it."""
        full = os.path.abspath(path)
        place = os.path.dirname(full)
        root = self._root(place)
        if root is None:
            return False
        while True:
            for name in (".gitignore", *((os.path.join(".git", "info", "exclude"),) if place == root else ())):
                spec = self._spec(os.path.join(place, name))
                if spec is not None:
                    below = os.path.relpath(full, place).replace(os.sep, "/") + ("/" if folder else "")
                    decided = spec.check_file(below).include
                    if decided is not None:
                        return decided
            if place == root:
                return False
            place = os.path.dirname(place)

    def above(self, path: Path) -> bool:
        """Whether a folder that was given, or one above it, is ignored as a whole."""
        full = Path(os.path.abspath(path))
        root = self._root(str(full))
        inside = [p for p in (full, *full.parents) if root is not None and str(p).startswith(root + os.sep)]
        return any(self(p, folder=True) for p in inside)

    def _root(self, place: str) -> str | None:
        """The folder of the repository, the one that holds `.git`."""
        if place not in self._roots:
            above = os.path.dirname(place)
            here = os.path.exists(os.path.join(place, ".git"))
            self._roots[place] = place if here else self._root(above) if above != place else None
        return self._roots[place]

    def _spec(self, path: str) -> GitIgnoreSpec | None:
        if path not in self._specs:
            try:
                with open(path, encoding="utf-8", errors="surrogateescape") as file:
                    lines = file.read().splitlines()
            except OSError:
                lines = []
            self._specs[path] = _parsed(lines) if lines else None
        return self._specs[path]


def _parsed(lines: list[str]) -> GitIgnoreSpec | None:
    from pathspec import GitIgnoreSpec

    try:
        return GitIgnoreSpec.from_lines(lines)
    except ValueError:
        return None
