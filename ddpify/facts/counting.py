"""A loop in, what counts its turns out: its variable, or a name that the script adds one to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

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


def _targets(node: cst.CSTNode) -> list[cst.CSTNode]:
    match node:
        case cst.AssignTarget(target=target) | cst.AugAssign(target=target) | cst.AnnAssign(target=target):
            return list(walk(target))
        case cst.For(target=target) | cst.NamedExpr(target=target):
            return list(walk(target))
    return []


def first_statement(node: cst.For | cst.While) -> cst.CSTNode:
    first = node.body.body[0]
    return first.body[0] if isinstance(first, cst.SimpleStatementLine) else first
