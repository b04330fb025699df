"""A Pair -> what is the same in both, line by line; where something is not, the first place and the likely cause."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ..checks import Result, Status
from ..checks._base import at, count
from ..trace import Trace
from . import causes
from .causes import Cause
from .events import Gradients, Initial, Line, Loss, Order, OwnOrder, Parameters, Rates, Schedule, Weighed
from .pair import LossPair, Pair
from .plan import joined, orders
from .printed import Different, compare_lines, near

SECTION = "2.4"
NEVER = 1 << 60
_OF_TORCH = frozenset(
    f"{kind}Sampler" for kind in ("Distributed", "Random", "Sequential", "SubsetRandom", "WeightedRandom")
)
#: what came of it, and the step at which it failed
Looked = tuple[Result, int]


def held(name: str, sentence: str) -> Result:
    return Result(name, SECTION, Status.HELD, sentence)


def failed(name: str, sentence: str, cause: Cause | None = None) -> Result:
    told = f"{sentence}; likely: {cause.sentence}" if cause is not None else sentence
    return Result(name, SECTION, Status.FAILED, told, cause.rules if cause is not None else ())


def untried(name: str, sentence: str) -> Result:
    return Result(name, SECTION, Status.NOT_TRIED, sentence)


def samples(pair: Pair) -> Result:
    """Are the ranks' samples of each epoch those that the original would have drawn?"""
    name, own = "same_samples", {(e.loader, e.number): e for e in pair.other.of(OwnOrder)}
    found = orders(pair.ranks)
    looked = 0
    for key, passes in found.items():
        event = own.get(key)
        if event is None or not event.known or not all(p.complete for p in passes):
            continue
        looked += 1
        if _another_part(pair, event):
            cause = Cause("the split is drawn in another way, or by each rank for itself", ("DDP305",))
            return failed(name, f"epoch {key[1] + 1}: the ranks read another part of the data than the original", cause)
        batch = sum(p.batch_size or 1 for p in passes)
        lost = event.missing >= batch if event.drop_last else event.missing
        epoch = f"epoch {key[1] + 1}"
        if event.extra > _spare(pair, passes):
            read = count(event.size + event.extra, "sample")
            what = f"{epoch}: the ranks together read {read}, the original {event.size:,}"
            return failed(name, what, Cause("every rank reads the whole set: the loader has no sampler", ("DDP301",)))
        if lost:
            return failed(name, f"{epoch}: {count(event.missing, 'sample')} of {event.size:,} were read by no rank")
    if not looked:
        return untried(name, "no training pass was read to its end, or its samples are drawn with replacement")
    return held(name, f"in {count(looked, 'training pass')} the ranks read what the original reads")


def order(pair: Pair) -> Result:
    """Does the order change from epoch to epoch exactly where the original's does?"""
    name, own = "same_shuffling", {e.loader: e for e in pair.other.of(OwnOrder)}
    found = orders(pair.ranks)
    looked = 0
    for (loader, number), passes in found.items():
        event, before = own.get(loader), found.get((loader, number - 1))
        if event is None or not event.known:
            continue
        batches, _ = joined(passes)
        if event.shuffle and before is not None and event.size > 4:
            looked += 1
            if batches == joined(before)[0]:
                cause = Cause("`set_epoch` is not called with the epoch", ("DDP302",))
                return failed(
                    name, f"epochs {number} and {number + 1} have the same order, the original's have not", cause
                )
        elif not event.shuffle:
            looked += 1
            if not all(p.ascending for p in passes):
                cause = Cause("DistributedSampler shuffles unless it is told not to (`shuffle=False`)", ("DDP301",))
                return failed(name, "the original reads its samples in order, the ranks do not", cause)
    return (
        held(name, f"as the original does, in {count(looked, 'pass')}") if looked else untried(name, "one epoch only")
    )


def _spare(pair: Pair, passes: Sequence[Order]) -> int:
    """How many samples may come twice; whole batches that are dealt out are padded by whole batches."""
    dealt = any(p.batch_size is None for p in passes)
    longest = max((len(batch) for p in passes for batch in p.batches), default=1)
    return (pair.world - 1) * (longest if dealt else 1)


def _another_part(pair: Pair, event: OwnOrder) -> bool:
    """Did the ranks read samples that the original would not have read, and leave out others?"""
    return event.extra > pair.world - 1 and event.missing > pair.world - 1


def weights(pair: Pair) -> Looked:
    """Do both begin with the same parameters?"""
    name, found = "same_start", pair.initial()
    if found is None:
        seen = bool(pair.first.of(Initial) and pair.other.of(Initial))
        return (held(name, "both begin with the same weights") if seen else untried(name, _UNSTEPPED)), NEVER
    if pair.other_order(found.optimizer):
        cause = Cause("a filter by name, and the wrapper puts `module.` before each", ("DDP202",))
        return failed(name, "the optimizer has other parameters, or has them in other groups", cause), 0
    cause = Cause("it is made, or loaded, in another way")
    return failed(name, f"{found.names[0]} does not begin with the same values", cause), 0


def losses(pair: Pair) -> Looked:
    """Is the mean of the ranks' losses the loss of one process, at every backward pass?"""
    name = "same_losses"
    counts = [len(rank.of(Loss)) for rank in (*pair.ranks.ranks, pair.other)]
    far = 0.0
    for loss in pair.losses:
        mean, one = loss.mean, loss.one
        if mean is None or one is None:
            continue
        if not pair.near(mean, one):
            told = f"step {loss.step}{at(loss.at)}: {mean:.10g} on the ranks (their mean), {one:.10g} in one process"
            return failed(name, told, causes.of_loss(pair, loss)), loss.step
        far = max(far, abs(mean - one) / max(abs(one), 1e-12)) if math.isfinite(one) else far
    if len(set(counts)) > 1:
        told = f"{counts[0]} backward passes on rank 0, {counts[-1]} in the original"
        cause = Cause("a loop ends at another number of steps", ("DDP507", "DDP506"))
        return failed(name, told, cause), len(pair.losses) + 1
    if not any(loss.one is not None and math.isfinite(loss.one) for loss in pair.losses):
        return untried(name, "no backward pass began at a finite number"), NEVER
    told = f"of {count(len(pair.losses), 'backward pass')} within {far:.0e}"
    if pair.scale != 1.0:
        told += (
            f"; the loss is a sum over the batch, held against 1/{pair.world} of it: a step of the original's own size"
        )
    return held(name, f"{told}; {pair.footing}" if pair.footing else told), NEVER


def gradients(pair: Pair) -> Looked:
    """Do the ranks step by the gradients of one process?"""
    name, found = "same_gradients", pair.gradients()
    if found is None:
        seen = bool(pair.first.of(Gradients) and pair.other.of(Gradients))
        told = "of the first step, and of each that was looked at"
        return (held(name, told) if seen else untried(name, _UNSTEPPED)), NEVER
    told = f"step {found.step}: {_some(found.names)}, relative difference {found.worst:.1e}"
    return failed(name, told, causes.of_gradients(pair, found)), found.step


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{names[0]}{more}"


def rates(pair: Pair) -> Looked:
    """Are the learning rates of every step the same?"""
    name, seen = "same_rates", 0
    if not any(rank.of(Rates) for rank in (pair.first, pair.other)):
        return untried(name, _UNSTEPPED), NEVER
    for mine, theirs in pair.rates():
        for a, b in zip(mine.rates, theirs.rates, strict=False):
            if a is not None and b is not None and not pair.near(a, b):
                told = f"step {mine.number}{at(mine.at)}: {a:.6g} on the ranks, {b:.6g} in the original"
                return failed(name, told, causes.of_rates(pair, a, b, mine.number)), mine.number
        seen += 1
    counts = len(pair.first.of(Rates)), len(pair.other.of(Rates))
    if counts[0] != counts[1]:
        return failed(name, f"{counts[0]} steps on rank 0, {counts[1]} in the original"), seen + 1
    for schedule in pair.first.of(Schedule):
        if _too_long(pair, schedule):
            told = f"{schedule.name}{at(schedule.at)} ends at step {schedule.done} of {schedule.length}"
            cause = Cause("it counts the steps that one process would make", ("DDP507",))
            return failed(name, told, cause), seen + 1
    return held(name, f"at each of {count(seen, 'step')}"), NEVER


def _too_long(pair: Pair, schedule: Schedule) -> bool:
    """Did it come to one N-th of its length, where the batch of a step is N times the original's?"""
    if schedule.length is None or pair.ranks.was_cut or pair.factor != pair.world:
        return False
    if schedule.done < 2 * pair.world or schedule.length < 1.5 * schedule.done:
        return False
    return pair.world > 1 and abs(schedule.done * pair.world - schedule.length) < 2 * pair.world


def parameters(pair: Pair) -> Result:
    name = "same_parameters"
    if not pair.other.of(Parameters):
        return untried(name, "no optimizer was there in the end")
    found = pair.parameters()
    if found is not None and pair.parameters(settled=True) is None:
        # whatever an optimizer makes of rounding, no loss hangs on it
        told = f"in the end, but for elements of {_some(found.names)} whose gradient is 0 but for rounding"
        return held(name, f"{told}: the optimizer enlarges that")
    if found is not None:
        return failed(name, f"in the end {_some(found.names)}: relative difference {found.worst:.1e}")
    return held(name, "in the end")


def numbers(pair: Pair) -> Result:
    name = "same_numbers"
    found = compare_lines(pair.other.of(Line), pair.first.of(Line), pair.tolerance if pair.double else 2e-3)
    own = [d for d in found.differ if _own(pair, d)]
    wrong = [d for d in found.differ if d not in own]
    if wrong and _cut(pair):
        return untried(name, "not compared: --max-batches cut passes over the ranks' shares and the whole set short")
    if wrong:
        mine, theirs = wrong[0].ranks.text.strip(), wrong[0].original.text.strip()
        cause = Cause("the number is of one rank's samples, or counts padding", ("DDP501", "DDP304"))
        told = f"`{mine}` on rank 0, `{theirs}` in one process ({wrong[0].mine:g}, not {wrong[0].one:g})"
        return failed(name, told, cause)
    if found.missing:
        return failed(name, f"rank 0 does not print `{found.missing[0].strip()}`")
    if not found.equal and not own:
        return untried(name, "no number is printed")
    told = f"{count(found.equal, 'number')} printed by both are equal"
    outside = [d for d in own if d.ranks.place != "inside"]
    if outside:
        line = outside[0].ranks.text.strip()
        told += f"; {outside[0].mine:g} in `{line}` is of rank 0's own training batches"
    elif own:
        told += f"; {len(own):,} between batches are rank 0's own"
    return held(name, told)


def _cut(pair: Pair) -> bool:
    """Were passes that did not train cut short?"""
    return any(o.cut and not o.training for rank in (pair.first, pair.other) for o in rank.of(Order))


def _own(pair: Pair, found: Different) -> bool:
    """A number of the training batches that rank 0 alone saw, or one that differs by the padding of an epoch only."""
    if found.ranks.place in ("inside", "trained"):
        return True
    if padded(pair, found) or (found.mine * pair.world == found.one and found.mine in pair.batch_sizes):
        return True
    step = [loss for loss in pair.losses if loss.step == found.ranks.number]
    return any(_of_loss(found, loss.ranks[0], loss.one) for loss in step)


def _of_loss(found: Different, own: float | None, one: float | None) -> bool:
    """The loss of rank 0's batch, or a multiple of it that the original has of its own loss (`loss / 4` goes back)."""
    if own is None:
        return False
    if near(f"{found.mine:g}", f"{own:.12g}", 1e-3):
        return True
    if one is None:
        return False
    exact, told = abs(found.one * (own - one)), abs(found.mine * one - found.one * own)
    return told <= 1e-3 * exact + found.place * (abs(own) + abs(one))


def padded(pair: Pair, found: Different) -> bool:
    """The ranks divide by what they read, the original by what it would have read."""
    return abs(found.mine - found.one) <= 1.05 * pair.padding * abs(found.one) + (found.place if pair.padding else 0.0)


def rows(pair: Pair) -> Iterator[Result]:
    """All comparisons; what only follows from another difference is not judged again."""
    yield from (samples(pair), order(pair))
    # what a step does first is what its later parts may follow from
    looked = [(look(pair), when) for look, when in ((weights, 0), (losses, 1), (gradients, 2), (rates, 3))]
    failed_at = [(step, when, result.name) for (result, step), when in looked if result.status is Status.FAILED]
    if any(_another_part(pair, event) for event in pair.other.of(OwnOrder) if event.known):
        failed_at.append((-1, -1, "same_samples"))  # the original could not be given what the ranks read
    root = min(failed_at)[2] if failed_at else ""
    why = _incomparable(pair)
    for result in [*(result for (result, _), _ in looked), parameters(pair), numbers(pair)]:
        if result.status is not Status.FAILED or result.name == "same_start":
            yield result
        elif why:
            yield untried(result.name, f"not compared: {why}")
        elif root and result.name != root:
            told = result.sentence.partition("; likely")[0]
            yield untried(result.name, f"differs, which may follow from {root}: {told}")
        else:
            yield result


_UNSTEPPED = "no optimizer stepped"
_UNFED = "the batches come from no DataLoader, so one process cannot be given those of the ranks"
_STREAM = "the batches come from a stream, so one process cannot be given those of the ranks"
_PADDED = "samples are padded to the longest of their batch, and the ranks' batches together are longer"
_SEARCHED = "a step reads batches until it has the samples that it wants, and one process reads more of them in a batch"
_UNEQUAL = "a sampler makes batches of different sizes (step {}): each counts alike on the ranks, and not each sample"
#: what was done about it, where all of them could be put together on each rank
TOGETHER = "the ranks' batches were padded to the longest of all ranks, as one process pads them"


def _incomparable(pair: Pair) -> str:
    """Why one process cannot do what the ranks do together; empty where it can."""
    found = orders(pair.ranks)
    if not found:
        return _UNFED
    if not all(p.collated for passes in found.values() for p in passes):
        return _STREAM
    if padded_apart(pair.ranks):
        return _PADDED
    if _searched(pair):
        return _SEARCHED
    loss = _first_apart(pair)
    dealt = any(p.batch_size is None or _is_own(p.sampler) for passes in found.values() for p in passes)
    return _UNEQUAL.format(loss.step) if dealt and loss is not None and pair.unequal(loss) else ""


def _is_own(sampler: str) -> bool:
    """A sampler of the script, whose batches may be dealt out whole."""
    return sampler.endswith("Sampler") and sampler not in _OF_TORCH


def _searched(pair: Pair) -> bool:
    """Does a backward pass take as many batches as it happens to need, of passes that are broken off?"""
    passes = [[o for o in rank.of(Order) if o.training] for rank in (*pair.ranks.ranks, pair.other)]
    trained = len(pair.first.of(Loss))
    if any(o.complete for of_one in passes for o in of_one) or min(map(len, passes)) < trained:
        return False
    read = {sum(len(o.batches) for o in of_one) for of_one in passes}
    return trained > 0 and trained == len(pair.other.of(Loss)) and (len(read) > 1 or min(read) % trained > 0)


def padded_apart(ranks: Trace) -> bool:
    """Are the ranks' batches of one step not of one length?"""
    found = orders(ranks).values()
    shapes = (zip(*(p.shapes for p in passes), strict=False) for passes in found if all(p.collated for p in passes))
    return any(len(set(together)) > 1 for batches in shapes for together in batches)


def _first_apart(pair: Pair) -> LossPair | None:
    known = (loss for loss in pair.losses if loss.mean is not None and loss.one is not None)
    return next((x for x in known if not pair.near(x.mean or 0.0, x.one or 0.0)), None)


def differ_by_weights(pair: Pair) -> str:
    """What is to be said where losses differ, and divide by the weights of their batch; empty elsewhere."""
    weighed = next(iter(pair.other.of(Weighed)), None)
    loss = _first_apart(pair)
    if weighed is None or loss is None:
        return ""
    return (
        f"the loss{at(weighed.at)} divides by the weights of each rank's own batch (DDP510), and was held against the "
        f"mean of those: over all ranks' samples it would be {loss.one:.6g}, not {loss.mean:.6g}, at step {loss.step}"
    )


def is_sum(pair: Pair) -> bool:
    """Is the loss a sum over the batch, whose size is that of the original on each rank?"""
    first = pair.losses[0] if pair.losses else None
    if pair.world < 2 or first is None or first.mean is None or first.one is None or pair.factor != pair.world:
        return False
    return pair.near(first.mean * pair.world, first.one) and not pair.near(first.mean, first.one)
