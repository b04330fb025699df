"""Calls of torch.distributed -> the sequence of collectives over the whole world, with the user's lines behind each."""

from __future__ import annotations

import functools
import inspect
import os
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.nn.parallel import DistributedDataParallel

from .log import Log, patch

MOST = 5_000  # events of a rank; the same number on all of them
OPERATIONS = [
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "gather",
    "gather_object",
    "monitored_barrier",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
    "scatter_object_list",
]
_UNEQUAL = ("all_to_all", "all_to_all_single")  # each rank may give another size
_TENSORS = ("tensor", "input_tensor", "output", "output_tensor")


class Collectives:
    """The meetings of one rank. A collective inside another one (of objects, say) is not told."""

    def __init__(self, log: Log) -> None:
        self._log, self._left = log, MOST
        self._inside = threading.local()

    def watch(self) -> None:
        """Patch torch.distributed, and the buffers that a wrapper's forward broadcasts."""
        for name in OPERATIONS:
            for owner in (dist, distributed_c10d):
                patch(owner, name, functools.partial(self._noting, name))
        patch(DistributedDataParallel, "_sync_buffers", self._buffers)

    def _note(self, op: str, tensor: Any) -> None:
        if self._left <= 0 or os.getpid() != self._log.owner:
            return
        self._left -= 1
        facts: dict[str, object] = {}
        if torch.is_tensor(tensor):
            facts = {"shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch.")}
        lines = self._log.lines(4)
        self._log.note("collective", op=op, **facts, at=lines[0] if lines else None, through=lines)

    def _noting(self, name: str, real: Any) -> Any:
        signature = inspect.signature(real)

        def collective(*args: Any, **kwargs: Any) -> Any:
            if getattr(self._inside, "any", False):
                return real(*args, **kwargs)
            given = signature.bind_partial(*args, **kwargs).arguments
            if _of_the_world(given.get("group")):
                tensor = next((given[key] for key in _TENSORS if key in given), None)
                self._note(name, None if name in _UNEQUAL else tensor)
            return self._within(real, *args, **kwargs)

        return collective

    def _within(self, real: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._inside.any = True
        try:
            return real(*args, **kwargs)
        finally:
            self._inside.any = False

    def _buffers(self, real: Any) -> Any:
        def _sync_buffers(wrapper: Any) -> Any:
            if wrapper.will_sync_module_buffers():
                self._note(f"buffers of {type(wrapper.module).__name__} in its forward", None)
            return real(wrapper)

        return _sync_buffers


def _of_the_world(group: Any) -> bool:
    """A group of some ranks only is the script's own matter."""
    if group is None or not dist.is_initialized():
        return True
    try:
        return bool(dist.get_world_size(group) == dist.get_world_size())
    except (ValueError, RuntimeError, AttributeError):
        return False
