"""A call of torch.load in, reasons out why it needs no `map_location`: what is in the file, what stands beside it."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddpify.facts import Facts
from ddpify.facts.definitions import definitions
from ddpify.facts.frames import Frame
from ddpify.facts.outside import Outside, outside_calls
from ddpify.facts.values import Scheduler
from ddpify.source import Source, walk


def maps_beside(call: Outside) -> bool:
    """`if gpu is None: torch.load(path)` and `else: torch.load(path, map_location=...)`: devices were thought of."""
    source = call.source
    path = source.code(call.node.args[0].value) if call.node.args else ""
    below: cst.CSTNode = call.node
    for above in source.ancestors(call.node):
        if isinstance(above, (cst.FunctionDef, cst.Lambda)):
            return False
        if isinstance(above, cst.If) and below is not above.test:
            other = above.orelse if below is above.body else above.body
            if other is not None and any(_maps(source, n, path) for n in walk(other)):
                return True
        below = above
    return False


def _maps(source: Source, node: cst.CSTNode, path: str) -> bool:
    if not isinstance(node, cst.Call) or not node.args or source.code(node.args[0].value) != path:
        return False
    return any(a.keyword is not None and a.keyword.value == "map_location" for a in node.args)


def is_schedule(facts: Facts, call: Outside) -> bool:
    """`scheduler.load_state_dict(torch.load(path))`: there are numbers in it, and no tensors."""
    arg = call.source.parents.get(call.node)
    taker = call.source.parents.get(arg) if isinstance(arg, cst.Arg) else None
    if not isinstance(taker, cst.Call) or not isinstance(taker.func, cst.Attribute):
        return False
    held = facts.flow.values.get(taker.func.value, ())
    return taker.func.attr.value == "load_state_dict" and bool(held) and all(isinstance(o, Scheduler) for o in held)


def from_cpu(facts: Facts, path: cst.BaseExpression, frames: list[Frame]) -> bool:
    """Whether the program writes a file of this name itself, and only with what it has brought to the CPU."""
    name = next((n for f in frames for n in file_names(facts, path, f)), "")
    saved = [c for c in facts.cached("outside", outside_calls) if name and c.name == "torch.save" and c.events]
    of_name = []
    for call in saved:
        place = call.argument(1, "f")
        if place is not None and name in {n for e in call.events for n in file_names(facts, place, e.frame)}:
            of_name.append(call)
    return bool(of_name) and all(_is_on_cpu(facts, c) for c in of_name)


def file_names(facts: Facts, path: cst.BaseExpression, frame: Frame) -> Iterator[str]:
    """The last literal part of a path: `"net.pt"` of `os.path.join(folder, "net.pt")`."""
    for node, _ in definitions(facts.flow).sources(path, frame):
        if isinstance(node, cst.Call) and node.args:
            node = node.args[-1].value
        if isinstance(node, cst.SimpleString) and "." in str(node.evaluated_value):
            yield str(node.evaluated_value)


def _is_on_cpu(facts: Facts, call: Outside) -> bool:
    """`torch.save(features.cpu(), path)`; `net.cpu()` above `state = net.state_dict()`."""
    given = call.argument(0, "obj")
    if given is None:
        return False
    for event in call.events:
        for node, frame in definitions(facts.flow).sources(given, event.frame):
            branches = [node.body, node.orelse] if isinstance(node, cst.IfExp) else [node]
            if not all(_brings(b) or _brought(frame.source, b) for b in branches):
                return False
    return True


def _brings(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value == "cpu"


def _brought(source: Source, node: cst.CSTNode) -> bool:
    """Whether the model that a state is taken of was moved as a whole in the lines before."""
    root: cst.CSTNode = node
    while isinstance(root, (cst.Call, cst.Attribute)):
        root = root.func if isinstance(root, cst.Call) else root.value
    owner = next((a for a in source.ancestors(node) if isinstance(a, cst.FunctionDef)), source.module)
    start = source.span(node).start
    return isinstance(root, cst.Name) and any(
        isinstance(n, cst.Expr)
        and isinstance(n.value, cst.Call)
        and _brings(n.value)
        and source.code(n.value.func) in (f"{root.value}.cpu", f"{root.value}.module.cpu")
        and source.span(n).start < start
        for n in walk(owner)
    )
