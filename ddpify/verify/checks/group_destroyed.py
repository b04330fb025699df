"""Trace -> was the process group destroyed at a normal end?"""

from __future__ import annotations

from ..trace import Exit, Init, Trace
from ._base import Check, Result


class GroupDestroyed(Check):
    """The process group is destroyed at a normal end.

    Otherwise nccl warns, may hang at exit, and leaks its resources. Contract 1.6.
    """

    section = "1.6"
    likely = ("DDP102",)

    def check(self, trace: Trace) -> Result:
        """Ask the very end of each process whether the group was still there."""
        if not any(rank.of(Init) for rank in trace.ranks):
            return self.not_tried("no process group was set up")
        if trace.was_cut or not trace.ended_well:
            return self.not_tried("the script did not come to its own end")
        for rank in trace.ranks:
            if any(end.initialized for end in rank.of(Exit)):
                return self.failed(f"rank {rank.rank} ended with the process group still there")
        return self.held("destroyed on every rank")
