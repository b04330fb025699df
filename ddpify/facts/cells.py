"""A forward's callee in, the variable, attribute or container that holds its model out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import libcst as cst

from ddpify.facts.contents import modules
from ddpify.facts.flow import Flow
from ddpify.facts.frames import Event, Frame, Scope
from ddpify.facts.given import Given, Made, by_partial, call_number, given_to, of_partial, owner_of, unpacked
from ddpify.facts.preparing import comes_again, runs_again
from ddpify.facts.roles import root
from ddpify.facts.values import Const, Dict, Ext, Func, Instance, Module, Obj, Seq, Thing, Value
from ddpify.source import Source, walk

#: Methods that put something into a list, set or dict.
_FILLS = frozenset({"append", "appendleft", "insert", "extend", "update", "setdefault", "add"})


@dataclass(frozen=True, eq=False)
class Cell:
    """What holds a model, as the code of `frame` names it, with the events that put something there."""

    frame: Frame
    target: str
    binds: list[Event]
    #: the lists or dicts that `target` holds, where every model in them is meant: list, tuple or dict
    of: tuple[Seq | Dict, ...] = ()
    shape: str = ""
    #: the names that the loop over the container gives to its elements
    each: tuple[str, ...] = ()


def find_cell(flow: Flow, node: cst.BaseExpression, event: Event, module: Module) -> Cell | Made | str:
    """The variable, attribute or container that a callee comes from, parameters followed to the caller.

    `Made` is an argument that no variable holds; a text says why there is none.
    """
    frame, chain = event.frame, list(next(event.frame.chains(1), ()))
    given, called = "", event.seq
    while True:
        partial = of_partial(flow, node, lambda held: module in _roots(held))
        if partial is not None:
            frame, node = partial
            chain = list(next(frame.chains(1), ()))
            continue
        if isinstance(node, cst.Name):
            name = node.value
            owner = owner_of(flow, frame, name)
            if owner is not frame and name in owner.arguments and name not in owner.assigned:
                frame, chain = owner, list(next(owner.chains(1), ()))  # a closure over a parameter
            if name in frame.arguments and (name not in frame.assigned or _same_again(flow, frame, name, module)):
                argument = frame.arguments[name]
                if argument is None:
                    handed = by_partial(flow, chain, frame, name) or unpacked(flow, chain, frame, name)
                    if handed is None:
                        return f"the model reaches `{name}` through *args or **kwargs"
                    frame, node = handed
                    chain = list(next(frame.chains(1), ()))
                    continue
                if not chain:
                    return f"the model reaches `{name}` through *args or **kwargs"
                given, called = name, call_number(flow, frame, chain[-1])
                frame, node = chain.pop().frame, argument
                continue
            loop = _comprehension(frame.source, node)
            if loop is not None:
                return _container(flow, loop.iter, loop.target, _At(frame, event, module), name)
            return _variable(flow, name, _At(frame, event, module))
        if isinstance(node, cst.Attribute):
            found = _attribute(flow, node, _At(frame, event, module))
            if not isinstance(found, Given):
                return found
            given, frame, node = found.name, found.frame, found.node
            chain = list(next(frame.chains(1), ()))
        elif isinstance(node, cst.Subscript):
            return _item(flow, node, _At(frame, event, module))
        else:
            return Made(frame, node, given, called) if given else f"`{frame.source.code(node)}` is no plain variable"


def _same_again(flow: Flow, frame: Frame, name: str, module: Module) -> bool:
    """`net = net.train() if training else net.eval()`: a parameter that holds what it was given, whatever binds it.

    In a function that runs in each epoch, `net = net.to(device)` does not make it anew, either.
    """
    same_methods = {"train", "eval", *(("to", "cuda") if runs_again(flow, frame, module) else ())}

    def same(node: cst.CSTNode | None) -> bool:
        match node:
            case cst.Name(value=value):
                return value == name
            case cst.IfExp(body=body, orelse=orelse):
                return same(body) and same(orelse)
            case cst.Call(func=cst.Attribute(value=of, attr=cst.Name(value=method))):
                return method in same_methods and same(of)
        return False

    binds = [e.stmt for e in flow.log.of("bind") if e.name == name and e.frame.scope is frame.scope]
    return all(isinstance(stmt, cst.Assign) and same(stmt.value) for stmt in binds)


@dataclass(frozen=True, eq=False)
class _At:
    """A use of a model: the frame in which it is looked for, the forward, the model."""

    frame: Frame
    event: Event
    module: Module


def _attribute(flow: Flow, node: cst.Attribute, at: _At) -> Cell | Given | str:
    """`self.model`, `cfg.model`: where it is set, or what the call that made the object gave it."""
    frame = at.frame
    held = flow.values.get(node.value, ())
    holders = [o for o in held if isinstance(o, (Instance, Thing, Seq))]
    name = node.attr.value
    events = [e for e in flow.log.of("set") if e.obj in holders and e.name == name]
    if holders and events:
        mine = [e for e in events if e.seq < at.event.seq and at.module in _roots(e.value)] or events
        mine = [e for e in mine if not comes_again(e, mine[0])]
        anew = len(holders) > 1 or any(mine[-1].all_loops()) or _called_elsewhere(flow, at, name)
        given = _handed_on(mine[-1]) if anew else None
        if given is not None:
            return Given(mine[-1].frame, given, name)
        # exp = Experiment(args) in two branches: the text is one, the frame is that of the model which trains here
        return Cell(mine[-1].frame, mine[-1].frame.source.code(mine[-1].node), events)
    code = frame.source.code(node)
    sets = [
        e
        for e in flow.log.of("set")
        if e.name == name and isinstance(e.node, cst.Attribute) and frame.source.code(e.node) == code
    ]
    if sets:
        return Cell(sets[-1].frame, code, sets)
    return given_to(held, name) or f"`{code}` is an attribute of something that ddpify could not follow"


def _called_elsewhere(flow: Flow, at: _At, name: str) -> bool:
    """`attack.model(x)` and `net(x)`: the model is called by another name than the attribute, too."""
    calls = (e for e in flow.log.of("forward") if e.grad is not False and e.obj is not None)
    return any(
        isinstance(e.node, cst.Call)
        and isinstance(e.node.func, cst.Name)
        and e.node.func.value != name
        and at.module in _roots((e.obj,))
        for e in calls
        if e.obj is not None
    )


def _handed_on(event: Event) -> cst.Name | None:
    """`net` of `self.net = net`, a parameter: of objects that are made anew, the model is the caller's."""
    stmt = event.stmt
    for target, value in _pairs(stmt) if isinstance(stmt, cst.Assign) else ():
        if target is event.node and isinstance(value, cst.Name):
            frame = event.frame
            return value if value.value in frame.arguments and value.value not in frame.assigned else None
    return None


def _pairs(stmt: cst.Assign) -> Iterator[tuple[cst.BaseExpression, cst.BaseExpression]]:
    """`self.net, self.loss = net, loss`: each target with its value."""
    for target in stmt.targets:
        yield target.target, stmt.value
        if isinstance(target.target, cst.Tuple) and isinstance(stmt.value, cst.Tuple):
            for one, two in zip(target.target.elements, stmt.value.elements, strict=False):
                yield one.value, two.value


def _variable(flow: Flow, name: str, at: _At) -> Cell | str:
    holder: Scope | None = at.frame.scope.holder(name)
    owner = next((f for f in flow.frames if f.scope is holder), None)
    if holder is None or owner is None:
        return f"`{name}` is not assigned where ddpify could follow it"
    if owner.source is not at.frame.source and owner.func is None:
        return f"`{name}` is a global of another file ({owner.source.path.name})"
    binds = [
        e
        for e in flow.log.of("bind")
        if e.name == name and (e.frame.scope is holder or e.frame.scope.outer.get(name) is holder)
    ]
    last = next((e for e in reversed(binds) if e.seq < at.event.seq and at.module in _roots(e.value)), None)
    if last is not None and isinstance(last.stmt, cst.For) and last.node in list(walk(last.stmt.target)):
        # for net, optimizer in zip(nets, optimizers):
        return _container(flow, last.stmt.iter, last.stmt.target, replace(at, frame=last.frame), name)
    return Cell(owner, name, binds)


def _roots(value: Value) -> list[Module]:
    return [root(m) for m in modules(value)]


def _comprehension(source: Source, name: cst.Name) -> cst.CompFor | None:
    """`[m(x) for m in models]`: the part of a comprehension that binds a name."""
    for above in source.ancestors(name):
        part = getattr(above, "for_in", None)
        while isinstance(part, cst.CompFor):
            if any(isinstance(n, cst.Name) and n.value == name.value for n in walk(part.target)):
                return part
            part = part.inner_for_in
        if isinstance(above, cst.BaseStatement):
            return None
    return None


# -- lists and dicts -----------------------------------------------------------------------------------------------


def _container(flow: Flow, over: cst.BaseExpression, target: cst.CSTNode, at: _At, name: str) -> Cell | str:
    """The list or dict that a loop over `over` takes a model from."""
    for node in walk(over):
        if isinstance(node, (cst.Name, cst.Attribute, cst.Subscript)):
            held = holders(flow.values.get(node, ()), at.module)
            if held:
                names = tuple(n.value for n in walk(target) if isinstance(n, cst.Name))
                each = names if isinstance(held[0], Dict) and len(names) == 2 and names[1] == name else (name,)
                return _whole(flow, node, held, at, each)
    return f"`{name}` comes out of `{at.frame.source.code(over)}`, in which no list or dict of models was found"


def _whole(flow: Flow, node: cst.BaseExpression, held: list[Seq | Dict], at: _At, each: tuple[str, ...]) -> Cell | str:
    if len(held) > 1:
        return f"`{at.frame.source.code(node)}` is one list or dict of models here and another there"
    cell = _holder(flow, node, at)
    if isinstance(cell, str):
        return cell
    if cell.of or cell.target.endswith("]"):
        return f"`{at.frame.source.code(node)}` is a list or dict of models inside another"
    kind = "dict" if isinstance(held[0], Dict) else "tuple" if isinstance(held[0].site.node, cst.Tuple) else "list"
    return replace(cell, of=tuple(held), shape=kind, each=each, binds=[*cell.binds, *_fills(flow, held[0])])


def _holder(flow: Flow, node: cst.BaseExpression, at: _At) -> Cell | str:
    """The variable or attribute that holds a container."""
    found = find_cell(flow, node, replace(at.event, frame=at.frame), at.module)
    return f"`{at.frame.source.code(node)}` is made where it is handed over" if isinstance(found, Made) else found


def _item(flow: Flow, node: cst.Subscript, at: _At) -> Cell | str:
    """`models["G"]`: one place of a container; with another index than a literal, all of them."""
    held = holders(flow.values.get(node.value, ()), at.module)
    code = at.frame.source.code(node)
    if not held:
        return f"`{code}` is no model of a list or dict that ddpify could follow"
    index = node.slice[0].slice if len(node.slice) == 1 else None
    literal = isinstance(index, cst.Index) and isinstance(index.value, (cst.Integer, cst.SimpleString))
    if not literal or isinstance(held[0].site.node, cst.Tuple):
        return _whole(flow, node.value, held, at, ("name", "model") if isinstance(held[0], Dict) else ("model",))
    cell = _holder(flow, node.value, at)
    if isinstance(cell, str):
        return cell
    key = at.frame.source.code(node)[len(at.frame.source.code(node.value)) :]
    return Cell(cell.frame, cell.target + key, [*cell.binds, *_fills(flow, held[0])])


def _fills(flow: Flow, held: Seq | Dict) -> list[Event]:
    """`nets.append(Net())`, `models["D"] = Net()`"""
    return [e for e in flow.log.of("store", "method") if e.obj is held and (e.kind == "store" or e.name in _FILLS)]


def holders(value: Value, module: Module) -> list[Seq | Dict]:
    """The lists and dicts in a value that have a module among their own elements."""

    def own(v: Value) -> Value:
        return tuple(o for o in v if not isinstance(o, (Seq, Dict)))

    return [o for o in value if isinstance(o, (Seq, Dict)) and any(module in _roots(own(v)) for _, v in members(o))]


def members(obj: Obj) -> list[tuple[object, Value]]:
    """The keys and elements of a list or dict; the key is None where it is not known."""
    if isinstance(obj, Seq):
        known: list[tuple[object, Value]] = list(enumerate(obj.elements or ()))
        return [*known, (None, obj.joined)] if obj.joined else known
    if isinstance(obj, Dict):
        return [*obj.items.items(), *([(None, obj.joined)] if obj.joined else [])]
    return []


def stores_in(cell: Cell) -> list[Event]:
    """`models["D"] = Net()`, of a cell `models["D"]`: the events that put something under this key."""
    tail = cell.target.rpartition("[")[2]
    return [e for e in cell.binds if e.kind == "store" and tail and _key_text(e) == tail[:-1].strip("\"'")]


def _key_text(event: Event) -> str:
    match event.node:
        case cst.Subscript(slice=[cst.SubscriptElement(slice=cst.Index(value=cst.Integer(value=text)))]):
            return text
        case cst.Subscript(slice=[cst.SubscriptElement(slice=cst.Index(value=cst.SimpleString() as text))]):
            return str(text.evaluated_value)
    return ""


def holds_others(flow: Flow, frame: Frame, name: str, binds: list[Event]) -> bool:
    """Whether a variable may also hold a function, or None, that some line gives it, when all is done."""

    def others(value: Value) -> list[Obj]:
        return [o for o in value if isinstance(o, (Func, Ext)) or (isinstance(o, Const) and o.value is None)]

    def sides(e: Event) -> list[Value]:
        match getattr(e.stmt, "value", None):
            case cst.IfExp(body=body, orelse=orelse):
                return [flow.values.get(body, ()), flow.values.get(orelse, ())]
        return [e.value]

    held = set(others(frame.scope.names.get(name, ())))
    given = [side for e in binds for side in sides(e)]
    return any(side and len(others(side)) == len(side) and held & set(side) for side in given)
