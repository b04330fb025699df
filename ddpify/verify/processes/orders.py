"""The batches of each loader -> written down on the ranks; read again, the ranks' batches as one, by a single process.

A plan (made from what the ranks wrote) says for each loader that trained, and each of its passes, which samples make a
batch. Loaders are told apart by the order in which they are made, and by the size of their dataset.
"""

from __future__ import annotations

import inspect
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, SubsetRandomSampler
from torch.utils.data._utils.fetch import _MapDatasetFetcher
from torch.utils.data.dataloader import _BaseDataLoaderIter

from .chance import tensors
from .loading import CutShort
from .log import Log, patch
from .padded import NoRows, Part
from .passes import Pass, bottom, length, shapes_of
from .streams import Streams

_WORKERS = ("num_workers", "prefetch_factor", "multiprocessing_context", "timeout", "persistent_workers")
_MADE, _PASSES, _PASS = "_ddpify_made", "_ddpify_passes", "_ddpify_state"


class _Seeded:
    """A dataset that draws what it draws for a sample from a stream of the sample's own."""

    __getitems__ = None  # one by one

    def __init__(self, dataset: Any, seed: Callable[[Any], None]) -> None:
        self._dataset, self._seed = dataset, seed

    def __getitem__(self, index: Any) -> Any:
        self._seed(index)
        return self._dataset[index]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataset, name)


class Orders:
    """Every loader of this process."""

    def __init__(
        self,
        log: Log,
        streams: Streams,
        plan: Mapping[str, Any] | None,
        deliver: Callable[[Any], Any],
        padded: bool = False,
    ) -> None:
        self._log, self._streams, self._deliver = log, streams, deliver
        self._plan: Mapping[str, Any] = {} if padded else plan or {}
        #: batches of all ranks, by which a rank pads its own
        self._beside: Mapping[str, Any] = plan or {} if padded else {}
        self._made = 0
        self._own_sizes: dict[int, int | None] = {}  # of the batches, before they were made those of all ranks together
        self._open: list[Pass] = []
        #: passes that were left behind a batch: since the last step, and between the two before it
        self._left: list[Pass] = []
        self._left_before: list[Pass] = []
        self._latest: Pass | None = None
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
        if self._beside:
            patch(_MapDatasetFetcher, "fetch", self._fetch)

    def _planned(self, made: int, dataset: Any) -> Mapping[str, Any] | None:
        entry = self._plan.get(str(made))
        return entry if entry is not None and entry["size"] == length(bottom(dataset)[0]) else None

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
            setattr(loader, _PASSES, Counter())
            real(**{("self" if k == "loader" else k): v for k, v in given.items()})

        return __init__

    def _len(self, real: Any) -> Any:
        def __len__(loader: Any) -> int:
            entry = self._planned(getattr(loader, _MADE), loader.dataset)
            found: int = entry["length"] if entry is not None and entry["length"] is not None else real(loader)
            return found

        return __len__

    def _begin(self, real: Any) -> Any:
        def __init__(iterator: Any, loader: Any) -> None:
            made, passes = getattr(loader, _MADE), getattr(loader, _PASSES)
            # the training loader read for its numbers, which another loader does on the ranks: no pass of the training
            grad = torch.is_grad_enabled()
            number = passes[grad] if grad else -1 - passes[grad]
            passes[grad] += 1
            real(iterator, loader)
            entry = self._planned(made, loader.dataset)
            given = entry["passes"].get(str(number)) if entry is not None and iterator._auto_collation else None
            state = Pass(loader, made, number, given)
            if given is not None:
                self._note_own(loader, state, given["batches"])
                iterator._sampler_iter = iter(self._indices(state, given["batches"]) or iterator._sampler_iter)
            state.iterator = weakref.ref(iterator, lambda _: self._end(state, complete=False))
            setattr(iterator, _PASS, state)
            self._open.append(state)
            self._latest = state

        return __init__

    @staticmethod
    def _indices(state: Pass, batches: Iterable[Iterable[Any]]) -> list[list[Any]]:
        """The batches in the numbers of this loader's dataset; none where it has not all of these samples."""
        if state.names is None:
            return [list(batch) for batch in batches]
        places = {name: place for place, name in enumerate(state.names)}
        if not all(name in places for batch in batches for name in batch):
            state.given = None
            return []
        return [[places[name] for name in batch] for batch in batches]

    def _note_own(self, loader: Any, state: Pass, batches: Iterable[Iterable[Any]]) -> None:
        """How the samples of the ranks compare with those that this loader would have drawn."""
        sampler, whole = loader.sampler, loader.batch_sampler
        if type(whole) is BatchSampler:  # `DataLoader(data, batch_sampler=BatchSampler(RandomSampler(data), 10, True))`
            sampler = whole.sampler
        elif whole is not None:
            sampler = whole  # of the script's own: nobody knows what it would draw
        known = type(sampler) in (SequentialSampler, RandomSampler, SubsetRandomSampler)
        again = bool(getattr(sampler, "replacement", False))
        drawn = Counter(index for batch in batches for index in batch)
        own: Counter[Any] = Counter()
        if known and not again:
            all_of_it = sampler.indices if isinstance(sampler, SubsetRandomSampler) else range(len(loader.dataset))
            own = Counter(state.name(index) for index in all_of_it)
        self._log.note(
            "own_order",
            loader=state.made,
            number=state.number,
            sampler=type(sampler).__name__,
            shuffle=isinstance(sampler, (RandomSampler, SubsetRandomSampler)),
            drop_last=bool(loader.drop_last or getattr(whole, "drop_last", False)),
            known=bool(own),
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
            place = ("sample", state.made, state.number)
            setattr(fetcher, _PASS, state)
            real(fetcher, _Seeded(dataset, lambda index: seed(*place, state.name(index))), *args, **kwargs)

        return __init__

    def _fetch(self, real: Any) -> Any:
        def fetch(fetcher: Any, indices: Any) -> Any:
            own, state = real(fetcher, indices), getattr(fetcher, _PASS)
            part, together = self._of_all(state)
            if part is None:
                return own
            try:
                return part.of(real(fetcher, together), own)
            except NoRows:
                return own

        return fetch

    def _of_all(self, state: Pass) -> tuple[Part | None, list[Any]]:
        """Which part of the ranks' batches together the one that was drawn last is, and those."""
        given = self._beside.get(str(state.made), {}).get("passes", {}).get(str(state.number))
        number = len(state.batches) - 1
        if given is None or number >= len(given["batches"]):
            return None, []
        sizes, batch = given["sizes"][number], given["batches"][number]
        part = Part(len(batch), sum(sizes[: self._log.rank]), sizes[self._log.rank])
        listed = self._indices(state, [batch])
        if not listed or 0 in sizes or batch[part.begin : part.begin + part.own] != state.batches[-1]:
            return None, []
        return part, listed[0]

    def _next_index(self, real: Any) -> Any:
        def _next_index(iterator: Any) -> Any:
            batch = real(iterator)
            getattr(iterator, _PASS).draw(batch)
            return batch

        return _next_index

    def _next(self, real: Any) -> Any:
        def __next__(iterator: Any) -> Any:
            state: Pass = getattr(iterator, _PASS)
            try:
                data = real(iterator)
            except StopIteration as end:
                state.cut = isinstance(end, CutShort)
                self._end(state, complete=not state.cut, left=False)
                raise
            state.delivered += 1
            state.active = torch.is_grad_enabled()
            self.place = "inside" if state.active else self.place
            self.fed = True
            place = (state.made, state.number, state.delivered)
            samples = state.batches[-1] if state.batches else []
            state.shapes.append(shapes_of(data, len(samples)))
            self._streams.enter(place, samples, state.blocks if samples else [], self._log.rank)
            self._streams.rows_first = all(t.dim() and len(t) == len(samples) for t in tensors(data))
            return self._deliver(data)

        return __next__

    def on_step(self) -> None:
        """An optimizer stepped: the passes that gave a batch since the last step are training passes."""
        if not self.fed:  # several optimizers step by one batch
            return
        self.fed = False
        going_on = [state for state in self._open if state.active]
        for state in going_on:
            state.training, state.active = True, False
        self._sort_left(bool(going_on))

    def _sort_left(self, another: bool) -> None:
        """`x = next(iter(loader))` before each step trains; before a loop (`another` pass) it is a look at a batch."""
        before, again = {s.made for s in self._left_before}, {s.made for s in self._left}
        for state in self._left:
            state.training = not another or state.made in before
        for state in self._left_before:
            state.training = state.training or state.made in again
            self._note(state)
        self._left_before, self._left = self._left, []

    def _end(self, state: Pass, complete: bool, left: bool = True) -> None:
        """A pass is over; `left`: by a break, and not where its loader ended it."""
        if state.over:
            return
        state.over = True
        self._open.remove(state)
        state.complete = complete
        if state.active and not complete and not state.training:
            self._left.append(state)  # the next steps tell whether it trained
        else:
            self._note(state)
        if not left:
            self.place = "trained" if state.training else "evaluated"
            self._streams.leave(state.made, state.number)

    def _note(self, state: Pass) -> None:
        told = {"training": state.training, "complete": state.complete, "cut": state.cut}
        self._log.note(
            "order", **state.facts, **told, ascending=state.ascending, shapes=state.shapes, batches=state.batches
        )

    def finish(self) -> None:
        """Write down the passes that were never read to the end."""
        for state in list(self._open):
            self._end(state, complete=False)
        for state in (*self._left_before, *self._left):
            self._note(state)
