"""An expression in, the way back to where its value could not be followed any more out, as steps with file and line."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import libcst as cst

from ddpify.errors import Step, Way
from ddpify.facts.definitions import Definition, definitions
from ddpify.facts.externals import role_of
from ddpify.facts.flow import Flow
from ddpify.facts.frames import Event, Frame, Scope
from ddpify.facts.placing import statement_of
from ddpify.facts.roles import Roles
from ddpify.facts.values import Class, Ext, Loader, Method, Mod, Obj, Thing
from ddpify.source import Source, dotted, walk

#: At most so many steps are told, and so many letters of an expression.
_STEPS, _LETTERS = 10, 60
_IS, _GIVEN, _RETURNS, _TAKEN, _STANDS = "is", "is given as", "gives back", "comes out of", "stands in"
_IMPORTED, _UNREAD = "is no part of the project:", "stands in a file that could not be read:"
#: modules that nobody takes for a part of a project
_GIVEN_WITH = {*sys.stdlib_module_names, "torch", "numpy"}
#: builtins that hand on what they are given
_PASSES = frozenset(f"builtins.{n}" for n in ("enumerate", "iter", "zip", "next", "reversed", "list", "tuple"))


@dataclass(frozen=True, eq=False)
class _Back:
    """One step back: what gave the value, and how."""

    node: cst.CSTNode
    frame: Frame
    how: str
    index: int | None = None
    #: how many events there were before
    seq: int = 0


@dataclass(frozen=True, eq=False)
class Hints:
    """Which of several definitions is meant: one that holds an object, one before an event; and where the way ends."""

    until: cst.CSTNode | None = None
    holding: Obj | None = None
    before: int | None = None


def way_back(
    flow: Flow,
    node: cst.CSTNode,
    source: Source,
    frame: Frame | None = None,
    *,
    value: str = "",
    hints: Hints | None = None,
) -> Way:
    """The value of an expression as a refusal names it, and the way on which the expression got it.

    Where nothing is known of that, the one step is where it stands.
    """
    frame = frame or frame_of(flow, source, node)
    known: list[Step] = []
    if frame is not None and isinstance(node, cst.BaseExpression):
        known = trail(flow, node, frame, hints or Hints())
    name = value or shown(source, node)
    return Way(name, tuple(known) or (stands(source, node, name),))


def way_of_call(flow: Flow, event: Event) -> Way:
    """Of `net.encode(x)`, `loss.backward()`: the way of what is called, or asked."""
    source, node = event.frame.source, event.node
    func = node.func if isinstance(node, cst.Call) else node
    asked = func.value if isinstance(func, cst.Attribute) else func
    return way_back(flow, asked, source, event.frame, value=shown(source, node), hints=Hints(before=event.seq))


def way_of_loader(flow: Flow, roles: Roles, loader: Loader, argument: cst.CSTNode | None = None) -> Way:
    """From the loop that reads a loader to the call that makes it, and on from the argument that is in the way."""
    source, node, loop = loader.site.source, loader.site.node, roles.loop_over(loader)
    found: list[Way] = []
    if loop is not None and isinstance(loop.node, (cst.For, cst.CompFor)):
        other = loop.frame.source
        target, over = loop.node.target, loop.node.iter
        first = Step(shown(other, target), _TAKEN, shown(other, over), place_of(other, over))
        rest = way_back(flow, over, other, loop.frame, hints=Hints(loader.call, loader))
        found.append(Way(rest.value, (first, *rest.steps)))
    known = argument if argument is not None else node
    made = next((e.seq for e in flow.log.of("loader") if e.obj is loader), None)
    return joined(*found, way_back(flow, known, source, loader.site.frame, hints=Hints(before=made)))


def joined(*found: Way) -> Way:
    """Ways behind each other, no step twice; the value is that of the last."""
    return Way(found[-1].value, tuple(dict.fromkeys(s for w in found for s in w.steps)))


def stands(source: Source, node: cst.CSTNode, name: str, how: str = _STANDS) -> Step:
    """Where an expression stands: in the statement that has it."""
    inside = node in source.parents and isinstance(node, cst.BaseExpression)
    return Step(name, how, shown(source, statement_of(source, node) if inside else node), place_of(source, node))


def place_of(source: Source, node: cst.CSTNode) -> str:
    """`train.py:12`"""
    return f"{source.path}:{source.line(node)}"


def shown(source: Source, node: cst.CSTNode) -> str:
    """The first lines of a node's code as one, cut where that is long."""
    line = " ".join(source.code(node).split())
    return line if len(line) <= _LETTERS else f"{line[: _LETTERS - 4]} ..."


def frame_of(flow: Flow, source: Source, node: cst.CSTNode) -> Frame | None:
    """A frame that runs the code in which a node stands: of the function around it, else the module's own."""
    around = next((a for a in source.ancestors(node) if isinstance(a, (cst.FunctionDef, cst.Lambda))), None)
    own = (f for f in flow.frames if f.func is not None and f.func.node is around)
    return next(own, None) or flow.modules.get(source)


def trail(flow: Flow, start: cst.BaseExpression, frame: Frame, hints: Hints) -> list[Step]:
    """Back from an expression: through names, parameters, attributes and returns, and through what calls are given."""
    found: list[Step] = []
    seen: set[cst.CSTNode] = set()
    node: cst.CSTNode | None = start
    index: int | None = None
    while node is not None and node is not hints.until and len(found) < _STEPS:
        step = _back(flow, node, frame, index, seen, hints)
        if step is None:
            node, index = _through(flow, node, frame), None
            node = None if node in seen else node
        else:
            if step.node in step.frame.source.parents:
                found.append(_told(frame.source, node, step))
            node, frame, index = step.node, step.frame, step.index
        if node is not None:
            seen.add(node)
    return found


def _told(source: Source, node: cst.CSTNode, step: _Back) -> Step:
    other = step.frame.source
    return Step(shown(source, node), step.how, shown(other, step.node), place_of(other, step.node))


def _back(
    flow: Flow,
    node: cst.CSTNode,
    frame: Frame,
    index: int | None = None,
    seen: Collection[cst.CSTNode] = (),
    hints: Hints | None = None,
) -> _Back | None:
    """The definition that came last; `net = net.to(device)` is gone through once."""
    known = [b for b in _definitions(flow, node, frame, index) if b.node not in seen]
    if hints is not None:
        known = [
            b for b in known if hints.holding is not None and hints.holding in flow.values.get(b.node, ())
        ] or known
        known = [b for b in known if hints.before is None or b.seq < hints.before] or known
    return known[-1] if known else None


def _definitions(flow: Flow, node: cst.CSTNode, frame: Frame, index: int | None) -> Iterator[_Back]:
    given = False
    if isinstance(node, cst.Name):
        known = [*_myself(node, frame), *_loops_over(flow, node, frame), *_imports(flow, node, frame)]
        given = node.value in frame.arguments
        yield from known
        if known:
            return
    for d in (*definitions(flow).of(node, frame, index), *_of_module(flow, node)):
        how = _RETURNS if isinstance(node, cst.Call) else _GIVEN if given and d.event is None else _IS
        yield _Back(d.node, d.frame, how, d.index, d.event.seq if d.event is not None else 0)


def _of_module(flow: Flow, node: cst.CSTNode) -> Iterator[Definition]:
    """`settings.DEVICE`: a variable of another file."""
    if isinstance(node, cst.Attribute):
        for o in flow.values.get(node.value, ()):
            if isinstance(o, Mod) and o.source in flow.modules:
                for e in definitions(flow).bound(flow.modules[o.source].scope, node.attr.value):
                    yield from definitions(flow).bound_by(e)


def _myself(name: cst.Name, frame: Frame) -> Iterator[_Back]:
    """`self` of `net.fit(loader)`"""
    func = frame.func
    if func is None or func.bound is None or [p.name.value for p in func.node.params.params[:1]] != [name.value]:
        return
    for entry in frame.entries:
        if isinstance(entry.call, cst.Call) and isinstance(entry.call.func, cst.Attribute):
            yield _Back(entry.call.func.value, entry.frame, _GIVEN)


def _loops_over(flow: Flow, name: cst.Name, frame: Frame) -> list[_Back]:
    """`for batch in batches`, `[f(batch) for batch in batches]`"""
    source = frame.source
    for above in source.ancestors(name):
        part = getattr(above, "for_in", None)
        while isinstance(part, cst.CompFor):
            if _binds(part.target, name.value):
                return [_Back(part.iter, frame, _TAKEN)]
            part = part.inner_for_in
        if isinstance(above, cst.BaseStatement):
            break
    last = definitions(flow).bound(frame.scope.holder(name.value), name.value)[-1:]
    return [
        _Back(e.stmt.iter, e.frame, _TAKEN)
        for e in last
        if isinstance(e.stmt, cst.For) and _binds(e.stmt.target, name.value)
    ]


def _binds(target: cst.CSTNode, name: str) -> bool:
    return any(isinstance(n, cst.Name) and n.value == name for n in walk(target))


def _imports(flow: Flow, name: cst.Name, frame: Frame) -> Iterator[_Back]:
    """`from nets import get_network`: of a file of the project what it binds there, else the import itself."""
    holder = frame.scope.holder(name.value)
    if holder is None or name.value in holder.bound_at or name.value in frame.arguments:
        return
    if all(isinstance(o, Ext) and o.name.partition(".")[0] in _GIVEN_WITH for o in holder.names[name.value]):
        return
    for node in walk(holder.node):
        if not isinstance(node, (cst.Import, cst.ImportFrom)) or isinstance(node.names, cst.ImportStar):
            continue
        for alias in node.names:
            bound = alias.asname.name if alias.asname is not None else alias.name
            if dotted(bound).split(".")[0] == name.value:
                yield from _imported(flow, node, alias, holder)


def _imported(flow: Flow, node: cst.Import | cst.ImportFrom, alias: cst.ImportAlias, holder: Scope) -> Iterator[_Back]:
    module, level = (dotted(node.module), len(node.relative)) if isinstance(node, cst.ImportFrom) else ("", 0)
    source = flow.project.find(module, level, holder.source) if isinstance(node, cst.ImportFrom) else None
    inside = flow.modules.get(source) if source is not None else None
    if inside is None:
        if source is None and flow.project.find(dotted(alias.name)) is None:
            how = _UNREAD if flow.project.is_unread(module or dotted(alias.name)) else _IMPORTED
            yield _Back(node, Frame(holder.source, holder, None, None), how)
        return
    for e in definitions(flow).bound(inside.scope, dotted(alias.name)):
        for d in definitions(flow).bound_by(e):
            yield _Back(d.node, d.frame, _IS, d.index)


def _through(flow: Flow, node: cst.CSTNode, frame: Frame) -> cst.BaseExpression | None:
    """Where to go on from an expression that no definition is known of.

    `out` of `criterion(out, y)`, where it is what another call gave that could not be followed; else what is called.
    """
    if isinstance(node, cst.Subscript):
        return node.value
    if not isinstance(node, cst.Call):
        inside = (n for n in walk(node) if isinstance(n, (cst.Name, cst.Attribute)) and n is not node)
        return next((n for n in inside if _back(flow, n, frame) is not None), None)
    called = flow.values.get(node.func, ())
    if any(isinstance(o, Class) for o in called):
        return None  # it is made here
    names = [o.name for o in called if isinstance(o, Ext)]
    if any(role_of(n) in ("load", "parser", "namespace") for n in names):
        return None  # it is read, or parsed, here
    if any(n.startswith("torch.") or role_of(n) == "progress" or n in _PASSES for n in names):
        return node.args[0].value if node.args else None  # torch.compile(net), enumerate(tqdm(batches))
    methods = [o.obj for o in called if isinstance(o, Method)]
    if any(isinstance(o, Thing) and o.name in ("parser", "namespace") for o in methods):
        return None
    if methods and isinstance(node.func, cst.Attribute):
        scales = any(isinstance(o, Thing) and o.name == "scaler" for o in methods) and node.args
        return node.args[0].value if scales else node.func.value  # scaler.scale(loss), net.to(device)
    return (None if any(n.startswith("builtins.") for n in names) else _given_by(flow, node, frame)) or node.func


def _given_by(flow: Flow, node: cst.Call, frame: Frame) -> cst.BaseExpression | None:
    """The argument that is what a call of an object gave."""
    for arg in node.args:
        for inner in walk(arg.value):
            if isinstance(inner, cst.Call) and _asks(flow, inner):
                return inner
            last = _back(flow, inner, frame) if isinstance(inner, (cst.Name, cst.Attribute)) else None
            if last is not None and isinstance(last.node, cst.Call) and _asks(flow, last.node):
                return inner if isinstance(inner, (cst.Name, cst.Attribute)) else None
    return None


def _asks(flow: Flow, call: cst.Call) -> bool:
    """Whether a call is one of an object, not of a library's function or a method of a tensor (`x.to(device)`)."""
    called = flow.values.get(call.func, ())
    return bool(called) and not any(isinstance(o, (Ext, Method)) for o in called)
