"""The entry script and the local modules it imports, found as Python would and read only when asked for."""

from __future__ import annotations

import functools
import itertools
import os
import re
from pathlib import Path

from ddpify.errors import DdpifyError
from ddpify.package import package_of, search_path
from ddpify.shelf import SHELF
from ddpify.source import Source

_GENERATED = re.compile(r"\b(auto-?)?generated (by|from|with)\b|\bdo not (edit|modify)\b", re.IGNORECASE)


class Project:
    """The files that belong together: the entry's folder is on the search path, as when it is run.

    An entry that imports from its own package is run with `-m`, from the folder above; one that changes `sys.path`
    may find modules in any folder above.
    """

    def __init__(self, entry: Source, *, overlay: dict[Path, Source] | None = None) -> None:
        SHELF.next()
        self.entry = entry
        self.modules: dict[Path, Source | None] = {**(overlay or {}), entry.path: entry}
        #: the same, however a path is written
        self.known = {os.path.abspath(path): source for path, source in (overlay or {}).items()}
        self.read = [entry]
        #: the package that the entry is run in, where it is one: `python -m app.train`
        self.package = package_of(entry.path, entry.text)
        first = _above(entry.path, self.package.name) if self.package else entry.path.parent
        self.roots = (first, *search_path(entry.path, entry.text))
        self.own = {self.package.name.split(".")[0] if self.package else entry.path.stem}

    def find(self, name: str, level: int = 0, importer: Source | None = None) -> Source | None:
        """The project's file for a module name (`a.b`, with `level` dots before it), None where it is not local."""
        parts = name.split(".") if name else []
        if level:
            base = (importer or self.entry).path.parent
            for _ in range(level - 1):
                base = base.parent if base.name else base.absolute().parent
            return self._at(base, parts)
        for root in self.roots:
            if parts[0] not in self.own and _is_installed(root):
                continue  # what lies beside an installed package is another project
            found = self._at(root, parts)
            if found is not None:
                return found
        return None

    def _at(self, base: Path, parts: list[str]) -> Source | None:
        place = base.joinpath(*parts)
        candidates = (
            [place / "__init__.py"] if not parts else [place / "__init__.py", place.with_name(place.name + ".py")]
        )
        for path in candidates:
            if path in self.modules or (self.known and os.path.abspath(path) in self.known) or _is_file(path):
                return self._read(path)
        return None

    def _read(self, path: Path) -> Source | None:
        if path not in self.modules:
            try:
                self.modules[path] = self.known.get(os.path.abspath(path)) or SHELF.read(path)
            except DdpifyError:
                self.modules[path] = None  # what cannot be read stays unknown to the analysis
        found = self.modules[path]
        if found is not None and found not in self.read:
            self.read.append(found)
        return found

    def is_unread(self, name: str) -> bool:
        """Whether there is a file for a module that could not be read (Python 2, a syntax error)."""
        return any(found is None and path.stem == name.rsplit(".", 1)[-1] for path, found in self.modules.items())

    def files(self) -> list[Source]:
        """The files read so far, the entry first."""
        return list(self.read)


def is_generated(source: Source) -> bool:
    """Whether a file is written by a tool, which would write it anew: it says so at its head, or by its name."""
    if source.path.stem.endswith(("_pb2", "_pb2_grpc")):
        return True
    head = itertools.takewhile(lambda line: line.startswith("#") or not line.strip(), source.text[:4000].splitlines())
    return any(_GENERATED.search(line) for line in head)


@functools.lru_cache(maxsize=64)
def _is_installed(folder: Path) -> bool:
    """Whether installers put packages into a folder: `site-packages`, that of `pip install --target`."""
    try:
        with os.scandir(folder) as entries:
            return any(entry.name.endswith(".dist-info") for entry in entries)
    except OSError:
        return False


def _above(path: Path, package: str) -> Path:
    """The folder above a package, as the path of a module in it was given."""
    depth = package.count(".") + 1
    above = path.parent.parents
    return above[depth - 1] if len(above) >= depth else path.absolute().parent.parents[depth - 1]


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that is too long
        return False
