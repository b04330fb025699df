"""Optimizers that call a closure in, the losses that the closures return out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.dependencies import own_nodes
from ddpify.facts.values import Func, Optimizer
from ddpify.source import Source

if TYPE_CHECKING:
    from ddpify.facts import Facts


def searched_returns(facts: Facts) -> list[tuple[Source, cst.Return]]:
    """`return loss` of closures that LBFGS calls as often as the losses ask for."""
    found: dict[int, tuple[Source, cst.Return]] = {}
    for e in facts.flow.log.of("method"):
        if e.name != "step" or not isinstance(e.obj, Optimizer) or not e.obj.name.endswith("LBFGS"):
            continue
        for func in e.value:
            if isinstance(func, Func) and isinstance(func.node, cst.FunctionDef):
                for node in own_nodes(func.node.body):
                    if isinstance(node, cst.Return) and node.value is not None:
                        found[id(node)] = (func.source, node)
    return list(found.values())
