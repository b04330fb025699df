"""A loop that evaluates in, whether it drops the dimension of a batch of one sample out: `model(x).squeeze()`.

A squeeze without a dimension takes away every dimension of size 1. The whole set may never have a batch of one sample;
a rank's share of it may end in one, and then an error, or a number broadcast over the batch, comes of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.contents import constants, modules, origins
from ddpify.facts.frames import Event
from ddpify.facts.loops import LoopFacts
from ddpify.facts.shares import line_of
from ddpify.facts.values import Ext, FromBatch, FromForward, Func, Module
from ddpify.source import Source, walk

if TYPE_CHECKING:
    from ddpify.facts import Facts


def drops_dimension(facts: Facts, loop: LoopFacts, size: cst.BaseExpression | None) -> str:
    """How the loop, or a model that it calls, does so; "" where neither does, or every batch is one sample anyway."""
    if size is not None and constants(facts.flow.values.get(size, ())) == [1]:
        return ""
    for source, call in (*_in_body(facts, loop), *_in_models(facts, loop)):
        line, code = line_of(facts, source, call), source.code(call).split("\n")[0]
        return (
            f"{line} squeezes every dimension of size 1 (`{code}`), that of a batch of one sample too, and the last "
            "batch of a rank may be one; with a dimension, as in `.squeeze(1)`, it is shared out"
        )
    return ""


def _in_body(facts: Facts, loop: LoopFacts) -> Iterator[tuple[Source, cst.Call]]:
    for node in walk(loop.node.body):
        squeezed = _squeezed(facts, node)
        if squeezed is not None and any(
            isinstance(o, (FromBatch, FromForward)) for o in origins(facts.flow.values.get(squeezed, ()))
        ):
            assert isinstance(node, cst.Call)
            yield loop.source, node


def _in_models(facts: Facts, loop: LoopFacts) -> Iterator[tuple[Source, cst.Call]]:
    called = (e for e in facts.flow.log.of("forward") if e.obj is not None and _is_under(e, loop))
    seen: set[int] = set()
    for e in called:
        assert e.obj is not None
        for module in modules((e.obj,)):
            yield from _in_forward(facts, module, seen)


def _is_under(e: Event, loop: LoopFacts) -> bool:
    return any(lp.node is loop.node for around in e.all_loops() for lp in around)


def _in_forward(facts: Facts, module: Module, seen: set[int]) -> Iterator[tuple[Source, cst.Call]]:
    if id(module) in seen:
        return
    seen.add(id(module))
    for func in module.cls.member("forward") if module.cls is not None else ():
        if isinstance(func, Func):
            for node in walk(func.node.body):
                if isinstance(node, cst.Call) and _squeezed(facts, node) is not None:
                    yield func.source, node
    inner = () if module.inner is None else (module.inner,)
    for value in (inner, *module.fields.values(), *module.parts):
        for part in modules(value):
            yield from _in_forward(facts, part, seen)


def _squeezed(facts: Facts, node: cst.CSTNode) -> cst.BaseExpression | None:
    """`x` of `x.squeeze()`, `torch.squeeze(x)` and `np.squeeze(x)`, which name no dimension."""
    if not isinstance(node, cst.Call) or not isinstance(node.func, (cst.Attribute, cst.Name)):
        return None
    known = [o.name for o in facts.flow.values.get(node.func, ()) if isinstance(o, Ext)]
    if any(name in ("torch.squeeze", "numpy.squeeze") for name in known):
        return node.args[0].value if len(node.args) == 1 else None
    if isinstance(node.func, cst.Attribute) and node.func.attr.value == "squeeze" and not node.args:
        return node.func.value
    return None
