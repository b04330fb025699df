"""A model in, a layer of it that a loss does without out: DDP would wait for its gradient."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.contents import modules, origins
from ddpify.facts.dependencies import bindings, closure, own_nodes, read_names
from ddpify.facts.roles import root
from ddpify.facts.values import Const, FromForward, Func, Module
from ddpify.source import Source, dotted

if TYPE_CHECKING:
    from ddpify.facts import Facts
    from ddpify.facts.frames import Event


def forwards_behind(facts: Facts, module: Module) -> Iterator[tuple[Event, list[cst.Call]]]:
    """The backwards through a model, each with the calls of the model that its loss was computed with."""
    for e in facts.roles.backwards:
        found = [
            o.node
            for o in origins(e.value)
            if isinstance(o, FromForward) and not o.cut and root(o.module) is root(module)
        ]
        calls = [n for n in found if isinstance(n, cst.Call)]
        if calls and len(calls) == len(found):
            yield e, calls


def idle_head(facts: Facts, module: Module) -> str | None:
    """The layer of an output that a loss leaves out: `logit, _ = disc(fake)`, where `_` has a layer of its own."""
    outputs = _outputs(module)
    if not outputs:
        return None
    for e, calls in forwards_behind(facts, module):
        used: set[str] = set()
        for call in calls:
            taken = _taken(facts.source_of(call), call, e, len(outputs))
            used |= frozenset().union(*(outputs[i] for i in range(len(outputs)) if taken is None or i in taken))
        idle = frozenset().union(*outputs) - used
        if idle:
            return f"self.{min(idle)}"
    return None


def _outputs(module: Module) -> list[frozenset[str]]:
    """For each output of a forward with one `return a, b`: the layers with parameters that it is computed with."""
    funcs = [f for f in (module.cls.member("forward") if module.cls is not None else ()) if isinstance(f, Func)]
    if len(funcs) != 1 or not funcs[0].node.params.params:
        return []
    body, me = funcs[0].node.body, funcs[0].node.params.params[0].name.value
    returned = [n.value for n in own_nodes(body) if isinstance(n, cst.Return)]
    if len(returned) != 1 or not isinstance(returned[0], cst.Tuple):
        return []
    elements = returned[0].elements
    if len(elements) < 2 or any(isinstance(e, cst.StarredElement) for e in elements):
        return []
    trained = {
        f"{me}.{name}": name
        for name, value in module.fields.items()
        if any(m.has_parameters and not m.frozen for m in modules(value))
    }
    known = (closure(read_names(e.value), bindings(body)) for e in elements)
    return [frozenset(trained[n] for n in names if n in trained) for names in known]


def _taken(source: Source, call: cst.Call, e: Event, n: int) -> set[int] | None:
    """Which of n outputs of a call the loss of a backward is computed from, None where it may be all."""
    above = source.parents.get(call)
    if isinstance(above, cst.Subscript) and above.value is call:  # disc(x)[0]
        match above.slice:
            case [cst.SubscriptElement(slice=cst.Index(value=cst.Integer(value=digits)))]:
                return {int(digits)}
        return None
    target = above.targets[0].target if isinstance(above, cst.Assign) and len(above.targets) == 1 else None
    if not isinstance(target, cst.Tuple) or len(target.elements) != n:
        return None
    names = [t.value.value for t in target.elements if isinstance(t, cst.Element) and isinstance(t.value, cst.Name)]
    if len(names) != n:
        return None
    func = next((a for a in source.ancestors(call) if isinstance(a, cst.FunctionDef)), None)
    body: cst.CSTNode = func.body if func is not None else source.module
    own = list(own_nodes(body))
    ends = [e.node] if e.node in own else [r.value for r in own if isinstance(r, cst.Return) and r.value is not None]
    if not ends:
        return None
    known = closure(frozenset().union(*map(read_names, ends)), bindings(body))
    return {i for i, name in enumerate(names) if name in known}


def given_none(facts: Facts, module: Module, func: Func) -> dict[str, set[bool]]:
    """The parameters of a forward that training gives None at times: whether they are None, True and False for both."""
    params = func.node.params.params
    found: dict[str, set[bool]] = {}
    for call in {c for _, calls in forwards_behind(facts, module) for c in calls}:
        if any(a.star for a in call.args):
            return {}
        by_place = [a.value for a in call.args if a.keyword is None]
        by_name = {a.keyword.value: a.value for a in call.args if a.keyword is not None}
        for i, param in enumerate(params[1:]):
            name = param.name.value
            given = by_place[i] if i < len(by_place) else by_name.get(name)
            if given is None:
                found.setdefault(name, set()).add(_is_none(param.default))
            elif _is_none(given):
                found.setdefault(name, set()).add(True)
            else:
                value = facts.flow.values.get(given, ())
                empty = [isinstance(o, Const) and o.value is None for o in value] or [False]
                found.setdefault(name, set()).update(empty)
    return {name: seen for name, seen in found.items() if True in seen}


def _is_none(node: cst.BaseExpression | None) -> bool:
    return dotted(node) == "None"


def asks_for(test: cst.BaseExpression) -> tuple[str, bool] | None:
    """`if y is not None`: the name, and whether the body runs where it is None."""
    match test:
        case cst.Name(value=name):
            return name, False
        case cst.UnaryOperation(operator=cst.Not(), expression=cst.Name(value=name)):
            return name, True
        case cst.Comparison(
            left=cst.Name(value=name), comparisons=[cst.ComparisonTarget(operator=how, comparator=right)]
        ) if _is_none(right):
            if isinstance(how, (cst.Is, cst.Equal)):
                return name, True
            if isinstance(how, (cst.IsNot, cst.NotEqual)):
                return name, False
    return None
