"""What a training loop iterates in, the function of another library that made it out."""

from __future__ import annotations

import builtins
import sys
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.definitions import definitions
from ddpify.facts.externals import role_of
from ddpify.facts.frames import Event, Frame
from ddpify.facts.levels import Level
from ddpify.facts.values import Class, Const, Ext, Method, Obj, Thing, Value

if TYPE_CHECKING:
    from ddpify.facts import Facts

#: libraries whose functions give plain data: what they read or compute can be cut and drawn from
_PLAIN = frozenset({"numpy", "torch", "pandas", *sys.stdlib_module_names})


def maker(facts: Facts, level: Level, event: Event, sequence: cst.BaseExpression) -> tuple[str, bool]:
    """The function of another library that made what is iterated, and whether anything did."""
    chain = next(event.frame.chains(), ())
    frames = [level.frame, *(e.frame for e in reversed(chain))]
    node: cst.CSTNode | None = sequence
    for frame in frames:
        while isinstance(node, cst.Name) and node.value not in frame.arguments:
            holder = frame.scope.holder(node.value)
            if holder is None:
                return "", node.value in dir(builtins)
            stmt = holder.bound_at.get(node.value)
            node = getattr(stmt, "value", None) if isinstance(stmt, (cst.Assign, cst.AnnAssign)) else None
            if isinstance(node, cst.Call) and passes_on(facts.flow.values.get(node.func, ())) and node.args:
                node = node.args[0].value
        if not isinstance(node, cst.Name):
            break
        node = frame.arguments[node.value]
    name = _behind(facts, node, level.frame) if isinstance(node, cst.Call) else ""
    name = name or _behind(facts, sequence, level.frame)
    things = (o for o in facts.flow.values.get(sequence, ()) if isinstance(o, Thing))
    return name or next((n for o in things for n in called(o)), ""), True


def _behind(facts: Facts, node: cst.CSTNode, frame: Frame, index: int | None = None, depth: int = 8) -> str:
    """The function of another library whose result it is, or one of whose results: `train, test = Iterator.splits()`"""
    for obj in facts.flow.values.get(node.func, ()) if isinstance(node, cst.Call) else ():
        if isinstance(obj, Ext) and _other_library(obj):
            return obj.name
        if isinstance(obj, Method) and isinstance(obj.obj, Thing) and called(obj.obj):
            return f"{called(obj.obj)[0]}.{obj.name}"
    if isinstance(node, cst.Call) and (base := _base_that_makes(facts, node.func)):
        return base
    before = definitions(facts.flow).of(node, frame, index) if depth else []
    return next((n for d in before if (n := _behind(facts, d.node, d.frame, d.index, depth - 1))), "")


def _base_that_makes(facts: Facts, func: cst.BaseExpression) -> str:
    """`Buckets.splits(...)` or `Buckets(...)`, of a class that has how it iterates from another library."""
    owner, name = (func.value, func.attr.value) if isinstance(func, cst.Attribute) else (func, "__iter__")
    for obj in facts.flow.values.get(owner, ()):
        if isinstance(obj, Class) and not obj.member(name):
            return next((b for b in sorted(obj.outside()) if _other_library(Ext(b))), "")
    return ""


def called(thing: Thing) -> list[str]:
    """`torchtext.data.BucketIterator`: the unknown function that gave a thing."""
    names = [o for o in thing.fields.get("__name__", ()) if isinstance(o, Const) and isinstance(o.value, str)]
    return [str(o.value) for o in names if _other_library(Ext(str(o.value)))]


def _other_library(obj: Obj) -> bool:
    return isinstance(obj, Ext) and "." in obj.name and obj.name.split(".")[0] not in _PLAIN


def passes_on(value: Value) -> bool:
    """`enumerate` and `tqdm`, which give what they are given."""
    return any(isinstance(o, Ext) and (o.name == "builtins.enumerate" or role_of(o.name) == "progress") for o in value)
