"""An expression in, the expressions that gave it its value out: back through names, parameters, returns."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from ddpify.facts.assigned import assigned_names
from ddpify.facts.dependencies import read_names
from ddpify.facts.flow import Flow
from ddpify.facts.frames import Event, Frame, Scope
from ddpify.facts.values import Class, Data, Dict, Func, Instance, Module, Thing, Value
from ddpify.source import children, dotted, walk


@dataclass(frozen=True, eq=False)
class Definition:
    """An expression that a name got its value from, in the frame where it ran; `index` picks an element of it."""

    node: cst.BaseExpression
    frame: Frame
    index: int | None = None
    #: what was bound, where there is such a thing
    event: Event | None = None


class Definitions:
    """Where the names, attributes and calls of a flow have their values from."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.binds: dict[tuple[int, str], list[Event]] = {}
        self.sets: dict[tuple[int, str], list[Event]] = {}
        self.frames: dict[int, list[Frame]] = {}
        #: what is stored into each dict, or what a file gave: `flags[key] = value`
        self.stored: dict[int, list[tuple[cst.BaseExpression, Definition]]] = {}
        for e in flow.log.events:
            if e.kind == "bind":
                scope = e.frame.scope.outer.get(e.name, e.frame.scope)
                self.binds.setdefault((id(scope.names), e.name), []).append(e)
            elif e.kind == "store" and isinstance(e.obj, (Dict, Data, Thing)) and isinstance(e.node, cst.Subscript):
                for d in self.bound_by(e):
                    self.stored.setdefault(id(e.obj), []).append((e.node, d))
            elif e.kind == "set" and e.obj is not None:
                self.sets.setdefault((id(e.obj), e.name), []).append(e)
        for frame in flow.frames:
            self.frames.setdefault(id(frame.node), []).append(frame)

    def of(self, node: cst.CSTNode, frame: Frame, index: int | None = None) -> list[Definition]:
        """One step back; nothing where the expression is no name, attribute or call into the project."""
        match node:
            case cst.Name(value=name):
                if name in frame.arguments and name not in frame.assigned:
                    return list(self.arguments(name, frame))
                # names of a branch that ends in `return` are gone when the function has run
                own = name in frame.assigned and name not in frame.scope.outer
                holder = frame.scope if own else frame.scope.holder(name)
                found = [d for e in self.bound(holder, name) or self.imported(holder, name) for d in self.bound_by(e)]
                if name in frame.arguments and any(_goes_on(d, name) for d in found):
                    found = [*self.arguments(name, frame), *found]  # def f(loss): loss *= 2
                return found
            case cst.Attribute():
                found = [d for e in self.attribute_events(node, frame) for d in self.bound_by(e)]
                found = found or [d for f in self.properties(node) for d in self.returned(f, index)]
                return found or list(self.plain(node, frame))
            case cst.Call():
                return [d for f in self.callees(node, frame) for d in self.returned(f, index)]
        return []

    def bound(self, holder: Scope | None, name: str) -> list[Event]:
        return self.binds.get((id(holder.names), name), []) if holder is not None else []

    def imported(self, holder: Scope | None, name: str, depth: int = 4) -> list[Event]:
        """`from data import train_iter`, `from data import *`: what binds the name in the other file of the project."""
        if holder is None or not depth or isinstance(holder.node, cst.ClassDef):
            return []
        for stmt in holder.source.of(cst.ImportFrom):
            own = _name_there(stmt, name)
            module = dotted(stmt.module) if stmt.module is not None else ""
            source = self.flow.project.find(module, len(stmt.relative), holder.source) if own else None
            inside = self.flow.modules.get(source) if source is not None else None
            if inside is not None and inside.scope is not holder and own in inside.scope.names:
                return self.bound(inside.scope, own) or self.imported(inside.scope, own, depth - 1)
        return []

    def attribute_events(self, node: cst.Attribute, frame: Frame | None = None) -> list[Event]:
        """What was stored under an attribute: `self.rank`, `args.path`, an attribute of a class."""
        found: list[Event] = []
        for obj in self.owners(node, frame):
            if isinstance(obj, (Instance, Module, Thing)):
                found.extend(self.sets.get((id(obj), node.attr.value), []))
            cls = obj if isinstance(obj, Class) else obj.cls if isinstance(obj, (Instance, Module)) else None
            for c in cls.lineage() if cls is not None else ():
                found.extend(self.binds.get((id(c.members), node.attr.value), []))
        return found

    def plain(self, node: cst.Attribute, frame: Frame | None = None) -> Iterator[Definition]:
        """What the calls that made a dataclass's objects give for a field: `World(rank=rank, main=rank == 0)`."""
        for obj in self.owners(node, frame):
            if isinstance(obj, (Instance, Module)) and obj.cls is not None:
                given = field_of(obj.site.node, obj.cls, node.attr.value)
                if given is not None:
                    yield Definition(given, obj.site.frame)

    def owners(self, node: cst.Attribute, frame: Frame | None = None) -> Value:
        """The objects whose attribute it is: of `self.sum`, in a method, the one that the frame's call was made on."""
        values = self.flow.values.get(node.value)
        if frame is None or not isinstance(node.value, cst.Name):
            return values or ()
        if values is None:
            holder = frame.scope.holder(node.value.value)  # in code that the flow did not come to
            values = holder.names.get(node.value.value, ()) if holder is not None else ()
        me = frame.func.node.params.params[:1] if frame.func is not None and frame.func.bound in values else ()
        mine = any(p.name.value == node.value.value for p in me) and node.value.value not in frame.assigned
        return (frame.func.bound,) if mine and frame.func is not None and frame.func.bound is not None else values

    def bound_by(self, event: Event) -> Iterator[Definition]:
        """The expression on the right of what binds a name."""
        node, stmt, parents = event.node, event.stmt, event.frame.source.parents
        above = parents.get(node)
        if isinstance(above, cst.NamedExpr) and above.target is node:
            yield Definition(above.value, event.frame, None, event)
        elif isinstance(stmt, cst.Assign):
            for target in stmt.targets:
                index = _place(target.target, node)
                if target.target is node or index is not None:
                    yield from self.element(Definition(stmt.value, event.frame, index, event))
        elif isinstance(stmt, (cst.AnnAssign, cst.AugAssign)) and stmt.value is not None:
            yield Definition(stmt.value, event.frame, None, event)
        elif isinstance(stmt, cst.With):
            for item in stmt.items:
                if item.asname is not None and item.asname.name is node:
                    yield Definition(item.item, event.frame, None, event)

    def element(self, d: Definition) -> Iterator[Definition]:
        if d.index is not None and isinstance(d.node, (cst.Tuple, cst.List)):
            if d.index < len(d.node.elements):
                yield Definition(d.node.elements[d.index].value, d.frame, None, d.event)
            return
        yield d

    def arguments(self, name: str, frame: Frame) -> Iterator[Definition]:
        """What the callers give for a parameter, its default where they give nothing."""
        for entry in frame.entries:
            given = argument_of(entry.call, frame, name)
            if given is not None:
                yield Definition(given, entry.frame)
        if isinstance(frame.node, (cst.FunctionDef, cst.Lambda)):
            for param in _params(frame.node):
                if param.name.value == name and param.default is not None:
                    yield Definition(param.default, frame)

    def callees(self, node: cst.Call, frame: Frame) -> list[Func]:
        """The functions of the project that a call runs."""
        values = self.flow.values.get(node.func, ())
        if not values and isinstance(node.func, cst.Name):
            holder = frame.scope.holder(node.func.value)
            values = holder.names.get(node.func.value, ()) if holder is not None else ()
        return [o for o in values if isinstance(o, Func)]

    def properties(self, node: cst.Attribute) -> list[Func]:
        """The functions that an attribute runs."""
        classes = [o.cls for o in self.flow.values.get(node.value, ()) if isinstance(o, (Instance, Module))]
        members = (m for c in classes if c is not None for m in c.member(node.attr.value))
        return [m for m in members if isinstance(m, Func) and m.is_property]

    def returned(self, func: Func, index: int | None = None) -> Iterator[Definition]:
        """What a function gives back."""
        frame = next(iter(self.frames.get(id(func.node), ())), None) or self.flow.modules.get(func.source)
        if frame is None:
            return
        if isinstance(func.node, cst.Lambda):
            yield Definition(func.node.body, frame)
            return
        for stmt in returns(func.node.body):
            if stmt.value is not None:
                yield from self.element(Definition(stmt.value, frame, index))

    def sources(self, node: cst.CSTNode, frame: Frame, depth: int = 8) -> Iterator[tuple[cst.CSTNode, Frame]]:
        """The expressions at the start of a chain of names: what `f` is in the end, where it is passed along."""
        if isinstance(node, cst.IfExp):
            yield from self.sources(node.body, frame, depth)
            yield from self.sources(node.orelse, frame, depth)
            return
        found = self.of(node, frame) if depth else []
        if not found or isinstance(node, cst.Call):
            yield node, frame
        for d in found:
            yield from self.sources(d.node, d.frame, depth - 1)


@functools.lru_cache(maxsize=4)
def definitions(flow: Flow) -> Definitions:
    """The definitions of a flow, looked up once."""
    return Definitions(flow)


def _name_there(stmt: cst.ImportFrom, name: str) -> str:
    """What a name of this file is called in the module that it is imported from, "" where it is not."""
    if isinstance(stmt.names, cst.ImportStar):
        return "" if name.startswith("_") else name
    for alias in stmt.names:
        bound = alias.asname.name if alias.asname is not None else alias.name
        if dotted(bound) == name:
            return dotted(alias.name)
    return ""


def _place(target: cst.BaseExpression, node: cst.CSTNode) -> int | None:
    if isinstance(target, (cst.Tuple, cst.List)):
        return next((i for i, e in enumerate(target.elements) if e.value is node), None)
    return None


def _goes_on(d: Definition, name: str) -> bool:
    """Whether a value is made from the one that the name had before: `x *= 2`, `x = x.float()`."""
    more = d.event is not None and isinstance(d.event.stmt, cst.AugAssign)
    return more or any(isinstance(n, cst.Name) and n.value == name for n in walk(d.node))


def _params(func: cst.FunctionDef | cst.Lambda) -> list[cst.Param]:
    return [*func.params.posonly_params, *func.params.params, *func.params.kwonly_params]


def argument_of(call: cst.CSTNode, frame: Frame, name: str) -> cst.BaseExpression | None:
    """The expression that a call gives for a parameter of the function it runs."""
    func = frame.func
    if not isinstance(call, cst.Call) or func is None:
        return None
    for arg in call.args:
        if arg.keyword is not None and arg.keyword.value == name:
            return arg.value
    names = [p.name.value for p in (*func.node.params.posonly_params, *func.node.params.params)]
    names = names[1:] if func.bound is not None else names
    plain = [a for a in call.args if a.keyword is None]
    at = names.index(name) if name in names else len(plain)
    return plain[at].value if at < len(plain) and not any(a.star for a in plain[: at + 1]) else None


def field_of(call: cst.CSTNode, cls: Class, name: str) -> cst.BaseExpression | None:
    """The expression that a call gives for a field of a class without `__init__`."""
    names = cls.plain_names()
    if not isinstance(call, cst.Call) or name not in names:
        return None
    at, args = names.index(name), list(call.args)
    named = next((a.value for a in args if a.keyword is not None and a.keyword.value == name), None)
    plain = [a.value for a in args[: at + 1] if a.keyword is None and not a.star]
    return named if named is not None else plain[at] if at < len(plain) else None


@functools.lru_cache(maxsize=256)
def returns(tree: cst.CSTNode) -> tuple[cst.Return, ...]:
    """The `return`s of a function's own text."""
    return tuple(_returns(tree))


def _returns(tree: cst.CSTNode) -> Iterator[cst.Return]:
    for node in children(tree):
        if isinstance(node, cst.Return):
            yield node
        elif not isinstance(node, (cst.FunctionDef, cst.ClassDef, cst.BaseExpression)):
            yield from _returns(node)


def element_at(value: cst.BaseExpression, at: int | None) -> cst.BaseExpression | None:
    """`best` of `return step, best`, where the place is known; None where there is no such place."""
    parts = list(value.elements) if isinstance(value, cst.Tuple) else []
    if at is None or not parts or not all(isinstance(p, cst.Element) for p in parts):
        return value
    return parts[at].value if at < len(parts) else None


def references(tree: cst.CSTNode, name: str) -> list[cst.Name]:
    """The places where a function's or module's variable stands; inner functions with one of their own left out."""
    return _references(tree).get(name, [])


@functools.lru_cache(maxsize=16)  # of the functions that are asked about now; more would keep their trees
def _references(tree: cst.CSTNode) -> dict[str, list[cst.Name]]:
    found: dict[str, list[cst.Name]] = {}
    for node in children(tree):
        _gather(node, frozenset(), found)
    return found


def _gather(node: cst.CSTNode, hidden: frozenset[str], found: dict[str, list[cst.Name]]) -> None:
    if isinstance(node, (cst.Attribute, cst.Arg)):
        node = node.value
    elif isinstance(node, cst.FunctionDef):
        hidden |= hidden_names(node)
    if isinstance(node, cst.Name):
        if node.value not in hidden:
            found.setdefault(node.value, []).append(node)
        return
    if isinstance(node, cst.Lambda):
        hidden |= hidden_names(node)
    for child in children(node):
        _gather(child, hidden, found)


@functools.lru_cache(maxsize=256)
def hidden_names(func: cst.FunctionDef | cst.Lambda) -> frozenset[str]:
    """The names that mean a function's own variables in it."""
    scopes = (n for n in walk(func) if isinstance(n, (cst.Global, cst.Nonlocal)))
    outer = frozenset(item.name.value for n in scopes for item in n.names)
    return frozenset(p.name.value for p in _params(func)) | (assigned_names(func) - outer)


def reaching(found: list[Definition], node: cst.CSTNode, frame: Frame) -> list[Definition]:
    """Those of a name that no other comes after: of this loop's batch and its losses, not of the loop's before it."""
    source, begin = frame.source, frame.source.span(node).start
    above = list(source.ancestors(node))
    blocks = [a for a in above if isinstance(a, (cst.IndentedBlock, cst.Module))]
    name = node.value if isinstance(node, cst.Name) else ""
    before = [source.span(a).start for a in above if isinstance(a, cst.For) and a.body in blocks and _turns(a, name)]
    here: dict[int, int] = {}
    for d in found:
        stmt = d.event.stmt if d.event is not None and d.frame is frame else None
        if isinstance(stmt, (cst.Assign, cst.AnnAssign)):
            here[id(d)] = source.span(stmt).start
            block = next(a for a in source.ancestors(stmt) if isinstance(a, (cst.IndentedBlock, cst.Module)))
            if block in blocks and source.span(stmt).end <= begin:
                before.append(here[id(d)])
    last = max(before, default=0)
    return [d for d in found if not last or id(d) not in here or last <= here[id(d)] < begin]


def _turns(loop: cst.For, name: str) -> bool:
    """`for x, y in loader`"""
    return bool(name) and name in read_names(loop.target)
