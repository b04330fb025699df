"""Random draws and inputs of training -> hashes by which ranks that repeat one another's noise or data are told."""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import os
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import get_worker_info
from torch.utils.data._utils import fetch

from .log import Log, patch

MOST = 12  # forwards of each wrapper
MOST_FETCHES = 4  # of each loader and process
_LOADER, _COUNT = "_ddpify_loader", "_ddpify_count"


def _hash(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def _of_torch(state: Any) -> str:
    return _hash(ctypes.string_at(state.data_ptr(), state.numel()))


def states() -> dict[str, str]:
    """The random generators of this process as they are now."""
    _, numbers, rest = random.getstate()
    found = {"torch": _of_torch(torch.get_rng_state()), "random": _hash(f"{hash(numbers)} {rest}".encode())}
    numpy = sys.modules.get("numpy")
    if numpy is not None and hasattr(numpy, "random"):
        kind, keys, *rest = numpy.random.get_state()
        found["numpy"] = _hash(keys.tobytes() + repr((kind, rest)).encode())
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        found["cuda"] = _of_torch(torch.cuda.get_rng_state())
    return found


def _drawn(before: dict[str, str]) -> list[str]:
    after = states()
    return [name for name, state in before.items() if after.get(name) != state]


def tensors(value: Any, depth: int = 0) -> Iterator[Any]:
    if torch.is_tensor(value):
        yield value
    elif depth < 3 and isinstance(value, dict):
        for held in value.values():
            yield from tensors(held, depth + 1)
    elif depth < 3 and isinstance(value, (list, tuple)):
        for held in value:
            yield from tensors(held, depth + 1)


class Chance:
    """What the training forwards and the loaders of one rank were given and drew."""

    def __init__(self, log: Log, checksum: Callable[[Any], str], starting: Callable[[], int | None]) -> None:
        self._log, self._checksum, self._starting = log, checksum, starting
        self._wrappers = itertools.count()

    def watch(self) -> None:
        """Patch the wrapper's forward and what puts batches together, which forked workers inherit."""
        patch(DistributedDataParallel, "forward", self._forward)
        patch(fetch._BaseDatasetFetcher, "__init__", self._fetcher)
        for kind in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
            patch(kind, "fetch", self._fetch)

    def _forward(self, real: Any) -> Any:
        def forward(wrapper: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or not torch.is_grad_enabled() or os.getpid() != self._log.owner:
                return real(wrapper, *args, **kwargs)
            number, count = getattr(wrapper, _COUNT, None) or (next(self._wrappers), 0)
            if count >= MOST:
                return real(wrapper, *args, **kwargs)
            object.__setattr__(wrapper, _COUNT, (number, count + 1))
            given = list(tensors((args, kwargs)))
            inputs = self._checksum(given) if given else None
            before, at = states(), self._log.where()
            try:
                return real(wrapper, *args, **kwargs)
            finally:
                drew = _drawn(before)
                told = {"number": count, "wrapper": number, "inputs": inputs, "states": before, "drew": drew}
                self._log.note("forward", **told, at=at)

        return forward

    def _fetcher(self, real: Any) -> Any:
        def __init__(fetcher: Any, *args: Any, **kwargs: Any) -> None:
            setattr(fetcher, _LOADER, self._starting())
            real(fetcher, *args, **kwargs)

        return __init__

    def _fetch(self, real: Any) -> Any:
        def fetched(fetcher: Any, indices: Any) -> Any:
            count = getattr(fetcher, _COUNT, 0)
            if count >= MOST_FETCHES or getattr(fetcher, _LOADER, None) is None:
                return real(fetcher, indices)
            setattr(fetcher, _COUNT, count + 1)
            before, info = states(), get_worker_info()
            try:
                return real(fetcher, indices)
            finally:
                drew, worker = _drawn(before), info.id if info is not None else None
                if drew:
                    told = {"loader": getattr(fetcher, _LOADER), "number": count, "worker": worker}
                    self._log.note("fetch", **told, states=before, drew=drew)

        return fetched
