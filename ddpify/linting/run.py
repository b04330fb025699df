"""Paths in, a result per file out: most files are dismissed by a search for bytes, the rest shared out to processes."""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ddpify.files import may_matter, python_names
from ddpify.linting.gitignore import Ignored
from ddpify.linting.problem import FileResult
from ddpify.linting.settings import Settings

if TYPE_CHECKING:
    from ddpify.linting.together import Together
    from ddpify.linting.workers import Workers

#: how many scripts are looked at for the sake of what they call
_CALLERS = 16
_COMMENT = re.compile(rb"#\s*ddpify:")


@dataclass
class Run:
    """Which files there are, and what is to be done with those that matter."""

    settings: Settings
    mend: str = ""
    debug: bool = False
    jobs: int = 0
    #: how many files were looked at
    files: int = 0
    #: every file that was given, by its real path, and those of them that git ignores
    given: dict[str, str] = field(default_factory=dict)
    ignored: set[str] = field(default_factory=set)

    def __call__(self, paths: Iterable[Path]) -> Iterator[FileResult]:
        """The results in the order of the paths; files without anything to say have none."""
        paths = list(paths)
        work: Workers | None = None
        found: list[tuple[Path, bool]] = []
        for path, idle in self.find(paths):
            found.append((path, idle))
            if not idle:
                work = work or self.workers()
                work.ask(path)
        more = self.importers([p for p in paths if p.suffix == ".py" and not p.is_dir()])
        if not found and not more:
            return
        work = work or self.workers()
        for path in more:
            work.ask(path, dismiss=False)
        yield from self.together(found, work)

    def together(self, found: list[tuple[Path, bool]], work: Workers) -> Iterator[FileResult]:
        """What the scripts see, by file; the files that were given first."""
        from ddpify.linting.root import idle_root
        from ddpify.linting.together import Together

        ready = work.results()
        mine = [idle_root(path) if idle else next(ready) for path, idle in found]
        whole = Together(self.settings, self.given, self.ignored, mine, list(ready))
        callers = self.callers(whole)
        if callers:
            more = self.workers()
            for path in callers:
                more.ask(path, dismiss=False)
            whole.others.extend(more.results())
        if self.mend:
            from ddpify.linting.mending import mended

            yield from mended(whole, work.task)
        else:
            yield from whole.results()

    def find(self, paths: Iterable[Path]) -> Iterator[tuple[Path, bool]]:
        """The files that matter, of folders those that are neither excluded nor ignored by git.

        Of some of them only the comments do: whether what they ignore is there.
        """
        excludes = self.settings.excludes if self.settings.exclude else None
        for given in paths:
            ignored = Ignored() if self.settings.respect_gitignore and given.is_dir() else None
            if ignored is not None and ignored.above(given):
                ignored = None  # who names an ignored folder wants it
            for path in python_names([given], functools.partial(self.skips, ignored=ignored), self.given):
                if excludes is not None and path == str(given) and excludes(path):
                    self.ignored.add(os.path.realpath(path))
                    continue  # pre-commit names files that are excluded, too
                matters = self.look(path)
                # few files matter: only those are worth a look into .gitignore
                if matters is False or (ignored is not None and ignored(path)):
                    self.files += matters is False
                    if matters is not False:
                        self.ignored.add(os.path.realpath(path))
                    continue
                self.files += 1
                yield Path(path), matters is None

    def skips(self, path: str, folder: bool, ignored: Ignored | None) -> bool:
        if self.settings.exclude and self.settings.excludes(path):
            return True
        return folder and ignored is not None and ignored(path, folder=True)

    def look(self, path: str) -> bool | None:
        """False where a file has nothing to say, True where it is to be parsed, None where its comments may be idle."""
        try:
            with open(path, "rb", buffering=0) as file:
                data = file.read()
        except OSError:
            return True  # the parser's sentence says why
        if path.endswith(".ipynb") or may_matter(data):
            return True
        return None if b"ddpify:" in data and _COMMENT.search(data) else False

    def importers(self, files: list[Path]) -> list[Path]:
        """Scripts that import files that were given by themselves, as pre-commit does."""
        if not files:
            return []
        from ddpify.linting.importers import importing_scripts

        ignored = Ignored() if self.settings.respect_gitignore else None
        scripts = importing_scripts(files, may_matter, functools.partial(self.skips, ignored=ignored))
        return [p for p in scripts if os.path.realpath(p) not in self.given]

    def callers(self, whole: Together) -> list[Path]:
        """Scripts in folders that were given, whose text is of nothing distributed: they run the modules that are.

        `train.py` calls `helpers.save(net)`, and `helpers.py` alone cannot tell who does. Only asked for modules in
        which something was found.
        """
        doubtful = whole.doubtful()
        if not doubtful:
            return []
        from ddpify.linting.importers import importing_among

        known = {*self.ignored, *(r.key for r in (*whole.mine, *whole.others))}
        scripts = importing_among(doubtful, map(Path, self.given.values()), may_matter)
        return [p for p in scripts if os.path.realpath(p) not in known][:_CALLERS]

    def workers(self) -> Workers:
        """Who looks at the scripts, while more of them are searched for."""
        from ddpify.linting.root import Task
        from ddpify.linting.workers import Workers

        return Workers(Task(self.settings, self.mend, self.debug), self.jobs or _cpus())


def _cpus() -> int:
    if sys.version_info >= (3, 13):
        return os.process_cpu_count() or 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
