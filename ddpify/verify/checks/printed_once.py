"""Trace -> is what was printed once still printed once?"""

from __future__ import annotations

from ..trace import Output, Trace
from ._base import Check, Result, at, count


class PrintedOnce(Check):
    """Only rank 0 prints, logs and shows progress bars.

    Looked at: everything on standard output, and what the user's own lines write to standard error, also through
    logging and tqdm; warnings and torch's own messages are free. Contract 4.3.
    """

    section = "4.3"
    likely = ("DDP402", "DDP504")

    def check(self, trace: Trace) -> Result:
        """Look at the text of ranks other than 0."""
        if trace.world < 2:
            return self.not_tried("one rank prints alone")
        for rank in trace.ranks[1:]:
            for event in rank.of(Output):
                return self.failed(f"rank {rank.rank} prints too{at(event.at)}: {event.text.splitlines()[0]}")
            if rank.stdout.strip():
                return self.failed(f"rank {rank.rank} prints too: {rank.stdout.strip().splitlines()[0][:80]}")
        lines = len(trace.ranks[0].stdout.splitlines())
        if not lines and not trace.ranks[0].of(Output):
            return self.not_tried("nothing was printed")
        return self.held(f"rank 0 alone printed {count(lines, 'line')}")
