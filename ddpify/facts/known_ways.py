"""An expression and others in, an answer out: does it come of one of them, on a way of which each step is known?

What a call is given goes into an unknown result, and the flow keeps that in mind; whether it comes out again, with its
gradient, nobody knows. Lint says only what is certain, and asks here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.contents import modules
from ddpify.facts.definitions import Definition, argument_of, definitions, element_at, reaching, returns
from ddpify.facts.externals import role_of
from ddpify.facts.frames import Event, Frame
from ddpify.facts.own import own
from ddpify.facts.values import Data, Ext, Func, Method, Module, Obj, Wrapped
from ddpify.source import children, dotted

if TYPE_CHECKING:
    from ddpify.facts import Facts

_DEPTH = 60
#: what no gradient comes through
_CUTS = frozenset({"detach", "detach_", "item", "tolist", "numpy", "argmax", "argmin", "size", "backward"})
_KNOWN = ("torch.", "builtins.", "math.", "functools.reduce", "operator.", "einops.", "collections.")
_STOPS = frozenset({"builtins.len", "builtins.int", "builtins.float", "builtins.range", "builtins.isinstance"})


class KnownWays:
    """Whether gradients come from a loss to the expressions that it asks for."""

    def __init__(self, facts: Facts, targets: set[int]) -> None:
        self.facts, self.targets = facts, targets
        self.flow = facts.after
        self.definitions = definitions(self.flow)
        self.own = own(facts)
        self.seen: dict[tuple[int, int], bool] = {}
        #: what calls the forward of a model of the project, in the way that is being followed
        self.called: dict[int, tuple[cst.Call, Frame]] = {}

    def leads(self, node: cst.CSTNode, frame: Frame, depth: int = _DEPTH) -> bool:
        """Whether one of the expressions is on a known way back from `node`."""
        if id(node) in self.targets:
            return True
        key = (id(node), id(frame))
        if depth and key not in self.seen:
            self.seen[key] = False  # of a name that is made of itself
            self.seen[key] = self.comes(node, frame, depth)
        return self.seen.get(key, False)

    def comes(self, node: cst.CSTNode, frame: Frame, depth: int) -> bool:
        match node:
            case cst.Name():
                return self.name(node, frame, depth)
            case cst.Attribute(value=value, attr=attr):
                if attr.value in ("data", "shape", "grad"):
                    return False
                return self.name(node, frame, depth) or self.leads(value, frame, depth - 1)
            case cst.Subscript(value=value):
                return self.given(node, frame, depth) or self.leads(value, frame, depth - 1)
            case cst.Call():
                return self.called_for(node, frame, depth)
            case cst.IfExp(body=body, orelse=orelse):
                return self.leads(body, frame, depth - 1) or self.leads(orelse, frame, depth - 1)
            case cst.Lambda() | cst.Comparison():
                return False
        return any(self.leads(child, frame, depth - 1) for child in children(node))

    def called_for(self, call: cst.Call, frame: Frame, depth: int, at: int | None = None) -> bool:
        """Whether it comes out of a call, whichever function runs there; `at` a place of the tuple that it gives."""
        found = [any(self.leads(n, f, depth - 1) for n, f in run) for run in self.behind(call, frame, at)]
        return bool(found) and all(found)

    def defined(self, d: Definition, depth: int) -> bool:
        if d.index is not None and isinstance(d.node, cst.Call):  # `loss, shown = step(batch)`
            return id(d.node) in self.targets or self.called_for(d.node, d.frame, depth, d.index)
        return self.leads(d.node, d.frame, depth)

    def name(self, node: cst.Name | cst.Attribute, frame: Frame, depth: int) -> bool:
        found = reaching(self.definitions.of(node, frame), node, frame)
        if any(self.defined(d, depth - 1) for d in found) or self.given(node, frame, depth):
            return True
        if id(frame) in self.called and isinstance(node, cst.Name):
            call, caller = self.called[id(frame)]
            given = argument_of(call, frame, node.value)
            if given is not None and self.leads(given, caller, depth - 1):
                return True
        turns = self.own.turns(node, frame) if isinstance(node, cst.Name) else []
        return any(self.leads(t, frame, depth - 1) for t in turns)

    def given(self, node: cst.BaseExpression, frame: Frame, depth: int) -> bool:
        """`losses["a"] = loss`, `losses.append(loss)`"""
        key = (id(frame), frame.source.code(node))
        held = (*self.own.put.get(key, ()), *self.own.slots.get(key, ()))
        return any(self.leads(n, f, depth - 1) for n, f in held)

    def behind(self, call: cst.Call, frame: Frame, at: int | None = None) -> list[list[tuple[cst.CSTNode, Frame]]]:
        """What comes out of a call again, for each function it may run: its arguments, or what is given back."""
        args: list[tuple[cst.CSTNode, Frame]] = [(a.value, frame) for a in call.args]
        func, held = call.func, self.flow.values.get(call.func, ())
        ran = [e.callee for e in self.own.calls.get(id(call), ()) if e.frame is frame and e.callee is not None]
        inner = [m for o in held if isinstance(o, (Module, Wrapped)) for m in modules((o,))]
        for forward in (f for m in inner if m.cls is not None for f in m.cls.member("forward") if isinstance(f, Func)):
            inside = next(reversed(self.definitions.frames.get(id(forward.node), ())), None)
            if inside is not None and inside not in ran:
                self.called[id(inside)] = call, frame
                ran.append(inside)
        if ran:
            return [self.given_back(callee, at) for callee in ran]
        if inner and len(inner) == len(held):
            return [args]  # of a library, or of a class that is not there
        names = [o.name for o in held if isinstance(o, Ext)]
        if names:
            known = all(n.startswith(_KNOWN) and n not in _STOPS and n.rpartition(".")[2] not in _CUTS for n in names)
            return [args] if known or all(role_of(n) in ("loss", "sum", "mean") for n in names) else []
        if isinstance(func, cst.Attribute) and func.attr.value not in _CUTS and held and all(map(_is_method, held)):
            return [[(func.value, frame), *args]]
        return []

    def given_back(self, callee: Frame, at: int | None) -> list[tuple[cst.CSTNode, Frame]]:
        ran = [e.stmt for e in callee.events if e.kind == "return"]  # of the ways that these arguments leave open
        body = callee.node.body if isinstance(callee.node, cst.FunctionDef) else callee.node
        values = [getattr(r, "value", None) for r in (ran or returns(body))] if callee.grad is not False else []
        picked = [element_at(value, at) for value in values if isinstance(value, cst.BaseExpression)]
        return [(value, callee) for value in picked if value is not None]


def _is_method(held: Obj) -> bool:
    """`loss.mean()`, `losses.values()`, `scaler.scale(loss)`: a method of a value, and no attribute that holds one."""
    return isinstance(held, (Method, Data))


def comes_of(facts: Facts, backward: Event, targets: set[int]) -> bool:
    """Whether a loss is known to bring gradients to one of the calls."""
    ways = KnownWays(facts, targets)
    return any(ways.leads(loss, backward.frame) for loss in _losses(backward))


def behind_losses(facts: Facts) -> set[int]:
    """The expressions that the losses are known to be computed with, each by its `id`."""
    return facts.cached("behind losses", _behind_losses)


def _behind_losses(facts: Facts) -> set[int]:
    ways = KnownWays(facts, set())
    for backward in facts.after_roles.backwards:
        for loss in _losses(backward):
            ways.leads(loss, backward.frame)
    return {node for node, _ in ways.seen}


def _losses(backward: Event) -> list[cst.BaseExpression]:
    """`loss` of `loss.backward()`, and of `scaler(loss, optimizer)`."""
    call = backward.node
    if not isinstance(call, cst.Call):
        return []
    own = isinstance(call.func, cst.Attribute) and call.func.attr.value == "backward"
    if own and isinstance(call.func, cst.Attribute) and not dotted(call.func).startswith("torch."):
        return [call.func.value, *(a.value for a in call.args)]
    return [a.value for a in call.args]
