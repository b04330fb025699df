"""A training loop in, what it keeps of its batches out: what can be put together from all ranks, and the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ddpify.facts.again import Again, computed_again
from ddpify.facts.altered import OTHERWISE, altered
from ddpify.facts.collected import collected, holder_of, holders_of_lists, left_over, mean_lists
from ddpify.facts.inorder import batch_lists
from ddpify.facts.loops import LoopFacts
from ddpify.facts.meters import Meter, meters
from ddpify.facts.metrics import loop_facts
from ddpify.facts.roles import read_by
from ddpify.facts.rowstores import row_stores
from ddpify.facts.setup import SetUp, find_setup
from ddpify.facts.starts import base_of
from ddpify.facts.tallies import Tally, tallies

if TYPE_CHECKING:
    from ddpify.facts import Facts


@dataclass(frozen=True)
class Kept:
    """What a training loop leaves behind beside its sums."""

    #: lists of batch means, each entry averaged over the ranks
    lists: tuple[str, ...]
    meters: tuple[Meter, ...]
    tallies: tuple[Tally, ...]
    #: what stays one rank's own
    rest: tuple[str, ...]
    #: what is computed again of numbers of all ranks
    again: tuple[Again, ...] = ()
    #: arrays with a row for each sample, which any rank has written, by form
    rows: tuple[tuple[str, str], ...] = ()
    #: arrays of which each rank has written some rows, and that cannot be put together
    holes: tuple[str, ...] = ()
    #: lists with an entry for each batch of those that are dealt out whole
    ordered: tuple[str, ...] = ()


def kept(facts: Facts, loop: LoopFacts) -> Kept:
    """What is kept in lists, dicts, arrays and meters, by what can be done with it."""
    otherwise = altered(facts, loop, by=OTHERWISE)
    counted = [t for t in tallies(facts, loop) if _can_be_sent(facts, t)]
    counted = [t for t in counted if t.form == "entries" or t.target not in otherwise]
    again = () if loop.dealt else computed_again(facts, loop, frozenset(t.target for t in counted))
    names = collected(facts, loop, frozenset(name for a in again for name in a.reads))
    ordered = [name for name in batch_lists(facts, loop) if name in names]
    lists = [name for name in mean_lists(facts, loop) if base_of(name) in names and name not in ordered]
    held = [m for m in meters(facts, loop) if base_of(m.target) in names]
    counted = [t for t in counted if t.target not in lists and t.target not in ordered]
    whole = {*ordered, *holders_of_lists(facts, loop), *(base_of(m.target) for m in held)}
    whole |= {t.target for t in counted}
    made = [] if loop.dealt else left_over(facts, loop)
    whole |= {a.name for a in again}
    idle = _fed_elsewhere(facts, loop)
    stores = {name: form for name, form in row_stores(facts, loop).items() if name in names}
    rows = [(n, f) for n, f in stores.items() if f and n not in otherwise and _goes_over(facts) and n not in whole]
    holes = [n for n in stores if n not in dict(rows) and n not in whole and n not in idle]
    whole |= set(stores)
    rest = [name for name in dict.fromkeys((*names, *made)) if name not in whole and name not in idle]
    lists = [name for name in lists if name not in idle]
    held = [m for m in held if m.target not in idle and base_of(m.target) not in idle]
    counted = [t for t in counted if t.target not in idle]
    return Kept(
        tuple(lists), tuple(held), tuple(counted), tuple(rest), again, tuple(rows), tuple(holes), tuple(ordered)
    )


def _fed_elsewhere(facts: Facts, loop: LoopFacts) -> set[str]:
    """`if phase == "val": answers.append(...)` of a loop that trains in another phase: nothing of the training."""
    trains: dict[str, bool] = {}
    if loop.dealt:
        return set()
    for e in facts.flow.log.of("method", "call", "augment", "store"):
        holder = holder_of(e) if e.frame is loop.frame and loop.node in e.frame.source.ancestors(e.stmt) else None
        if holder is not None:
            name = e.frame.source.code(holder)
            read = (o for lp in e.loops if lp.node is loop.node for o in read_by(lp.iterates))
            trains[name] = trains.get(name, False) or any(o in facts.roles.training_loaders for o in read)
    return {name for name, any_of_training in trains.items() if not any_of_training}


def needed(facts: Facts, loop: LoopFacts) -> frozenset[str]:
    """What is read where something is computed again behind the loop."""
    return frozenset(name for a in kept(facts, loop).again for name in a.reads)


def brought_together(facts: Facts, loop: LoopFacts) -> set[str]:
    """The names that stand for numbers of all ranks once the planned reductions stand behind a training loop."""
    found = kept(facts, loop)
    sums = {a.target for a in loop.accumulators if a.fresh and (a.read_after or a.target in needed(facts, loop))}
    sums |= {a.name for a in found.again}
    sums |= {name for name, _ in found.rows}
    return sums | {*found.lists, *found.ordered, *(m.target for m in found.meters), *(t.target for t in found.tallies)}


def together(facts: Facts) -> frozenset[tuple[int, str]]:
    """Those names of all training loops of a script that is converted, by the frames of the loops."""
    return facts.cached("together", _together)


def _together(facts: Facts) -> frozenset[tuple[int, str]]:
    loops = [lp for lp in facts.cached("loops", loop_facts) if lp.training and facts.editable(lp.source)]
    return frozenset((id(lp.frame), name) for lp in loops for name in brought_together(facts, lp))


def _can_be_sent(facts: Facts, tally: Tally) -> bool:
    """Arrays lie on the CPU or on the GPU: the group must have a backend for both."""
    return tally.form not in ("numpy", "tensor") or _goes_over(facts)


def _goes_over(facts: Facts) -> bool:
    setup = facts.cached("setup", find_setup)
    return isinstance(setup, SetUp) and not setup.accelerator
