"""A loop in, what counts its turns out: its variable, or a name that the script adds one to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.contents import data_of
from ddpify.facts.values import Ext, Iteration
from ddpify.source import Source, walk

if TYPE_CHECKING:
    from ddpify.facts import Facts


def counts(facts: Facts, node: cst.For) -> bool:
    """Whether a loop counts: `range(n)`, `tqdm(range(n))`, `trange(n)`, `enumerate(...)`, `itertools.count()`."""
    todo = list(facts.flow.values.get(node.iter, ()))
    while todo:
        obj = todo.pop()
        if isinstance(obj, Iteration):
            if obj.how in ("range", "enumerate"):
                return True
            todo.extend(o for part in obj.of for o in part)
    called = facts.flow.values.get(node.iter.func, ()) if isinstance(node.iter, cst.Call) else ()
    return any(isinstance(o, Ext) and o.name.endswith("count") for o in called)


def counter(source: Source, node: cst.While) -> str | None:
    """`while epoch < epochs:` with `epoch += 1` once in each turn, which nothing else in the loop sets."""
    written = [source.code(t) for n in walk(node.body) for t in _targets(n) if isinstance(t, (cst.Name, cst.Attribute))]
    for line in node.body.body:
        for stmt in line.body if isinstance(line, cst.SimpleStatementLine) else ():
            match stmt:
                case cst.AugAssign(target=target, operator=cst.AddAssign(), value=cst.Integer(value="1")):
                    name = source.code(target)
                    if written.count(name) == 1:
                        return name
    return None


def resumed(facts: Facts, source: Source, node: cst.For, name: str) -> str:
    """`args.start_epoch + epoch` of a loop that counts from 0 in every run: the epoch of all runs together, or ""."""
    first = [n for n in walk(node.iter) if isinstance(n, cst.Call) and _ranges(facts, n)]
    if len(first) != 1 or (len(first[0].args) > 1 and source.code(first[0].args[0].value) != "0"):
        return ""
    written = {source.code(t) for n in walk(node.body) for t in _targets(n)}
    for n in walk(node.body):
        match n:
            case cst.BinaryOperation(operator=cst.Add(), left=cst.Name(value=left), right=other) if left == name:
                pass
            case cst.BinaryOperation(operator=cst.Add(), left=other, right=cst.Name(value=right)) if right == name:
                pass
            case _:
                continue
        plain = isinstance(other, cst.Name) or (isinstance(other, cst.Attribute) and isinstance(other.value, cst.Name))
        if plain and source.code(other) not in written and _is_whole(facts, other):
            return source.code(n).strip("()")
    return ""


def _ranges(facts: Facts, call: cst.Call) -> bool:
    return any(isinstance(o, Ext) and o.name == "builtins.range" for o in facts.flow.values.get(call.func, ()))


def _is_whole(facts: Facts, node: cst.BaseExpression) -> bool:
    """A whole number, or what is read from a checkpoint where a run is resumed."""
    held = data_of(facts.flow.values.get(node, ()))
    return held is not None and held.form in ("int", "any")


def _targets(node: cst.CSTNode) -> list[cst.CSTNode]:
    match node:
        case cst.AssignTarget(target=target) | cst.AugAssign(target=target) | cst.AnnAssign(target=target):
            return list(_set_by(target))
        case cst.For(target=target) | cst.NamedExpr(target=target):
            return list(_set_by(target))
    return []


def _set_by(target: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """The names and attributes that get a value; `table[epoch]` sets no epoch."""
    match target:
        case cst.Tuple(elements=elements) | cst.List(elements=elements):
            for element in elements:
                yield from _set_by(element.value)
        case cst.Name() | cst.Attribute():
            yield target


def first_statement(node: cst.For | cst.While) -> cst.CSTNode:
    first = node.body.body[0]
    return first.body[0] if isinstance(first, cst.SimpleStatementLine) else first
