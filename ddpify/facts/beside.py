"""An event in, whether it happens instead of the training out: `if args.submit: write_results(net); return`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.frames import Event, Frame
from ddpify.facts.ranks import ranks

if TYPE_CHECKING:
    from ddpify.facts import Facts

Way = list[tuple[Frame, cst.CSTNode]]


def instead_of_training(facts: Facts, event: Event) -> bool:
    """Whether every way to an event passes a branch that ends before the training, and in which no rank is asked for.

    One process does so: ranks are started for the sake of the training.
    """
    trained = facts.cached("trained_at", _trained_at)
    return bool(trained) and all(any(_ends_before(facts, trained, f, n) for f, n in way) for way in _ways(event))


def _ways(event: Event) -> list[Way]:
    """The functions on each way that leads to an event, with the place in each."""
    own = (event.frame, event.node)
    return [[*((e.frame, e.call) for e in chain), own] for chain in event.frame.chains(8)]


def _trained_at(facts: Facts) -> dict[int, list[cst.CSTNode]]:
    """The functions that train, by id, with the places in them that lead to it."""
    found: dict[int, list[cst.CSTNode]] = {}
    for b in facts.roles.backwards:
        for way in _ways(b):
            for frame, node in way:
                found.setdefault(id(frame.node), []).append(node)
    return found


def _ends_before(facts: Facts, trained: dict[int, list[cst.CSTNode]], frame: Frame, node: cst.CSTNode) -> bool:
    source = frame.source
    places = [n for n in trained.get(id(frame.node), ()) if n in source.parents]
    below = node
    for above in source.ancestors(node) if places else ():
        if isinstance(above, cst.FunctionDef):
            return False
        if isinstance(above, cst.If) and below is above.body and _leaves(above.body):
            end = source.span(above).end
            behind = all(source.span(n).start > end for n in places)
            if behind and not ranks(facts.flow).single.is_distributed(above.body):
                return True
        below = above
    return False


def _leaves(body: cst.BaseSuite) -> bool:
    last = body.body[-1] if body.body else None
    return isinstance(last, cst.SimpleStatementLine) and isinstance(last.body[-1], cst.Return)
