"""An expression in, the way back to where its value could not be followed any more out, as steps with file and line."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import libcst as cst

from ddpify.facts.definitions import Definition, definitions
from ddpify.facts.flow import Flow
from ddpify.facts.frames import Frame
from ddpify.facts.values import Ext, Method, Thing
from ddpify.source import walk

#: At most so many steps are told, and so many letters of an expression.
_STEPS, _LETTERS = 10, 60


@dataclass(frozen=True, eq=False)
class Step:
    """`loss = criterion(out, y)`: what an expression has its value from, and where that stands."""

    what: str
    made_by: str
    place: str

    def __str__(self) -> str:
        return f"`{self.what}` is `{self.made_by}` ({self.place})"


def trail(flow: Flow, node: cst.BaseExpression, frame: Frame) -> list[Step]:
    """Back from an expression: through names, parameters, attributes and returns, and through what calls are given."""
    found: list[Step] = []
    seen: set[cst.CSTNode] = set()
    index: int | None = None
    while len(found) < _STEPS:
        step = _back(flow, node, frame, index, seen)
        if step is None:
            inner = _through(flow, node, frame)
            if inner is None or inner in seen:
                break
            seen.add(inner)
            node, index = inner, None
            continue
        seen.add(step.node)
        source = step.frame.source
        if step.node in source.parents:
            place = f"{source.path.name}:{source.line(step.node)}"
            found.append(Step(_short(frame.source.code(node)), _short(source.code(step.node)), place))
        node, frame, index = step.node, step.frame, step.index
    return found


def _back(
    flow: Flow, node: cst.CSTNode, frame: Frame, index: int | None = None, seen: Collection[cst.CSTNode] = ()
) -> Definition | None:
    """The definition that came last; `net = net.to(device)` is gone through once."""
    known = [d for d in definitions(flow).of(node, frame, index) if d.node not in seen]
    return known[-1] if known else None


def _through(flow: Flow, node: cst.BaseExpression, frame: Frame) -> cst.BaseExpression | None:
    """Where to go on from an expression that no definition is known of.

    `out` of `criterion(out, y)`, where it is what another call gave that could not be followed; else what is called.
    """
    if isinstance(node, cst.Subscript):
        return node.value
    if not isinstance(node, cst.Call):
        inside = (n for n in walk(node) if isinstance(n, (cst.Name, cst.Attribute)) and n is not node)
        return next((n for n in inside if _back(flow, n, frame) is not None), None)
    called = flow.values.get(node.func, ())
    if any(isinstance(o, Ext) for o in called):
        builtin = any(isinstance(o, Ext) and o.name.startswith("builtins.") for o in called)
        return node.args[0].value if node.args and not builtin else None  # torch.compile(net)
    methods = [o.obj for o in called if isinstance(o, Method)]
    if methods and isinstance(node.func, cst.Attribute):
        scales = any(isinstance(o, Thing) and o.name == "scaler" for o in methods) and node.args
        return node.args[0].value if scales else node.func.value  # scaler.scale(loss), net.to(device)
    for arg in node.args:
        for inner in walk(arg.value):
            if isinstance(inner, cst.Call) and _asks(flow, inner):
                return inner
            last = _back(flow, inner, frame) if isinstance(inner, (cst.Name, cst.Attribute)) else None
            if last is not None and isinstance(last.node, cst.Call) and _asks(flow, last.node):
                return inner if isinstance(inner, (cst.Name, cst.Attribute)) else node
    return node.func


def _asks(flow: Flow, call: cst.Call) -> bool:
    """Whether a call is one of an object, not of a library's function or a method of a tensor (`x.to(device)`)."""
    called = flow.values.get(call.func, ())
    return bool(called) and not any(isinstance(o, (Ext, Method)) for o in called)


def _short(code: str) -> str:
    line = " ".join(code.split())
    return line if len(line) <= _LETTERS else f"{line[: _LETTERS - 4]} ..."


def told(steps: list[Step]) -> str:
    """The steps as one clause, empty where there are none."""
    return "; ".join(map(str, steps))
