"""A Pair whose ranks are one process -> does the converted script repeat the original, bit by bit?"""

from __future__ import annotations

from ..checks import Result
from ..checks._base import at, count
from ..trace import Step
from .events import Line, Loss
from .pair import Pair
from .printed import compare_lines
from .rows import failed, held, padded, untried


def of_one(pair: Pair) -> Result:
    """The converted script as one process, bit by bit."""
    name = "same_alone"
    if not pair.ranks.ended_well:
        ends = [rank.end.error.splitlines()[0] for rank in pair.ranks.ranks if rank.end is not None and rank.end.error]
        return failed(name, f"as one process the converted script stops: {ends[0] if ends else 'it was killed'}")
    for ours, theirs in zip(pair.first.of(Loss), pair.other.of(Loss), strict=False):
        if repr(ours.value) != repr(theirs.value):
            told = f"step {ours.step}{at(ours.at)}: the loss is {ours.value!r}, the original's {theirs.value!r}"
            return failed(name, told)
    sums = [[s.checksum for s in rank.of(Step)] for rank in (pair.first, pair.other)]
    for number, (a, b) in enumerate(zip(*sums, strict=False), 1):
        if a != b:
            return failed(name, f"the parameters differ after step {number}")
    if len(sums[0]) != len(sums[1]):
        return failed(name, f"{count(len(sums[0]), 'step')}, the original makes {len(sums[1])}")
    passes = [len(rank.of(Loss)) for rank in (pair.first, pair.other)]
    if passes[0] != passes[1]:
        return failed(name, f"{count(passes[0], 'backward pass')}, the original makes {passes[1]}")
    if not any((*sums, pair.first.of(Loss), pair.first.of(Line))):
        return untried(name, "neither a step, nor a loss, nor a line was seen")
    found = compare_lines(pair.other.of(Line), pair.first.of(Line), 0.0)
    wrong = [d for d in found.differ if not padded(pair, d)]
    if wrong:
        told = f"it prints `{wrong[0].ranks.text.strip()}`, the original `{wrong[0].original.text.strip()}`"
        return failed(name, told)
    if found.missing:
        return failed(name, f"it does not print `{found.missing[0].strip()}`")
    told = count(len(sums[0]), "step") if sums[0] else count(passes[0], "backward pass")
    return held(name, f"as one process it repeats the original, bit by bit, over {told}")
