"""A loop in, whether an event of a pass changes only what this pass was given or has made out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.definitions import argument_of, returns
from ddpify.facts.dependencies import Binding, bindings, bound_names, carried
from ddpify.facts.frames import Event, Frame
from ddpify.facts.loops import LoopFacts
from ddpify.facts.values import Ext

if TYPE_CHECKING:
    from ddpify.facts import Facts

_DISPLAYS = (cst.Dict, cst.DictComp, cst.List, cst.ListComp, cst.Set, cst.SetComp)
_DEPTH = 4


@dataclass(frozen=True)
class Owned:
    """Names whose objects end with the pass."""

    #: the batch, and parts of it
    given: frozenset[str] = frozenset()
    #: dicts and lists that the pass makes, which may hold what lives on
    made: frozenset[str] = frozenset()

    def __contains__(self, name: object) -> bool:
        return name in self.given or name in self.made

    def changed_by(self, event: Event) -> bool:
        """`batch["label"] = batch["label"].to(device)`"""
        if event.kind != "store" or not isinstance(event.node, cst.Subscript):
            return False
        holder = event.node.value
        if isinstance(holder, cst.Name) and holder.value in self.made:
            return True
        while isinstance(holder, cst.Subscript):
            holder = holder.value
        return isinstance(holder, cst.Name) and holder.value in self.given

    def handed_on(self, call: cst.CSTNode, callee: Frame) -> Owned:
        """The parameters of the function that is called which hold such an object, as long as they are not rebound."""
        if callee.func is None:
            return Owned()
        params = callee.func.node.params
        named = [p.name.value for p in (*params.posonly_params, *params.params, *params.kwonly_params)]
        given = {name: argument_of(call, callee, name) for name in named}
        bound = {t for b in bindings(callee.func.node.body) if not b.keeps for t in b.targets}

        def of(owned: frozenset[str]) -> frozenset[str]:
            return frozenset(n for n, a in given.items() if isinstance(a, cst.Name) and a.value in owned) - bound

        return Owned(of(self.given), of(self.made))


def owned_by_pass(facts: Facts, known: LoopFacts) -> Owned:
    """The batch and what is made of it in each pass anew.

    for batch in loader:
        batch = {k: v.to(device) for k, v in batch.items()}
    """
    own = [b for b in bindings(known.node.body) if not b.keeps]
    target = bound_names(known.node.target)
    names = target.union(*(b.targets for b in own))
    going_on = {name for name, _ in carried(names - target, known.node, known.source)}
    found = Owned(given=target)
    for _ in range(_DEPTH):
        given, made = set[str](), set[str]()
        for name in names - going_on:
            kinds = {_kind(facts, known, b, found) for b in own if name in b.targets}
            kinds |= {"given"} if name in target else set()
            if kinds <= {"given"}:
                given.add(name)
            elif kinds <= {"given", "made"}:
                made.add(name)
        after = Owned(frozenset(given), frozenset(made))
        if after == found:
            break
        found = after
    return found


def _kind(facts: Facts, known: LoopFacts, binding: Binding, owned: Owned) -> str:
    node = binding.node
    if isinstance(node, (cst.Assign, cst.AnnAssign, cst.NamedExpr)) and node.value is not None:
        kind = _kind_of(facts, known, node.value, owned)
        single = isinstance(node, cst.Assign) and all(isinstance(t.target, cst.Name) for t in node.targets)
        return kind if single or kind == "given" else ""
    if isinstance(node, (cst.For, cst.CompFor)):  # for key, value in batch.items()
        return "given" if _kind_of(facts, known, node.iter, owned) == "given" else ""
    return ""


def _kind_of(facts: Facts, known: LoopFacts, value: cst.BaseExpression, owned: Owned) -> str:
    if isinstance(value, _DISPLAYS):
        return "made"
    if isinstance(value, cst.Call):
        return _kind_of_call(facts, known, value, owned)
    while isinstance(value, (cst.Subscript, cst.Attribute)):
        value = value.value
    if not isinstance(value, cst.Name):
        return ""
    return "given" if value.value in owned.given else "made" if value.value in owned.made else ""


def _kind_of_call(facts: Facts, known: LoopFacts, call: cst.Call, owned: Owned) -> str:
    if isinstance(call.func, cst.Attribute) and _kind_of(facts, known, call.func.value, owned) == "given":
        return "given"  # batch.items(), batch.to(device)
    if any(isinstance(o, Ext) for o in facts.flow.values.get(call.func, ())):
        return "made"
    callees = [e.callee for e in known.frame.events if e.node is call and e.callee is not None]
    kinds = {
        _kind_of_return(facts, known, r.value, owned.handed_on(call, c), c)
        for c in callees
        if c.func is not None
        for r in returns(c.func.node.body)
    }
    return "" if not kinds or "" in kinds else "made" if "made" in kinds else "given"


def _kind_of_return(
    facts: Facts, known: LoopFacts, value: cst.BaseExpression | None, owned: Owned, callee: Frame
) -> str:
    if isinstance(value, cst.Name) and value.value not in owned and callee.func is not None:
        made = [b.node for b in bindings(callee.func.node.body) if value.value in b.targets and not b.keeps]
        fresh = [isinstance(n, cst.Assign) and isinstance(n.value, _DISPLAYS) for n in made]
        return "made" if fresh and all(fresh) else ""
    plain = isinstance(value, (cst.Name, *_DISPLAYS))
    return _kind_of(facts, known, value, owned) if plain and value is not None else ""
