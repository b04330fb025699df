"""A sum over the batches of a training loop in, whether what divides it counts the whole training set, out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.batchsize import is_own
from ddpify.facts.contents import origins
from ddpify.facts.definitions import definitions
from ddpify.facts.frames import Frame
from ddpify.facts.intervals import is_len, sets_of, way_of
from ddpify.facts.loops import Accumulator, LoopFacts
from ddpify.facts.sharding import loader_facts
from ddpify.facts.values import FromLength, Loader
from ddpify.facts.worldsize import counts_ranks
from ddpify.source import walk

if TYPE_CHECKING:
    from ddpify.facts import Facts


def by_whole_set(facts: Facts, loop: LoopFacts, a: Accumulator) -> bool:
    """`total / len(dataset)`, `total / (len(dataset) // batch_size)`, also where another function divides.

    `len(loader)` is what one rank has. The others count what all ranks have together, and so has the sum to.
    """
    if not isinstance(loop.loader, Loader) or loop.dealt:
        return False
    divisors = [*_divisors(facts, loop, a)]
    return bool(divisors) and all(is_whole(facts, loop.loader, d, frame) for d, frame in divisors)


def _divisors(facts: Facts, loop: LoopFacts, a: Accumulator) -> Iterator[tuple[cst.BaseExpression, Frame]]:
    """What the sum is divided by behind the loop, and by those who call the loop's function."""
    end = loop.source.span(loop.node.body).end
    for frame in (loop.frame, *{id(e.frame): e.frame for e in loop.frame.entries}.values()):
        for node in walk(frame.node):
            match node:
                case cst.BinaryOperation(left=numerator, operator=cst.Divide() | cst.FloorDivide(), right=divisor):
                    pass
                case cst.AugAssign(target=numerator, operator=cst.DivideAssign(), value=divisor):
                    pass
                case _:
                    continue
            parts = (numerator, *walk(numerator))
            if frame is loop.frame:
                if loop.source.span(node).start > end and any(loop.source.code(n) == a.target for n in parts):
                    yield divisor, frame
            elif any(_is_sum(facts, loop, a, n, frame) for n in parts):
                yield divisor, frame


def _is_sum(facts: Facts, loop: LoopFacts, a: Accumulator, part: cst.CSTNode, frame: Frame) -> bool:
    """What another function has of the loop's function: `loss = train(loader)`."""
    return any(
        where.node is loop.frame.node and isinstance(at, (cst.Name, cst.Attribute)) and loop.source.code(at) == a.target
        for at, where in _back(facts, part, frame)
    )


def _back(
    facts: Facts, node: cst.CSTNode, frame: Frame, index: int | None = None, depth: int = 6
) -> Iterator[tuple[cst.CSTNode, Frame]]:
    """An expression, and those that it has its value from, through names, parameters and calls."""
    yield node, frame
    for d in definitions(facts.flow).of(node, frame, index) if depth else ():
        yield from _back(facts, d.node, d.frame, d.index, depth - 1)


def _counts_the_same(facts: Facts, loader: Loader, divisor: cst.BaseExpression, frame: Frame) -> bool:
    """`len(train_set)` on the way to a number, where nothing else is known of what the loader is made of."""
    known = loader_facts(facts, loader)
    if known is None or known.dataset is None or loader.site.frame is None:
        return False
    mine = {id(at) for at, _ in _back(facts, known.dataset, loader.site.frame) if isinstance(at, cst.Call)}
    asked = [
        (part.args[0].value, where)
        for part, where in way_of(facts, divisor, frame)
        if isinstance(part, cst.Call) and len(part.args) == 1 and is_len(facts, part)
    ]
    return bool(asked) and all(any(id(n) in mine for n, _ in _back(facts, at, where)) for at, where in asked)


def is_whole(facts: Facts, loader: Loader, divisor: cst.BaseExpression, frame: Frame) -> bool:
    """Whether a number counts the samples or the batches of the whole training set."""
    lengths = [o.of for o in origins(facts.flow.values.get(divisor, ())) if isinstance(o, FromLength)]
    trained = {id(o) for o in sets_of(loader.dataset, 4)}
    # sizes[phase]: the length of the set of either phase
    mine = any(id(of) in trained for of in lengths) and not any(isinstance(of, Loader) for of in lengths)
    known = mine if lengths else _counts_the_same(facts, loader, divisor, frame)
    if not known or counts_ranks(facts, divisor, frame):
        return False
    if facts.global_batch != "keep":
        return True
    # the size that the script names stands for all ranks together: as many batches as one rank has
    return any(is_own(facts, loader, n) for part, _ in way_of(facts, divisor, frame) for n in (part, *walk(part)))
