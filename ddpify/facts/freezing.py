"""A model and its wrap in, whether it may be frozen as a whole by then out: DDP refuses one that trains nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import libcst as cst

from ddpify.facts.contents import constants, modules, origins, start_of_chain
from ddpify.facts.flow import Flow
from ddpify.facts.frames import Event, Frame
from ddpify.facts.placing import is_guard, steps
from ddpify.facts.replay import replay
from ddpify.facts.roles import Roles, root
from ddpify.facts.values import Const, FromForward, Method, Module, Parameters, Thing, Value
from ddpify.source import Source

_SWITCHES = ("requires_grad", "requires_grad_")
#: What may or may not run.
_CHOICES = (cst.If, cst.IfExp, cst.Try, cst.BooleanOperation, cst.Match, cst.While)


def may_be_frozen(flow: Flow, roles: Roles, module: Module, before: int, stmt: cst.CSTNode, source: Source) -> bool:
    """Whether all parameters of a model may be frozen behind a statement, and nothing tells that the script trains it.

    `before`: the number of the last event there.

    `encoder.fine_tune(False)`, `for p in encoder.parameters(): p.requires_grad_(args.fine_tune)`
    """
    switches = [e for e in replay(flow, "set", "method") if e.name in _SWITCHES and e.seq <= before]
    mine = [e for e in switches if module in map(root, _switched(e))]
    tests = {a for a in source.ancestors(stmt) if isinstance(a, _CHOICES)}
    if not mine or _must_train(flow, roles, module, tests):
        return False
    trains = dict.fromkeys(_leaves(module), True)
    made = {e.obj: e.seq for e in flow.log.of("new") if isinstance(e.obj, Module)}
    for e in mine:
        whole = {leaf for m in _switched(e) for leaf in _leaves(m)}
        if constants(_told(e)) == [True]:
            trains |= dict.fromkeys(whole, True) if _is_certain(e, tests) else {}
        elif not _picks(e) and not isinstance(e.obj, Method):
            trains |= {leaf: False for leaf in whole if made.get(leaf, 0) < e.seq}
    return not any(trains.values())


def _told(e: Event) -> Value:
    """What parameters are switched to: `requires_grad_()` frees them."""
    given = e.value or e.extra.get("requires_grad", ())
    return given or ((Const(True),) if e.kind == "method" else ())


def _switched(e: Event) -> list[Module]:
    """The modules whose parameters are switched: of `model.fc.requires_grad_()`, the model, where `fc` is not known."""
    obj = start_of_chain(e.obj)
    if isinstance(obj, Parameters):
        return list(obj.modules)
    return modules((obj,)) if obj is not None else []


def _leaves(module: Module) -> set[Module]:
    """The modules in a model that hold parameters: it and its parts, those out that only hold others."""
    found: set[Module] = set()
    todo, seen = [module], {module}
    while todo:
        top = todo.pop()
        parts = [m for v in top.fields.values() for m in modules(v) if m.has_parameters]
        own = any(isinstance(o, Thing) for v in top.fields.values() for o in v)
        if not parts or own or (top.cls is None and not top.name.startswith("torch.nn.")):
            found.add(top)
        todo.extend(m for m in parts if m not in seen)
        seen.update(parts)
    return found


def _picks(e: Event) -> bool:
    """A part of the parameters is meant: by a test in the loop over them, or by a slice of what is looped over."""
    if isinstance(e.obj, Parameters) and e.obj.part:
        return True
    for above in e.frame.source.ancestors(e.stmt):
        if isinstance(above, (cst.FunctionDef, cst.ClassDef)):
            return False
        if isinstance(above, cst.If) and any(isinstance(a, cst.For) for a in _around(e.frame, above)):
            return True
    return False


def _around(frame: Frame, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """What stands around a node in its function."""
    for above in frame.source.ancestors(node):
        if isinstance(above, (cst.FunctionDef, cst.ClassDef)):
            return
        yield above


def _is_certain(e: Event, tests: Collection[cst.CSTNode]) -> bool:
    """Whether an event happens in every run that passes some tests: no other stands around it, or around its calls."""
    places = [(frame, stmt) for frame, stmt, _ in steps(e)[:-1]] + [(e.frame, e.node)]
    above = (a for frame, node in places for a in _around(frame, node) if isinstance(a, _CHOICES))
    return all(a in tests or is_guard(a) for a in above)


def _must_train(flow: Flow, roles: Roles, module: Module, tests: Collection[cst.CSTNode]) -> bool:
    """Whether the script itself would raise, were the model frozen: a loss of it alone, an optimizer of none."""
    for b in roles.backwards:
        through = (o for o in origins(b.value) if isinstance(o, FromForward))
        if {root(o.module) for o in through if not o.cut and o.module.has_parameters} == {module}:
            return True
    for e in flow.log.of("new"):
        first = e.node.args[0].value if isinstance(e.node, cst.Call) and e.node.args else None
        held = e.obj if e.obj in roles.optimizers else None
        if held is None or first is None or {root(m) for m in getattr(held, "modules", ())} != {module}:
            continue
        text = e.frame.source.code(first)
        if "requires_grad" in text and _is_certain(e, tests):
            return True  # torch.optim: "optimizer got an empty parameter list"
    return False
