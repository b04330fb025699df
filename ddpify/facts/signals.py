"""Handlers of signals in, what they set out: flags that each process has for itself, as a signal reaches it."""

from __future__ import annotations

from typing import Any

import libcst as cst

from ddpify.facts.commands import Commands
from ddpify.facts.contents import join, origins
from ddpify.facts.frames import Frame, Scope
from ddpify.facts.state import Given
from ddpify.facts.values import Data, Dict, Ext, FromWorld, Func, Heap, Obj, Value

_SIGNAL = "signal.signal"
_FLAG: Value = (Data("any", "other", frozenset({FromWorld(_SIGNAL)})),)


class Signals(Commands):
    """`signal.signal(signal.SIGTERM, handler)`: what the handler sets may change at any time, behind it as well."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        #: names of scopes, attributes of objects and keys of dicts that a handler sets, by their holder
        self.signalled: set[tuple[int, object]] = set()

    def outside(
        self, ext: Ext, node: cst.Call, given: list[Given], named: dict[str, Given], splats: list[Value], frame: Frame
    ) -> Value:
        if ext.name != _SIGNAL:
            return super().outside(ext, node, given, named, splats, frame)
        handlers = [o for _, value in (*given, *named.values()) for o in value if isinstance(o, Func)]
        places = [place for handler in handlers for place in _places(handler)]
        before = [dict(held) for _, held in places]
        result = super().outside(ext, node, given, named, splats, frame)
        for (holder, held), old in zip(places, before, strict=True):
            for key, value in held.items():
                if value != old.get(key):
                    held[key] = join(old.get(key, ()), _FLAG)
                    self.signalled.add((id(holder), key))
        return result

    def bind(self, target: cst.BaseExpression, value: Value, frame: Frame) -> None:
        if self.signalled and isinstance(target, cst.Name):
            scope = frame.scope.outer.get(target.value, frame.scope)
            value = self.flagged(scope, target.value, value)
        super().bind(target, value, frame)

    def set_field(self, obj: Obj, name: str, value: Value) -> None:
        super().set_field(obj, name, self.flagged(obj, name, value))

    def flagged(self, holder: object, key: object, value: Value) -> Value:
        return join(value, _FLAG) if (id(holder), key) in self.signalled else value


def _places(handler: Func) -> list[tuple[object, dict[Any, Value]]]:
    """Where a handler may set something: the names outside of it, the dicts that they hold, its own object."""
    found: list[tuple[object, dict[Any, Value]]] = []
    scope: Scope | None = handler.scope
    while scope is not None:
        found.append((scope, scope.names))
        found += [(o, o.items) for value in scope.names.values() for o in value if isinstance(o, Dict)]
        scope = scope.parent
    if isinstance(handler.bound, Heap):
        found.append((handler.bound, handler.bound.fields))
    return found


def comes_by_signal(value: Value) -> bool:
    """Whether a value is what a handler of a signal has set."""
    return any(isinstance(o, FromWorld) and o.what == _SIGNAL for o in origins(value))
