"""The passes over each DataLoader -> which samples were drawn, in which order, and whether an optimizer stepped."""

from __future__ import annotations

import hashlib
import operator
import os
import sys
import time
import weakref
from types import FrameType
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, Subset
from torch.utils.data.dataloader import _BaseDataLoaderIter
from torch.utils.data.distributed import DistributedSampler

from . import datasets
from .log import Log, patch
from .passes import length

MOST_INDICES = 200_000  # of one pass; more are counted but not written down
_PASS, _LOADER = "_ddpify_pass", "_ddpify_loader"


class CutShort(StopIteration):
    """A pass ends here because of --max-batches, not because there is nothing more."""


class Pass:
    """One pass over one loader, while it goes on."""

    def __init__(self, loader: Any, number: int, order: int, source: object, at: str | None) -> None:
        self.source, self.loader = source, number
        sampler = self._sampler(loader)
        self.subset = loader.dataset if isinstance(loader.dataset, Subset) else None
        self.indices: list[int] | None = []
        self.iterator: weakref.ref[Any] | None = None
        self.drawn = self.steps = self.batches = self.longest = 0
        self.own_batches = sampler is loader.batch_sampler and sampler is not None
        self.active = self.training = self.grad = False
        self.begun = round(time.time(), 6)
        self.facts: dict[str, object] = {
            "loader": number,
            "order": order,
            "at": at,
            "size": length(loader.dataset),
            "sampler": type(sampler).__name__,
            "shuffle": bool(getattr(sampler, "shuffle", isinstance(sampler, RandomSampler))),
            "epoch": getattr(sampler, "epoch", None),
            "drop_last": bool(getattr(loader, "drop_last", False) or getattr(sampler, "drop_last", False)),
            "statistics": _for_statistics(),
        }

    @staticmethod
    def _sampler(loader: Any) -> Any:
        """The sampler that deals out single samples, which a batch sampler may hold; or the script's batch sampler."""
        if loader.batch_sampler is not None and type(loader.batch_sampler) is not BatchSampler:
            return loader.batch_sampler
        held = getattr(loader.batch_sampler, "sampler", None)
        return held if isinstance(held, DistributedSampler) else loader.sampler

    def draw(self, batch: Any) -> None:
        """Remember the indices of one batch."""
        try:
            new = [operator.index(i) for i in batch] if hasattr(batch, "__iter__") else [operator.index(batch)]
        except (TypeError, ValueError):  # a dataset indexed by something else: nothing to compare
            self.indices = None
            return
        self.drawn += len(new)
        self.longest = max(self.longest, len(new))
        if self.indices is not None and len(self.indices) < MOST_INDICES:
            self.indices += new

    def as_fields(self, complete: bool) -> dict[str, object]:
        """The pass as an event; the indices of a Subset are those of the dataset below it."""
        indices, split, inner = self.indices, None, self.subset
        if inner is not None:
            listed = [int(i) for i in inner.indices]
            split = hashlib.blake2b(repr(listed).encode(), digest_size=8).hexdigest()
        while indices is not None and isinstance(inner, Subset):
            indices = [int(inner.indices[i]) for i in indices]
            inner = inner.dataset
        batch = self.longest if self.own_batches else 0
        ended = {"drawn": self.drawn, "batch": batch, "steps": self.steps, "complete": complete}
        more = {"training": self.training, "grad": self.grad, "begun": self.begun, "split": split, "indices": indices}
        return {**self.facts, **ended, **more}


def _for_statistics() -> bool:
    """Whether `torch.optim.swa_utils.update_bn` reads the loader: no number is printed of what it reads."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "update_bn" and frame.f_globals.get("__name__") == "torch.optim.swa_utils":
            return True
        frame = frame.f_back
    return False


class Loading:
    """All passes of this process."""

    def __init__(self, log: Log, max_batches: int | None = None) -> None:
        self._log, self._most = log, max_batches
        self._open: list[Pass] = []
        self._numbers: dict[int, int] = {}
        self._bases: dict[int, int] = {}
        self._kept: list[object] = []  # loaders and datasets, so that no id is given twice
        self._begun = self._steps = 0
        self._batches: dict[int, int] = {}  # that each loader gave
        self.starting: int | None = None  # the loader whose workers are being started

    def _number(self, loader: object) -> int:
        if id(loader) not in self._numbers:
            self._numbers[id(loader)] = len(self._numbers)
            self._kept.append(loader)
            self._tell(loader)
        return self._numbers[id(loader)]

    def _tell(self, loader: Any) -> None:
        """What the data behind a loader is, when it is first read."""
        if os.getpid() != self._log.owner:
            return
        base = list(datasets.chain(loader.dataset))[-1]
        self._kept.append(base)
        number = self._bases.setdefault(id(base), len(self._bases))
        told = {"levels": datasets.levels(loader.dataset), "names": datasets.names(loader.dataset)}
        self._log.note("data", loader=self._numbers[id(loader)], base=number, **told)

    def _begin(self, iterator: Any) -> Pass:
        loader = getattr(iterator, _LOADER)
        one = Pass(loader, self._number(loader), self._begun, iterator._sampler_iter, self._log.where())
        self._begun += 1
        setattr(iterator, _PASS, one)
        self._open.append(one)
        # a pass that a break leaves is over when its iterator is gone; later steps are none of its own
        one.iterator = weakref.ref(iterator, lambda _: self._end(one, complete=False))
        return one

    def _end(self, one: Pass | None, complete: bool) -> None:
        if one in self._open:
            self._open.remove(one)
            # `images, labels = next(iterator)` before the loop: looked at again and again, trained on by none
            once = one.steps == 1 and self._steps > 1 and self._batches.get(one.loader) == 1 and not complete
            one.training = one.training and not once
            self._log.note("pass", **one.as_fields(complete))

    def on_step(self) -> None:
        """An optimizer stepped: the passes that gave a batch since the last step are training passes."""
        self._steps += 1
        for one in self._open:
            if one.active:
                one.training, one.active = True, False
                one.steps += 1

    def finish(self) -> None:
        """Write down the passes that were never read to the end."""
        for one in list(self._open):
            self._end(one, complete=False)

    def watch(self) -> None:
        """Patch the iterator of DataLoader, the one place through which every index goes."""

        def init(real: Any) -> Any:
            def __init__(iterator: Any, loader: Any) -> None:
                setattr(iterator, _LOADER, loader)
                self.starting = self._number(loader)
                real(iterator, loader)

            return __init__

        def next_index(real: Any) -> Any:
            def _next_index(iterator: Any) -> Any:
                one = getattr(iterator, _PASS, None)
                if one is None or one.source is not iterator._sampler_iter:
                    one = self._begin(iterator)
                batch = real(iterator)
                one.draw(batch)
                return batch

            return _next_index

        def next_batch(real: Any) -> Any:
            def __next__(iterator: Any) -> Any:
                before = getattr(iterator, _PASS, None)
                if self._most is not None and before is not None and before.batches >= self._most:
                    self._end(before, complete=False)
                    raise CutShort
                try:
                    data = real(iterator)
                except StopIteration:
                    self._end(getattr(iterator, _PASS, None), complete=True)
                    raise
                one = getattr(iterator, _PASS)
                one.batches += 1
                self._batches[one.loader] = self._batches.get(one.loader, 0) + 1
                one.active = torch.is_grad_enabled()
                one.grad = one.grad or one.active
                return data

            return __next__

        patch(_BaseDataLoaderIter, "__init__", init)
        patch(_BaseDataLoaderIter, "_next_index", next_index)
        patch(_BaseDataLoaderIter, "__next__", next_batch)
        patch(DistributedSampler, "set_epoch", self._set_epoch)
        if self._most is not None:
            patch(DataLoader, "__len__", self._length)

    def _length(self, real: Any) -> Any:
        """Schedules and messages count the batches that there will be."""
        return lambda loader: min(real(loader), self._most or 0)

    def _set_epoch(self, real: Any) -> Any:
        def set_epoch(sampler: Any, epoch: int) -> None:
            self._log.note("set_epoch", epoch=epoch, at=self._log.where())
            real(sampler, epoch)

        return set_epoch
