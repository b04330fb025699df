"""An event in, whether a loader's worker or a process of a pool may run it out: no collective may stand there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.frames import Entry, Event, Scope
from ddpify.facts.values import Class, Ext, Func, Method, Obj, Thing
from ddpify.source import walk

if TYPE_CHECKING:
    from ddpify.facts import Facts

_POOLS = re.compile(r"(torch\.)?multiprocessing\..+|concurrent\.futures\..+|joblib\..+|threading\..+")


def in_workers(facts: Facts, event: Event) -> bool:
    """Code of a dataset class, of a function that it calls for its samples, or of one that a pool is handed."""
    if in_dataset(event):
        return True
    if for_samples(facts, event):
        return True
    return any(_handed_to_pool(facts, entry) for chain in event.frame.chains() for entry in chain)


def for_samples(facts: Facts, event: Event) -> bool:
    """Whether a function that samples are made with does it, whoever else calls it: loader workers run it, too."""
    sampled = facts.cached("sampled", _sampled)
    funcs = [event.frame.func, *(e.frame.func for chain in event.frame.chains() for e in chain)]
    return any(f is not None and id(f.node) in sampled for f in funcs)


def in_dataset(event: Event) -> bool:
    """Code of a dataset class: it runs in loader workers."""
    owner = event.frame.func.owner if event.frame.func is not None else None
    return owner is not None and _is_dataset(owner)


def _is_dataset(cls: Class) -> bool:
    """One of torch, or what can stand for one: a configuration (`config["lr"]`) has items, and no length."""
    derived = any(name.endswith("Dataset") for name in cls.outside())
    return derived or bool(cls.member("__iter__")) or bool(cls.member("__getitem__") and cls.member("__len__"))


def _sampled(facts: Facts) -> set[int]:
    """The functions that the methods of dataset classes call by name, and what those call."""
    found: set[int] = set()
    # each once: many modules of a project import the same class
    classes = {
        id(cls): cls
        for source in facts.project.files()
        if source in facts.flow.modules
        for value in facts.flow.modules[source].scope.names.values()
        for cls in value
        if isinstance(cls, Class) and _is_dataset(cls)
    }
    todo = [
        (f.node, f.scope, cls)
        for cls in classes.values()
        for name, member in cls.members.items()
        if name != "__init__"
        for f in member
        if isinstance(f, Func)
    ]
    while todo:
        node, scope, cls = todo.pop()
        for func in _named(node, scope, cls):
            if id(func.node) not in found:
                found.add(id(func.node))
                todo.append((func.node, func.scope, func.owner or cls))
    return found


def _named(node: cst.CSTNode, scope: Scope, cls: Class) -> Iterator[Func]:
    """`load(path)` and `self.load(path)` in a function."""
    for call in walk(node):
        match call:
            case cst.Call(func=cst.Name(value=name)):
                holder = scope.holder(name)
                held = holder.names.get(name, ()) if holder is not None else ()
            case cst.Call(func=cst.Attribute(value=cst.Name(), attr=cst.Name(value=name))):
                held = cls.member(name)
            case _:
                continue
        yield from (f for f in held if isinstance(f, Func))


def _handed_to_pool(facts: Facts, entry: Entry) -> bool:
    """`pool.map(load, paths)`, `executor.submit(load, path)`: the call is not the function's own."""
    above = (entry.call, *entry.frame.source.ancestors(entry.call))
    call = next((n for n in above if isinstance(n, cst.Call) and n is not entry.call), None)
    held = facts.flow.values.get(call.func, ()) if call is not None else ()
    return any(_POOLS.fullmatch(name) for o in held for name in _names(facts, o))


def _names(facts: Facts, obj: Obj) -> list[str]:
    """Whose function it is: of a method, the class of its object."""
    if isinstance(obj, Method):
        return _names(facts, obj.obj)
    if isinstance(obj, Thing) and isinstance(obj.site.node, cst.Call):
        return [o.name for o in facts.flow.values.get(obj.site.node.func, ()) if isinstance(o, Ext)]
    return [obj.name] if isinstance(obj, Ext) else []
