"""A test of a variable in, what the variable holds on either side of it out: the DDP wrapper, or the model itself."""

from __future__ import annotations

from collections.abc import Callable

import libcst as cst

from ddpify.facts.contents import constants, join
from ddpify.facts.externals import role_of
from ddpify.facts.frames import Frame
from ddpify.facts.values import Ext, Module, Optimizer, Scheduler, Seq, StateDict, Value, Wrapped
from ddpify.source import dotted


def narrowed(
    test: cst.BaseExpression, held_by: Callable[[cst.CSTNode, Frame], Value], frame: Frame
) -> dict[str, tuple[Value, Value]]:
    """`isinstance(model, DDP)`, `hasattr(model, "module")`, `if ddp:`: variables, and what they hold on either side.

    Only those that may be either. Of a flag it is known where the model was wrapped by it.
    """
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        return {n: (no, yes) for n, (yes, no) in narrowed(test.expression, held_by, frame).items()}
    if (flag := dotted(test)) and frame.scope.choices:
        names = frame.scope.names
        known = frame.scope.choices.items()
        return {n: (yes, no) for n, (by, held, yes, no) in known if by == flag and names.get(n) == held}
    if not isinstance(test, cst.Call) or len(test.args) != 2 or not isinstance(test.args[0].value, cst.Name):
        return {}
    name = test.args[0].value.value
    held = frame.scope.names.get(name, ())
    if _asks_for_state(test, held_by, frame):
        without = tuple(o for o in held if not isinstance(o, (Module, Wrapped, Optimizer, Scheduler)))
        return {name: (held, without)} if without and len(without) < len(held) else {}
    wrapped = tuple(o for o in held if isinstance(o, Wrapped))
    if not wrapped or len(wrapped) == len(held) or not _asks(test, held_by, frame):
        return {}
    return {name: (wrapped, tuple(o for o in held if not isinstance(o, Wrapped)))}


def is_bare(test: cst.BaseExpression, held_by: Callable[[cst.CSTNode, Frame], Value], frame: Frame) -> bool:
    """`isinstance(model, DDP)` of a variable that holds models which nothing stands around: no run goes that way."""
    if not isinstance(test, cst.Call) or len(test.args) != 2 or not isinstance(test.args[0].value, cst.Name):
        return False
    held = frame.scope.names.get(test.args[0].value.value, ())
    return bool(held) and all(isinstance(o, Module) for o in held) and _asks(test, held_by, frame)


def choose(test: cst.BaseExpression, frame: Frame, one: dict[str, Value], other: dict[str, Value]) -> None:
    """Keep what `if ddp: model = DDP(model)` makes of the variables, for the next test of the flag."""
    turned = isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not)
    flag = dotted(test.expression) if isinstance(test, cst.UnaryOperation) else dotted(test)
    for name in one if flag else ():
        yes, no = one[name], other.get(name, ())
        kinds = [{isinstance(o, Wrapped) for o in side} for side in (yes, no)]
        if kinds in ([{True}, {False}], [{False}, {True}]):
            frame.scope.choices[name] = (flag, frame.scope.names[name], *((no, yes) if turned else (yes, no)))


def unwrapped(body: cst.BaseExpression, orelse: cst.BaseExpression, one: Value, two: Value) -> Value:
    """`model.module if ddp else model`: the module, whatever the test; who writes so knows that the rest is bare."""
    inner = isinstance(body, cst.Attribute) and body.attr.value == "module" and body.value.deep_equals(orelse)
    if not one or not (inner or _state_of_inner(body, orelse)):
        return join(one, two)
    return join(one, tuple(o for o in two if not isinstance(o.of if isinstance(o, StateDict) else o, Wrapped)))


def _state_of_inner(body: cst.BaseExpression, orelse: cst.BaseExpression) -> bool:
    """`net.module.state_dict() if ddp else net.state_dict()`"""
    match body, orelse:
        case (
            cst.Call(func=cst.Attribute(value=cst.Attribute(value=one, attr=cst.Name(value="module")), attr=method)),
            cst.Call(func=cst.Attribute(value=other, attr=same)),
        ):
            return method.value == same.value and one.deep_equals(other)
    return False


def _asks_for_state(test: cst.Call, held_by: Callable[[cst.CSTNode, Frame], Value], frame: Frame) -> bool:
    """`hasattr(value, "state_dict")`, which holds of every model and optimizer."""
    called = {o.name for o in held_by(test.func, frame) if isinstance(o, Ext)}
    return called == {"builtins.hasattr"} and constants(held_by(test.args[1].value, frame)) == ["state_dict"]


def _asks(test: cst.Call, held_by: Callable[[cst.CSTNode, Frame], Value], frame: Frame) -> bool:
    """Whether the test holds of a wrapper alone."""
    called = {o.name for o in held_by(test.func, frame) if isinstance(o, Ext)}
    second = held_by(test.args[1].value, frame)
    if called == {"builtins.hasattr"}:
        return constants(second) == ["module"]
    classes = [c for o in second for c in (join(*(o.elements or ())) if isinstance(o, Seq) else (o,))]
    return called == {"builtins.isinstance"} and any(isinstance(c, Ext) and role_of(c.name) == "ddp" for c in classes)
