"""A difference -> what most likely made it, with the rules that find such a cause in the text."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .pair import Difference, LossPair, Pair


@dataclass(frozen=True)
class Cause:
    """A sentence, and the codes of rules."""

    sentence: str
    rules: tuple[str, ...] = ()


def _is(a: float, b: float, tolerance: float) -> bool:
    return abs(a - b) <= tolerance * max(abs(a), abs(b))


def _ratio(ratio: float, world: int) -> Cause | None:
    if _is(ratio, 1 / world, 1e-4):
        return Cause(
            f"the loss is a sum over the batch, and the ranks' gradients are averaged: 1/{world} of it", ("DDP505",)
        )
    if _is(ratio, world, 1e-4):
        return Cause(f"the loss is a mean, and is multiplied by the world size ({world}) or summed over the ranks")
    return None


def of_gradients(pair: Pair, found: Difference) -> Cause:
    """Of gradients that differ although the losses are equal."""
    if pair.between_ranks():
        return Cause(
            "the ranks step by gradients of their own: the forward goes around the wrapper, or nothing is wrapped",
            ("DDP201", "DDP205"),
        )
    if found.ratio is not None:
        return _ratio(found.ratio, pair.world) or Cause(f"every gradient is {found.ratio:.6g} times the original's")
    return Cause("the gradients are changed between backward and step (clipping, scaling, accumulation) in another way")


def of_loss(pair: Pair, loss: LossPair) -> Cause:
    """Of the first loss that differs, parameters being equal until then."""
    mean, one, values = loss.mean, loss.one, [v for v in loss.ranks if v is not None]
    if mean is None or one is None:
        return Cause("the backward passes do not begin at the same kind of value")
    if pair.between_ranks():
        return of_gradients(pair, Difference(0, loss.step, (), 0.0))
    ratio = _ratio(mean / one, pair.world) if one else None
    if ratio is not None:
        return ratio
    if one and any(n > 1 and _is(mean / one, n, 1e-4) for sizes in pair.sizes[:1] for n in sizes):
        return Cause("it is a mean over the batch in the original, and a sum here", ("DDP505",))
    if sizes := pair.unequal(loss):
        told = ", ".join(map(str, sizes))
        return Cause(
            f"the ranks' batches are not equally large ({told}), and a mean of means is not the mean", ("DDP301",)
        )
    if min(values) - 1e-12 <= one <= max(values) + 1e-12:
        return Cause(
            "the loss is a mean over something of which the ranks have different amounts (a mask, ignore_index, "
            "weights, tokens): divide by its mean over the ranks; or it is no mean over samples"
        )
    return Cause(
        "the loss hangs on the batch as a whole (other samples of it, or noise that has no row for each sample)",
        ("DDP514",),
    )


def of_rates(pair: Pair, mine: float, theirs: float, step: int) -> Cause:
    """Of the first learning rate that differs."""
    for factor, name in ((pair.world, "the world size"), (math.sqrt(pair.world), "the root of the world size")):
        for power, word in ((1, "multiplied"), (-1, "divided")):
            if theirs and _is(mine / theirs, factor**power, 1e-6):
                return Cause(f"it is {word} by {name}")
    if step > 1:
        return Cause("a schedule counts other steps, or goes by a number that differs", ("DDP507", "DDP503"))
    return Cause("a schedule is of another length, or the rate is set to another value", ("DDP507",))
