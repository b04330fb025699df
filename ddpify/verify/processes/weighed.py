"""Losses that divide by the weights of their own batch (DDP510) -> noted; on request, taken over each rank's part.

DDP averages the ranks' means. Where targets have weights, or are left out, that is not the mean over all of them. A
process that reads the ranks' batches together can take the loss as the ranks do; all else is compared on that footing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from .log import Log, patch
from .streams import Streams


class Weighed:
    """The weighted means of this process; `apart`: over each rank's part of the batch by itself."""

    def __init__(self, log: Log, streams: Streams, apart: bool) -> None:
        self._log, self._streams, self._apart = log, streams, apart

    def watch(self) -> None:
        """Patch the two losses of torch that divide by weights."""
        for name in ("cross_entropy", "nll_loss"):
            patch(functional, name, self._loss)

    def _loss(self, real: Any) -> Any:
        def loss(
            input: Any,
            target: Any,
            weight: Any = None,
            size_average: Any = None,
            ignore_index: int = -100,
            *a: Any,
            **k: Any,
        ) -> Any:
            def over(rows: Any, targets: Any) -> Any:
                return real(rows, targets, weight, size_average, ignore_index, *a, **k)

            parts = self._parts(input, target) if _is_mean(size_average, *a, **k) else []
            if not parts or (weight is None and (target.is_floating_point() or not (target == ignore_index).any())):
                return over(input, target)
            self._log.note("weighed", at=self._log.where())
            if not self._apart:
                return over(input, target)
            pieces = zip(input.split(parts), target.split(parts), strict=True)
            return torch.stack([over(rows, targets) for rows, targets in pieces]).mean()

        return loss

    def _parts(self, input: Any, target: Any) -> list[int]:
        """How many rows of it are whose; none where nobody can tell."""
        blocks, rows = self._streams.blocks, len(target) if target.dim() else 0
        if not torch.is_grad_enabled() or len(blocks) < 2 or 0 in blocks or rows != len(input):
            return []
        each, rest = divmod(rows, sum(blocks))  # `view(-1)` makes several rows of a sample
        if rest or not each or (each > 1 and not self._streams.rows_first):
            return []
        return [each * n for n in blocks]


def _is_mean(size_average: Any, reduce: Any = None, reduction: str = "mean", *_: Any, **__: Any) -> bool:
    return size_average is None and reduce is None and reduction == "mean"
