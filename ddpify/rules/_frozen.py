"""Frozen models in, notes out: which constant keeps one out of DDP, and whose statistics it has in the end."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddpify.facts import Facts
from ddpify.facts.definitions import argument_of
from ddpify.facts.frames import Event, Frame, Scope
from ddpify.facts.layers import normalises
from ddpify.facts.moving import find_moving
from ddpify.facts.placing import steps
from ddpify.facts.roles import root
from ddpify.facts.routes import in_step
from ddpify.facts.untrained import find_untrained
from ddpify.facts.values import Module
from ddpify.rules._base import Finding, Rule
from ddpify.source import Source, walk


def frozen_models(rule: Rule, facts: Facts) -> Iterator[Finding]:
    """`fine_tune = False`: the encoder is not wrapped, and would train on each rank by itself if it were True."""
    flow, moving = facts.flow, find_moving(facts.flow, facts.roles)
    inside = {root(m) for w in facts.wrap_points for m in w.modules}
    classes = {m.cls for m in inside if m.cls is not None}
    for held in find_untrained(flow, facts.roles):
        m = held.module
        forwards = [e for e in flow.log.of("forward") if e.obj is m and in_step(facts.roles, e)]
        if not forwards or m in inside or m.cls in classes or m.evidence.startswith("a copy"):
            continue  # a mean of the weights is not trained, and is to be in train mode
        at = next((s for e in held.at for s in [_constant(e)] if s), None) or _left_out(facts, m, forwards[0])
        e = moving.get(m)
        seen = e is not None and normalises(m)
        call = (e or forwards[0]).node
        source = forwards[0].frame.source
        if not isinstance(call, cst.Call) or not (at or seen) or not facts.editable(source):
            continue
        func = call.func
        called = func.value if isinstance(func, cst.Attribute) and func.attr.value == "forward" else func
        name = source.code(called)
        what = "frozen" if held.at else "not trained"
        if at is not None:
            code, file, stmt = at
            where = f"line {file.line(stmt)}" if file is source else f"{file.path.name}, line {file.line(stmt)}"
            message = (
                f"`{name}` is {what}, and not wrapped, as `{code}` says ({where}): to train it, change that in the "
                "original and convert that"
            )
            yield rule.finding(source, forwards[0].stmt, message, note=True)
        if seen:
            message = (
                f"BatchNorm in `{name}`, which is {what}, runs in train mode on each rank's own batches: rank 0's "
                f"statistics go to all ranks before an evaluation, and into files (`{name}.eval()` in the steps "
                "keeps them as they were)"
            )
            yield rule.finding(source, forwards[0].stmt, message, note=True)


Constant = tuple[str, Source, cst.CSTNode]


def _constant(e: Event) -> Constant | None:
    """The constant of the file that an `x.requires_grad = ...` has its value from, or a test around it."""
    value = getattr(e.stmt, "value", None) if e.kind == "set" else None
    if isinstance(e.node, cst.Call) and e.node.args:
        value = e.node.args[0].value
    found = _named(value, e.frame) if isinstance(value, cst.BaseExpression) else None
    for frame, stmt, _ in reversed(steps(e)):
        if found is not None:
            return found
        for above in (stmt, *frame.source.ancestors(stmt)):
            if isinstance(above, (cst.FunctionDef, cst.ClassDef)):
                break
            if isinstance(above, cst.If) and stmt is not above:
                found = found or _named(above.test, frame)
    return found


def _left_out(facts: Facts, module: Module, forward: Event) -> Constant | None:
    """`if fine_tune: params += encoder.parameters()`, which a constant of the file rules out."""
    for frame, _, _ in steps(forward):
        for node in walk(frame.node):
            if not isinstance(node, (cst.If, cst.IfExp)) or facts.flow.truth(facts.flow.values.get(node.test, ())):
                continue
            found = _named(node.test, frame)
            if found is not None and any(
                isinstance(n, cst.Attribute)
                and n.attr.value in ("parameters", "named_parameters")
                and _is(facts, n.value, module, frame)
                for n in walk(node.body)
            ):
                return found
    return None


def _is(facts: Facts, node: cst.BaseExpression, module: Module, frame: Frame) -> bool:
    """Whether a name in a branch that is not taken is the model's."""
    held = frame.scope.names.get(node.value, ()) if isinstance(node, cst.Name) else facts.flow.values.get(node, ())
    return module in held


def _named(node: cst.BaseExpression, frame: Frame) -> Constant | None:
    """The constant that an expression reads, up the arguments: `on` of `fine_tune(on)`, called with FINE_TUNE."""
    for name in (node, *walk(node)):
        if isinstance(name, cst.Attribute):
            found = _field(name, frame.source)
            if found is not None:
                return found
        if not isinstance(name, cst.Name):
            continue
        argument = frame.arguments.get(name.value)
        if argument is not None and name.value not in frame.assigned:
            for entry in frame.entries:
                given = argument_of(entry.call, frame, name.value) or argument
                found = _named(given, entry.frame)
                if found is not None:
                    return found
        found = _literal(name.value, frame.scope)
        if found is not None:
            return found
    return None


def _literal(name: str, scope: Scope) -> Constant | None:
    """`FINE_TUNE = False`, where nothing else gives the name a value in the end."""
    holder = scope.holder(name)
    stmt = holder.bound_at.get(name) if holder is not None else None
    if holder is None or not isinstance(stmt, (cst.Assign, cst.AnnAssign)) or not isinstance(stmt.value, cst.Name):
        return None
    code = holder.source.code(stmt)
    return (code, holder.source, stmt) if stmt.value.value in ("True", "False") else None


def _field(node: cst.Attribute, source: Source) -> Constant | None:
    """`self.fine_tune` of `self.fine_tune = False`, the only statement of the file that sets it."""
    if not isinstance(node.value, cst.Name):
        return None
    stmts = [
        n
        for n in source.of(cst.Assign)
        for t in n.targets
        if isinstance(t.target, cst.Attribute) and t.target.attr.value == node.attr.value
    ]
    if len(stmts) != 1 or not isinstance(stmts[0].value, cst.Name) or stmts[0].value.value not in ("True", "False"):
        return None
    return source.code(stmts[0]), source, stmts[0]
