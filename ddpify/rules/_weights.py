"""A call of torch.load in, an answer out: are weights loaded, or the state of an optimizer, which were on a GPU?

state = torch.load("net.pt")["model"]
net.load_state_dict(state)        # weights
rows = torch.load("rows.pt")      # samples: most often from the CPU, and no tensors at all
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from ddpify.facts import Facts
from ddpify.facts.definitions import definitions
from ddpify.facts.frames import Frame
from ddpify.facts.outside import Outside, outside_calls
from ddpify.facts.values import Func
from ddpify.rules._loads import file_names
from ddpify.rules._order_goes import Order
from ddpify.rules._order_uses import named, owner_of
from ddpify.source import Source, dotted, walk

_STATE = re.compile(r".*(load_state|load_param|load_weight|load_pretrained|load_model|load_checkpoint|restore)\w*")
_COPIES = frozenset({"copy_", "Parameter", "from_pretrained", "register_buffer"})
#: what a model is asked for, that was saved whole
_OF_MODEL = frozenset({"parameters", "state_dict", "eval", "train", "named_parameters", "modules", "children"})
_NO_VALUE = frozenset({"print", "len", "isinstance", "info", "sorted", "type", "set", "int", "float"})


def loads_weights(facts: Facts, call: Outside, path: cst.BaseExpression | None, frames: list[Frame]) -> bool:
    """Whether what is loaded comes to weights, was sent by another rank, or is saved by this program from its GPU."""
    if path is not None and any(
        isinstance(n, cst.Call) and dotted(n.func).rpartition(".")[2] == "BytesIO" for n in _made_of(call.source, path)
    ):
        return True
    name = next((n for f in frames for n in file_names(facts, path, f)), "") if path is not None else ""
    if name and _saved(facts, name):
        return True
    return _comes_to_weights(facts, call.source, call.node)


def _made_of(source: Source, path: cst.BaseExpression) -> Iterator[cst.CSTNode]:
    """`io.BytesIO(tensor)`, or what `buffer` was bound to in the same function."""
    yield path
    if isinstance(path, cst.Name):
        for n in walk(owner_of(source, path)):
            match n:
                case (
                    cst.Assign(targets=[cst.AssignTarget(target=cst.Name(value=name))], value=value)
                    | cst.WithItem(asname=cst.AsName(name=cst.Name(value=name)), item=value)
                ) if name == path.value:
                    yield value


def _saved(facts: Facts, name: str) -> bool:
    for call in facts.cached("outside", outside_calls):
        place = call.argument(1, "f") if call.name == "torch.save" and call.events else None
        if place is not None and name in {n for e in call.events for n in file_names(facts, place, e.frame)}:
            given = call.argument(0, "obj")
            made = [
                n
                for e in call.events
                for part, _ in (definitions(facts.flow).sources(given, e.frame) if given is not None else ())
                for n in walk(part)
            ]
            if any(isinstance(n, cst.Attribute) and n.attr.value in ("cuda", "to", "state_dict") for n in made):
                return True
    return False


def _comes_to_weights(facts: Facts, source: Source, node: cst.CSTNode) -> bool:
    order = facts.cached("orders that are followed", Order)
    todo: list[tuple[Source, cst.CSTNode]] = [(source, node)]
    seen: set[int] = set()
    while todo and len(seen) < 300:
        of, at = todo.pop(0)
        if id(at) in seen or at not in of.parents:
            continue
        seen.add(id(at))
        for step in _steps(order, of, at):
            if step is None:
                return True
            todo.append(step)
    return False


def _steps(order: Order, source: Source, node: cst.CSTNode) -> Iterator[tuple[Source, cst.CSTNode] | None]:
    """Where it goes next; None where it is weights."""
    above = source.parents[node]
    match above:
        case cst.Arg():
            call = source.parents[above]
            if isinstance(call, cst.Call):
                yield from _given(order, source, call, node)
        case cst.Call(func=func) if func is node:
            yield None  # the model that was saved whole
        case cst.Assign(value=value, targets=targets) if value is node:
            for t in targets:
                yield from _bound(order, source, t.target, node)
        case cst.AnnAssign(value=value, target=target) | cst.NamedExpr(value=value, target=target) if value is node:
            yield from _bound(order, source, target, node)
        case cst.For(iter=over) if over is node:
            for use in order.uses.inside(source, above, named(above.target)):
                yield source, use
        case cst.CompFor(iter=over) if over is node:
            yield from ((source, a) for a in source.ancestors(above) if isinstance(a, (cst.BaseComp, cst.DictComp)))
        case cst.Return() | cst.Yield():
            function = owner_of(source, node)
            for frame in order.facts.flow.frames:
                if frame.node is function:
                    yield from ((e.frame.source, e.call) for e in frame.entries if isinstance(e.call, cst.Call))
        case cst.Attribute(attr=cst.Name(value=name)):
            asked = source.parents.get(above)
            called = isinstance(asked, cst.Call) and asked.func is above
            if called and (name in _OF_MODEL or _STATE.fullmatch(name)):
                yield None
            elif asked is not None:
                yield source, asked if called else above
        case cst.Subscript(value=value) if value is node:
            yield source, above
        case cst.IfExp() | cst.BooleanOperation() | cst.Element() | cst.DictElement() | cst.Tuple() | cst.Dict():
            yield source, above
        case cst.List():
            yield source, above


def _given(
    order: Order, source: Source, call: cst.Call, node: cst.CSTNode
) -> Iterator[tuple[Source, cst.CSTNode] | None]:
    name = call.func.attr.value if isinstance(call.func, cst.Attribute) else dotted(call.func)
    if name in _NO_VALUE:
        return
    if _STATE.fullmatch(name) or name in _COPIES:
        yield None
    inside = order.arguments.get(id(node), ())
    for of, function, param in inside:
        yield from ((of, use) for use in order.uses.in_function(of, function, param))
    if isinstance(call.func, cst.Attribute) and name in ("update", "append", "extend"):
        yield from order.uses.behind(source, call.func.value, node)
    elif not inside and not any(isinstance(o, Func) for o in order.facts.flow.values.get(call.func, ())):
        yield source, call


def _bound(
    order: Order, source: Source, target: cst.CSTNode, node: cst.CSTNode
) -> Iterator[tuple[Source, cst.CSTNode] | None]:
    if isinstance(target, (cst.Tuple, cst.List)):
        for e in target.elements:
            yield from _bound(order, source, e.value, node)
        return
    if isinstance(target, cst.Attribute) and target.attr.value == "data" and dotted(target.value) != "self":
        yield None  # parameter.data = ...
    while isinstance(target, cst.Subscript):
        target = target.value
    yield from order.uses.behind(source, target, node)
