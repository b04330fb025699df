"""A training loop in, its meters out: objects of a class that adds up `value * n` and `n` and keeps their quotient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.collected import given_to, holder_of
from ddpify.facts.contents import data_of
from ddpify.facts.dependencies import read_names
from ddpify.facts.frames import Event
from ddpify.facts.loops import LoopFacts, read_after
from ddpify.facts.metrics import is_fresh
from ddpify.facts.values import Class, Func, Instance
from ddpify.source import Source, walk

if TYPE_CHECKING:
    from ddpify.facts import Facts

#: what a class calls the method that adds a meter up over the ranks
METHOD = "all_reduce"


@dataclass(frozen=True, eq=False)
class Meter:
    """`update(self, val, n)` adds to the fields `sums`; `means` are the statements that compute others of them."""

    target: str
    cls: Class
    source: Source
    update: cst.FunctionDef
    me: str
    sums: tuple[str, ...]
    means: tuple[str, ...]
    #: its sums may be tensors
    tensor: bool


def meters(facts: Facts, loop: LoopFacts) -> list[Meter]:
    """The meters that begin anew before the loop, and are used behind it."""
    inside = {id(n) for n in walk(loop.node.body)}
    calls: dict[str, list[Event]] = {}
    others: set[str] = set()
    for e in loop.frame.events:
        holder = holder_of(e) if id(e.node) in inside else None
        if holder is not None:
            name = loop.source.code(holder)
            calls.setdefault(name, []).append(e)
            if e.kind != "call" or not isinstance(holder, cst.Name):
                others.add(name)
    found = [_meter(facts, name, events) for name, events in calls.items() if name not in others]
    return [
        m for m in found if m is not None and is_fresh(facts, loop, m.target) and read_after(loop, m.target, inside)
    ]


def _meter(facts: Facts, target: str, events: list[Event]) -> Meter | None:
    funcs = {id(e.obj.node): e.obj for e in events if isinstance(e.obj, Func)}
    func = next(iter(funcs.values()))
    cls = func.bound.cls if isinstance(func.bound, Instance) else None
    if len(funcs) != 1 or cls is None or _derived(cls) or cls.member(METHOD) or not facts.editable(func.source):
        return None
    if not isinstance(func.node, cst.FunctionDef) or not func.node.params.params:
        return None
    me = func.node.params.params[0].name.value
    sums, means = list[str](), list[str]()
    for stmt in _statements(func.node):
        match stmt:
            case cst.AugAssign(
                target=cst.Attribute(value=cst.Name(value=base), attr=cst.Name(value=field)),
                operator=cst.AddAssign(),
                value=value,
            ) if base == me and me not in read_names(value):
                sums.append(field)
            case cst.Assign(
                targets=[cst.AssignTarget(target=cst.Attribute(value=cst.Name(value=base)))], value=value
            ) if base == me:
                fields = _fields(value, me)
                if fields is None or not fields <= set(sums):
                    return None
                if fields:
                    means.append(func.source.code(stmt))
            case cst.Assign(targets=[cst.AssignTarget(target=cst.Name())], value=value) if me not in read_names(value):
                continue
            case cst.Expr(value=cst.SimpleString()):
                continue
            case _:
                return None
    values = [data_of(facts.flow.values.get(n, ())) for e in events for n in given_to(e)]
    tensor = any(v is None or v.form not in ("int", "float", "bool", "number") for v in values)
    return Meter(target, cls, func.source, func.node, me, tuple(sums), tuple(means), tensor) if sums else None


def _derived(cls: Class) -> bool:
    return cls.lineage() != [cls] or bool(cls.outside() - {"builtins.object"})


def _statements(node: cst.FunctionDef) -> list[cst.CSTNode]:
    found: list[cst.CSTNode] = []
    for line in node.body.body:
        found.extend(line.body if isinstance(line, cst.SimpleStatementLine) else [line])
    return found


def _fields(value: cst.BaseExpression, me: str) -> set[str] | None:
    """The fields of the meter that a value is computed from; None where it is computed of other things besides."""
    fields = {
        n.attr.value
        for n in (value, *walk(value))
        if isinstance(n, cst.Attribute) and isinstance(n.value, cst.Name) and n.value.value == me
    }
    others = {n for n in read_names(value) if n.split(".")[0] != me}
    if fields and (others or any(isinstance(n, cst.Call) for n in (value, *walk(value)))):
        return None
    return fields if fields or me not in read_names(value) else None
