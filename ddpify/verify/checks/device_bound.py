"""Trace -> does every rank use its own GPU and no other?"""

from __future__ import annotations

from ..trace import Init, RankTrace, SetDevice, Trace, Wrap
from ._base import Check, Result, at


class DeviceBound(Check):
    """Rank r of a node works on GPU r alone, and is bound to it before the process group is set up.

    Otherwise all ranks share GPU 0, or each leaves a context there, until it is out of memory. Needs GPUs: not tried
    on the CPU. Contract 1.3.
    """

    section = "1.3"
    likely = ("DDP103", "DDP104", "DDP105")

    def check(self, trace: Trace) -> Result:
        """Look at set_device, device_ids and the GPUs that hold memory. All ranks are on one node here."""
        if trace.backend != "nccl":
            return self.not_tried("needs a GPU for each rank; this run was on the CPU")
        for rank in trace.ranks:
            wrong = self._wrong(rank)
            if wrong:
                return self.failed(f"rank {rank.rank} {wrong}")
        if not any(rank.of(Init) or rank.of(SetDevice) for rank in trace.ranks):
            return self.not_tried("no process group was set up")
        return self.held("every rank uses its own GPU only")

    def _wrong(self, rank: RankTrace) -> str | None:
        bound = rank.of(SetDevice)
        for event in bound:
            if event.index not in (rank.rank, None):
                return f"chooses GPU {event.index}{at(event.at)}"
        for init in rank.of(Init)[:1]:
            before = any(not event.after_init for event in bound)
            if not before and init.device is None:
                return f"sets up the process group{at(init.at)} before it is bound to a GPU"
        for wrap in rank.of(Wrap):
            if wrap.device_ids not in (None, (rank.rank,)):
                return f"wraps {wrap.module}{at(wrap.at)} for GPU {', '.join(map(str, wrap.device_ids))}"
        others = [i for i in (rank.end.devices if rank.end else ()) if i != rank.rank]
        return f"also holds memory on GPU {others[0]}" if others else None
