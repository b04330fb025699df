"""Trace -> does every rank use its own GPU and no other?"""

from __future__ import annotations

from ..observed import Request
from ..trace import Init, RankTrace, SetDevice, Trace, Wrap
from ._base import Check, Result, at


class DeviceBound(Check):
    """The rank with the local number r works on GPU r alone, and is bound to it before anything asks for a GPU.

    Otherwise all ranks share GPU 0, or each leaves a context there, until it is out of memory; an index from the global
    rank fails on the second machine. A process that drives K GPUs has those from K times its local rank on. Without
    GPUs a second, short run pretends to have them. Contract 1.3.
    """

    section = "1.3"
    likely = ("DDP103", "DDP104", "DDP105")

    def check(self, trace: Trace) -> Result:
        """Look at set_device, device_ids, each GPU that is asked for, and those that hold memory."""
        seen = trace if trace.backend == "nccl" else trace.pretended
        if seen is None:
            return self.not_tried("needs a GPU for each rank, or a second run that pretends to have them")
        if seen.ended_well and all(_on_cpu(rank) for rank in seen.ranks):
            return self.not_tried("the script asks for no GPU, also where there are some")
        many = _gpus_of_each(seen)
        for rank in seen.ranks:
            wrong = self._wrong(rank, many)
            if wrong:
                return self.failed(f"rank {rank.rank}{self._local(rank)} {wrong}")
        if not any(rank.of(Init) or rank.of(SetDevice) for rank in seen.ranks):
            return self.not_tried("no process group was set up")
        if seen is trace:
            return self.held("every rank uses its own GPU only")
        if not seen.ended_well:
            error = next((r.end.error.splitlines()[0] for r in seen.ranks if r.end and r.end.error), "no end in time")
            return self.not_tried(f"the script does not run with pretended GPUs: {error}")
        if not any(rank.of(Request) for rank in seen.ranks):
            return self.not_tried("the script asks for no GPU, also where there are some")
        return self.held("every rank asks for its own GPU only, tried with pretended GPUs")

    def _local(self, rank: RankTrace) -> str:
        return "" if rank.local_rank == rank.rank else f" (local rank {rank.local_rank})"

    def _wrong(self, rank: RankTrace, many: int) -> str | None:
        first, bound = rank.local_rank * many, rank.of(SetDevice)
        own = range(first, first + many)
        for event in bound:
            if event.index not in (*own, None):
                return f"chooses GPU {event.index}{at(event.at)}"
        for init in rank.of(Init)[:1]:
            before = any(not event.after_init for event in bound)
            if not before and init.device is None:
                return f"sets up the process group{at(init.at)} before it is bound to a GPU"
        for wrap in rank.of(Wrap):
            if wrap.device_ids not in (None, (first,)):
                return f"wraps {wrap.module}{at(wrap.at)} for GPU {', '.join(map(str, wrap.device_ids))}"
        for request in rank.of(Request):
            if request.index not in (*own, None):
                return f"asks for GPU {request.index}{at(request.at)}"
            if request.index is None and not request.bound:
                return f"asks for the current GPU{at(request.at)} before it is bound to one"
        others = [i for i in (rank.end.devices if rank.end else ()) if i not in own]
        return f"also holds memory on GPU {others[0]}" if others else None


def _gpus_of_each(trace: Trace) -> int:
    """How many GPUs a process drives, of a model that stands on several: local rank 1 is bound to GPU 2 of 4."""
    last = max(trace.ranks, key=lambda rank: rank.local_rank)
    chosen = {event.index for event in last.of(SetDevice) if event.index is not None}
    if last.local_rank < 1 or len(chosen) != 1:
        return 1
    many, rest = divmod(max(chosen), last.local_rank)
    without_ids = all(wrap.device_ids is None for rank in trace.ranks for wrap in rank.of(Wrap))
    return many if not rest and many > 1 and without_ids else 1


def _on_cpu(rank: RankTrace) -> bool:
    """dist.init_process_group("gloo"), and nothing of the script's has to do with a GPU."""
    inits, bound = rank.of(Init), bool(rank.of(SetDevice)) or bool(rank.of(Request))
    wrapped = any(wrap.device_ids is not None for wrap in rank.of(Wrap))
    held = rank.end is not None and rank.end.devices
    return bool(inits) and all(i.backend == "gloo" for i in inits) and not (bound or wrapped or held)
