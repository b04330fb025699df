"""A batch of all ranks, and a rank's own -> the rank's rows of the first: padded as one process pads them.

Which dimension is that of the samples is told by both: it is as long as each of the batches is.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence


class NoRows(Exception):
    """Nobody can tell which part of a batch is whose."""


@dataclass(frozen=True)
class Part:
    """Which samples of the batch of all ranks are this rank's."""

    all: int
    begin: int
    own: int

    def of(self, whole: Any, own: Any) -> Any:
        """What a collate function made of all samples, cut down to what it would have made of the rank's own."""
        if torch.is_tensor(own):
            return self._tensor(whole, own)
        if isinstance(own, PackedSequence) or type(whole) is not type(own):
            raise NoRows
        if isinstance(own, Mapping):
            parts = {key: self.of(whole[key], own[key]) for key in own}
            return _filled(own, parts)
        if isinstance(own, (list, tuple)):
            return self._listed(whole, own)
        return whole  # a longest length, say

    def _tensor(self, whole: Any, own: Any) -> Any:
        sizes = list(zip(whole.shape, own.shape, strict=True)) if whole.dim() == own.dim() else []
        dims = [dim for dim, size in enumerate(sizes) if size == (self.all, self.own)]
        if dims:
            return whole.narrow(dims[0], self.begin, self.own)
        if whole.shape == own.shape and whole.numel() == 1:
            return whole
        raise NoRows

    def _listed(self, whole: Any, own: Any) -> Any:
        if (len(whole), len(own)) == (self.all, self.own):
            return whole[self.begin : self.begin + self.own]
        if len(whole) != len(own):
            raise NoRows
        parts = [self.of(a, b) for a, b in zip(whole, own, strict=True)]
        return type(own)(*parts) if hasattr(own, "_fields") else type(own)(parts)


def _filled(kept: Any, parts: Mapping[Any, Any]) -> Any:
    if type(kept) is dict:
        return dict(parts)
    filled = copy.copy(kept)
    for key, value in parts.items():
        filled[key] = value
    return filled
