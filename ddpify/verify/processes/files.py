"""Files opened for writing and torch.save -> which rank wrote what, and under which keys."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from . import reload
from .log import Log, patch

_WRITING = os.O_WRONLY | os.O_RDWR


class Files:
    """The writes of one rank below the working folder, and its torch.save calls anywhere."""

    def __init__(self, log: Log, wrapped: Callable[[], Iterable[Any]]) -> None:
        self._log, self._wrapped = log, wrapped
        self.here = os.getcwd()
        self._seen: set[str] = set()
        self.saved: list[str] = []  # by torch.save, in this order

    def watch(self) -> None:
        """Start to note writes."""
        sys.addaudithook(self._audit)
        patch(torch, "save", self._save)

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        # this sees every audited event of the process: the common case must leave at once
        if event == "open":
            path, flags = args[0], args[2]
            if isinstance(path, (str, bytes)) and flags and flags & _WRITING:
                self._write(path)
        elif event == "os.rename":
            self._write(args[1])

    def _relative(self, path: Any) -> str:
        full = os.path.join(self.here, os.fsdecode(path))
        return os.path.normpath(os.path.relpath(full, self.here))

    def _write(self, path: Any) -> None:
        name = self._relative(path)
        if (
            os.fsdecode(path).startswith(("/dev/", "/proc/"))
            or name in self._seen
            or name.startswith("..")
            or "__pycache__" in name
        ):
            return
        self._seen.add(name)
        self._log.note("write", path=name, at=self._log.where())

    def _save(self, real: Any) -> Any:
        def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
            target = f if isinstance(f, (str, os.PathLike)) else getattr(f, "name", None)
            if isinstance(target, (str, os.PathLike)):  # else it stays in memory
                raw = {name for w in self._wrapped() for name, _ in _named(_bare(w.module))}
                prefixed, pickled = _look(obj, raw)
                name = self._relative(Path(target))
                facts = {"prefixed": sorted(prefixed)[:5], "wrapper": pickled, "at": self._log.where()}
                self._log.note("save", path=name, **facts)
                if name not in self.saved and len(self.saved) < reload.MOST:
                    model, why = reload.into_models(obj, [w.module for w in self._wrapped()])
                    self._log.note("reload", path=name, model=model, error=why)
                self.saved.append(name)
            real(obj, f, *args, **kwargs)

        return save


def _bare(module: Any) -> Any:
    """DataParallel inside the wrapper adds a prefix of its own."""
    return module.module if isinstance(module, torch.nn.DataParallel) else module


def _named(module: Any) -> Iterable[tuple[str, Any]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def _look(value: Any, raw: set[str], depth: int = 0) -> tuple[set[str], str | None]:
    """Keys with the wrapper's prefix that the bare model does not have, and the class of a pickled wrapper."""
    if isinstance(value, torch.nn.parallel.DistributedDataParallel):
        return set(), type(value.module).__name__
    if not isinstance(value, dict) or depth > 4:
        return set(), None
    # AveragedModel is a wrapper of the user's own: its keys start with "module." on one GPU too
    prefix = "module.module." if "n_averaged" in value else "module."
    tensors = {key for key, held in value.items() if isinstance(key, str) and torch.is_tensor(held)}
    found = {key for key in tensors if key.startswith(prefix) and key not in raw}
    pickled: str | None = None
    for held in value.values():
        below, inner = _look(held, raw, depth + 1)
        found |= below
        pickled = pickled or inner
    return found, pickled
