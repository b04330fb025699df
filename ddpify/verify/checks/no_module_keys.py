"""Trace -> do the saved files load in the original script?"""

from __future__ import annotations

from ..trace import Save, Trace
from ._base import Check, Result, at, count


class NoModuleKeys(Check):
    """No saved key starts with the wrapper's `module.`, and no wrapper is pickled.

    Such a file does not load in the original script, or, with `strict=False`, loads nothing without a word; a pickled
    wrapper cannot be read in a process without a process group. Contract 4.1.
    """

    section = "4.1"
    likely = ("DDP203",)

    def check(self, trace: Trace) -> Result:
        """Look at the keys of every torch.save."""
        saves = [(rank.rank, save) for rank in trace.ranks for save in rank.of(Save)]
        for rank, save in saves:
            if save.wrapper is not None:
                return self.failed(f"rank {rank} pickles the wrapper of {save.wrapper}{at(save.at)}: {save.path}")
            if save.prefixed:
                return self.failed(f"rank {rank} saves the key {save.prefixed[0]}{at(save.at)}: {save.path}")
        if not saves:
            return self.not_tried("torch.save was not called")
        return self.held(f"none in {count(len(saves), 'saved file')}")
