"""Trace -> did each rank train on something else?"""

from __future__ import annotations

from ..observed import Forward
from ..trace import Trace
from ._base import Check, Result, at, count


class DataDiffers(Check):
    """The training forwards of the ranks get different inputs.

    Catches streams that every rank reads in full, batches that all ranks cut or draw alike, and the same noise for a
    generator on every rank: N times the work for the result of one. Contract 2.2, 2.5.
    """

    section = "2.2"
    likely = ("DDP301", "DDP306", "DDP309")

    def check(self, trace: Trace) -> Result:
        """Compare the inputs of the k-th forward of each wrapper. Inputs that never change are no data."""
        if trace.world < 2:
            return self.not_tried("one rank has nobody to repeat")
        by_rank = [{(f.wrapper, f.number): f for f in rank.of(Forward) if f.inputs is not None} for rank in trace.ranks]
        shared = [key for key in by_rank[0] if all(key in forwards for forwards in by_rank)]
        held = 0
        for wrapper in sorted({wrapper for wrapper, _ in shared}):
            rows = [[forwards[key] for forwards in by_rank] for key in shared if key[0] == wrapper]
            if len({row[0].inputs for row in rows}) < 2:
                continue
            same = [row for row in rows if len({f.inputs for f in row}) == 1]
            if len(same) * 2 > len(rows):
                what = f"in {len(same)} of {count(len(rows), 'training forward')}"
                return self.failed(f"every rank gives the model the same input{at(same[0][0].at)} {what}")
            held += len(rows)
        if not held:
            return self.not_tried("no training forward with changing inputs was seen on every rank")
        return self.held(f"different inputs on the ranks in {count(held, 'training forward')}")
