"""Runs -> what to change first: each piece of advice comes from a share of the time that was measured."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ..checks._base import at
from .measured import Run

_COMPUTE = ("compute", "cores", "contention", "small batches")
_WORTH = 0.1  # of the time: less is not worth a change
_MOSTLY = 0.7  # of the steps
_MB = 1 << 20
_BUCKETS = 8  # how many are enough to exchange the first while the last is computed


@dataclass(frozen=True)
class Advice:
    """Something to change, because of a share of the time."""

    cause: str
    share: float
    change: str  # in a few words
    sentence: str

    @property
    def gain(self) -> float | None:
        """How many times faster it would be if that share were nothing; None of what has to be computed."""
        return None if self.cause in _COMPUTE else 1 / max(1 - self.share, 0.01)


@dataclass(frozen=True)
class Machine:
    """What the runs had."""

    cores: int
    gpu: bool


def advise(runs: list[Run], machine: Machine) -> list[Advice]:
    """What to change, the largest share first; of the run with the most ranks."""
    last, first = runs[-1], runs[0]
    found = [
        *_loading(last, machine),
        *_communication(last),
        *_waiting(last, machine),
        *_script(last),
        *_evaluation(last, first),
        *_copies(last),
    ]
    worth = sorted((advice for advice in found if advice.share >= _WORTH), key=lambda advice: -advice.share)
    compute = last.shares["compute"]
    if not worth or compute > worth[0].share:
        worth.insert(0 if not worth else len(worth), _compute(last, first, machine))
    return worth


def _percent(share: float) -> str:
    return f"{share:.0%}"


def milliseconds(seconds: float) -> str:
    """`0.42 ms`, `12.3 ms`, `3.10 s`."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def _samples(number: float) -> str:
    return f"{number:.0f} sample{'' if round(number) == 1 else 's'}"


def _mostly(run: Run, phase: str, rank: int = 0) -> str:
    """` (mostly at train.py:31)`, where one line has most of it."""
    line, share = next(iter(run.lines(phase, rank)), ("", 0.0))
    return f", mostly at {line}" if share > 0.5 else ""


# -- loading ----------------------------------------------------------------------------------------------------------


def _loading(run: Run, machine: Machine) -> Iterator[Advice]:
    share, loader, fetch = run.shares["loading"], run.loader, run.fetch
    if share < _WORTH or loader is None:
        return
    head = f"the ranks wait for their batches {_percent(share)} of the time"
    if fetch is None:
        yield Advice("loading", share, "num_workers", f"{head}: try more workers for the loader{at(loader.at)}")
        return
    seconds, busy = fetch
    rest = max(run.step_seconds * (1 - share), 1e-6)
    needed = max(math.ceil(seconds / rest - 0.1), 1)
    most = max(machine.cores // run.world, 1) if busy > 0.5 else needed
    cost = f"a batch takes {milliseconds(seconds)} to put together, and a step {milliseconds(rest)} without that"
    if needed > loader.workers and most > loader.workers:
        number = min(needed, most)
        who = f"the process that trains puts them together itself{_mostly(run, 'loading')}"
        now = who if not loader.workers else f"{loader.workers} workers do not keep up"
        enough = "" if number == needed else f"; {needed} would keep up, and {machine.cores} cores are too few for that"
        yield Advice(
            "loading",
            share,
            f"num_workers={number}",
            f"{head}: {now}. {cost[0].upper()}{cost[1:]}: give the loader{at(loader.at)} num_workers={number}{enough}",
        )
    elif needed > loader.workers:
        yield Advice(
            "loading",
            share,
            "a cheaper dataset",
            f"{head}, and more workers have no cores left to run on ({machine.cores} for {run.world} ranks). "
            f"{cost[0].upper()}{cost[1:]}: make what `{loader.dataset}` does for a sample cheaper"
            f"{_mostly(run, 'loading')}, or do it once and keep the result",
        )
    elif not loader.persistent and any(rank.started for step in run.steps for rank in step):
        yield Advice(
            "loading",
            share,
            "persistent_workers=True",
            f"{head}, although {loader.workers} workers keep up: they are started anew in each epoch. Give the loader"
            f"{at(loader.at)} persistent_workers=True",
        )
    else:
        yield Advice(
            "loading",
            share,
            "prefetch_factor",
            f"{head}, although {loader.workers} workers keep up on average: single batches take long. A larger "
            f"prefetch_factor of the loader{at(loader.at)} evens that out",
        )


# -- between the ranks ------------------------------------------------------------------------------------------------


def _communication(run: Run) -> Iterator[Advice]:
    share = run.shares["communication"]
    if share < _WORTH or run.world == 1:
        return
    gradients, meetings = share * run.exchange, share * (1 - run.exchange)
    if meetings >= _WORTH:
        yield Advice(
            "collectives",
            meetings,
            "fewer collectives",
            f"the ranks spend {_percent(meetings)} of the time in collectives of the script itself"
            f"{_mostly(run, 'meeting')}: make them once an epoch, or every hundred steps",
        )
    if gradients >= _WORTH:
        yield from _gradients(run, gradients)


def _gradients(run: Run, share: float) -> Iterator[Advice]:
    wrapper, seconds = run.wrapper, share * run.step_seconds
    size = f"{wrapper.bytes / _MB:.3g} MB of gradients" if wrapper is not None else "the gradients"
    computed = run.shares["compute"] * run.step_seconds
    more = max(2, min(math.ceil(seconds / (_WORTH * max(computed, 1e-6))), 64))
    yield Advice(
        "communication",
        share,
        "batch size",
        f"each step exchanges {size}, {milliseconds(seconds)} of {milliseconds(run.step_seconds)}, whatever the number "
        f"of samples; to compute {_samples(run.batch)} takes {milliseconds(computed)}. Train on more samples for each "
        f"exchange, some {more} times as many: a larger batch_size, or gradients of several batches added up under "
        "`no_sync()`",
    )
    if wrapper is None or run.beside > 0.5:
        return
    if wrapper.largest_bytes > wrapper.bytes / 2:
        yield Advice(
            "one parameter",
            share / 2,
            "comm hook",
            f"`{wrapper.largest}` is {wrapper.largest_bytes / wrapper.bytes:.0%} of what is exchanged, and travels in "
            "one piece: no bucket size changes that. A hook that sends half the bytes does: "
            "`model.register_comm_hook(None, torch.distributed.algorithms.ddp_comm_hooks.default_hooks."
            "bf16_compress_hook)`",
        )
    elif 0 < len(wrapper.buckets) < _BUCKETS // 2:
        cap = max(round(wrapper.bytes / _MB / _BUCKETS), 1)
        yield Advice(
            "buckets",
            share * (1 - run.beside) / 2,
            f"bucket_cap_mb={cap}",
            f"{run.beside:.0%} of the exchange goes on while the backward computes: the gradients travel in "
            f"{len(wrapper.buckets)} bucket{'s' * (len(wrapper.buckets) > 1)}, and the first is full late. Try "
            f"`DDP(..., bucket_cap_mb={cap})`",
        )


def _waiting(run: Run, machine: Machine) -> Iterator[Advice]:
    share = run.shares["waiting"]
    if share < _WORTH or run.world == 1:
        return
    parts = [run.of_rank(rank) for rank in range(run.world)]
    slow = min(range(run.world), key=lambda rank: parts[rank]["waiting"])
    others = [part for rank, part in enumerate(parts) if rank != slow]
    longer = {
        name: parts[slow][name] - sum(part[name] for part in others) / len(others)
        for name in ("loading", "compute", "script")
    }
    name = max(longer, key=lambda part: longer[part])
    head = f"the ranks wait for one another {_percent(share)} of the time"
    if longer[name] < share * run.step_seconds / 2 or run.last(slow) < _MOSTLY:
        cores = f", and {run.world} ranks share {machine.cores} cores" if machine.cores < run.world else ""
        yield Advice(
            "waiting",
            share,
            "even steps",
            f"{head}, each for another: their steps take unequal time{cores}. Samples of unequal length do that; put "
            "those of similar length into one batch",
        )
        return
    what = {
        "loading": (f"rank {slow}'s data", "to get its batches", "look at its share of the data"),
        "compute": (f"rank {slow}'s steps", "to compute", "its batches are larger or longer, or its device is slower"),
        "script": (f"what rank {slow} does", "in lines between its steps", "do it less often, or after the training"),
    }[name]
    where = _mostly(run, name, slow) if name != "compute" else ""
    yield Advice(
        f"waiting for rank {slow}",
        longer[name] / run.step_seconds,
        what[0],
        f"{head}: rank {slow} takes {milliseconds(longer[name])} a step longer than the others {what[1]}"
        f"{where}; {what[2]}",
    )


# -- the rest ---------------------------------------------------------------------------------------------------------


def _script(run: Run) -> Iterator[Advice]:
    """What every rank does: where one alone does more, the others wait for it."""
    parts = [run.of_rank(rank)["script"] for rank in range(run.world)]
    least = min(range(run.world), key=lambda rank: parts[rank])
    share = parts[least] / run.step_seconds
    lines = [line for line, part in run.lines("script", least) if part > 0.15][:3]
    where = f" ({', '.join(lines)})" if lines else ""
    yield Advice(
        "script",
        share,
        "less between the steps",
        f"{_percent(share)} of the time goes into lines of the script outside forward, backward and step{where}: "
        "printing, `.item()`, metrics, files. Do it every hundred steps, or once an epoch",
    )


def _evaluation(run: Run, first: Run) -> Iterator[Advice]:
    mine, alone = run.evaluated_samples, first.evaluated_samples
    if run is first or not mine or mine < 0.9 * alone:
        return
    yield Advice(
        "evaluation",
        run.evaluated,
        "evaluate less often",
        f"every rank evaluates all {mine:,} samples, as one process does, and that was {_percent(run.evaluated)} of "
        "what was measured: evaluate less often, or deal the samples out (`ddpify explain contract`, section 3)",
    )


def _copies(run: Run) -> Iterator[Advice]:
    memory, loader = run.memory, run.loader
    if memory is None or loader is None or loader.pinned:
        return
    yield Advice(
        "copies",
        max(memory.plain - memory.pinned, 0.0) / run.step_seconds,
        "pin_memory=True",
        f"a batch takes {milliseconds(memory.plain)} to the GPU, and {milliseconds(memory.pinned)} from pinned memory: "
        f"give the loader{at(loader.at)} pin_memory=True, and `.to(device, non_blocking=True)`",
    )


def _compute(run: Run, first: Run, machine: Machine) -> Advice:
    """The time goes into what there is to do."""
    share = run.shares["compute"]
    mine, alone = (one.shares["compute"] * one.step_seconds / max(one.batch, 1e-9) for one in (run, first))
    head = f"{_percent(share)} of the time is forward, backward and step"
    if machine.cores < run.world and not machine.gpu:
        text = f"{head}, and {run.world} ranks share {machine.cores} cores: more ranks than cores cannot be faster"
        return Advice("cores", share, "fewer ranks", text)
    if run is not first and run.batch < 0.75 * first.batch and mine > 1.2 * alone:
        text = (
            f"{head}, and a sample costs {mine / alone:.1f} times what it costs on {first.world}: "
            f"{_samples(run.batch)} a step are too few for a device. Use a larger batch_size"
        )
        return Advice("small batches", share, "batch size", text)
    if run is not first and mine > 1.3 * alone:
        text = (
            f"{head}, and a sample costs {mine / alone:.1f} times what it costs on {first.world}: the ranks take "
            "cores, memory or power from one another"
        )
        return Advice("contention", share, "threads", text)
    memory = run.memory
    room = f" ({memory.most / memory.total:.0%} of the memory is used)" if memory is not None and memory.total else ""
    text = (
        f"{head}: that is what more ranks divide. To make it cheaper: mixed precision, torch.compile, and a larger "
        f"batch_size as far as the memory goes{room}"
    )
    return Advice("compute", share, "mixed precision", text)
