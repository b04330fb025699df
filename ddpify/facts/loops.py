"""A loop over a loader in, what stands behind it out: which of its names are read there."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.assigned import assigned_names
from ddpify.facts.contents import is_of_batches
from ddpify.facts.frames import Event, Frame
from ddpify.facts.values import Obj
from ddpify.source import Source, children, walk

if TYPE_CHECKING:
    from ddpify.facts import Facts
    from ddpify.facts.heldout import HeldOut


@dataclass(frozen=True, eq=False)
class Accumulator:
    """A number or tensor that a loop adds to: `total += loss.item()`.

    `agg` says what is added: sum, size, mean, const or other.
    """

    target: str
    agg: str
    tensor: bool
    on_cpu: bool
    #: the number that it starts from is set before the loop, in the same pass of the loops around
    fresh: bool
    read_after: bool
    #: what is added
    added: tuple[cst.BaseExpression, ...] = ()
    #: a number for certain
    number: bool = False
    #: the loop over the epochs that it starts before, and is not used in but where it is added to
    whole: cst.For | cst.While | None = None


@dataclass(frozen=True, eq=False)
class BatchCount:
    """`n` of `n = len(loader)`, which gets another value behind the loop (`name`), or a place that does: `i + 1`."""

    node: cst.BaseExpression
    name: str
    #: how many batches this rank had
    value: str


@dataclass
class LoopFacts:
    """One loop over a loader, in one function."""

    loader: Obj
    node: cst.For
    frame: Frame
    source: Source
    training: bool
    start: Event
    accumulators: list[Accumulator] = field(default_factory=list)
    #: why the result of the loop cannot be put together from the ranks' shares, "" where it can
    problem: str = ""
    #: no loader: the loop cuts its batches by hand, and its passes are dealt out to the ranks
    dealt: bool = False
    #: each pass draws its batch, and every rank makes all of the passes
    drawn: bool = False
    #: only the first batch is looked at
    peeks: bool = False
    #: the script itself adds up over ranks where there are any (a helper with all_reduce)
    reduces: bool = False
    #: why it is a sum over batches only, not over samples, "" where it is over samples
    per_batch: str = ""
    #: what an evaluation keeps beside its sums, where that can be brought together
    held: HeldOut | None = None
    #: the places behind the loop that use the number of its batches
    batch_counts: list[BatchCount] = field(default_factory=list)


def read_after(known: LoopFacts, target: str, inside: set[int]) -> bool:
    """Whether the function's text uses a name behind the loop (attributes are always taken to be)."""
    if "." in target:
        return True
    end = known.source.span(known.node.body).end
    scope = known.frame.node
    if any(id(n) not in inside and known.source.span(n).start > end for n in uses_of(scope, target)):
        return True
    return any(isinstance(n, cst.Global) and any(i.name.value == target for i in n.names) for n in walk(scope))


def read_elsewhere(facts: Facts, known: LoopFacts, target: str) -> bool:
    """Whether anything outside the loop's body reads `self.total`, by its last name, and does not set it."""
    last = target.rpartition(".")[2]
    inside = {id(n) for n in walk(known.node.body)}
    return any(
        n.attr.value == last and id(n) not in inside and not isinstance(s.parents.get(n), cst.AssignTarget)
        for s in facts.project.files()
        if f".{last}" in s.text
        for n in s.of(cst.Attribute)
    )


def uses_of(scope: cst.CSTNode, name: str) -> list[cst.Name]:
    """The places at which a scope's name stands, those of inner functions that have a local of that name left out."""
    found: list[cst.Name] = []
    todo = list(children(scope))
    while todo:
        node = todo.pop()
        if isinstance(node, (cst.FunctionDef, cst.Lambda)):
            params = [
                p.name.value for p in (*node.params.params, *node.params.kwonly_params, *node.params.posonly_params)
            ]
            if name in params or name in assigned_names(node):
                continue
        if isinstance(node, (cst.Attribute, cst.Arg)):
            todo.append(node.value)
        elif isinstance(node, cst.Name) and node.value == name:
            found.append(node)
        else:
            todo.extend(children(node))
    return found


def loaded_after(known: LoopFacts, name: str, inside: set[int]) -> bool:
    """The first thing that happens to a name behind the loop is a read."""
    end = known.source.span(known.node.body).end
    uses = [n for n in uses_of(known.frame.node, name) if id(n) not in inside and known.source.span(n).start > end]
    if not uses:
        return False
    first = min(uses, key=lambda n: known.source.span(n).start)
    parent = known.source.parents.get(first)
    stored = isinstance(parent, (cst.AssignTarget, cst.For, cst.CompFor)) or (
        isinstance(parent, cst.Element)
        and isinstance(known.source.parents.get(known.source.parents[parent]), (cst.AssignTarget, cst.For, cst.CompFor))
    )
    return not stored


def divides(source: Source, node: cst.CSTNode) -> bool:
    """`x / node` or `x /= node`"""
    parent = source.parents.get(node)
    if isinstance(parent, cst.BinaryOperation):
        return parent.right is node and isinstance(parent.operator, (cst.Divide, cst.FloorDivide))
    return isinstance(parent, cst.AugAssign) and parent.value is node and isinstance(parent.operator, cst.DivideAssign)


def counts_batches(facts: Facts, loop: LoopFacts, a: Accumulator) -> bool:
    """`step += 1` for every batch, whatever is in it: a number that goes on from epoch to epoch, alike on all ranks."""
    adds = [n for n in walk(loop.node) if isinstance(n, cst.AugAssign) and loop.source.code(n.target) == a.target]
    return a.agg == "const" and bool(adds) and all(_steadily(facts, loop, n) for n in adds)


def _steadily(facts: Facts, loop: LoopFacts, add: cst.AugAssign) -> bool:
    """`if (i + 1) % 4 == 0: step += 1`, not `if loss > 2: high += 1`"""
    for above in loop.source.ancestors(add):
        if above is loop.node:
            return True
        if isinstance(above, cst.Try):
            return False
        asked = above.test if isinstance(above, (cst.If, cst.While)) else getattr(above, "iter", None)
        if asked is not None and any(is_of_batches(facts.flow.values.get(n, ())) for n in (asked, *walk(asked))):
            return False
    return False
