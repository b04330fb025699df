"""Scripts in, what each of them sees out, in their order: of more than a few each core looks at its share."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from ddpify.linting.root import Root, Task, check_root

#: scripts for which other processes are worth their start
_MANY = 4


@dataclass
class Workers:
    """Scripts to be looked at: begun while others are still searched for, where there are enough of them."""

    task: Task
    jobs: int
    #: the scripts, and whether one with nothing distributed in its text need not be run
    asked: list[tuple[Path, bool]] = field(default_factory=list)
    _begun: list[Future[Root]] = field(default_factory=list)
    _pool: ProcessPoolExecutor | None = None

    def ask(self, path: Path, *, dismiss: bool = True) -> None:
        self.asked.append((path, dismiss))
        if len(self.asked) >= max(_MANY, self.jobs):
            self._begin()

    def results(self) -> Iterator[Root]:
        """What every script sees."""
        if len(self.asked) >= _MANY:
            self._begin()
        if self._pool is None:
            yield from (check_root(path, self.task, dismiss) for path, dismiss in self.asked)
            return
        try:
            yield from (f.result() for f in self._begun)
        finally:
            self._pool.shutdown(cancel_futures=True)

    def _begin(self) -> None:
        """Hand the scripts to processes, as many as there are scripts now."""
        if self.jobs <= 1:
            return
        if self._pool is None:
            from ddpify.rules import all_rules

            all_rules()  # read before the processes are forked: else each of them reads all the rules
            gc.freeze()
            self._pool = ProcessPoolExecutor(min(self.jobs, len(self.asked)))
        for path, dismiss in self.asked[len(self._begun) :]:
            self._begun.append(self._pool.submit(check_root, path, self.task, dismiss))
