"""Training loops in, numbers of a step's own batch out that the next loss goes by: `k += 0.1 * gap.item()`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.contents import is_of_batches
from ddpify.facts.dependencies import Binding, bindings, carried, closure, read_names
from ddpify.facts.levels import levels
from ddpify.source import Source, walk

if TYPE_CHECKING:
    from ddpify.facts import Facts

_NUMBERS = frozenset({"item", "tolist", "__float__"})


def controlled(facts: Facts) -> Iterator[tuple[Source, cst.CSTNode, str, cst.Call]]:
    """The statement that leaves the number for the next step, its name, and the call that takes it from the batch."""
    passes = {id(p.loop.node) for p in facts.roles.passes if p.training}
    done: set[tuple[int, str]] = set()
    for event in facts.roles.backwards:
        func = event.node.func if isinstance(event.node, cst.Call) else None
        loss = func.value if isinstance(func, cst.Attribute) else None
        for level in levels(facts, event, read_names(loss)) if loss is not None else ():
            for loop in level.loops:
                if id(loop.node) not in passes or not isinstance(loop.node, (cst.For, cst.While)):
                    continue
                source, own = level.frame.source, bindings(loop.node.body)
                for name, node in carried(level.names, loop.node, source):
                    call = _taken(facts, name, own)
                    if call is not None and (id(loop.node), name) not in done:
                        done.add((id(loop.node), name))
                        yield source, node, name, call


def _taken(facts: Facts, name: str, own: tuple[Binding, ...]) -> cst.Call | None:
    """`gap.item()` in what the name is computed from."""
    known = closure({name}, own)
    for binding in own:
        if not binding.targets & known or isinstance(binding.node, (cst.For, cst.CompFor)):
            continue
        for part in walk(binding.node):
            if isinstance(part, cst.Call) and _is_number(part) and is_of_batches(facts.flow.values.get(part, ())):
                return part
    return None


def _is_number(call: cst.Call) -> bool:
    return isinstance(call.func, cst.Attribute) and call.func.attr.value in _NUMBERS
