"""A test of a variable in, what the variable holds on either side of it out: the DDP wrapper, or the model itself."""

from __future__ import annotations

from collections.abc import Callable

import libcst as cst

from ddpify.facts.contents import constants, join
from ddpify.facts.externals import role_of
from ddpify.facts.frames import Frame
from ddpify.facts.values import Ext, Seq, Value, Wrapped


def narrowed(
    test: cst.BaseExpression, held_by: Callable[[cst.CSTNode, Frame], Value], frame: Frame
) -> tuple[str, Value, Value] | None:
    """`isinstance(model, DDP)`, `hasattr(model, "module")`: the variable, and what it holds where that is true or not.

    Only where it may be either.
    """
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        found = narrowed(test.expression, held_by, frame)
        return (found[0], found[2], found[1]) if found is not None else None
    if not isinstance(test, cst.Call) or len(test.args) != 2 or not isinstance(test.args[0].value, cst.Name):
        return None
    name = test.args[0].value.value
    held = frame.scope.names.get(name, ())
    wrapped = tuple(o for o in held if isinstance(o, Wrapped))
    if not wrapped or len(wrapped) == len(held) or not _asks(test, held_by, frame):
        return None
    return name, wrapped, tuple(o for o in held if not isinstance(o, Wrapped))


def _asks(test: cst.Call, held_by: Callable[[cst.CSTNode, Frame], Value], frame: Frame) -> bool:
    """Whether the test holds of a wrapper alone."""
    called = {o.name for o in held_by(test.func, frame) if isinstance(o, Ext)}
    second = held_by(test.args[1].value, frame)
    if called == {"builtins.hasattr"}:
        return constants(second) == ["module"]
    classes = [c for o in second for c in (join(*(o.elements or ())) if isinstance(o, Seq) else (o,))]
    return called == {"builtins.isinstance"} and any(isinstance(c, Ext) and role_of(c.name) == "ddp" for c in classes)
