"""A training loop in, its meters out: objects of a class that adds up `value * n` and `n` and keeps their quotient."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.collected import given_to, holder_of
from ddpify.facts.contents import data_of
from ddpify.facts.counters import counter
from ddpify.facts.dependencies import named, read_names
from ddpify.facts.frames import Event
from ddpify.facts.loops import LoopFacts
from ddpify.facts.setup import SetUp, find_setup
from ddpify.facts.starts import base_of, fixed_item, is_number, same_object, start_by_method, start_of
from ddpify.facts.values import Class, Const, Func, Instance, Obj
from ddpify.source import Source, walk

if TYPE_CHECKING:
    from ddpify.facts import Facts

#: what a class calls the method that adds a meter up over the ranks
METHOD = "all_reduce"
_PLAIN = {"builtins.object", "abc.ABC"}


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
    #: the fields that are no numbers, by what they are: list, numpy or tensor
    arrays: tuple[tuple[str, str], ...] = ()

    @property
    def fields(self) -> tuple[str, ...]:
        """All that it adds to."""
        return (*self.sums, *(name for name, _ in self.arrays))


def meters(facts: Facts, loop: LoopFacts) -> list[Meter]:
    """The meters that begin anew before the loop."""
    inside = {id(n) for n in walk(loop.node.body)}
    calls: dict[str, list[Event]] = {}
    others: set[str] = set()
    for e in loop.frame.events:
        holder = holder_of(e) if id(e.node) in inside else None
        if holder is not None:
            name = loop.source.code(holder)
            calls.setdefault(name, []).append(e)
            kept = named(holder) or fixed_item(facts, holder)
            if e.kind != "call" or not kept or same_object(loop.frame, e):
                others.add(name)
    found = [_meter(facts, name, events) for name, events in calls.items() if name not in others]
    known = {m.target for m in found if m is not None}
    if not loop.training:  # whole batches are dealt out: whatever each of them gives, the sum is the same
        found += [_counter(facts, n, events) for n, events in calls.items() if n not in others and n not in known]
    begun = {m.target: m for m in found if m is not None and _begins(facts, loop, m)}
    # meters["loss"], where all else that gets something of the loop in there is a meter, too
    return [
        m
        for name, m in begun.items()
        if base_of(name) == name or all(other in begun for other in calls if base_of(other) == base_of(name))
    ]


def _begins(facts: Facts, loop: LoopFacts, meter: Meter) -> bool:
    """`meter = Meter()` before the loop, or `meter.reset()`, which sets all of its sums."""
    start = start_of(facts, loop, meter.target)
    if start is not None:
        return isinstance(start[1], cst.Call)
    fields = [start_by_method(loop, f"{meter.target}.{field}") for field in meter.fields]
    return all(f is not None for f in fields)


def _updated_by(facts: Facts, events: list[Event]) -> tuple[Func, Class] | None:
    """The one method that changes an object in these calls, and the object's class, where it can get another."""
    funcs = {id(e.obj.node): e.obj for e in events if isinstance(e.obj, Func)}
    func = next(iter(funcs.values()))
    cls = func.bound.cls if isinstance(func.bound, Instance) else None
    if (
        len(funcs) != 1
        or cls is None
        or cls.outside() - _PLAIN
        or cls.member(METHOD)
        or not facts.editable(func.source)
    ):
        return None
    if not isinstance(func.node, cst.FunctionDef) or not func.node.params.params:
        return None
    return func, cls


def _counter(facts: Facts, target: str, events: list[Event]) -> Meter | None:
    """An object that adds to arrays, and nothing else: a confusion matrix, counts for each class."""
    known = _updated_by(facts, events)
    if known is None or not all(isinstance(e.stmt, cst.Expr) for e in events):
        return None
    func, cls = known
    assert isinstance(func.node, cst.FunctionDef)
    me = func.node.params.params[0].name.value
    found = counter(facts, cls, func.node, me)
    if found is None or not all(_is_one(facts, n) for n in found.added):
        return None
    sums = tuple(name for name, kind in found.fields.items() if kind == "number")
    arrays = tuple((name, kind) for name, kind in found.fields.items() if kind != "number")
    setup = facts.cached("setup", find_setup)
    if any(kind != "list" for _, kind in arrays) and not (isinstance(setup, SetUp) and not setup.accelerator):
        return None  # arrays lie on the CPU or on the GPU: the group must have a backend for both
    return Meter(target, cls, func.source, func.node, me, sums, (), True, arrays)


def _is_one(facts: Facts, node: cst.BaseExpression) -> bool:
    """A number, as far as is known."""
    held = facts.flow.values.get(node, ())
    known = data_of(held)
    return known is not None and known.form in ("int", "float", "bool", "number")


def _meter(facts: Facts, target: str, events: list[Event]) -> Meter | None:
    """An object that adds up a value and a count, and may keep their quotient."""
    known = _updated_by(facts, events)
    if known is None:
        return None
    func, cls = known
    assert isinstance(func.node, cst.FunctionDef)
    me = func.node.params.params[0].name.value
    sums, means = dict[str, cst.BaseExpression](), list[str]()
    for stmt in _statements(func.node):
        match stmt:
            case cst.AugAssign(
                target=cst.Attribute(value=cst.Name(value=base), attr=cst.Name(value=field)),
                operator=cst.AddAssign(),
                value=value,
            ) if base == me and me not in read_names(value):
                sums[field] = value
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
            case cst.Expr(value=cst.SimpleString()) | cst.Return():
                continue
            case _:
                return None
    if not sums or not all(_is_sum(facts, cls, me, field, sums) for field in sums):
        return None
    values = [data_of(facts.flow.values.get(n, ())) for e in events for n in given_to(e)]
    tensor = any(v is None or v.form not in ("int", "float", "bool", "number") for v in values)
    return Meter(target, cls, func.source, func.node, me, tuple(sums), tuple(means), tensor)


def _is_sum(facts: Facts, cls: Class, me: str, field: str, sums: dict[str, cst.BaseExpression]) -> bool:
    """A number that is added up over the samples, or over the batches where the class divides by a count of its own."""
    held = facts.flow.values.get(sums[field], ())
    if any(not is_number(facts, value) for value in _set_to(cls, field)):
        return False  # a list, or an entry for each class
    # update(seconds) and update(loss, len(x)) of one class: a default of 1 beside a number of samples
    return (bool(held) and all(_adds_up(o) for o in held)) or any(
        isinstance(n, cst.BinaryOperation)
        and isinstance(n.operator, cst.Divide)
        and {field, *sums} >= (_of_object(n.left) | _of_object(n.right))
        and field in _of_object(n.left)
        and bool(_of_object(n.right) & set(sums))
        for c in cls.lineage()
        for n in walk(c.node)
    )


def _adds_up(obj: Obj) -> bool:
    known = data_of((obj,))
    return isinstance(obj, Const) or (known is not None and known.agg in ("sum", "size", "const"))


def _of_object(node: cst.BaseExpression) -> set[str]:
    """The fields that an expression reads: `self.total`."""
    return {n.attr.value for n in (node, *walk(node)) if isinstance(n, cst.Attribute) and isinstance(n.value, cst.Name)}


def _set_to(cls: Class, field: str) -> Iterator[cst.BaseExpression]:
    """`0` of `self.total = 0` in a class."""
    for c in cls.lineage():
        for n in walk(c.node):
            match n:
                case cst.Assign(targets=targets, value=value) if any(
                    isinstance(t.target, cst.Attribute) and t.target.attr.value == field for t in targets
                ):
                    yield value


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
