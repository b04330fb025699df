"""Iterables in, what a loop gets from them out."""

from __future__ import annotations

import libcst as cst

from ddpify.facts.attributes import Attributes
from ddpify.facts.contents import join
from ddpify.facts.values import (
    UNKNOWN,
    Const,
    Data,
    Dict,
    FromBatch,
    FromLoop,
    Func,
    Instance,
    Iteration,
    Loader,
    Module,
    Obj,
    Parameters,
    Seq,
    StateDict,
    Value,
    Wrapped,
)


class Iterating(Attributes):
    """The elements of loaders, containers and iterators."""

    def element_of(self, obj: Obj, loop: cst.CSTNode) -> Value:
        """What iterating over an object gives."""
        match obj:
            case Loader():
                return (Data("tensor", "sample", frozenset({FromBatch(obj)})),)
            case Seq(elements=elements, joined=joined):
                return join(joined, *(elements or ())) or UNKNOWN
            case Dict(items=items):
                return tuple(Const(k) for k in items) or UNKNOWN
            case Iteration():
                return self.iterated(obj, loop)
            case Parameters():
                return (Parameters(obj.site, modules=obj.modules, bare=obj.bare, loose=obj.loose, part=obj.part),)
            case Data():
                return (
                    Data(
                        "any" if obj.form == "str" else obj.form,
                        obj.agg,
                        obj.origins or frozenset({FromBatch(obj)}),
                        obj.on_cpu,
                    ),
                )
            case Module(fields=fields):
                return join(*fields.values()) or UNKNOWN
            case Wrapped(module=module):
                return join(*(self.element_of(m, loop) for m in module)) or UNKNOWN
            case Const(value=str()):
                return (Data("str"),)
            case StateDict():
                return UNKNOWN
            case Instance() if obj.cls is not None and obj.cls.member("__iter__"):
                func = next((f for f in obj.cls.member("__iter__") if isinstance(f, Func)), None)
                if func is not None:
                    given = self.call_function(self.bound(func, obj, loop), [], {}, loop, obj.site.frame)
                    obj.over = tuple(g for g in given if g is not obj)
                    return join(*(self.element_of(g, loop) for g in obj.over)) or UNKNOWN
        return (Data("any", "other", frozenset({FromBatch(obj)})),)

    def iterated(self, obj: Iteration, loop: cst.CSTNode) -> Value:
        if id(obj) in self.iterating:
            return UNKNOWN  # an iteration over itself: `it = map(f, it)` in a loop
        self.iterating.add(id(obj))
        try:
            return self.turn(obj, loop)
        finally:
            self.iterating.discard(id(obj))

    def turn(self, obj: Iteration, loop: cst.CSTNode) -> Value:
        inner = [join(*(self.element_of(o, loop) for o in value)) or UNKNOWN for value in obj.of]
        if obj.how == "enumerate":
            index: Value = (Data("int", "index", frozenset({FromLoop(loop)})),)
            return (Seq(obj.site, elements=[index, inner[0] if inner else UNKNOWN]),)
        if obj.how == "zip":
            return (Seq(obj.site, elements=inner),)
        if obj.how == "range":
            return (Data("int", "index", frozenset({FromLoop(loop)})),)
        if obj.how == "yield":
            return obj.of[0] if obj.of else UNKNOWN
        return join(*inner) or UNKNOWN
