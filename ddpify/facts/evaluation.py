"""Loops in, the way in which each evaluation loader is best read by several ranks out: shared by sample, or in full by each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ddpify.facts.metrics import LoopFacts, loop_facts
from ddpify.facts.sharding import LoaderFacts, loader_facts
from ddpify.facts.values import Loader, constants

if TYPE_CHECKING:
    from ddpify.facts import Facts


@dataclass(frozen=True, eq=False)
class Evaluation:
    """An evaluation loader: `by_sample` where each rank may take every world-th sample, else the reason why not."""

    loader: Loader
    known: LoaderFacts | None
    by_sample: bool
    reason: str
    loops: tuple[LoopFacts, ...]


def evaluations(facts: Facts) -> list[Evaluation]:
    """How each loader that is read without training can be shared."""
    loops: list[LoopFacts] = facts.cached("loops", loop_facts)  # type: ignore[assignment]
    found: list[Evaluation] = []
    for loader in facts.roles.evaluation_loaders:
        over = tuple(lp for lp in loops if lp.loader is loader)
        known = loader_facts(facts, loader)
        reason = _reason(facts, loader, known, over)
        found.append(Evaluation(loader, known, not reason, reason, over))
    return found


def _reason(facts: Facts, loader: Loader, known: LoaderFacts | None, over: tuple[LoopFacts, ...]) -> str:
    if known is None or known.source is not facts.source:
        return "the loader is made in another file"
    if known.problem:
        return known.problem
    if loader.arguments.get("sampler") and constants(loader.arguments["sampler"]) != [None]:
        return "it has a sampler of its own"
    if not known.is_simple:
        return "its dataset has no name of its own"
    if known.drop_last is not False:
        return "it drops its last batch"
    if known.splat is not None and loader.unknown_splat:
        return "its arguments are known at run time only"
    if not over:
        return "it is read in a way that could not be followed"
    shared = _shared(facts, loader, over)
    for loop in over:
        if loop.problem:
            return loop.problem
        if not any(a.read_after for a in loop.accumulators):
            return "nothing of it is added up"
    return shared


def _shared(facts: Facts, loader: Loader, over: tuple[LoopFacts, ...]) -> str:
    """One text of a loop may serve several loaders: all of them must agree."""
    loops: list[LoopFacts] = facts.cached("loops", loop_facts)  # type: ignore[assignment]
    for loop in over:
        if any(other.node is loop.node and other.training for other in loops):
            return "the same loop trains in another call"
        others = {other.loader for other in loops if other.node is loop.node and other.loader is not loader}
        for other in others:
            problem = loader_facts(facts, other) if isinstance(other, Loader) else None
            if problem is None or problem.problem or not problem.is_simple or problem.drop_last is not False or problem.source is not facts.source:
                return "the same loop reads another loader, which cannot be shared out"
    return ""
