"""A script in, an answer out: is a number one rank's own (of its shard), or do the ranks agree on it?"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.collected import given_to, holder_of
from ddpify.facts.contents import origins
from ddpify.facts.definitions import Definition, definitions, element_at, reaching, returns
from ddpify.facts.dependencies import read_names
from ddpify.facts.frames import Event, Frame
from ddpify.facts.given_ranks import number
from ddpify.facts.kept import together
from ddpify.facts.roles import loaders_in
from ddpify.facts.sizes import by_key
from ddpify.facts.unreduced import brings_together, shared_out
from ddpify.facts.values import (
    Const,
    Data,
    Dict,
    Ext,
    FromBatch,
    FromForward,
    Func,
    Instance,
    Iteration,
    Loader,
    Method,
    Module,
    Sampler,
    Seq,
    Thing,
    Wrapped,
)
from ddpify.source import Source, children, walk

if TYPE_CHECKING:
    from ddpify.facts import Facts

_DEPTH = 40
_LIBRARIES = ("torch.", "numpy.", "math.", "builtins.", "statistics.", "sklearn.", "scipy.", "time.", "copy.")
_SAME = re.compile(r"builtins\.(len|isinstance|type|id|hasattr|range|enumerate)")


class Own:
    """Which numbers of a distributed script come from a shard of this rank, and have met those of no other."""

    #: what comes out of a call that is not read may have been brought together in it: lint says what is certain
    certain = True

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.definitions = definitions(facts.flow)
        self.calls: dict[int, list[Event]] = {}
        self.put: dict[tuple[int, str], list[tuple[cst.BaseExpression, Frame]]] = {}
        #: what `log` holds under any key: `log["loss"]` and `log[name]`
        self.slots: dict[tuple[int, str], list[tuple[cst.BaseExpression, Frame]]] = {}
        #: what an attribute of an object holds, in whichever method it came there
        self.fields: dict[tuple[int, str], list[tuple[cst.BaseExpression, Frame]]] = {}
        self.met: dict[int, set[str]] = {}
        self.loops: dict[int, list[Event]] = {}
        self._frames: dict[int, bool] = {}
        self._known: dict[tuple[int, int], bool] = {}
        events = facts.flow.log.events
        for e in events:
            if isinstance(e.node, cst.Call):
                self.calls.setdefault(id(e.node), []).append(e)
            if e.kind == "loop" and e.name == "start" and isinstance(e.node, cst.For):
                self.loops.setdefault(id(e.frame), []).append(e)
            holder = holder_of(e)
            if holder is not None:
                slot = _slot(e.node.target if isinstance(e.node, cst.AugAssign) else e.node) or _slot(holder)
                given = [(g, e.frame) for g in _put_into(e)]
                self.put.setdefault((id(e.frame), e.frame.source.code(slot or holder)), []).extend(given)
                if slot is not None:
                    whole = holder.value if isinstance(holder, cst.Subscript) else holder  # log["loss"].append(1)
                    self.slots.setdefault((id(e.frame), e.frame.source.code(whole)), []).extend(given)
                for key in self._fields(holder, e.frame):
                    self.fields.setdefault(key, []).extend(given)
        for e in events:
            if isinstance(e.node, cst.Call) and self.agrees(e.node):
                self.met.setdefault(id(e.frame), set()).update(_handed(e.node))

    def _fields(self, node: cst.CSTNode, frame: Frame) -> list[tuple[int, str]]:
        """`self.total`, by the objects that it is an attribute of; also where one of its items is meant.

        Of a table (`self.data.total[key]`) nothing is known: what a column holds, it may hold anywhere.
        """
        values = self.facts.flow.values
        while isinstance(node, cst.Subscript) or (
            isinstance(node, cst.Attribute)
            and isinstance(node.value, (cst.Attribute, cst.Subscript))
            and all(isinstance(o, (Data, Method, Thing)) for o in values.get(node.value, ()))
        ):
            node = node.value
        if not isinstance(node, cst.Attribute):
            return []
        return [(id(o), node.attr.value) for o in self.definitions.owners(node, frame) if isinstance(o, Instance)]

    def agrees(self, call: cst.Call) -> bool:
        """Whether a call brings numbers of the ranks together, by itself or in what it runs."""
        return any(self._brings(e) for e in self.calls.get(id(call), ()))

    def _brings(self, e: Event) -> bool:
        if e.callee is not None:
            if id(e.callee) not in self._frames:
                self._frames[id(e.callee)] = False
                self._frames[id(e.callee)] = any(self._brings(inner) for inner in e.callee.events)
            return self._frames[id(e.callee)]
        return e.kind in ("external", "method") and brings_together(e)

    def is_own(self, node: cst.CSTNode, frame: Frame, depth: int = _DEPTH) -> bool:
        """Whether an expression is computed from this rank's shard, or decided by such a number."""
        key = (id(node), id(frame))
        if depth and key not in self._known:
            self._known[key] = False
            self._known[key] = self._is_own(node, frame, depth)
        return self._known.get(key, False)

    def _is_own(self, node: cst.CSTNode, frame: Frame, depth: int) -> bool:
        match node:
            case cst.Name() | cst.Attribute():
                return self.name(node, frame, depth)
            case cst.Subscript(slice=[cst.SubscriptElement(slice=cst.Index(value=cst.SimpleString()))]):
                if self.has_met(node.value, frame):
                    return False  # totals = broadcast_value(totals); totals["loss"]
                given = self.put.get((id(frame), frame.source.code(node)), [])
                if given:
                    return any(self.is_own(g, f, depth - 1) for g, f in given)
            case cst.Call():
                if self.agrees(node) or self.is_same(node):
                    return False
                ran = self.ran(node, frame)
                if ran and not any(map(_gives_state, ran)):
                    return any(self.gives(callee, depth) for callee in ran)
                if self.definitions.callees(node, frame):
                    return any(self.defined(d, depth) for d in self.definitions.of(node, frame))
                if self.certain and not self.is_known(node):
                    return False
            case cst.Lambda():
                return False
            case cst.Comparison() if self.certain and by_key(node):
                return False
            case cst.Comparison(
                left=cst.Name() as left, comparisons=[cst.ComparisonTarget(operator=cst.Is() | cst.IsNot())]
            ):  # `loss is None`: what it is, not how large
                return any(self.chosen(d, depth) for d in self.definitions.of(left, frame))
        return any(self.is_own(child, frame, depth) for child in children(node))

    def name(self, node: cst.Name | cst.Attribute, frame: Frame, depth: int) -> bool:
        code = frame.source.code(node)
        if self.has_met(node, frame):
            return False
        clauses = _comprehended(frame.source, node) if isinstance(node, cst.Name) else []
        over = [o for c in clauses for o in loaders_in(self.facts.flow.values.get(c.iter, ()))]
        if clauses and not any(isinstance(o, Loader) for o in over):
            return any(self.is_own(c.iter, frame, depth - 1) for c in clauses)  # {u: 0 for u in users}, of no other u
        above = set(map(id, frame.source.ancestors(node)))
        found = [d for d in self.definitions.of(node, frame) if id(d.node) not in above]  # x = x.to(device)
        found = reaching(found, node, frame)
        key = (id(frame), code)
        given = [*self.put.get(key, []), *self.slots.get(key, [])]
        given += [g for field in self._fields(node, frame) for g in self.fields.get(field, [])]
        if any(self.defined(d, depth) for d in found) or any(self.is_own(g, f, depth - 1) for g, f in given):
            return True
        if isinstance(node, cst.Attribute) and not found:
            of_project = any(isinstance(o, Instance) for o in self.facts.flow.values.get(node.value, ()))
            return not of_project and self.is_own(node.value, frame, depth)  # loss.data, meter.avg of a library
        if found:
            return False
        turns = self.turns(node, frame) if isinstance(node, cst.Name) else []
        if turns or not self.of_shard(node):
            return any(self.is_own(t, frame, depth - 1) for t in turns)
        loops = self.loops.get(id(frame), []) if isinstance(node, cst.Name) else []
        read = [e.value for e in loops if isinstance(e.node, cst.For) and node.value in read_names(e.node.target)]
        loaders = [o for value in read for o in loaders_in(value) if isinstance(o, Loader)]
        return not loaders or any(map(self.is_shared_out, loaders))  # here, of all that the function is called with

    def has_met(self, node: cst.CSTNode, frame: Frame) -> bool:
        """Whether a name, or what it is an attribute of, is brought together with those of the other ranks."""
        code, met = frame.source.code(node), self.met.get(id(frame), ())
        return code in met or code.split(".")[0] in met

    def turns(self, node: cst.Name, frame: Frame) -> list[cst.BaseExpression]:
        """`logs.items()` of `for name, value in logs.items()`; nothing where batches are gone through."""
        holder = frame.scope.holder(node.value)
        loops = [e.stmt.iter for e in self.definitions.bound(holder, node.value) if isinstance(e.stmt, cst.For)]
        loops = [c.iter for c in _comprehended(frame.source, node)] or loops
        held = [self.facts.flow.values.get(over, ()) for over in loops]
        return [] if any(isinstance(o, Loader) for v in held for o in loaders_in(v)) else loops

    def ran(self, call: cst.Call, frame: Frame) -> list[Frame]:
        return [e.callee for e in self.calls.get(id(call), ()) if e.callee is not None and e.frame is frame]

    def gives(self, callee: Frame, depth: int, at: int | None = None) -> bool:
        """Whether a function gives back such a number called with these arguments, at a place of a tuple."""
        ran = [e.stmt for e in callee.events if e.kind == "return"]  # of the ways that these arguments leave open
        body = callee.node.body if isinstance(callee.node, cst.FunctionDef) else callee.node
        values = [r.value for r in (ran or returns(body)) if isinstance(r, cst.Return) and r.value is not None]
        picked = [part for value in values if (part := element_at(value, at)) is not None]
        return any(self.is_own(part, callee, depth - 1) for part in picked)

    def defined(self, d: Definition, depth: int) -> bool:
        """A value computed from a shard, or given under a test of one: `if loss < best: worse = 0`."""
        ran = self.ran(d.node, d.frame) if self.certain and d.index is not None and isinstance(d.node, cst.Call) else []
        if ran:  # `step, best = load(path)`
            return any(self.gives(callee, depth, d.index) for callee in ran) or self.chosen(d, depth)
        return self.is_own(d.node, d.frame, depth - 1) or self.chosen(d, depth)

    def chosen(self, d: Definition, depth: int) -> bool:
        """Whether a test of this rank's shard has a say in a value."""
        if d.event is None:
            return False
        above = set(d.frame.source.ancestors(d.event.stmt))
        tests = (u.test for u in d.event.under if isinstance(u, cst.If) and u in above)
        return any(self.is_own(test, d.frame, depth - 1) for test in tests)

    def of_shard(self, node: cst.CSTNode) -> bool:
        read = [o.loader for o in origins(self.facts.flow.values.get(node, ())) if isinstance(o, FromBatch)]
        return any(isinstance(loader, Loader) and self.is_shared_out(loader) for loader in read)

    def is_shared_out(self, loader: Loader) -> bool:
        """Whether a sampler gives each rank a part: `num_replicas=1` gives all of them everything."""
        samplers = [o for o in loader.arguments.get("sampler", ()) if isinstance(o, Sampler)]
        return shared_out(loader) and not all(map(_has_one_replica, samplers))

    def is_known(self, call: cst.Call) -> bool:
        """Whether a call is one of torch or numpy, of a tensor or a list, of a model: none that is not read."""
        held = self.facts.flow.values.get(call.func, ())
        return bool(held) and all(map(_is_read, held))

    def is_same(self, call: cst.Call) -> bool:
        return any(_SAME.fullmatch(getattr(o, "name", "")) for o in self.facts.flow.values.get(call.func, ()))


def _is_read(obj: object) -> bool:
    if isinstance(obj, Ext):
        return obj.name.startswith(_LIBRARIES)
    if isinstance(obj, Method):
        batches = any(isinstance(o, (FromBatch, FromForward)) for o in origins((obj.obj,)))
        return batches or isinstance(obj.obj, (Seq, Dict, Iteration, Const, Loader, Module, Wrapped))
    return isinstance(obj, (Module, Wrapped, Func, Instance))


def _put_into(e: Event) -> list[cst.BaseExpression]:
    """What an event puts into its holder: `log["loss"] = loss.item()`, `losses.append(loss.item())`."""
    if e.kind == "store":
        return [e.stmt.value] if isinstance(e.stmt, cst.Assign) else []
    return given_to(e)


def _comprehended(source: Source, node: cst.Name) -> list[cst.CompFor]:
    """The part of a comprehension that gives a name its values: `for v in losses` of `[v for v in losses]`."""
    inside: list[cst.CSTNode] = [node]
    for above in source.ancestors(node):
        inside.append(above)
        clause = getattr(above, "for_in", None)
        while isinstance(clause, cst.CompFor):
            if node.value in read_names(clause.target) and clause.iter not in inside:
                return [clause]
            clause = clause.inner_for_in
    return []


def _gives_state(callee: Frame) -> bool:
    """`return self.count > 3`: what other calls have left in the object."""
    params = callee.func.node.params.params if callee.func is not None else ()
    me = params[0].name.value if params and callee.func is not None and callee.func.bound is not None else ""
    body = callee.node.body if isinstance(callee.node, cst.FunctionDef) else None
    given = (r.value for r in returns(body) if r.value is not None) if body is not None else ()
    return body is None or any(isinstance(n, cst.Name) and n.value == me for value in given for n in walk(value))


def _has_one_replica(sampler: Sampler) -> bool:
    """On every way on which it is made, the callers' arguments followed back."""
    args = sampler.call.args if sampler.call is not None else ()
    given = next((a.value for a in args if a.keyword is not None and a.keyword.value == "num_replicas"), None)
    ways = list(sampler.site.frame.chains(8))
    return given is not None and bool(ways) and all(number(given, sampler.site.frame, way) == 1 for way in ways)


def _slot(node: cst.CSTNode) -> cst.CSTNode | None:
    """`state["loss"]` of `state["loss"] += loss`: one entry of a dict says nothing of the others."""
    match node:
        case cst.Subscript(slice=[cst.SubscriptElement(slice=cst.Index(value=cst.SimpleString()))]):
            return node
    return None


def _handed(call: cst.Call) -> set[str]:
    """The names that are given to a call, and the object whose method it is."""
    found = {n for a in call.args for n in read_names(a.value)}
    if isinstance(call.func, cst.Attribute):
        found |= read_names(call.func.value)
    return {n for n in found if n not in ("dist", "torch", "self")}


class OwnSoon(Own):
    """The same of a script that is being converted: its training loaders are dealt out, its sums brought together."""

    certain = False

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self.training = set(facts.roles.training_loaders)
        #: names whose value is rank 0's from some line on, by the source that they stand in
        self.agreed: set[tuple[int, str]] = set()
        for frame, name in together(facts):
            self.met.setdefault(frame, set()).add(name)

    def name(self, node: cst.Name | cst.Attribute, frame: Frame, depth: int) -> bool:
        return not self.is_agreed(node, frame) and super().name(node, frame, depth)

    def is_agreed(self, node: cst.CSTNode, frame: Frame) -> bool:
        """`valid_loss`, behind `valid_loss = broadcast_value(valid_loss)`."""
        return bool(self.agreed) and (id(frame.source), frame.source.code(node)) in self.agreed

    def is_shared_out(self, loader: Loader) -> bool:
        return loader in self.training


def own(facts: Facts) -> Own:
    """The answers, shared by the rules."""
    return facts.cached("own", Own)


def own_soon(facts: Facts) -> OwnSoon:
    """The answers for what a conversion is going to be."""
    return facts.cached("own soon", OwnSoon)
