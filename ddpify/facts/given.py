"""A parameter or a field in, the argument that it was given out; and the place where a model made there gets a name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import libcst as cst

from ddpify.facts.flow import Flow
from ddpify.facts.frames import Entry, Event, Frame
from ddpify.facts.placing import statement_of
from ddpify.facts.values import Dict, Func, Heap, Instance, Obj, Seq, Thing, Value
from ddpify.source import walk


@dataclass(frozen=True, eq=False)
class Made:
    """`train(Net())`: an argument that makes the module; no variable of the caller holds it."""

    frame: Frame
    node: cst.BaseExpression
    #: the parameter or field that it is given to
    name: str
    #: how many events there were when the call was made
    called: int


@dataclass(frozen=True, eq=False)
class Given:
    """What a call that makes an object gives one of its fields: `net` of `Config(model=net)`."""

    frame: Frame
    node: cst.BaseExpression
    name: str


def call_number(flow: Flow, frame: Frame, entry: Entry) -> int:
    """How many events there were when a frame was entered."""
    return next((e.seq for e in flow.log.of("call") if e.node is entry.call and e.callee is frame), 0)


def owner_of(flow: Flow, frame: Frame, name: str) -> Frame:
    """The frame whose variable a name is: of a closure, the function around it."""
    holder = frame.scope.holder(name)
    return frame if holder is frame.scope else next((f for f in flow.frames if f.scope is holder), frame)


def given_to(held: Value, name: str) -> Given | None:
    """`Config(net, loader)` of a dataclass or a named tuple, `SimpleNamespace(model=net)`: the argument for a field."""
    for obj in held:
        if not isinstance(obj, (Instance, Thing, Seq)) or not isinstance(obj.site.node, cst.Call):
            continue
        order = list(obj.fields) if isinstance(obj, Seq) else _annotated(obj)
        for at, arg in enumerate(obj.site.node.args):
            field = arg.keyword.value if arg.keyword is not None else order[at] if at < len(order) else ""
            if arg.star:
                break
            if field == name:
                return Given(obj.site.frame, arg.value, name)
    return None


def _annotated(obj: Heap) -> list[str]:
    """The fields of a dataclass, in their order."""
    if not isinstance(obj, Instance) or obj.cls is None:
        return []
    lines = [s for line in obj.cls.node.body.body if isinstance(line, cst.SimpleStatementLine) for s in line.body]
    return [s.target.value for s in lines if isinstance(s, cst.AnnAssign) and isinstance(s.target, cst.Name)]


def unpacked(flow: Flow, chain: list[Entry], frame: Frame, name: str) -> tuple[Frame, cst.BaseExpression] | None:
    """`train(**arguments)`, `train(*arguments)`: what the dict or list was made of; calls up to it are taken off."""
    while chain:
        entry = chain.pop()
        args = entry.call.args if isinstance(entry.call, cst.Call) else ()
        named = next((a.value for a in args if a.keyword is not None and a.keyword.value == name), None)
        if named is not None:
            return entry.frame, named
        held = [(a, o) for a in args if a.star for o in flow.values.get(a.value, ())]
        if any(isinstance(o, Dict) and o.site.node is entry.frame.node and name in o.items for _, o in held):
            frame = entry.frame  # def run(**kwargs): train(**kwargs)
            continue
        at = _place(frame, name) - next((i for i, a in enumerate(args) if a.star), 0)
        found = [_part(flow, o, name if isinstance(o, Dict) else at) for _, o in held]
        return next((f for f in found if f is not None), None)
    return None


def of_partial(
    flow: Flow, node: cst.CSTNode, is_mine: Callable[[Value], bool]
) -> tuple[Frame, cst.BaseExpression] | None:
    """`denoise = partial(net, scale=2)`, which is called like the model: what the call that made it names first."""
    for obj in flow.values.get(node, ()):
        if isinstance(obj, Thing) and obj.name == "partial" and isinstance(obj.site.node, cst.Call):
            args = [a.value for a in obj.site.node.args if a.keyword is None and not a.star]
            if args and is_mine(obj.fields.get("0", ())):
                return obj.site.frame, args[0]
    return None


def by_partial(flow: Flow, chain: list[Entry], frame: Frame, name: str) -> tuple[Frame, cst.BaseExpression] | None:
    """`step = partial(train, net)`, and `step(x)`: what the call that made it gave a parameter."""
    call = chain[-1].call if chain else None
    for obj in flow.values.get(call.func, ()) if isinstance(call, cst.Call) else ():
        made = obj.site.node if isinstance(obj, Thing) and obj.name == "partial" else None
        if not isinstance(obj, Thing) or not isinstance(made, cst.Call) or any(a.star for a in made.args):
            continue
        if not any(
            isinstance(o, Func) and frame.func is not None and o.node is frame.func.node for o in obj.fields["0"]
        ):
            continue
        at = _place(frame, name) + 1
        places = [a.value for a in made.args if a.keyword is None]
        named = next((a.value for a in made.args if a.keyword is not None and a.keyword.value == name), None)
        given = named if named is not None else places[at] if 0 < at < len(places) else None
        if given is not None:
            return obj.site.frame, given
    return None


def _place(frame: Frame, name: str) -> int:
    params = frame.func.node.params if frame.func is not None else cst.Parameters()
    names = [p.name.value for p in (*params.posonly_params, *params.params)]
    bound = frame.func is not None and frame.func.bound is not None
    return names.index(name) - bound if name in names else -1


def _part(flow: Flow, held: Obj, key: str | int) -> tuple[Frame, cst.BaseExpression] | None:
    """The expression that a dict has under a key, or a list or tuple at a place, as its own text or a line says."""
    if not isinstance(held, (Dict, Seq)):
        return None
    for e in reversed(flow.log.of("store")):
        later = _later(e, key) if e.obj is held else None
        if later is not None:
            return e.frame, later
    node, frame = held.site.node, held.site.frame
    match node:
        case cst.Call(args=args):
            found = (a.value for a in args if a.keyword is not None and a.keyword.value == key)
        case cst.Dict(elements=elements):
            found = (e.value for e in elements if isinstance(e, cst.DictElement) and _text(e.key) == key)
        case cst.Tuple(elements=elements) | cst.List(elements=elements) if isinstance(key, int) and key >= 0:
            plain = not any(isinstance(e, cst.StarredElement) for e in elements)
            found = (e.value for e in elements[key : key + 1] if plain)
        case _:
            return None
    given = next(found, None)
    return (frame, given) if given is not None else None


def _later(event: Event, key: str | int) -> cst.BaseExpression | None:
    """`arguments["net"] = net`"""
    match event.stmt:
        case cst.Assign(targets=[cst.AssignTarget(target=cst.Subscript(slice=[index]))], value=value):
            return value if _text(index.slice) == key else None
    return None


def _text(node: cst.CSTNode) -> object:
    node = node.value if isinstance(node, cst.Index) else node
    return node.evaluated_value if isinstance(node, cst.SimpleString) else None


def made_in_place(made: Made) -> cst.CSTNode | None:
    """The statement before which `Net().to(device)` can be given a name; None where that would change the order."""
    source = made.frame.source
    stmt = statement_of(source, made.node)
    if not isinstance(stmt, (cst.Assign, cst.AnnAssign, cst.Expr, cst.Return)):
        return None
    late = (cst.BaseComp, cst.Lambda, cst.IfExp, cst.BooleanOperation)
    for above in source.ancestors(made.node):
        if above is stmt:
            break
        if isinstance(above, late):
            return None
    start = source.span(made.node).start
    # what was evaluated before it, as `data()` in `train(data(), Net())`, would come behind it
    earlier = (n for n in walk(stmt) if isinstance(n, cst.Call) and source.span(n).end <= start)
    return stmt if next(earlier, None) is None else None
