"""A loop that evaluates in, the places that use the number of its batches out: it is added up over the ranks, too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.contents import constants
from ddpify.facts.frames import Event
from ddpify.facts.loops import BatchCount, LoopFacts, uses_of
from ddpify.facts.placing import statement_of
from ddpify.facts.roles import loaders_in
from ddpify.facts.talk import find_talk
from ddpify.facts.values import Iteration, Loader
from ddpify.source import Source

if TYPE_CHECKING:
    from ddpify.facts import Facts


def lengths(facts: Facts, loop: LoopFacts) -> tuple[list[BatchCount], str]:
    """What uses `len(loader)` behind the loop; and, where it is used otherwise, how that is called in a report."""
    found: list[BatchCount] = []
    talk = {id(t.call.node) for t in find_talk(facts)}
    reading = {id(e.frame) for e in facts.flow.log.of("loop") if loop.loader in loaders_in(e.value)}
    for e in facts.flow.log.of("external"):
        if e.name != "builtins.len" or loop.loader not in loaders_in(e.value) or not isinstance(e.node, cst.Call):
            continue
        if e.frame is loop.frame:
            count = _length(facts, loop, e.node)
            if count is None:
                return [], "the number of batches is used for more than a division behind the loop"
            found += [count] if count.name or count.value else []
        elif id(e.frame) not in reading and not _is_said(e, talk):
            return [], f"{_line(facts, e)} uses the number of its batches"
    return list({id(count.node): count for count in found}.values()), ""


def _line(facts: Facts, e: Event) -> str:
    source = e.frame.source
    return f"line {source.line(e.node)}" if source is facts.source else f"{source.path}:{source.line(e.node)}"


def _is_said(e: Event, talk: set[int]) -> bool:
    """`print(len(loader))`: a rank says how many it has, and computes nothing of it."""
    for above in e.frame.source.ancestors(e.node):
        if isinstance(above, cst.BinaryOperation) and not isinstance(above.operator, cst.Modulo):
            return False
        if id(above) in talk or isinstance(above, (cst.BaseSmallStatement, cst.BaseCompoundStatement)):
            return id(above) in talk
    return False


def _length(facts: Facts, loop: LoopFacts, call: cst.Call) -> BatchCount | None:
    """What a `len(loader)` of the loop's function is for; without name and value where it may stay as it is."""
    source, end = loop.source, loop.source.span(loop.node.body).end
    if _in_bar(facts, loop, call):
        return BatchCount(call, "", "")
    parent = source.parents.get(call)
    if source.span(call).start > end:  # n = len(loader) there: the sums are reduced before n has a value
        return BatchCount(call, "", source.code(call))
    if isinstance(parent, cst.Assign) and len(parent.targets) == 1 and isinstance(parent.targets[0].target, cst.Name):
        name = parent.targets[0].target
        uses = [n for n in uses_of(loop.frame.node, name.value) if n is not name]
        before = [n for n in uses if source.span(n).start < end and not _in_bar(facts, loop, n)]
        return None if before else BatchCount(name, name.value, name.value)
    return None


def _in_bar(facts: Facts, loop: LoopFacts, node: cst.CSTNode) -> bool:
    """`tqdm(loader, total=len(loader))`: the bar is rank 0's, and so is its length."""
    for above in loop.source.ancestors(node):
        if isinstance(above, cst.Call) and any(
            isinstance(o, Iteration) and o.how in ("progress", "range") for o in facts.flow.values.get(above, ())
        ):
            return True
        if isinstance(above, (cst.BaseSmallStatement, cst.BaseCompoundStatement)):
            return False
    return False


def counted_by_index(facts: Facts, loop: LoopFacts, inside: set[int]) -> list[BatchCount] | None:
    """`i + 1` behind `for i, batch in enumerate(loader)`; None where the index is used there in another way."""
    index = index_of(facts, loop)
    over = _length_of(facts, loop.source, loop.node.iter)
    if index is None or not over:
        return None
    source, end = loop.source, loop.source.span(loop.node.body).end
    first = _first(facts, loop.node.iter)
    found: list[BatchCount] = []
    for n in uses_of(loop.frame.node, index.value):
        if id(n) in inside or source.span(n).start <= end:
            continue
        count: cst.CSTNode | None = n if first == 1 else source.parents.get(n)
        if first == 0 and not _adds_one(count):
            return None
        if first not in (0, 1) or not isinstance(count, cst.BaseExpression):
            return None
        found.append(BatchCount(count, "", f"len({over})"))
    return found


def index_of(facts: Facts, loop: LoopFacts) -> cst.Name | None:
    """`i` of `for i, batch in enumerate(loader)`"""
    target = loop.node.target
    if not isinstance(target, cst.Tuple) or not isinstance(loop.node.iter, cst.Call):
        return None
    named = [getattr(o, "name", "") for o in facts.flow.values.get(loop.node.iter.func, ())]
    first = target.elements[0].value
    return first if "builtins.enumerate" in named and isinstance(first, cst.Name) else None


def _adds_one(node: cst.CSTNode | None) -> bool:
    if not isinstance(node, cst.BinaryOperation) or not isinstance(node.operator, cst.Add):
        return False
    return any(isinstance(side, cst.Integer) and side.evaluated_value == 1 for side in (node.left, node.right))


def _first(facts: Facts, call: cst.BaseExpression) -> object:
    """Where `enumerate(loader, 1)` begins."""
    args = call.args if isinstance(call, cst.Call) else ()
    given = next(
        (a for at, a in enumerate(args) if at == 1 or (a.keyword is not None and a.keyword.value == "start")), None
    )
    held = constants(facts.flow.values.get(given.value, ())) if given is not None else [0]
    return held[0] if held is not None and len(held) == 1 else None


def _length_of(facts: Facts, source: Source, node: cst.BaseExpression) -> str:
    """`loader` of `enumerate(tqdm(loader, desc="test"))`"""
    while isinstance(node, cst.Call) and node.args and not node.args[0].star:
        held = facts.flow.values.get(node, ())
        if not held or not all(isinstance(o, Iteration) and o.how in ("enumerate", "progress") for o in held):
            return ""
        node = node.args[0].value
    held = facts.flow.values.get(node, ())
    plain = isinstance(node, (cst.Name, cst.Attribute)) and bool(held)
    known = all(isinstance(o, Loader) or (isinstance(o, Iteration) and o.how == "progress" and o.of) for o in held)
    return source.code(node) if plain and known else ""


def loader_read(facts: Facts, loop: LoopFacts) -> str:
    """How the loop's function calls the loader itself, no bar around it; empty where it has no name for it."""
    name = _length_of(facts, loop.source, loop.node.iter)
    node = loop.node.iter
    while isinstance(node, cst.Call) and node.args:
        node = node.args[0].value
    held = facts.flow.values.get(node, ())
    return name if all(isinstance(o, Loader) for o in held) else ""


def says_on_bar(facts: Facts, source: Source, node: cst.CSTNode) -> bool:
    """Whether a name stands in `bar.set_postfix(...)` or `bar.desc = ...`, which is there for the moment only."""
    stmt = statement_of(source, node)
    match stmt:
        case cst.Expr(value=cst.Call(func=cst.Attribute(value=bar))):
            pass
        case cst.Assign(targets=[cst.AssignTarget(target=cst.Attribute(value=bar))]):
            pass
        case _:
            return False
    held = facts.flow.values.get(bar, ())
    return bool(held) and all(isinstance(o, Iteration) and o.how in ("progress", "range") for o in held)
