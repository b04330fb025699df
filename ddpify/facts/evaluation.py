"""Loops in, how each evaluation loader is read by several ranks out: by sample, by whole batches, or in full."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.contents import constants
from ddpify.facts.dropped import drops_dimension
from ddpify.facts.fixedsize import counts_on_size
from ddpify.facts.loops import LoopFacts
from ddpify.facts.metrics import loop_facts
from ddpify.facts.roles import loaders_in
from ddpify.facts.sharding import LoaderFacts, loader_facts
from ddpify.facts.shares import line_of
from ddpify.facts.summaries import loader_argument
from ddpify.facts.values import Ext, Loader

if TYPE_CHECKING:
    from ddpify.facts import Facts


@dataclass(frozen=True, eq=False)
class Evaluation:
    """An evaluation loader.

    `mode` is sample (each rank takes every world-th sample), batch (every world-th batch) or all; `reason` why.
    """

    loader: Loader
    known: LoaderFacts | None
    mode: str
    reason: str
    loops: tuple[LoopFacts, ...]
    batch_size: cst.BaseExpression | None = None


def evaluations(facts: Facts) -> list[Evaluation]:
    """How each loader that is read without training can be shared."""
    loops = facts.cached("loops", loop_facts)
    found = [
        _evaluation(facts, loader, tuple(lp for lp in loops if lp.loader is loader))
        for loader in facts.roles.evaluation_loaders
    ]
    return _agree(found, loops)


def _evaluation(facts: Facts, loader: Loader, over: tuple[LoopFacts, ...]) -> Evaluation:
    known = loader_facts(facts, loader)
    reason = _reason(facts, loader, known, over)
    size = _batch_size(known) if known is not None else None
    if reason:
        return Evaluation(loader, known, "all", reason, over)
    assert known is not None
    if taken := _taken(facts, loader):
        # a rank without a batch would have none to take, and a shard's first batch is another one
        return Evaluation(loader, known, "all", f"{taken} takes a batch by itself", over)
    if dropped := next((how for lp in over if (how := drops_dimension(facts, lp, size))), ""):
        return Evaluation(loader, known, "all", dropped, over)
    per_batch = next((lp.per_batch for lp in sorted(over, key=lambda lp: lp.peeks) if lp.per_batch), "") or (
        "it drops its last batch" if known.drop_last is not False else ""
    )
    per_batch = per_batch or next((how for lp in over if (how := counts_on_size(lp, known.source, size))), "")
    if not per_batch and _by_options(known):
        per_batch = "its arguments are known at run time only"
    if not per_batch:
        return Evaluation(loader, known, "sample", "", over)
    if entry := _by_sample(over):
        return Evaluation(loader, known, "all", f"{per_batch}, and `{entry}` gets an entry for each sample", over)
    if known.splat is not None and _is_torchs(facts, known):
        asked = _asked(facts, loader)
        return Evaluation(loader, known, "all" if asked else "batch", asked or per_batch, over)
    if size is None or known.splat is not None or known.drop_last is None:
        return Evaluation(loader, known, "all", per_batch + ", and its batches are made at run time", over)
    return Evaluation(loader, known, "batch", per_batch, over, size)


def _by_options(known: LoaderFacts) -> bool:
    """`DataLoader(data, **options)`, of options that are known at run time only: it is made, and then made again."""
    return known.splat is not None and known.loader.unknown_splat


def _asked(facts: Facts, loader: Loader) -> str:
    """`loader.batch_size`: the line that asks for what a loader with whole batches of its own does not know."""
    for source in facts.project.files():
        for n in source.of(cst.Attribute):
            if n.attr.value in ("batch_size", "sampler", "drop_last") and loader in loaders_in(
                facts.flow.values.get(n.value, ())
            ):
                return f"{line_of(facts, source, n)} asks for `{source.code(n)}`"
    return ""


def _is_torchs(facts: Facts, known: LoaderFacts) -> bool:
    """Whether it is a DataLoader of torch itself; what another class does besides would be lost."""
    held = facts.flow.values.get(known.call.func, ())
    return bool(held) and all(isinstance(o, Ext) and o.name.startswith("torch.utils.data.") for o in held)


def _taken(facts: Facts, loader: Loader) -> str:
    """`next(iter(loader))`: the line that takes one batch, "" where there is none."""
    for e in facts.flow.log.of("external"):
        if e.name == "builtins.next" and loader in loaders_in(e.value):
            return line_of(facts, e.frame.source, e.stmt)
    return ""


def _agree(found: list[Evaluation], loops: list[LoopFacts]) -> list[Evaluation]:
    """One text of a loop may serve several loaders, one call may make several: all of them are read in the same way."""
    training = {id(lp.node) for lp in loops if lp.training}
    for _ in found:
        modes: dict[int, set[str]] = {}
        for e in found:
            for place in _places(e):
                modes.setdefault(place, set()).add(e.mode)
        # the training loader read for its accuracy: its shards add up like an evaluation's, where the loop is a sum
        # over samples
        others = {
            id(lp.node)
            for lp in loops
            if not any(lp.loader is e.loader for e in found) and (lp.training or lp.problem or lp.per_batch)
        }
        changed = False
        for at, e in enumerate(found):
            here = {e.mode}.union(*(modes[place] for place in _places(e)))
            mixed = any(id(lp.node) in training or id(lp.node) in others for lp in e.loops)
            if e.mode != "all" and (mixed or "all" in here):
                found[at] = replace(
                    e,
                    mode="all",
                    reason="the same loop trains in another call"
                    if mixed
                    else "the same loop reads a loader that cannot be shared out",
                )
                changed = True
            elif e.mode == "sample" and "batch" in here:
                size = _batch_size(e.known) if e.known is not None else None
                usable = size is not None and e.known is not None and e.known.splat is None and not _by_sample(e.loops)
                found[at] = replace(
                    e,
                    mode="batch" if usable else "all",
                    reason="the same loop adds up values per batch",
                    batch_size=size,
                )
                changed = True
        if not changed:
            break
    return found


def _by_sample(over: tuple[LoopFacts, ...]) -> str:
    """A list with an entry for each sample, and no name for the loader, whose batches tell the order of them."""
    held = [lp.held for lp in over if lp.held is not None and not lp.held.loader]
    return next((name for h in held for name in h.by_sample), "")


def _places(e: Evaluation) -> list[int]:
    """The text of an evaluation: its loops, and the call that makes its loader."""
    return [*(id(lp.node) for lp in e.loops), *([id(e.known.call)] if e.known is not None else [])]


def _batch_size(known: LoaderFacts) -> cst.BaseExpression | None:
    """The batch size, where it can be written a second time."""
    for at, arg in enumerate(known.call.args):
        if loader_argument(at, arg) == "batch_size":
            return arg.value
    return None


def _reason(facts: Facts, loader: Loader, known: LoaderFacts | None, over: tuple[LoopFacts, ...]) -> str:
    if known is None or not facts.editable(known.source):
        return "the loader is made in another file"
    if known.problem:
        return known.problem
    if any(x.call is loader.call for x in facts.roles.training_loaders):
        return "the same DataLoader(...) makes the training loader"
    if known.draws is not None and known.draws.how == "dataset":
        return "it is a stream"
    if loader.arguments.get("sampler") and constants(loader.arguments["sampler"]) != [None] and known.plain is None:
        return "it has a sampler of its own"
    if known.draws is not None or (known.plain is not None and known.plain.path != "sampler"):
        return "it has a batch sampler of its own"
    if not known.is_simple and not isinstance(known.dataset, cst.Call):
        return "its dataset has no name of its own"
    if any(a.star == "*" for a in known.call.args) or (_by_options(known) and not _is_torchs(facts, known)):
        return "its arguments are known at run time only"
    if not over:
        return "it is read in a way that could not be followed"
    for loop in over:
        if loop.problem:
            return loop.problem
        if loop.reduces:
            continue
        if not loop.peeks and loop.held is None and not any(a.read_after for a in loop.accumulators):
            return "nothing of it is added up"
    return "" if any(not loop.peeks for loop in over) else "only its first batch is looked at"
