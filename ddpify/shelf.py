"""A path in, the parsed file out; what a process has parsed for one script it hands to the next that imports it too."""

from __future__ import annotations

import os
from pathlib import Path

from ddpify.source import Source, read_source

#: bytes of text that are kept; their trees take about 60 times as much memory
_MOST = 6 << 20
_Stamp = tuple[int, int, int, int]


class Shelf:
    """Parsed files of the last two scripts; nothing in them knows of a script."""

    def __init__(self, most: int = _MOST) -> None:
        self.most = most
        self.turn = 0
        self.bytes = 0
        self.kept: dict[Path, tuple[_Stamp, Source]] = {}
        self.used: dict[Path, int] = {}

    def next(self) -> None:
        """Another script: what the one before the last has read may go."""
        self.turn += 1

    def read(self, path: Path) -> Source:
        """The file as it is now.

        Raises:
            DdpifyError: where it cannot be read.
        """
        stamp = _stamp(path)
        known = self.kept.get(path)
        if known is not None and known[0] == stamp:
            self.used[path] = self.turn
            return known[1]
        source = read_source(path)
        if stamp is not None and path.suffix == ".py":
            self._keep(path, stamp, source)
        return source

    def _keep(self, path: Path, stamp: _Stamp, source: Source) -> None:
        self._drop(path)
        if self.bytes + len(source.data) > self.most:
            for old in [p for p, turn in self.used.items() if turn < self.turn - 1]:
                self._drop(old)
        # the first stay: a project that is larger than the shelf would else push out each file before its next use
        if self.bytes + len(source.data) <= self.most:
            self.kept[path] = stamp, source
            self.used[path] = self.turn
            self.bytes += len(source.data)

    def _drop(self, path: Path) -> None:
        if path in self.kept:
            self.bytes -= len(self.kept.pop(path)[1].data)
            del self.used[path]


def _stamp(path: Path) -> _Stamp | None:
    """What changes where a file is written; None where there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


SHELF = Shelf()
