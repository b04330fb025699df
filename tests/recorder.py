"""A rank's passes over its DataLoaders and the losses that it goes back from, written down; or given passes, replayed.

It runs inside the rank (tests/ranks.py loads it by its path) and holds what makes one process comparable with many:
noise of the training is off (dropout, statistics of BatchNorm), and seeds are the same.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Subset
from torch.utils.data.dataloader import _BaseDataLoaderIter, _DatasetKind

SEED = 77


class Pass:
    """One pass over a loader: the samples of each batch, by their place in the data set below all subsets."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.batches: list[list[int]] = []
        self.fresh = self.trains = self.ended = False


class Tapped:
    """The batches of a loader, each written down as it is drawn; the given ones in their place where there are any."""

    def __init__(self, recorder: Recorder, loader: Any, real: Any) -> None:
        self.recorder, self.loader, self.real = recorder, loader, real
        self.current: Pass | None = None

    def __len__(self) -> int:
        return len(self.real)

    def __iter__(self) -> Iterator[Any]:
        self.current = one = self.recorder.begin(self.loader)
        given = self.recorder.given.get(str(one.number))
        drawn = iter(self.real) if given is None else (_above(self.loader.dataset, batch) for batch in given)
        for batch in drawn:
            one.batches.append(_below(self.loader.dataset, list(batch) if hasattr(batch, "__iter__") else [batch]))
            yield batch


def _below(dataset: Any, batch: list[Any]) -> list[int]:
    while isinstance(dataset, Subset):
        batch, dataset = [dataset.indices[int(i)] for i in batch], dataset.dataset
    return [int(i) for i in batch]


def _above(dataset: Any, batch: list[int]) -> list[int]:
    """The places in a subset of the samples of the whole set."""
    if not isinstance(dataset, Subset):
        return batch
    at = {int(sample): place for place, sample in enumerate(dataset.indices)}
    return [at[i] for i in _above(dataset.dataset, batch)]


class Recorder:
    """What one process does. `given` are batches to draw, by the number of the pass."""

    def __init__(self, given: dict[str, list[list[int]]]) -> None:
        self.given = given
        self.passes: list[Pass] = []
        self.losses: list[float] = []
        self.owner = os.getpid()

    def begin(self, loader: Any) -> Pass:
        self.passes.append(Pass(len(self.passes)))
        return self.passes[-1]

    def watch(self) -> None:
        recorder = self
        real_index: Any = DataLoader._index_sampler
        real_next = _BaseDataLoaderIter.__next__
        real_backward = torch.autograd.backward

        def index_sampler(loader: Any) -> Any:
            real = real_index.fget(loader)
            return Tapped(recorder, loader, real) if loader._dataset_kind == _DatasetKind.Map else real

        def following(iterator: Any) -> Any:
            one = getattr(iterator._index_sampler, "current", None)
            try:
                batch = real_next(iterator)
            except StopIteration:
                one = getattr(iterator._index_sampler, "current", None)
                if one is not None:
                    one.ended = True
                raise
            one = getattr(iterator._index_sampler, "current", None)
            if one is not None:
                one.fresh = torch.is_grad_enabled()
            return batch

        def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
            for root in tensors if isinstance(tensors, (list, tuple)) else [tensors]:
                recorder.losses.append(float(root.detach().double().mean()))
            for one in recorder.passes:
                if one.fresh and not one.ended:
                    one.trains, one.fresh = True, False
            real_backward(tensors, *args, **kwargs)

        DataLoader._index_sampler = property(index_sampler)
        _BaseDataLoaderIter.__next__ = following
        torch.autograd.backward = backward

    def write(self, path: Path) -> None:
        if os.getpid() == self.owner:
            passes = [vars(one) for one in self.passes]
            text = json.dumps({"passes": passes, "losses": self.losses})
            # whole or not at all: when another rank fails, this one is terminated, perhaps just now
            unfinished = path.with_suffix(".part")
            unfinished.write_text(text)
            unfinished.rename(path)


def quiet() -> None:
    """No dropout, and BatchNorm with the statistics that it holds: a step is the same over any share of a batch."""
    functional: Any = torch.nn.functional
    normed = functional.batch_norm

    def batch_norm(x: Any, mean: Any, var: Any, weight: Any = None, bias: Any = None, *_: Any, **__: Any) -> Any:
        return normed(x, mean, var, weight, bias, False)

    functional.batch_norm = batch_norm
    functional.dropout = lambda x, *_, **__: x


def seed() -> None:
    random.seed(SEED)
    torch.manual_seed(SEED)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(SEED)


def start(given: str) -> Recorder:
    """Before the script: `given` is the file of the passes that are to be made, or ""."""
    quiet()
    seed()
    recorder = Recorder(json.loads(Path(given).read_text()) if given else {})
    recorder.watch()
    return recorder
