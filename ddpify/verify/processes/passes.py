"""A pass over a DataLoader -> the samples of its batches, by their numbers in the dataset below all Subsets."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Hashable, Mapping
from typing import Any

import torch
from torch.utils.data import Subset

from .chance import tensors


def length(value: Any) -> int | None:
    """How many there are; None where that cannot be told."""
    try:
        return len(value)
    except Exception:  # whatever a dataset without a length says
        return None


def _name(index: Any) -> Hashable:
    try:
        return operator.index(index)
    except TypeError:
        return repr(index)


def bottom(dataset: Any) -> tuple[Any, list[int] | None]:
    """The dataset below all Subsets, and what each sample is called there.

    `DataLoader(data, sampler=SubsetRandomSampler(chosen))` becomes `Subset(data, chosen)` with a DistributedSampler:
    only the numbers at the bottom mean the same samples in both.
    """
    names: list[int] | None = None
    while isinstance(dataset, Subset):
        own = [int(i) for i in dataset.indices]
        names = own if names is None else [own[i] for i in names]
        dataset = dataset.dataset
    return dataset, names


def shapes_of(data: Any, samples: int) -> str:
    """The sizes of the tensors of a batch, but for how many samples it has."""
    told = []
    for found in tensors(data):
        sizes = list(found.shape)
        if samples in sizes:
            sizes.remove(samples)  # the first: that of the samples
        told.append(str(sizes))
    return " ".join(told)


class Pass:
    """One pass over one loader, while it goes on."""

    def __init__(self, loader: Any, made: int, number: int, given: Mapping[str, Any] | None) -> None:
        self.made, self.number, self.given = made, number, given
        base, self.names = bottom(loader.dataset)
        self.size, self.sampler = length(base), type(loader.sampler).__name__
        self.facts = {
            "loader": made,
            "number": number,
            "size": self.size,
            "length": length(loader),
            "batch_size": loader.batch_size,
            "collated": loader._auto_collation and not isinstance(loader.dataset, torch.utils.data.IterableDataset),
            "sampler": self.sampler,
        }
        self.batches: list[list[Hashable]] = []
        self._drawn: list[int] = []
        self.shapes: list[str] = []
        self.delivered = 0
        self.iterator: weakref.ref[Any] | None = None
        self.active = self.training = self.over = self.complete = self.cut = False

    def name(self, index: Any) -> Hashable:
        """What a sample is called in the dataset at the bottom."""
        name = _name(index)
        return self.names[name] if self.names is not None and isinstance(name, int) else name

    def draw(self, batch: Any) -> None:
        """A batch is about to be read."""
        listed = batch if isinstance(batch, (list, tuple)) else [batch]
        self.batches.append([self.name(index) for index in listed])
        self._drawn += [name for index in listed if isinstance(name := _name(index), int)]

    @property
    def ascending(self) -> bool:
        """In the order of the loader's own dataset, but for the padding at the end."""
        before = self._drawn[:-1]
        return before == sorted(before)

    @property
    def blocks(self) -> list[int]:
        """How many samples of the batch that was read last each rank had."""
        if self.given is not None and self.delivered <= len(self.given["sizes"]):
            return list(self.given["sizes"][self.delivered - 1])
        return [len(self.batches[-1])]
