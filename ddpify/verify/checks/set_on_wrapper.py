"""Trace -> did the script set an attribute of the wrapper where it meant the model?"""

from __future__ import annotations

from ..observed import Attribute
from ..trace import Trace, Wrap
from ._base import Check, Result, at


class SetOnWrapper(Check):
    """No attribute of the model is set on the wrapper.

    `model.temperature = 0.5` on a DistributedDataParallel gives the wrapper an attribute of that name; the model inside
    keeps its old value, and nothing says so. Contract 2.1.
    """

    section = "2.1"
    likely = ("DDP202",)

    def check(self, trace: Trace) -> Result:
        """Look at what the script's own lines set on a wrapper."""
        for rank in trace.ranks:
            for event in rank.of(Attribute):
                return self.failed(
                    f"{event.name} is set on the wrapper of {event.model}, not on the model{at(event.at)}"
                )
        if not any(rank.of(Wrap) for rank in trace.ranks):
            return self.not_tried("nothing was wrapped")
        return self.held("no attribute of a model was set on its wrapper")
