"""A project in, its calls of what is outside it out: each call node once, with its qualified name and its events."""

from __future__ import annotations

import builtins
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.contents import constants
from ddpify.facts.frames import Event
from ddpify.facts.values import Const, Data, Ext, Method, Thing, Value
from ddpify.source import Source, dotted

if TYPE_CHECKING:
    from ddpify.facts import Facts
    from ddpify.facts.flow import Flow


@dataclass(frozen=True, eq=False)
class Outside:
    """A call of a function outside the project (`name`), or of a method that no class of it has (`method` of `obj`)."""

    node: cst.Call
    source: Source
    name: str
    method: str = ""
    obj: Value = ()
    events: tuple[Event, ...] = field(default=())

    def argument(self, at: int | None, *keywords: str) -> cst.BaseExpression | None:
        """The expression at a place or under a keyword."""
        for arg in self.node.args:
            if arg.keyword is not None and arg.keyword.value in keywords:
                return arg.value
        plain = [a for a in self.node.args if a.keyword is None]
        if at is None or at >= len(plain) or any(a.star for a in plain[: at + 1]):
            return None
        return plain[at].value

    @property
    def text(self) -> str:
        """The callee as the user wrote it."""
        return self.source.code(self.node.func).split("\n")[0]


def outside_calls(facts: Facts) -> list[Outside]:
    """Every such call of the project, in the order of the text, the entry file first."""
    events: dict[int, list[Event]] = {}
    for e in facts.flow.log.events:
        if isinstance(e.node, cst.Call):
            events.setdefault(id(e.node), []).append(e)
    found: list[Outside] = []
    for source in facts.project.files():
        for node in source.of(cst.Call):
            call = _outside(node, source, facts, tuple(events.get(id(node), ())))
            if call is not None:
                found.append(call)
    return found


def _outside(node: cst.Call, source: Source, facts: Facts, events: tuple[Event, ...]) -> Outside | None:
    values = facts.flow.values.get(node.func)
    if values is None:
        name = unread(node.func, source, facts.flow) if source is facts.source else ""
        return Outside(node, source, name, events=events) if name else None
    for obj in values:
        if isinstance(obj, Ext):
            return Outside(node, source, obj.name, events=events)
        if isinstance(obj, Thing) and obj.name == "partial":
            # print = functools.partial(print, flush=True)
            for inner in obj.fields.get("0", ()):
                if isinstance(inner, Ext):
                    return Outside(node, source, inner.name, events=events)
    methods = [o for o in values if isinstance(o, Method)]
    if methods:
        return Outside(node, source, "", methods[0].name, tuple(m.obj for m in methods), events)
    if isinstance(node.func, cst.Attribute) and all(isinstance(o, (Data, Const)) for o in values):
        return Outside(node, source, "", node.func.attr.value, facts.flow.values.get(node.func.value, ()), events)
    return None


def unread(func: cst.BaseExpression, source: Source, flow: Flow) -> str:
    """The qualified name of a callee in code that the flow never reached (`if DEBUG:`), by the names of the module."""
    name = dotted(func)
    root, _, rest = name.partition(".")
    frame = flow.modules.get(source)
    if not root or frame is None:
        return ""
    known = frame.scope.names.get(root, ())
    for obj in known:
        if isinstance(obj, Ext):
            return f"{obj.name}.{rest}" if rest else obj.name
    return f"builtins.{root}" if not known and not rest and hasattr(builtins, root) else ""


def holding(source: Source, node: cst.CSTNode) -> cst.CSTNode | None:
    """The innermost statement around an expression, None where a lambda stands between them."""
    for above in source.ancestors(node):
        if isinstance(above, cst.Lambda):
            return None
        if isinstance(above, (cst.BaseSmallStatement, cst.BaseCompoundStatement)):
            return above
    return None


def made_by(obj: object) -> str:
    """The qualified name of the unknown function that gave an object."""
    known = constants(obj.fields.get("__name__", ())) if isinstance(obj, Thing) else None
    return str(known[0]) if known else ""


def can_be(value: Value, *wanted: object) -> bool:
    """Whether a value can be one of these literals: True where it is not known."""
    known = constants(value)
    return known is None or any(k in wanted for k in known)
