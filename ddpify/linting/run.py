"""Paths in, a result per file out: most files are dismissed by a search for bytes, the rest shared out to processes."""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ddpify.files import python_files
from ddpify.linting.gitignore import Ignored
from ddpify.linting.problem import FileResult
from ddpify.linting.settings import Settings

#: a script that joins a process group or wraps a model, or imports what does
_MATTERS = re.compile(rb"istributed|DDP")
_TORCH = re.compile(rb"torch|apex")
_COMMENT = re.compile(rb"#\s*ddpify:")
#: files for which other processes are worth their start
_MANY = 4


def matters(data: bytes) -> bool:
    """Whether a rule may find anything in a file."""
    return bool(_MATTERS.search(data) and _TORCH.search(data))


@dataclass
class Run:
    """Which files there are, and what is to be done with those that matter."""

    settings: Settings
    mend: str = ""
    debug: bool = False
    jobs: int = 0
    #: how many files were looked at
    files: int = 0

    def __call__(self, paths: Iterable[Path]) -> Iterator[FileResult]:
        """The results in the order of the paths; files without anything to say have none."""
        todo = [(path, None if result is True else result) for path, result in self.find(paths)]
        if any(result is None for _, result in todo):
            yield from self.checked(todo)
        else:
            yield from (result for _, result in todo if result is not None)

    def find(self, paths: Iterable[Path]) -> Iterator[tuple[Path, FileResult | Literal[True]]]:
        """The files that matter, of folders those that are neither excluded nor ignored by git."""
        excludes = self.settings.excludes if self.settings.exclude else None
        seen: set[str] = set()
        for given in paths:
            ignored = Ignored() if self.settings.respect_gitignore and given.is_dir() else None
            if ignored is not None and ignored.above(given):
                ignored = None  # who names an ignored folder wants it

            def skips(path: Path, folder: bool, ignored: Ignored | None = ignored) -> bool:
                if excludes is not None and excludes(path):
                    return True
                return folder and ignored is not None and ignored(path, folder=True)

            for path in python_files([given], skips, seen):
                if path == given and excludes is not None and excludes(path):
                    continue  # pre-commit names files that are excluded, too
                result = self.look(path)
                # few files matter: only those are worth a look into .gitignore
                if result is False or (ignored is not None and ignored(path)):
                    self.files += result is False
                    continue
                self.files += 1
                yield path, result

    def look(self, path: Path) -> FileResult | bool:
        """False where a file has nothing to say, True where it is to be parsed, or its result."""
        try:
            with open(path, "rb") as file:
                data = file.read()
        except OSError:
            return True  # the parser's sentence says why
        if path.suffix == ".ipynb" or matters(data):
            return True
        if not _COMMENT.search(data):
            return False
        if self.mend:
            return True
        from ddpify.linting.check import comments_only

        return FileResult(str(path), comments_only(data, str(path), self.settings))

    def checked(self, todo: list[tuple[Path, FileResult | None]]) -> Iterator[FileResult]:
        from ddpify.linting.check import Task, check_file

        task = Task(self.settings, self.mend, self.debug)
        paths = [path for path, result in todo if result is None]
        jobs = min(self.jobs or _cpus(), len(paths))
        ready: Iterator[FileResult] = map(functools.partial(check_file, task=task), paths)
        pool = None
        if jobs > 1 and len(paths) >= _MANY:
            pool = ProcessPoolExecutor(jobs)
            ready = pool.map(functools.partial(check_file, task=task), paths)
        try:
            for _, result in todo:
                yield result if result is not None else next(ready)
        finally:
            if pool is not None:
                pool.shutdown(cancel_futures=True)


def _cpus() -> int:
    if sys.version_info >= (3, 13):
        return os.process_cpu_count() or 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
