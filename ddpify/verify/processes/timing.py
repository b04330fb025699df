"""Loaders, wrappers, backwards and optimizers of one rank -> where its time goes, and what could be set otherwise.

In the place of everything that `verify` watches: nothing is hashed, nothing is written down but numbers.
"""

from __future__ import annotations

import contextlib
import functools
import time
import weakref
from collections import deque
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import DataLoader, get_worker_info
from torch.utils.data._utils import fetch
from torch.utils.data.dataloader import _BaseDataLoaderIter

from .collectives import OPERATIONS
from .log import Log, outermost, patch
from .stopwatch import Lines, Stopwatch

_FETCHES = 100  # that are written down of each loader and process
_PASS, _LOADER, _COUNT = "_ddpify_timed", "_ddpify_timed_loader", "_ddpify_fetched"
_MADE = "_ddpify_timed_made"


class _Pass:
    """One pass over a loader: the sizes of batches that are on their way, and what it gave since the last step."""

    def __init__(self, loader: int) -> None:
        self.loader, self.place = loader, 0
        self.coming: deque[int] = deque()
        self.given = self.whole = 0
        self.trained = False
        self.begun = 0.0
        self.iterator: weakref.ref[Any] | None = None


class Timing:
    """The stopwatch, and everything that starts and stops it."""

    def __init__(self, log: Log, warm_up: int) -> None:
        self._log, self._warm_up = log, warm_up
        self._watch = Stopwatch()
        self._lines = Lines(self._watch, log.where)
        self._loaders: dict[int, int] = {}
        self._kept: list[Any] = []  # loaders and wrappers, so that no id is given twice
        self._wrappers: list[Any] = []
        self._passes: list[_Pass] = []
        self._pending: dict[str, Any] | None = None
        self._exchanges: dict[int, int] = {}
        self._batch: Any = None
        self._rows = self._steps = self._started = 0
        self._starting = -1  # the loader whose fetcher is made next

    def watch(self) -> None:
        """Patch torch; before anything else listens to the steps."""
        patch(DataLoader, "__init__", self._made)
        patch(_BaseDataLoaderIter, "__init__", self._loader)
        patch(_BaseDataLoaderIter, "_next_index", self._next_index)
        patch(_BaseDataLoaderIter, "__next__", self._next)
        patch(fetch._BaseDatasetFetcher, "__init__", self._fetcher)
        for kind in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
            patch(kind, "fetch", self._fetch)
        patch(torch.autograd, "backward", outermost(self._backward))
        if dist.is_available():
            for name in OPERATIONS:
                for owner in (dist, distributed_c10d):
                    patch(owner, name, functools.partial(self._timed, "meeting"))
            patch(DistributedDataParallel, "_sync_buffers", functools.partial(self._timed, "meeting"))
            patch(DistributedDataParallel, "__init__", self._wrap)
            patch(DistributedDataParallel, "forward", self._forward)
        register_optimizer_step_pre_hook(self._before_step)
        register_optimizer_step_post_hook(self._after_step)
        self._lines.start()

    def _timed(self, phase: str, real: Any) -> Any:
        def timed(*args: Any, **kwargs: Any) -> Any:
            with self._watch.in_phase(phase):
                return real(*args, **kwargs)

        return timed

    # -- data ---------------------------------------------------------------------------------------------------

    def _number(self, loader: Any) -> int:
        if id(loader) not in self._loaders:
            self._loaders[id(loader)] = len(self._loaders)
            self._kept.append(loader)
            self._log.note(
                "loader",
                loader=self._loaders[id(loader)],
                workers=loader.num_workers,
                pinned=bool(loader.pin_memory),
                persistent=bool(loader.persistent_workers),
                batch=loader.batch_size,
                dataset=type(loader.dataset).__name__,
                at=getattr(loader, _MADE, None) or self._log.where(),
            )
        return self._loaders[id(loader)]

    def _made(self, real: Any) -> Any:
        """Where its options stand."""

        def __init__(loader: Any, *args: Any, **kwargs: Any) -> None:
            setattr(loader, _MADE, self._log.where())
            real(loader, *args, **kwargs)

        return __init__

    def _loader(self, real: Any) -> Any:
        def __init__(iterator: Any, loader: Any) -> None:
            if not self._watch.here:
                real(iterator, loader)
                return
            setattr(iterator, _LOADER, self._number(loader))
            self._starting = self._number(loader)
            self._started += bool(loader.num_workers)
            with self._watch.in_phase("loading"):
                real(iterator, loader)

        return __init__

    def _pass(self, iterator: Any) -> _Pass:
        one: _Pass | None = getattr(iterator, _PASS, None)
        if one is None:
            one = _Pass(getattr(iterator, _LOADER, -1))
            setattr(iterator, _PASS, one)
            one.iterator = weakref.ref(iterator, lambda _: self._end(one))  # left by a break
            self._passes.append(one)
        return one

    def _next_index(self, real: Any) -> Any:
        def _next_index(iterator: Any) -> Any:
            batch = real(iterator)
            if self._watch.here:
                self._pass(iterator).coming.append(len(batch) if hasattr(batch, "__len__") else 1)
            return batch

        return _next_index

    def _next(self, real: Any) -> Any:
        def __next__(iterator: Any) -> Any:
            if not self._watch.here:
                return real(iterator)
            one = self._pass(iterator)
            if not one.whole:
                one.place, one.begun = self._watch.place, time.time()
            self._watch.between("script" if torch.is_grad_enabled() else "evaluation")
            try:
                with self._watch.in_phase("loading"):
                    data = real(iterator)
            except StopIteration:
                setattr(iterator, _PASS, None)
                self._end(one)
                raise
            size = one.coming.popleft() if one.coming else 0
            one.given += size
            one.whole += size
            self._batch = data
            return data

        return __next__

    def _end(self, one: _Pass) -> None:
        """The pass is over; one that no backward followed was an evaluation."""
        if one not in self._passes or not self._watch.here:
            return
        self._passes.remove(one)
        if one.whole and not one.trained:
            self._watch.call("evaluation", one.place)
            seconds = round(time.time() - one.begun, 4)
            self._log.note("evaluated", loader=one.loader, samples=one.whole, seconds=seconds, step=self._steps)
        self._watch.between("script")

    def _fetcher(self, real: Any) -> Any:
        def __init__(fetcher: Any, *args: Any, **kwargs: Any) -> None:
            setattr(fetcher, _LOADER, self._starting)
            real(fetcher, *args, **kwargs)

        return __init__

    def _fetch(self, real: Any) -> Any:
        """Here or in a worker: how long a batch takes to be put together, and how much of that a core was busy."""

        def fetched(fetcher: Any, indices: Any) -> Any:
            count = getattr(fetcher, _COUNT, 0)
            if count >= _FETCHES:
                return real(fetcher, indices)
            setattr(fetcher, _COUNT, count + 1)
            begun, busy = time.perf_counter(), time.thread_time()
            data = real(fetcher, indices)
            told = {"seconds": round(time.perf_counter() - begun, 6), "busy": round(time.thread_time() - busy, 6)}
            info = get_worker_info()
            worker = info.id if info is not None else None
            size = len(indices) if hasattr(indices, "__len__") else 1
            self._log.note("fetched", loader=getattr(fetcher, _LOADER, -1), samples=size, worker=worker, **told)
            return data

        return fetched

    # -- model ----------------------------------------------------------------------------------------------------

    def _wrap(self, real: Any) -> Any:
        def __init__(*args: Any, **kwargs: Any) -> None:
            real(*args, **kwargs)
            wrapper = args[0] if args else kwargs["self"]
            with contextlib.suppress(AttributeError, RuntimeError):
                wrapper._set_ddp_runtime_logging_sample_rate(1)
            self._wrappers.append(wrapper)

        return __init__

    def _forward(self, real: Any) -> Any:
        def forward(wrapper: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or not self._watch.here:
                return real(wrapper, *args, **kwargs)
            if not torch.is_grad_enabled():
                with self._watch.in_phase("compute"):
                    return real(wrapper, *args, **kwargs)
            given = [value for value in (*args, *kwargs.values()) if torch.is_tensor(value) and value.dim()]
            self._rows += len(given[0]) if given else 0
            self._watch.between("script")  # an evaluation that was left early is over
            with self._watch.in_phase("compute"):
                out = real(wrapper, *args, **kwargs)
                self._exchanged(wrapper)
            self._watch.between("compute")  # the loss
            return out

        return forward

    def _exchanged(self, wrapper: Any) -> None:
        """What torch measured of the backward before: how long gradients travelled, and how long beside computing."""
        if self._pending is None:
            return
        try:
            told = wrapper._get_ddp_logging_data()
        except (AttributeError, RuntimeError):
            return
        number = told.get("iteration")
        if number is None or self._exchanges.get(id(wrapper)) == number or "backward_comm_time" not in told:
            return
        self._exchanges[id(wrapper)] = number
        whole, beside = (
            told.get(name, 0) / 1e9 for name in ("backward_comm_time", "backward_compute_comm_overlap_time")
        )
        self._pending["exchange"] = self._pending.get("exchange", 0.0) + max(whole - beside, 0.0)
        self._pending["beside"] = self._pending.get("beside", 0.0) + max(beside, 0.0)

    def _backward(self, real: Any) -> Any:
        def backward(*args: Any, **kwargs: Any) -> None:
            if not self._watch.here:
                real(*args, **kwargs)
                return
            for one in self._passes:
                one.trained = one.trained or one.given > 0
            with self._watch.in_phase("compute"):
                real(*args, **kwargs)
            self._watch.between("script")

        return backward

    # -- steps ----------------------------------------------------------------------------------------------------

    def _before_step(self, *_: object) -> None:
        if self._watch.here:
            self._watch.begin("compute")

    def _after_step(self, *_: object) -> None:
        if not self._watch.here:
            return
        self._watch.end()
        self._write()
        self._steps += 1
        samples = sum(one.given for one in self._passes)
        for one in self._passes:
            one.given = 0
        self._pending = {"number": self._steps, "samples": samples or self._rows, "started": self._started}
        self._pending["seconds"] = self._watch.cut()
        self._rows = self._started = 0
        if self._steps == self._warm_up:
            self._lines.forget()

    def _write(self) -> None:
        """The step before the last: by now its exchange is known, and its events have passed."""
        if self._pending is not None:
            seconds = self._pending.pop("seconds")()
            self._log.note("timed", **self._pending, **seconds)
            self._pending = None

    def finish(self) -> None:
        """The last step, the lines that took the time, and what was wrapped how."""
        self._write()
        self._log.note("lines", phases=self._lines.finish())
        for wrapper in self._wrappers:
            self._log.note("wrapper", **_facts(wrapper))
        if torch.cuda.is_initialized():
            total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
            self._log.note("memory", most=torch.cuda.max_memory_allocated(), total=total, **self._copies())

    def _copies(self) -> dict[str, float]:
        """How long the last batch takes to the GPU as it comes, and from pinned memory."""
        from .chance import tensors

        given = [tensor for tensor in tensors(self._batch) if tensor.device.type == "cpu" and tensor.numel()]
        found = {"plain": 0.0, "pinned": 0.0}
        with contextlib.suppress(RuntimeError):
            for tensor in given:
                for name, held in (("plain", tensor.clone()), ("pinned", tensor.pin_memory())):
                    held.cuda()
                    torch.cuda.synchronize()
                    begun = time.perf_counter()
                    held.cuda(non_blocking=True)
                    torch.cuda.synchronize()
                    found[name] += time.perf_counter() - begun
        return {name: round(seconds, 6) for name, seconds in found.items()}


def _facts(wrapper: Any) -> dict[str, object]:
    """The gradients that a wrapper exchanges, and in which portions."""
    named = [(name, p) for name, p in wrapper.module.named_parameters() if p.requires_grad]
    sizes = {name: p.numel() * p.element_size() for name, p in named}
    largest = max(sizes, key=lambda name: sizes[name], default="")
    buckets: list[int] = []
    with contextlib.suppress(AttributeError, RuntimeError):
        told = wrapper._get_ddp_logging_data()
        listed = str(told.get("rebuilt_bucket_sizes") or told.get("bucket_sizes") or "")
        buckets = [int(size) for size in listed.replace(",", " ").split()]
    return {
        "module": type(wrapper.module).__name__,
        "bytes": sum(sizes.values()),
        "largest": largest,
        "largest_bytes": sizes.get(largest, 0),
        "buckets": buckets,
        "cap": int(getattr(wrapper, "bucket_bytes_cap", 0)),
        "find_unused": bool(getattr(wrapper, "find_unused_parameters", False)),
    }
