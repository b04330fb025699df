"""A value in, whether time or chance made it out: then it is another one on each rank; and where that comes in."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from ddpify.facts.contents import origins
from ddpify.facts.definitions import Definition, Definitions, definitions
from ddpify.facts.externals import role_of
from ddpify.facts.flow import Flow
from ddpify.facts.frames import Event, Frame
from ddpify.facts.values import Ext, FromWorld, Value
from ddpify.source import walk

_CHANCE = re.compile(r"(time|datetime|uuid|tempfile|random|numpy\.random|secrets|hydra)\..*|os\.getpid")
#: What all ranks do with a path.
_USES = re.compile(r"os\.(makedirs|mkdir)|builtins\.open|torch\.load|logging\.FileHandler")


def by_chance(value: Value) -> bool:
    """Whether time or chance is in a value."""
    return any(isinstance(o, FromWorld) and _CHANCE.fullmatch(o.what) for o in origins(value))


def named_chance(value: Value) -> str:
    """The call that it comes from, by its qualified name."""
    return min((o.what for o in origins(value) if isinstance(o, FromWorld) and _CHANCE.fullmatch(o.what)), default="")


def ways_of_chance(
    flow: Flow,
    known: Definitions,
    node: cst.CSTNode,
    frame: Frame,
    seen: set[int] | None = None,
    by: Definition | None = None,
    depth: int = 8,
) -> Iterator[tuple[cst.CSTNode, Frame, Definition | None]]:
    """The expressions that hold time or chance, from the use back to the call, or to where several come together."""
    seen = set() if seen is None else seen
    if id(node) in seen or not depth:
        return
    seen.add(id(node))
    yield node, frame, by
    parts = [
        part
        for part in walk(node)
        if isinstance(part, (cst.Name, cst.Attribute, cst.Call)) and by_chance(flow.values.get(part, ()))
    ]
    if makes_chance(flow, node):
        return  # os.path.join(args.root, now()): what stands in args.root by chance goes in here, too
    for part in parts:
        for d in [*known.of(part, frame), *_turns(flow, part, frame)]:
            given = flow.values.get(d.node, ())
            if given and not by_chance(given):
                continue  # the other branch: `folder = args.folder`
            yield from ways_of_chance(flow, known, d.node, d.frame, seen, d, depth - 1)


def _turns(flow: Flow, part: cst.CSTNode, frame: Frame) -> Iterator[Definition]:
    """`for path in [args.data, args.out]`: what the name holds, one after the other."""
    name = part.value if isinstance(part, cst.Name) else ""
    for e in flow.log.of("bind") if name else ():
        turns = e.stmt if e.frame is frame and isinstance(e.stmt, cst.For) and e.stmt.target is e.node else None
        if turns is not None and e.name == name and isinstance(turns.iter, (cst.List, cst.Tuple, cst.Set)):
            yield from (Definition(element.value, frame) for element in turns.iter.elements)


def makes_chance(flow: Flow, node: cst.CSTNode) -> bool:
    """`datetime.now()`, `os.path.join(root, tempfile.mkdtemp())`: the call itself stands in the expression."""
    callees = (o for part in walk(node) if isinstance(part, cst.Call) for o in flow.values.get(part.func, ()))
    return any(isinstance(o, Ext) and role_of(o.name) in ("world", "random") for o in callees)


def used_paths(flow: Flow, uses: re.Pattern[str]) -> Iterator[tuple[Event, cst.BaseExpression]]:
    """The paths that are given to some functions, and those that `path.mkdir()` makes."""
    for event in flow.log.of("external", "method"):
        node = event.node
        if isinstance(node, cst.Call) and uses.fullmatch(event.name) and node.args:
            yield event, node.args[0].value
        elif isinstance(node, cst.Call) and event.name == "mkdir" and isinstance(node.func, cst.Attribute):
            yield event, node.func.value


def dated_paths(flow: Flow) -> Iterator[Event]:
    """Where names are bound to the paths of directories that are made, and of files that are opened, by chance."""
    known = definitions(flow)
    for event, path in used_paths(flow, _USES):
        if by_chance(flow.values.get(path, ())):
            for _, _, d in ways_of_chance(flow, known, path, event.frame):
                if d is not None and d.event is not None:
                    yield d.event
