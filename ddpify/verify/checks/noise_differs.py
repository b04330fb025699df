"""Trace -> does each rank draw random numbers of its own?"""

from __future__ import annotations

from collections.abc import Mapping

from ..observed import Fetch, Forward
from ..trace import Trace
from ._base import Check, Result, at, count

_Key = tuple[str, int, int, int]


class NoiseDiffers(Check):
    """Where training is random (dropout, augmentation, sampled noise), each rank draws other numbers.

    With the same seed on every rank all of them drop the same units and cut the same crops: less variety than one
    process would have, and no error. The training is right all the same: this is noted, not failed. Contract 2.5.
    """

    section = "2.5"
    likely = ("DDP306",)

    def check(self, trace: Trace) -> Result:
        """Compare the states that the generators had before they were drawn from."""
        if trace.world < 2:
            return self.not_tried("one rank has nobody to repeat")
        training = {(i, p.loader) for i, rank in enumerate(trace.ranks) for p in rank.training_passes}
        draws: list[dict[_Key, Forward | Fetch]] = []
        for i, rank in enumerate(trace.ranks):
            mine: dict[_Key, Forward | Fetch] = {("forward", f.wrapper, 0, f.number): f for f in rank.of(Forward)}
            for f in rank.of(Fetch):
                if (i, f.loader) in training:
                    mine.setdefault(("batch", f.loader, -1 if f.worker is None else f.worker, f.number), f)
            draws.append({key: f for key, f in mine.items() if f.drew})
        shared = [key for key in draws[0] if all(key in other for other in draws)]
        for key in shared:
            events = [drawn[key] for drawn in draws]
            same = [name for name in events[0].drew if _alike([f.states for f in events], name)]
            if same and len(same) == len(events[0].drew):
                place = f"the training forward{at(events[0].at)}" if key[0] == "forward" else "a training batch"
                return self.noted(f"every rank draws the same random numbers for {place} (generator: {same[0]})")
        if not shared:
            return self.not_tried("no random numbers were drawn in the training forward or for a training batch")
        return self.held(f"other random numbers on each rank in {count(len(shared), 'draw')}")


def _alike(states: list[Mapping[str, str]], name: str) -> bool:
    return len({one.get(name) for one in states}) == 1
