"""Trace -> do all ranks number their classes and words, and list their files, alike?"""

from __future__ import annotations

from ..observed import Data, Names
from ..trace import RankTrace, Trace
from ._base import Check, Result


class SameNames(Check):
    """Numberings of classes and words, lists of files and the order of buffers are the same on all ranks.

    Orders that come from a set or a hash differ from process to process: label 3 is a cat on one rank and a dog on the
    other, and nothing fails. verify gives each rank another PYTHONHASHSEED. Contract 2.5.
    """

    section = "2.5"
    likely = ("DDP307",)

    def check(self, trace: Trace) -> Result:
        """Compare numberings and lists of the same name that are made of the same words."""
        if trace.world < 2:
            return self.not_tried("one rank has nobody to differ from")
        by_rank = [_names(rank) for rank in trace.ranks]
        shared = [name for name in by_rank[0] if all(name in other for other in by_rank)]
        for name in shared:
            pairs = [names[name] for names in by_rank]
            # other words on each rank: its own share of files, for one
            if len({words for _, words in pairs}) == 1 and len({order for order, _ in pairs}) > 1:
                return self.failed(f"{name} has the same entries on every rank, but another order or numbering")
        if not shared:
            return self.not_tried("no numbering of names, list of names or buffer was seen")
        return self.held(f"alike on every rank: {', '.join(shared[:3])}{', ...' if len(shared) > 3 else ''}")


def _names(rank: RankTrace) -> dict[str, tuple[str, str]]:
    found: dict[str, tuple[str, str]] = {}
    for data in rank.of(Data):
        found |= {f"{name} (loader {data.loader})": pair for name, pair in data.names.items()}
    for names in rank.of(Names):
        found |= names.names
    return found
