"""A script on the CPU -> the same script that believes in GPUs: every device that it asks for is noted.

CUDA is said to be there, with a GPU for each rank of the machine, and nccl too; tensors stay on the CPU and gloo does
the work of nccl. What is written goes to a folder of ours: the files of the real run stay as they are.
"""

from __future__ import annotations

import builtins
import io
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from . import devices
from .log import Log, patch

Set = Callable[[object], None]
_MEMORY = 16 << 30


def _set(owner: object, name: str, value: object) -> None:
    setattr(owner, name, value)


class Requests:
    """The GPUs that the script asked for: each index once for each line."""

    def __init__(self, log: Log, index_of: Callable[[Any], int | None]) -> None:
        self._log, self._index_of = log, index_of
        self._seen: set[tuple[str | None, int | None]] = set()
        self._bound = False

    def bind(self, note: Set) -> Set:
        """set_device, noted by `note`."""

        def bound(device: object) -> None:
            self._bound = True
            note(device)

        return bound

    def on_request(self, value: Any) -> None:
        """A device argument that names a GPU; None is the current one."""
        index, at = self._index_of(value), self._log.where()
        if (at, index) not in self._seen:
            self._seen.add((at, index))
            self._log.note("request", index=index, bound=self._bound, at=at)


def _cuda(gpus: int) -> None:
    properties = SimpleNamespace(name="pretended GPU", total_memory=_MEMORY, major=9, minor=0, multi_processor_count=1)
    answers: dict[str, object] = {
        "is_available": True,
        "device_count": gpus,
        "is_bf16_supported": True,
        "get_device_name": "pretended GPU",
        "get_device_properties": properties,
        "get_device_capability": (9, 0),
        "mem_get_info": (_MEMORY, _MEMORY),
        "_lazy_init": None,
    }
    for name, answer in answers.items():
        _set(torch.cuda, name, devices.always(answer))
    _set(dist, "is_nccl_available", devices.always(True))
    accelerator = getattr(torch, "accelerator", None)  # torch >= 2.6
    if accelerator is not None:
        _set(accelerator, "is_available", devices.always(True))
        _set(accelerator, "device_count", devices.always(gpus))
        _set(accelerator, "current_stream", torch.cuda.current_stream)
        _set(accelerator, "current_accelerator", devices.always(torch.device("cuda")))
        for name in ("current_device_index", "current_device_idx"):
            _set(accelerator, name, lambda: torch.cuda.current_device())


def _not_pinned(real: Any) -> Any:
    def __init__(loader: Any, *args: Any, **kwargs: Any) -> None:
        real(loader, *args, **kwargs)
        loader.pin_memory = False

    return __init__


class Scratch:
    """Writes below the working folder, sent elsewhere; what was written is read from there."""

    def __init__(self, folder: Path) -> None:
        self._here, self._folder = os.getcwd(), folder / "scratch"  # of all ranks, as the disk is

    def _place(self, path: Any, writing: bool) -> Any:
        if not isinstance(path, (str, os.PathLike)):
            return path
        full: str = os.path.abspath(os.fspath(path))
        if not full.startswith(self._here + os.sep):
            return path
        other = self._folder / os.path.relpath(full, self._here)
        if writing:
            other.parent.mkdir(parents=True, exist_ok=True)
        return other if writing or other.is_file() else path

    def watch(self) -> None:
        """Patch open, torch.save and torch.load."""
        real_open, real_save, real_load = builtins.open, torch.save, torch.load

        def elsewhere(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            return real_open(self._place(file, bool(set(mode) & set("wax+"))), mode, *args, **kwargs)

        def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
            real_save(obj, self._place(f, True), *args, **kwargs)

        def load(f: Any, *args: Any, **kwargs: Any) -> Any:
            return real_load(self._place(f, False), *args, **kwargs)

        for owner in (builtins, io):
            _set(owner, "open", elsewhere)
        _set(torch, "save", save)
        _set(torch, "load", load)


def pretend(log: Log, folder: Path, index_of: Callable[[Any], int | None], note_bind: Set) -> None:
    """Patch this process, after everything else is watched and before the script starts."""
    requests = Requests(log, index_of)
    Scratch(folder).watch()
    devices.use_cpu(requests.bind(note_bind), requests.on_request)
    _cuda(int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    patch(DataLoader, "__init__", _not_pinned)
