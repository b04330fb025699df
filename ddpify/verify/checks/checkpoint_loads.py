"""Trace -> can what was saved be read, and loaded into the model, by a process that is alone?"""

from __future__ import annotations

from ..observed import Reload
from ..trace import Trace
from ._base import Check, Result, count


class CheckpointLoads(Check):
    """Saved files can be read without a process group, and a model's state loads strictly into the bare model.

    Catches files that two ranks wrote at once, pickled wrappers, and keys or shapes that the original script's model
    does not have. Contract 4.1.
    """

    section = "4.1"
    likely = ("DDP203", "DDP401")

    def check(self, trace: Trace) -> Result:
        """Each rank read and loaded its last files after the script's end, on the CPU."""
        seen = [(rank.rank, event) for rank in trace.ranks for event in rank.of(Reload)]
        for rank, event in seen:
            if event.error:
                what = f"does not load into {event.model}" if event.model else "cannot be read again"
                return self.failed(f"{event.path} of rank {rank} {what}: {event.error}")
        if not seen:
            return self.not_tried("no file of torch.save was there to be read at the end")
        models = sum(event.model is not None for _, event in seen)
        loaded = f", {count(models, 'model')} loaded strictly" if models else ""
        return self.held(f"{count(len({event.path for _, event in seen}), 'file')} read again{loaded}")
