"""Trace -> did all ranks step with the same learning rates?"""

from __future__ import annotations

from ..trace import Trace
from ._base import Check, Result, at, count


class SameLearningRates(Check):
    """Every optimizer step is made with the same learning rates on all ranks.

    Catches ReduceLROnPlateau on a loss that only one rank has seen, and schedules that count a rank's own batches: the
    ranks then drift apart for good. Contract 2.3.
    """

    section = "2.3"
    likely = ("DDP503", "DDP506")

    def check(self, trace: Trace) -> Result:
        """Compare the rates of the k-th step on all ranks."""
        if trace.world < 2:
            return self.not_tried("one rank has nobody to differ from")
        compared = 0
        for steps in zip(*(rank.steps for rank in trace.ranks), strict=False):
            compared += 1
            other = next((i for i, step in enumerate(steps) if step.rates != steps[0].rates), None)
            if other is not None:
                here, there = (", ".join(f"{rate:g}" for rate in step.rates) for step in (steps[0], steps[other]))
                sentence = f"step {steps[0].number}{at(steps[0].at)} has the learning rate {here} on rank 0, {there} on"
                return self.failed(f"{sentence} rank {other}")
        if not compared:
            return self.not_tried("no optimizer stepped on every rank")
        return self.held(f"equal on all ranks in {count(compared, 'step')}")
