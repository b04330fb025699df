"""The name of a fault -> the fault, done to this rank: what a long training meets sooner or later.

odd               every dataset has a length that the ranks cannot share equally
small CLASS N     the dataset of that class and length (an evaluation's) has one sample
nan               the outputs of one training forward are NaN on rank 1 only
slow              rank 1 is late at a step, rank 0 at each save
raise             rank 1 raises in a training forward
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import Dataset, Subset

from .log import patch

MESSAGE = "this error was made by ddpify verify --stress"
_AT = 2  # the training forward, or step, that it happens in
_LATE = 1.0  # seconds


def inject(fault: str) -> None:
    """Patch this rank; called before the script starts."""
    name, *more = fault.split()
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if name == "odd":
        _lengths(lambda dataset, size: size - (size - 1) % world if size > world and not _is_share(dataset) else size)
    elif name == "small":
        _lengths(lambda dataset, size: 1 if [type(dataset).__name__, str(size)] == more else size)
    elif name == "slow":
        _slow(rank)
    elif rank == 1 % world:
        _forward(name)


def _kinds(cls: type) -> Iterator[type]:
    below: type
    for below in cls.__subclasses__():
        yield below
        yield from _kinds(below)


def _is_share(dataset: Any) -> bool:
    """`Subset(data, range(rank, len(data), world))`: what the script itself gives a rank stays."""
    return isinstance(dataset, Subset) and isinstance(dataset.indices, range)


def _lengths(change: Callable[[Any, int], int]) -> None:
    """Another length for every dataset, of classes that there are and those that the script will define."""

    def shorten(cls: type) -> None:
        def length(real: Any) -> Any:
            return lambda dataset: change(dataset, real(dataset))

        if "__len__" in vars(cls):
            patch(cls, "__len__", length)

    def defined(cls: type, /, **kwargs: Any) -> None:
        super(Dataset, cls).__init_subclass__(**kwargs)
        shorten(cls)

    for kind in set(_kinds(Dataset)):
        shorten(kind)
    setattr(Dataset, "__init_subclass__", classmethod(defined))  # noqa: B010  (for mypy)


def _slow(rank: int) -> None:
    steps = [0]

    def late(*_: object) -> None:
        steps[0] += 1
        if rank == 1 and steps[0] == _AT:
            time.sleep(_LATE)

    def save(real: Any) -> Any:
        def saved(*args: Any, **kwargs: Any) -> None:
            time.sleep(_LATE / 2 if steps[0] >= 0 and rank == 0 else 0)
            real(*args, **kwargs)

        return saved

    register_optimizer_step_pre_hook(late)
    patch(torch, "save", save)


def _forward(fault: str) -> None:
    seen = [0]

    def patched(real: Any) -> Any:
        def forward(wrapper: Any, *args: Any, **kwargs: Any) -> Any:
            if not torch.is_grad_enabled():
                return real(wrapper, *args, **kwargs)
            seen[0] += 1
            if seen[0] == _AT and fault == "raise":
                raise RuntimeError(MESSAGE)
            out = real(wrapper, *args, **kwargs)
            return _spoiled(out) if seen[0] == _AT else out

        return forward

    patch(DistributedDataParallel, "forward", patched)


def _spoiled(out: Any) -> Any:
    if torch.is_tensor(out):
        return out * float("nan") if out.is_floating_point() else out
    if isinstance(out, dict):
        return type(out)({key: _spoiled(value) for key, value in out.items()})
    if type(out) in (list, tuple):
        return type(out)(map(_spoiled, out))
    return out
