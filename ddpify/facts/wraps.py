"""Roles in, wrap points out: where each trained module is held when it first trains, and after which statement."""

from __future__ import annotations

from dataclasses import dataclass, replace

import libcst as cst

from ddpify.facts.contents import modules
from ddpify.facts.flow import Flow
from ddpify.facts.frames import Event, Frame, Scope
from ddpify.facts.methods import EXCHANGES, PREPARES
from ddpify.facts.placing import common_block, in_block
from ddpify.facts.roles import Roles, root
from ddpify.facts.values import Class, Const, Instance, Method, Module, Obj, Parameters, Thing, Wrapped
from ddpify.source import Source


@dataclass(frozen=True, eq=False)
class WrapPoint:
    """`target` holds the module from `after` on, or one of the `others`; its first training forward comes later."""

    module: Module
    target: str
    after: cst.CSTNode
    source: Source
    frame: Frame
    others: tuple[Module, ...] = ()


@dataclass(frozen=True, eq=False)
class NoWrapPoint:
    """A trained module that no variable holds in a way that could be followed."""

    module: Module
    node: cst.CSTNode
    source: Source
    reason: str


def find_wraps(flow: Flow, roles: Roles) -> list[WrapPoint | NoWrapPoint]:
    """A wrap point for each trained module that is not wrapped yet."""
    wrapped = {m for w in roles.wrapped for m in modules(w.module)}
    found: list[tuple[WrapPoint | NoWrapPoint, Event]] = []
    for module in roles.trained:
        if module in wrapped or root(module) in wrapped or not module.has_parameters:
            continue
        forwards = [
            e
            for e in flow.log.of("forward")
            if e.node in roles.training_forwards
            and e.grad is not False
            and e.obj is not None
            and module in [root(m) for m in modules((e.obj,))]
        ]
        if forwards:
            first = min(forwards, key=lambda e: e.seq)
            found.append((_wrap_point(flow, module, first), first))
    return _one_each(found)


def _one_each(found: list[tuple[WrapPoint | NoWrapPoint, Event]]) -> list[WrapPoint | NoWrapPoint]:
    """`model = A() if small else B()`: two modules that one variable may hold are wrapped once, behind both."""
    places: dict[object, WrapPoint | NoWrapPoint] = {}
    for w, first in found:
        if isinstance(w, NoWrapPoint):
            places[w] = w
            continue
        key = (id(w.frame), w.target, id(first.frame), id(first.node))
        kept = places.get(key)
        if not isinstance(kept, WrapPoint):
            places[key] = w
            continue
        later = w if w.source.span(w.after).start > kept.source.span(kept.after).start else kept
        places[key] = replace(later, module=kept.module, others=(*kept.others, w.module))
    return list(places.values())


def _wrap_point(flow: Flow, module: Module, first: Event) -> WrapPoint | NoWrapPoint:
    source = first.frame.source
    assert isinstance(first.node, cst.Call)
    func = first.node.func
    inside = (
        [m for m in modules((first.obj,)) if m is not module and m is not module.inner] if first.obj is not None else []
    )
    if isinstance(func, cst.Attribute) and func.attr.value in ("forward", "__call__"):
        func = func.value
    elif inside and root(inside[0]) is module and inside[0].inner is not module:
        return NoWrapPoint(
            module,
            first.node,
            source,
            f"`{source.code(func)}` trains a part of the model by itself, not the model's forward",
        )
    cell = _cell(flow, func, first)
    if isinstance(cell, str):
        return NoWrapPoint(module, first.node, source, cell)
    frame, target, binds = cell
    binds = [e for e in binds if e.seq < first.seq and module in [root(m) for m in modules(e.value)]]
    parallel = {id(e.stmt) for e in flow.log.of("dataparallel")}
    # model = nn.DataParallel(model) is taken out: nothing can stand behind it
    binds = [e for e in binds if id(e.stmt) not in parallel] or binds
    if not binds:
        return NoWrapPoint(module, first.node, source, f"`{target}` is not assigned where ddpify could follow it")
    frame = _declaring(binds, target, frame)
    prepared = [e for e in flow.log.events if e.seq < first.seq and _prepares(flow, e, module)]
    places = [(e.seq, s) for e in (*binds, *prepared) if (s := _stmt_in(e, frame)) is not None]
    bound = _stmt_in(binds[-1], frame)
    if bound is None:
        return NoWrapPoint(
            module, first.node, source, f"`{target}` is assigned in another function than the one that prepares it"
        )
    use = _stmt_in(first, frame)
    block = common_block(frame.source, [bound, use] if use is not None else [bound])
    if block is None:
        return NoWrapPoint(module, first.node, source, f"no place for the wrap of `{target}` was found")
    stop = in_block(frame.source, use, block) if use is not None else None
    for _, stmt in sorted(places, key=lambda p: p[0], reverse=True):
        if common_block(frame.source, [stmt, bound]) is None or block not in _around(frame.source, stmt):
            continue
        anchor = in_block(frame.source, stmt, block)
        if anchor is not stop:
            return WrapPoint(module, target, anchor, frame.source, frame)
    return NoWrapPoint(module, first.node, source, f"`{target}` is made and trained in one statement")


def _declaring(binds: list[Event], name: str, holder: Frame) -> Frame:
    """`global model` in main(): the function that binds the name of another scope, where no other does."""
    frames = list(dict.fromkeys(e.frame for e in binds))
    return frames[0] if len(frames) == 1 and name in frames[0].scope.outer else holder


def _around(source: Source, stmt: cst.CSTNode) -> list[cst.CSTNode]:
    return list(source.ancestors(stmt))


def _cell(flow: Flow, node: cst.BaseExpression, event: Event) -> tuple[Frame, str, list[Event]] | str:
    """The variable or attribute that the forward's callee comes from, parameters followed to the caller."""
    frame, chain = event.frame, list(next(event.frame.chains(1), ()))
    while True:
        if isinstance(node, cst.Name):
            name = node.value
            if name in frame.arguments and name not in frame.assigned:
                argument = frame.arguments[name]
                if argument is None or not chain:
                    return f"the model reaches `{name}` through *args or **kwargs"
                frame, node = chain.pop().frame, argument
                continue
            return _variable(flow, frame, name)
        if isinstance(node, cst.Attribute):
            holders = [o for o in flow.values.get(node.value, ()) if isinstance(o, Instance)]
            name = node.attr.value
            events = [e for e in flow.log.of("set") if e.obj in holders and e.name == name]
            if holders and events:
                return events[-1].frame, frame.source.code(events[-1].node), events
            sets = [
                e
                for e in flow.log.of("set")
                if e.name == name
                and isinstance(e.node, cst.Attribute)
                and frame.source.code(e.node) == frame.source.code(node)
            ]
            if sets:
                return sets[-1].frame, frame.source.code(node), sets
            return f"`{frame.source.code(node)}` is an attribute of something that ddpify could not follow"
        if isinstance(node, cst.Subscript):
            return f"`{frame.source.code(node)}` is kept in a list or dict, which this version does not wrap"
        return f"`{frame.source.code(node)}` is no plain variable"


def _variable(flow: Flow, frame: Frame, name: str) -> tuple[Frame, str, list[Event]] | str:
    holder: Scope | None = frame.scope.holder(name)
    owner = next((f for f in flow.frames if f.scope is holder), None)
    if holder is None or owner is None:
        return f"`{name}` is not assigned where ddpify could follow it"
    if owner.source is not frame.source and owner.func is None:
        return f"`{name}` is a global of another file ({owner.source.path.name})"
    binds = [
        e
        for e in flow.log.of("bind")
        if e.name == name and (e.frame.scope is holder or e.frame.scope.outer.get(name) is holder)
    ]
    return owner, name, binds


def _prepares(flow: Flow, event: Event, module: Module) -> bool:
    """`.to(...)`, `load_state_dict`, freezing, a layer exchanged, or a look at the raw module (`summary(model)`)."""
    held = _owner(event.obj) or _owner(_start(flow, event.node))
    if event.kind in ("set", "store") and held is not None:
        # model.fc = nn.Linear(512, 10); the wrapper knows the parameters that it found when it was made
        mine = module in (held, held.part_of, root(held))
        return mine and not all(isinstance(o, Const) for o in event.value)
    if event.kind == "method" and event.name in EXCHANGES and held is not None:
        return module in (held, held.part_of, root(held))
    if event.kind in ("method", "set") and isinstance(event.obj, Parameters):
        return event.name in ("requires_grad", "requires_grad_", "data") and module in map(root, event.obj.modules)
    if event.kind == "external" and event.name.startswith("torch.nn.init."):
        return any(isinstance(o, Parameters) and module in map(root, o.modules) for o in event.value)
    if event.kind == "method" and event.name in PREPARES and event.obj is not None:
        return module in [root(m) for m in modules((event.obj,))] and not isinstance(event.obj, Wrapped)
    if event.kind == "external" or (
        event.kind == "method" and isinstance(event.obj, Thing) and event.obj.module is None
    ):
        given = [*event.extra.values()]
        return any(o is module for value in given for o in value) and not isinstance(event.obj, Class)
    return False


def _owner(obj: Obj | None) -> Module | None:
    """The module that an attribute chain starts from: `model` of `model.roi_heads.box_predictor`."""
    while isinstance(obj, Method):
        obj = obj.obj
    return obj if isinstance(obj, Module) else None


def _start(flow: Flow, node: cst.CSTNode) -> Obj | None:
    """What the first name in a chain holds: `model` of `model.layers[0].fc`."""
    if not isinstance(node, (cst.Attribute, cst.Subscript, cst.Call)):
        return None
    while isinstance(node, (cst.Attribute, cst.Subscript, cst.Call)):
        node = node.func if isinstance(node, cst.Call) else node.value
    return next((o for o in flow.values.get(node, ()) if isinstance(o, (Module, Method))), None)


def _stmt_in(event: Event, frame: Frame) -> cst.CSTNode | None:
    """The statement of a frame that leads to an event."""
    for chain in event.frame.chains():
        for entry in chain:
            if entry.frame is frame:
                return entry.stmt
    return (
        event.stmt
        if event.frame is frame or (event.frame.scope.parent is frame.scope and event.frame.func is frame.func)
        else None
    )
