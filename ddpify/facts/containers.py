"""Displays and subscripts in, what they hold out: lists, tuples, dicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import libcst as cst

from ddpify.facts.contents import constants, join, origins
from ddpify.facts.frames import Frame
from ddpify.facts.iterating import Iterating
from ddpify.facts.values import (
    UNKNOWN,
    Data,
    Dataset,
    Dict,
    Ext,
    Iteration,
    Module,
    Obj,
    Parameters,
    Seq,
    Thing,
    Value,
    Wrapped,
)


class Containers(Iterating):
    """Lists, tuples, sets and dicts: made, merged, and read by index or key."""

    def sequence(self, node: cst.CSTNode, elements: Sequence[cst.BaseElement], frame: Frame) -> Value:
        held: list[Value] | None = []
        joined: Value = ()
        for element in elements:
            value = self.expr(element.value, frame)
            if isinstance(element, cst.StarredElement):
                inner = join(*(self.element_of(o, node) for o in value))
                joined, held = join(joined, inner), None
            elif held is not None:
                held.append(value)
            joined = join(joined, value) if held is None else joined
        made = Seq(self.site(node, frame), elements=held, joined=joined)
        (kept,) = self.made(node, frame, made)
        if isinstance(kept, Seq) and kept is not made:
            kept.elements, kept.joined = (
                (held, joined) if not self.unsure else (kept.elements or held, join(kept.joined, joined))
            )
            if held is not None and kept.elements is not None and len(kept.elements) == len(held):
                kept.elements = held
        return (kept,)

    def dictionary(self, node: cst.Dict, elements: Sequence[cst.BaseDictElement], frame: Frame) -> Value:
        made = Dict(self.site(node, frame))
        for element in elements:
            value = self.expr(element.value, frame)
            if isinstance(element, cst.StarredDictElement):
                self.merge_dicts(made, value)
                continue
            assert isinstance(element, cst.DictElement)
            keys = constants(self.expr(element.key, frame))
            if keys is not None and len(keys) == 1:
                made.items[keys[0]] = value
            else:
                made.joined, made.closed = join(made.joined, value), False
        (kept,) = self.made(node, frame, made)
        if isinstance(kept, Dict) and kept is not made:
            for key, value in made.items.items():
                kept.items[key] = join(kept.items.get(key, ()), value)
        return (kept,)

    def merge_dicts(self, into: Dict, value: Value) -> None:
        known = [o for o in value if isinstance(o, Dict)]
        for other in known:
            for key, held in other.items.items():
                if self.unsure or key in other.maybe or len(value) > 1:
                    if key not in into.items:
                        into.maybe.add(key)
                    into.items[key] = join(into.items.get(key, ()), held)
                else:
                    into.items[key] = held
            into.closed = into.closed and other.closed
            into.joined = join(into.joined, other.joined)
        if len(known) != len(value) or not into.closed:
            into.closed = False
            self.loosen(into)

    def subscript(self, node: cst.Subscript, frame: Frame) -> Value:
        base = self.expr(node.value, frame)
        index = [self.expr(i.slice.value, frame) for i in node.slice if isinstance(i.slice, cst.Index)]
        for i in node.slice:
            if isinstance(i.slice, cst.Slice):
                for bound in (i.slice.lower, i.slice.upper, i.slice.step):
                    if bound is not None:
                        self.expr(bound, frame)
        keys = constants(index[0]) if len(index) == len(node.slice) == 1 else None
        for obj in base:
            if isinstance(obj, Wrapped) and node not in self.reached:
                self.event("item", node, frame, obj)
        return join(*(self.item(obj, keys, bool(index)) for obj in base)) if base else UNKNOWN

    def item(self, obj: Obj, keys: list[object] | None, single: bool) -> Value:
        match obj:
            case Seq(elements=elements, joined=joined):
                if not single:
                    return (obj,)
                if elements is not None and keys is not None:
                    found = [elements[k] for k in keys if isinstance(k, int) and -len(elements) <= k < len(elements)]
                    if found:
                        return join(*found)
                return join(joined, *(elements or ())) or UNKNOWN
            case Dict(items=items, joined=joined):
                if keys is not None:
                    return (
                        join(*(items.get(k, ()) for k in keys), () if all(k in items for k in keys) else joined)
                        or UNKNOWN
                    )
                return join(joined, *items.values()) or UNKNOWN
            case Thing(name="namespace", fields=fields):
                if keys is not None and all(str(k) in fields for k in keys):
                    return join(*(fields[str(k)] for k in keys))
                inner = tuple(o for v in fields.values() for o in v if isinstance(o, Thing) and o.name == "namespace")
                return join(inner if keys is None else (), (Data("any", "const"),))
            case Dataset(name="datasets.IterableDataset"):
                return (obj,)  # load_dataset("name", streaming=True)["train"]
            case Data(agg="shape"):
                return (Data("int", "size" if keys == [0] else "const", obj.origins),)
            case Data():
                return (Data(obj.form, obj.agg, obj.origins, obj.on_cpu),)
            case Module(fields=fields, cls=None) if keys and all(str(k) in fields for k in keys):
                return join(*(fields[str(k)] for k in keys))
            case Module(fields=fields):
                return join(*(v for v in fields.values())) or UNKNOWN
            case Wrapped(module=module):
                return join(*(self.item(m, keys, single) for m in module)) or UNKNOWN
            case Parameters():
                return (replace(obj, part=True),)
            case Iteration(of=inner):
                return inner[0] if inner else UNKNOWN
            case Ext(name=name):
                return (Ext(f"{name}[]"),)  # torchvision.models.__dict__[arch]
        return (Data("any", "other", origins((obj,))),)
