"""A model in, a layer of it that a loss does without out: DDP would wait for its gradient."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.contents import modules, origins
from ddpify.facts.dependencies import bindings, closure, own_nodes, read_names
from ddpify.facts.placing import ends_in_a_way_out
from ddpify.facts.roles import root
from ddpify.facts.taken import Key, taken
from ddpify.facts.values import Const, FromForward, Func, Module
from ddpify.source import dotted

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
    outputs = _outputs(facts, module)
    if not outputs:
        return None
    for e, calls in forwards_behind(facts, module):
        used: set[str] = set()
        for call in calls:
            some = taken(facts, facts.source_of(call), call, e, frozenset(outputs))
            used |= frozenset().union(*(outputs[key] for key in outputs if some is None or key in some))
        idle = frozenset().union(*outputs.values()) - used
        if idle:
            return f"self.{min(idle)}"
    return None


def _outputs(facts: Facts, module: Module) -> dict[Key, frozenset[str]]:
    """For each output of a forward that trains by one `return a, b`: the layers with parameters it is computed with."""
    funcs = [f for f in (module.cls.member("forward") if module.cls is not None else ()) if isinstance(f, Func)]
    if len(funcs) != 1 or not funcs[0].node.params.params:
        return {}
    body, me = funcs[0].node.body, funcs[0].node.params.params[0].name.value
    returned = [n for n in own_nodes(body) if isinstance(n, cst.Return) and not _is_of_evaluation(funcs[0], n, me)]
    parts = _parts(returned[0].value) if len(returned) == 1 else {}
    trained = {
        f"{me}.{name}": name
        for name, value in module.fields.items()
        if any(m.has_parameters and not m.frozen for m in modules(value))
    }
    known = {key: closure(read_names(part), bindings(body)) for key, part in parts.items()}
    return {key: frozenset(trained[n] for n in names if n in trained) for key, names in known.items()}


def _parts(value: cst.BaseExpression | None) -> dict[Key, cst.BaseExpression]:
    """`return logits, features`, `return {"logits": logits, "features": features}`: each by its place or its key."""
    match value:
        case cst.Tuple(elements=elements) | cst.List(elements=elements):
            plain = [e.value for e in elements if isinstance(e, cst.Element)]
            return dict(enumerate(plain)) if 1 < len(plain) == len(elements) else {}
        case cst.Dict(elements=items):
            found: dict[Key, cst.BaseExpression] = {
                str(i.key.evaluated_value): i.value
                for i in items
                if isinstance(i, cst.DictElement) and isinstance(i.key, cst.SimpleString)
            }
            return found if 1 < len(found) == len(items) else {}
    return {}


def _is_of_evaluation(func: Func, node: cst.Return, me: str) -> bool:
    """`if not self.training: return logits`, and what comes behind `if self.training: return logits, features`."""
    inner: cst.CSTNode = node
    for above in func.source.ancestors(node):
        if above is func.node:
            break
        if isinstance(above, cst.If) and inner is not above.test:
            test, trains = above.test, inner is above.body
            if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
                test, trains = test.expression, not trains
            if dotted(test) == f"{me}.training" and not trains:
                return True
        inner = above
    line, block = func.source.parents[node], func.node.body
    own: list[cst.CSTNode] = list(block.body) if isinstance(block, cst.IndentedBlock) else []
    tests = [s for s in own[: own.index(line)] if isinstance(s, cst.If)] if line in own else []
    return any(dotted(s.test) == f"{me}.training" and ends_in_a_way_out(s.body) for s in tests)


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
