"""Trace -> did the ranks take everything with them that they started?"""

from __future__ import annotations

from ..trace import Trace
from ._base import Check, Result, count


class NothingLeft(Check):
    """When the last rank has ended, no process that it started is still there.

    A process that each rank leaves behind (a logger, a server, a worker) holds memory and ports, and the next run on
    the machine meets it. Contract 1.6.
    """

    section = "1.6"
    likely = ()

    def check(self, trace: Trace) -> Result:
        """Look at what was below the launcher a second after a normal end."""
        if trace.left is None or trace.was_cut or not trace.ended_well:
            return self.not_tried("the script did not come to its own end, or the system does not tell")
        if trace.left:
            return self.failed(f"{count(len(trace.left), 'process')} outlived the ranks: {trace.left[0]}")
        return self.held("no process outlived the ranks")
