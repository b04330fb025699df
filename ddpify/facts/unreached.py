"""The flow after the wrap in, a wrapped model in code that the flow never reached out: `if options.save_model:`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.frames import Frame
from ddpify.facts.outside import unread
from ddpify.facts.surface import SURFACE
from ddpify.facts.values import Instance, Module, Value, Wrapped
from ddpify.facts.wraps import WrapPoint
from ddpify.source import Source

if TYPE_CHECKING:
    from ddpify.facts import Facts


def unreached(facts: Facts, pickles: frozenset[str]) -> Iterator[tuple[cst.BaseExpression, Frame, str, bool]]:
    """Expressions that hold a wrapper, with a frame, what is asked of them, and whether they may be bare, too."""
    flow = facts.after
    frames = _frames(facts)
    for source in facts.project.files():
        for node in source.nodes:
            part = node.func if isinstance(node, cst.Call) else node
            # where the wrapper's own test leads elsewhere, the flow without it came here
            if any(f.values.get(part) is not None for f in (facts.flow, flow)):
                continue
            asked: list[tuple[cst.BaseExpression, str]] = []
            if isinstance(node, cst.Attribute) and node.attr.value not in SURFACE:
                asked = [(node.value, node.attr.value)]
            elif isinstance(node, cst.Call) and unread(node.func, source, flow) in pickles:
                asked = [(a.value, "") for a in node.args]
            for base, name in asked:
                if _still_bare(facts, source, base):
                    continue
                for frame in frames.get(_function(source, node), ()):
                    held = _held(base, frame)
                    if any(isinstance(o, Wrapped) for o in held):
                        yield base, frame, name, any(isinstance(o, Module) for o in held)


def _frames(facts: Facts) -> dict[int, list[Frame]]:
    """The frames in which a function, or a module, ran."""
    found: dict[int, list[Frame]] = {}
    seen: set[int] = set()
    every = [f for e in facts.after.log.events for f in (e.frame, e.callee) if f is not None]
    for frame in (*facts.after.modules.values(), *every):
        if id(frame) not in seen:
            seen.add(id(frame))
            node = frame.node if isinstance(frame.node, cst.FunctionDef) else frame.source.module
            found.setdefault(id(node), []).append(frame)
    return found


def _function(source: Source, node: cst.CSTNode) -> int:
    for above in source.ancestors(node):
        if isinstance(above, cst.FunctionDef):
            return id(above)
        if isinstance(above, (cst.Lambda, cst.ClassDef)):
            return 0
    return id(source.module)


def _still_bare(facts: Facts, source: Source, base: cst.BaseExpression) -> bool:
    """`if options.path: model.load_state_dict(...)` above the wrap in the same function, in no loop that has both."""
    for w in facts.wraps:
        if not isinstance(w, WrapPoint) or w.source is not source or source.code(base) != w.target:
            continue
        if source.span(base).end > source.span(w.after).start or _function(source, base) != _function(source, w.after):
            continue
        loops = {a for a in source.ancestors(w.after) if isinstance(a, (cst.For, cst.While))}
        if not loops & set(source.ancestors(base)):
            return True
    return False


def _held(node: cst.BaseExpression, frame: Frame) -> Value:
    """What a name holds when its function ends: `model`, `self.model`."""
    if isinstance(node, cst.Name):
        holder = frame.scope.holder(node.value)
        return holder.names.get(node.value, ()) if holder is not None else ()
    if isinstance(node, cst.Attribute):
        owners = [o for o in _held(node.value, frame) if isinstance(o, Instance)]
        return tuple(v for o in owners for v in o.fields.get(node.attr.value, ()))
    return ()
