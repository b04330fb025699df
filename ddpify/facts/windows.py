"""A list that a training loop fills in, what takes an epoch's part of it by the number of one process's steps out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.batchsize import origin_of
from ddpify.facts.loops import LoopFacts
from ddpify.facts.values import Instance, Loader, Sampler
from ddpify.facts.wholes import is_whole
from ddpify.source import walk

if TYPE_CHECKING:
    from ddpify.facts import Facts


def windows(facts: Facts, loop: LoopFacts, name: str) -> Iterator[cst.BaseExpression]:
    """`steps` of `losses[-steps:]` behind the loop, where as many batches are what a sampler was told to draw.

    Each rank has a part of them, and the list would give entries of the epoch before, too. Any other number is a
    window that is the same on one rank as on many.
    """
    end = loop.source.span(loop.node.body).end
    for node in walk(loop.frame.node):
        match node:
            case cst.Subscript(
                value=held,
                slice=[
                    cst.SubscriptElement(
                        slice=cst.Slice(
                            lower=cst.UnaryOperation(operator=cst.Minus(), expression=steps), upper=None, step=None
                        )
                    )
                ],
            ) if loop.source.code(held) == name and loop.source.span(node).start > end:
                yield from [steps] if _is_an_epoch(facts, loop, steps) else []


def _is_an_epoch(facts: Facts, loop: LoopFacts, steps: cst.BaseExpression) -> bool:
    loader = loop.loader
    if not isinstance(loader, Loader):
        return False
    mine = origin_of(facts, loop.frame, steps)
    held = (o for key in ("batch_sampler", "sampler") for o in loader.arguments.get(key, ()))
    for sampler in held:
        site = sampler.site if isinstance(sampler, (Sampler, Instance)) else None
        args = site.node.args if site is not None and isinstance(site.node, cst.Call) else ()
        where = site.frame if site is not None else None
        if where is not None and mine is not None and any(origin_of(facts, where, a.value) == mine for a in args):
            return True
    return is_whole(facts, loader, steps, loop.frame)
