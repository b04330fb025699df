"""The batches of each loader -> written down on the ranks; read again, the ranks' batches as one, by a single process.

A plan (made from what the ranks wrote) says for each loader that trained, and each of its passes, which samples make a
batch. Loaders are told apart by the order in which they are made, and by the size of their dataset.
"""

from __future__ import annotations

import inspect
import operator
import weakref
import zlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler, Subset, SubsetRandomSampler
from torch.utils.data._utils.fetch import _MapDatasetFetcher
from torch.utils.data.dataloader import _BaseDataLoaderIter

from .log import Log, patch
from .streams import Streams

_WORKERS = ("num_workers", "prefetch_factor", "multiprocessing_context", "timeout", "persistent_workers")
_MADE, _PASSES, _STATE = "_ddpify_made", "_ddpify_passes", "_ddpify_state"


def _length(value: Any) -> int | None:
    try:
        return len(value)
    except Exception:  # whatever a dataset without a length says
        return None


class _Seeded:
    """A dataset that draws what it draws for a sample from a stream of the sample's own."""

    __getitems__ = None  # one by one

    def __init__(self, dataset: Any, seed: Callable[[Hashable], None]) -> None:
        self._dataset, self._seed = dataset, seed

    def __getitem__(self, index: Any) -> Any:
        self._seed(_name(index))
        return self._dataset[index]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataset, name)


def _name(index: Any) -> Hashable:
    try:
        return operator.index(index)
    except TypeError:
        return repr(index)


def subset(dataset: Any) -> int | None:
    """A number for the choice that a Subset makes."""
    return zlib.crc32(repr([int(i) for i in dataset.indices]).encode()) if isinstance(dataset, Subset) else None


class State:
    """One pass over one loader, while it goes on."""

    def __init__(self, loader: Any, made: int, number: int, given: Mapping[str, Any] | None) -> None:
        self.made, self.number, self.given = made, number, given
        self.size, self.sampler = _length(loader.dataset), type(loader.sampler).__name__
        self.facts = {
            "loader": made,
            "number": number,
            "size": self.size,
            "length": _length(loader),
            "batch_size": loader.batch_size,
            "collated": loader._auto_collation and not isinstance(loader.dataset, torch.utils.data.IterableDataset),
            "sampler": self.sampler,
            "subset": subset(loader.dataset),
        }
        self.batches: list[list[Hashable]] = []
        self.delivered = 0
        self.iterator: weakref.ref[Any] | None = None
        self.active = self.training = self.over = False

    @property
    def blocks(self) -> list[int]:
        """How many samples of the batch that was read last each rank had."""
        if self.given is not None and self.delivered <= len(self.given["sizes"]):
            return list(self.given["sizes"][self.delivered - 1])
        return [len(self.batches[-1])]


class Orders:
    """Every loader of this process."""

    def __init__(
        self, log: Log, streams: Streams, plan: Mapping[str, Any] | None, deliver: Callable[[Any], Any]
    ) -> None:
        self._log, self._streams, self._plan, self._deliver = log, streams, plan or {}, deliver
        self._made = 0
        self._own_sizes: dict[int, int | None] = {}  # of the batches, before they were made those of all ranks together
        self._open: list[State] = []
        self._latest: State | None = None
        self.place = ""  # what a loader did last: gave a batch to train with, or came to the end of a pass
        self.fed = False  # did a loader give a batch since the last step?

    def watch(self) -> None:
        """Patch DataLoader, its iterator, and what asks the dataset for samples."""
        patch(DataLoader, "__init__", self._make)
        patch(DataLoader, "__len__", self._len)
        patch(_BaseDataLoaderIter, "__init__", self._begin)
        patch(_BaseDataLoaderIter, "_next_index", self._next_index)
        patch(_BaseDataLoaderIter, "__next__", self._next)
        patch(_MapDatasetFetcher, "__init__", self._fetcher)

    def _planned(self, made: int, dataset: Any) -> Mapping[str, Any] | None:
        entry = self._plan.get(str(made))
        return entry if entry is not None and entry["size"] == _length(dataset) else None

    def _make(self, real: Any) -> Any:
        signature = inspect.signature(real)

        def __init__(loader: Any, *args: Any, **kwargs: Any) -> None:
            given = signature.bind(loader, *args, **kwargs).arguments
            for name in _WORKERS:  # samples are drawn here, one after the other
                given.pop(name, None)
            made, self._made = self._made, self._made + 1
            entry = self._planned(made, given["dataset"])
            if entry is not None and entry["batch_size"] and given.get("batch_sampler") is None:
                self._own_sizes[made] = given.get("batch_size", 1)
                given["batch_size"] = entry["batch_size"]
            setattr(loader, _MADE, made)
            setattr(loader, _PASSES, 0)
            real(**{("self" if k == "loader" else k): v for k, v in given.items()})

        return __init__

    def _len(self, real: Any) -> Any:
        def __len__(loader: Any) -> int:
            entry = self._planned(getattr(loader, _MADE), loader.dataset)
            length: int = entry["length"] if entry is not None and entry["length"] is not None else real(loader)
            return length

        return __len__

    def _begin(self, real: Any) -> Any:
        def __init__(iterator: Any, loader: Any) -> None:
            made, number = getattr(loader, _MADE), getattr(loader, _PASSES)
            setattr(loader, _PASSES, number + 1)
            real(iterator, loader)
            entry = self._planned(made, loader.dataset)
            given = entry["passes"].get(str(number)) if entry is not None and iterator._auto_collation else None
            state = State(loader, made, number, given)
            if given is not None:
                self._note_own(loader, state, given["batches"])
                iterator._sampler_iter = iter(given["batches"])
            state.iterator = weakref.ref(iterator, lambda _: self._end(state, complete=False))
            setattr(iterator, _STATE, state)
            self._open.append(state)
            self._latest = state

        return __init__

    def _note_own(self, loader: Any, state: State, batches: Iterable[Iterable[Any]]) -> None:
        """How the samples of the ranks compare with those that this loader would have drawn."""
        sampler = loader.sampler
        known = type(sampler) in (SequentialSampler, RandomSampler, SubsetRandomSampler)
        again = bool(getattr(sampler, "replacement", False))
        drawn = Counter(index for batch in batches for index in batch)
        own: Counter[Any] = Counter()
        if known and not again:
            own = Counter(sampler.indices if isinstance(sampler, SubsetRandomSampler) else range(len(loader.dataset)))
        self._log.note(
            "own_order",
            loader=state.made,
            number=state.number,
            sampler=type(sampler).__name__,
            shuffle=isinstance(sampler, (RandomSampler, SubsetRandomSampler)),
            drop_last=bool(loader.drop_last),
            known=bool(own),
            subset=subset(loader.dataset),
            batch_size=self._own_sizes.get(state.made),
            size=sum(own.values()),
            missing=sum((own - drawn).values()) if own else 0,
            extra=sum((drawn - own).values()) if own else 0,
        )

    def _fetcher(self, real: Any) -> Any:
        def __init__(fetcher: Any, dataset: Any, *args: Any, **kwargs: Any) -> None:
            state = self._latest
            assert state is not None
            seed = self._streams.seed
            made, number = state.made, state.number
            real(fetcher, _Seeded(dataset, lambda index: seed("sample", made, number, index)), *args, **kwargs)

        return __init__

    def _next_index(self, real: Any) -> Any:
        def _next_index(iterator: Any) -> Any:
            batch = real(iterator)
            listed = batch if isinstance(batch, (list, tuple)) else [batch]
            getattr(iterator, _STATE).batches.append([_name(index) for index in listed])
            return batch

        return _next_index

    def _next(self, real: Any) -> Any:
        def __next__(iterator: Any) -> Any:
            state: State = getattr(iterator, _STATE)
            try:
                data = real(iterator)
            except StopIteration:
                self._end(state, complete=True)
                raise
            state.delivered += 1
            state.active = torch.is_grad_enabled()
            self.place = "inside" if state.active else self.place
            self.fed = True
            place = (state.made, state.number, state.delivered)
            samples = state.batches[-1] if state.batches else []
            self._streams.enter(place, samples, state.blocks if samples else [], self._log.rank)
            return self._deliver(data)

        return __next__

    def on_step(self) -> None:
        """An optimizer stepped: the passes that gave a batch since the last step are training passes."""
        self.fed = False
        for state in self._open:
            if state.active:
                state.training, state.active = True, False

    def _end(self, state: State, complete: bool) -> None:
        if state.over:
            return
        state.over = True
        self._open.remove(state)
        self._log.note("order", **state.facts, training=state.training, complete=complete, batches=state.batches)
        if complete:
            self.place = "trained" if state.training else "evaluated"
            self._streams.leave(state.made, state.number)

    def finish(self) -> None:
        """Write down the passes that were never read to the end."""
        for state in list(self._open):
            self._end(state, complete=False)
