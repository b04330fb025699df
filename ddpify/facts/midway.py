"""A training loop in, its running numbers out that it shows while it runs: then they are rank 0's, of its shard."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.altered import fed, goes_on, of_shard
from ddpify.facts.collected import holders
from ddpify.facts.contents import data_of, origins
from ddpify.facts.dependencies import bindings, closure, read_names
from ddpify.facts.frames import Event
from ddpify.facts.loops import LoopFacts
from ddpify.facts.starts import base_of
from ddpify.facts.talk import find_talk
from ddpify.facts.values import FromLength, Heap, Iteration, Loader, Module, Optimizer, Thing, Value, Wrapped
from ddpify.source import walk

if TYPE_CHECKING:
    from ddpify.facts import Facts

_SAYS = frozenset({"print", "log"})
_ON_BAR = frozenset({"set_postfix", "set_postfix_str", "set_description", "set_description_str", "write"})


def shown_midway(facts: Facts, loop: LoopFacts) -> tuple[list[str], list[int]]:
    """The names of `print(f"{step}: {total / step}")` and `bar.set_postfix(loss=losses.avg)`, and the lines."""
    sums = [a for a in loop.accumulators if a.agg not in ("const", "size")]
    added = facts.flow.values
    running = {base_of(a.target) for a in sums if any(of_shard(facts, loop, added.get(n, ())) for n in a.added)}
    running |= {base_of(name) for name in holders(facts, loop) if not _is_model(loop, name)}
    running = {name for name in running - fed(loop) if goes_on(loop, name) and not _is_text(loop, name)}
    made = [b for b in bindings(loop.frame.node) if not b.targets & running]
    inside = {id(n) for n in walk(loop.node.body)}
    talk = {id(t.call.node) for t in find_talk(facts) if t.kind in _SAYS}
    found: dict[str, None] = {}
    lines: dict[int, None] = {}
    for e in loop.frame.events if running else ():
        if id(e.node) not in inside or not isinstance(e.node, cst.Call) or not _shows(e, talk):
            continue
        read = read_names(e.node)
        shown = sorted(running & closure(read, made))
        found.update(dict.fromkeys(shown))
        lines.update({loop.source.line(e.node): None} if shown else {})
    return list(found), list(lines)


def counts_shown(facts: Facts, loop: LoopFacts) -> list[cst.Name]:
    """`count` of `print(f"{count} of {len(data)}")`, where the loop does `count += len(x)`: the samples so far.

    Not where the message shows what was counted among them, too (`{right} of {count}`): that is rank 0's as well.
    """
    counts = {a.target for a in loop.accumulators if a.agg == "size" and a.target.isidentifier()}
    if not counts:
        return []
    others = {base_of(a.target) for a in loop.accumulators if a.agg not in ("size", "mean", "const")}
    inside = {id(n) for n in walk(loop.node.body)}
    talk = {id(t.call.node) for t in find_talk(facts) if t.kind in _SAYS}
    found: dict[int, cst.Name] = {}
    for e in loop.frame.events:
        if id(e.node) not in inside or not isinstance(e.node, cst.Call) or not _shows(e, talk):
            continue
        names = [n for n in walk(e.node) if isinstance(n, cst.Name) and n.value in counts]
        if not others & read_names(e.node) and all(_stands_alone(facts, loop, n) for n in names):
            found |= {id(n): n for n in names}
    return list(found.values())


def _stands_alone(facts: Facts, loop: LoopFacts, node: cst.CSTNode) -> bool:
    """Whether a number is shown as it is, or of a whole (`100 * count / len(data)`): no sum is divided by it."""
    above = loop.source.parents.get(node)
    while isinstance(above, cst.BinaryOperation):
        other = above.right if above.left is node else above.left
        if not isinstance(above.operator, (cst.Multiply, cst.Divide)) or not _is_whole(facts, other):
            return False
        if isinstance(above.operator, cst.Divide) and node is above.right:
            return False
        node, above = above, loop.source.parents.get(above)
    labelled = isinstance(above, cst.Arg) and above.keyword is node
    return isinstance(above, (cst.Arg, cst.Element, cst.FormattedStringExpression)) and not labelled


def _is_whole(facts: Facts, node: cst.BaseExpression) -> bool:
    """A literal, or the length of a dataset."""
    held = facts.flow.values.get(node, ())
    lengths = [isinstance(o, FromLength) and not isinstance(o.of, Loader) for o in origins(held)]
    return isinstance(node, (cst.Integer, cst.Float)) or (bool(lengths) and all(lengths))


def _held(loop: LoopFacts, name: str) -> Value:
    holder = loop.frame.scope.holder(name)
    return holder.names.get(name, ()) if holder is not None else ()


def _is_text(loop: LoopFacts, name: str) -> bool:
    """`message += "..."`: what goes into it is looked at by its own name."""
    known = data_of(_held(loop, name))
    return known is not None and known.form == "str"


def _is_model(loop: LoopFacts, name: str) -> bool:
    """`model` of `model.step(batch)`, an object that has the networks: what it shows is the step's own loss."""
    held = _held(loop, name)
    kinds = (Module, Wrapped, Optimizer)
    return any(isinstance(o, Heap) and any(isinstance(p, kinds) for v in o.fields.values() for p in v) for o in held)


def _shows(e: Event, talk: set[int]) -> bool:
    if e.kind == "external":
        return id(e.node) in talk or e.name == "wandb.log"
    if e.kind == "method":
        bar = isinstance(e.obj, Iteration) and e.name in _ON_BAR
        return id(e.node) in talk or bar or (isinstance(e.obj, Thing) and e.obj.name == "writer")
    return e.callee is not None and any(id(inner.node) in talk for inner in e.callee.events)
