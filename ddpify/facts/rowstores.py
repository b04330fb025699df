"""A training loop in, the arrays out that it writes row by row: each rank writes the rows of its own samples only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.contents import is_of_batches
from ddpify.facts.dependencies import bound_names, read_names
from ddpify.facts.frames import Event
from ddpify.facts.loops import LoopFacts, uses_of
from ddpify.facts.starts import names, start_of
from ddpify.facts.values import Dict, Seq
from ddpify.source import walk

if TYPE_CHECKING:
    from ddpify.facts import Facts

_KEEPS = ("to", "cuda", "cpu", "float", "double", "long")


def row_stores(facts: Facts, loop: LoopFacts) -> dict[str, str]:
    """`losses` of `losses[index] = loss.detach()`, and of `outs[i:i + n] = out`, by what can be done with it.

    `numpy`, `tensor`: it begins as zeros right before the loop, a row has one place whatever the rank, and nothing else
    is done with it in the loop, so that the rows of all ranks can be put into one; "" where they cannot.
    """
    inside = {id(n) for n in walk(loop.node.body)}
    stores: dict[str, list[Event]] = {}
    for e in loop.frame.events:
        if e.kind == "store" and id(e.node) in inside and isinstance(e.node, cst.Subscript):
            if isinstance(e.obj, (Dict, Seq)):
                continue  # numbers by name
            stores.setdefault(loop.source.code(e.node.value), []).append(e)
    found: dict[str, str] = {}
    for name, events in stores.items():
        placed = [_place(facts, loop, e) for e in events]
        if "" in placed:
            continue
        start = start_of(facts, loop, name)
        form = _zeros(facts, start[1]) if start is not None else ""
        alone = name.isidentifier() and len(uses_of(loop.node.body, name)) == len({id(e.stmt) for e in events})
        found[name] = form if alone and "moving" not in placed else ""
    return found


def _place(facts: Facts, loop: LoopFacts, event: Event) -> str:
    """Where a store goes: to a row that is the sample's own ("own"), or to the next ones ("moving"); "" to others."""
    assert isinstance(event.node, cst.Subscript)
    first = event.node.slice[0].slice
    if isinstance(first, cst.Slice):
        if not is_of_batches(event.value):
            return ""
        turn = bound_names(loop.node.target) if loop.dealt and not loop.drawn else frozenset[str]()
        bounds = [b for b in (first.lower, first.upper) if b is not None]
        read = frozenset().union(*(read_names(b) for b in bounds))
        return "own" if read & turn else "moving" if read else ""
    assert isinstance(first, cst.Index)
    if not is_of_batches(facts.flow.values.get(first.value, ())) or not is_of_batches(event.value):
        return ""
    return "own" if _is_place(loop, first.value) else "moving"


def _is_place(loop: LoopFacts, index: cst.BaseExpression) -> bool:
    """Whether an item of the batch is for finding places only: labels and users go into the loss, or the model."""
    read = {name.partition(".")[0] for name in read_names(index)} & bound_names(loop.node.target)
    inside = [n for n in walk(loop.node.body) if isinstance(n, cst.Name) and n.value in read]
    return bool(read) and not any(isinstance(above, cst.Arg) for n in inside for above in _up_to_subscript(loop, n))


def _up_to_subscript(loop: LoopFacts, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """What stands above a name, as far as the item that is picked by it."""
    for above in loop.source.ancestors(node):
        if above is loop.node or isinstance(above, cst.SubscriptElement):
            return
        yield above


def _zeros(facts: Facts, start: cst.BaseExpression) -> str:
    """`torch.zeros(n)`, `np.zeros((n, 3))`: a row that nobody writes is told by them."""
    if not isinstance(start, cst.Call):
        return ""
    made = names(facts, start.func)
    if isinstance(start.func, cst.Attribute) and start.func.attr.value in _KEEPS and not made:
        return _zeros(facts, start.func.value)
    types = [a.value for a in start.args if a.keyword is not None and a.keyword.value == "dtype"]
    if any("bool" in name or name == "object" for t in types for name in _words(t)):
        return ""
    return "tensor" if "torch.zeros" in made else "numpy" if "numpy.zeros" in made else ""


def _words(node: cst.BaseExpression) -> set[str]:
    return {n.value for n in (node, *walk(node)) if isinstance(n, cst.Name)}
