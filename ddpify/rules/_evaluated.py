"""What decides in, the places where a number becomes rank 0's out: behind what computes it from an evaluation."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import libcst as cst

from ddpify.facts import Facts
from ddpify.facts.contents import data_of, origins
from ddpify.facts.definitions import argument_of, definitions
from ddpify.facts.frames import Event, Frame, Loop
from ddpify.facts.locality import locality
from ddpify.facts.roles import loaders_in
from ddpify.facts.unloaded import of_unloaded
from ddpify.facts.values import Const, Data, Ext, FromBatch, Loader, Value
from ddpify.source import Source, walk

_SHOWN = (cst.List, cst.Dict, cst.Tuple)
_MAKES_EMPTY = re.compile(r"builtins\.(list|dict)|collections\.\w+")


@dataclass(frozen=True, eq=False)
class Spot:
    """Where a number is to be made rank 0's: behind the statement that computes `name`, or, without one, around it."""

    node: cst.CSTNode
    source: Source
    name: str
    number: bool


class Origins:
    """From what decides back to where it was computed from an evaluation that every rank does by itself."""

    def __init__(self, facts: Facts, replicated: set[int]) -> None:
        self.facts = facts
        self.replicated = replicated
        self.known = definitions(facts.flow)
        self._evaluates: dict[int, bool] = {}
        self._trains: set[int] | None = None
        self._trains_in: dict[int, bool] = {}

    def trains(self, node: cst.CSTNode) -> bool:
        """Whether a statement also runs for batches of the training, of which each rank has its own."""
        if self._trains is None:
            inside = [e for e in self.facts.flow.log.events if self.batches(e.loops) or self.trains_in(e.frame)]
            self._trains = {id(n) for e in inside for n in (e.node, e.stmt)}
        return id(node) in self._trains

    def ways(self, spot: Spot) -> list[tuple[Frame, cst.CSTNode]]:
        """The statement itself, and the calls that lead to it."""
        mine = [e for e in self.facts.flow.log.events if spot.node in (e.node, e.stmt) or spot.node in e.under]
        called = [(entry.frame, entry.stmt) for e in mine for chain in e.frame.chains() for entry in chain]
        return [*((e.frame, spot.node) for e in mine), *called]

    def is_alone(self, spot: Spot, guarded: set[int]) -> bool:
        """Whether rank 0 alone comes to a statement: it, or a call that leads to it, stands under a guard."""
        ways = [(spot.source, spot.node), *((frame.source, stmt) for frame, stmt in self.ways(spot))]
        return any(id(n) in guarded for source, stmt in ways for n in (stmt, *source.ancestors(stmt)))

    def goes_apart(self, spot: Spot) -> bool:
        """Whether one rank alone may come to a statement: under a test of its own batch, of time or of chance."""
        ways = self.ways(spot)
        return not ways or any(
            isinstance(above, (cst.If, cst.While)) and locality(self.facts).is_local(above.test, frame)
            for frame, stmt in ways
            for above in frame.source.ancestors(stmt)
        )

    def trains_in(self, frame: Frame) -> bool:
        """Whether a function is called for batches of the training: what it decides is DDP506's."""
        if id(frame) not in self._trains_in:
            self._trains_in[id(frame)] = any(self.batches(loops) for loops in frame.loops_around())
        return self._trains_in[id(frame)]

    def batches(self, loops: Iterable[Loop]) -> bool:
        return bool(locality(self.facts).batch_loops(tuple(loops)))

    def depends(self, value: Value) -> bool:
        return self.is_read(value) or of_unloaded(self.facts, value)

    def is_read(self, value: Value) -> bool:
        """Whether a value comes of such an evaluation over a DataLoader."""
        held = [o for o in value if not isinstance(o, Const)]
        if all(isinstance(o, Data) and o.agg in ("size", "const") for o in held):
            return False  # how many samples there were is the same number on all ranks
        return any(
            isinstance(o, FromBatch) and isinstance(o.loader, Loader) and id(o.loader) in self.replicated
            for o in origins(value)
        )

    def is_mixed(self, value: Value) -> bool:
        """Whether a value comes of an evaluation in one phase, and of the training (of a shard) in another."""
        read = [o.loader for o in origins(value) if isinstance(o, FromBatch) and isinstance(o.loader, Loader)]
        return any(id(o) in self.replicated for o in read) and any(o in locality(self.facts).training for o in read)

    def within(self, node: cst.CSTNode, frame: Frame, depth: int = 8) -> list[Spot]:
        """The spots for all that an expression goes by; around its calls where no variable holds what they give."""
        found = [s for part in parts(node) for s in self.of(part, frame, depth)]
        if found:
            return found
        calls = [n for n in walk(node) if isinstance(n, cst.Call) and self.depends(self.facts.flow.values.get(n, ()))]
        inner = {n for c in calls for part in (c.func, *(a.value for a in c.args)) for n in walk(part)}
        own = [c for c in calls if self.known.callees(c, frame)] or [c for c in calls if c not in inner]
        return [Spot(c, frame.source, "", is_number(self.facts.flow.values.get(c, ()))) for c in own]

    def unknown(self, nodes: list[cst.CSTNode], frame: Frame) -> bool:
        """Whether something goes by an evaluation, outside its own loop, and where it comes from was not found."""
        loops = [
            e for e in frame.events if e.kind == "loop" and any(id(o) in self.replicated for o in loaders_in(e.value))
        ]
        inside = {n for e in loops for n in walk(e.node)}
        parents = frame.source.parents
        kinds = (cst.Name, cst.Attribute, cst.Subscript, cst.Call)
        read = [n for node in nodes for n in walk(node) if isinstance(n, kinds)]
        read = [n for n in read if not isinstance(parents.get(n), cst.Attribute)]  # self of self.best says nothing
        return any(self.depends(self.facts.flow.values.get(n, ())) and n not in inside for n in read)

    def of(self, node: cst.CSTNode, frame: Frame, depth: int) -> list[Spot]:
        """The spots that a name or attribute has its number from: copies, parameters and arithmetic followed up."""
        if not depth or not self.depends(self.facts.flow.values.get(node, ())):
            return []
        if isinstance(node, cst.Name) and is_parameter(node, frame):
            return self.given(node.value, frame, depth - 1)
        bind = self.binding(node, frame)
        if bind is None:
            return self.met(node, frame)
        assert isinstance(bind.stmt, cst.Assign)
        if self.begins_empty(bind.stmt.value):
            return self.kept(bind, depth - 1)
        values = [d.node for d in self.known.bound_by(bind)] or [bind.stmt.value]
        above = [s for value in values for s in self.passed(value, bind.frame, depth - 1)]
        if above or all(isinstance(value, (cst.Name, cst.Attribute)) for value in values):
            return above
        return [Spot(bind.stmt, bind.frame.source, bind.frame.source.code(bind.node), is_number(bind.value))]

    def met(self, node: cst.CSTNode, frame: Frame) -> list[Spot]:
        """`meter.avg` that `meter.update(...)` sets in the evaluation: it is made rank 0's behind the loop."""
        if not isinstance(node, cst.Attribute):
            return []
        sets = [e for e in self.known.attribute_events(node) if self.in_evaluation(e) and self.depends(e.value)]
        around, place = set(frame.source.ancestors(node)), frame.source.span(node).start
        loops = [lp for e in sets for ls in (e.loops, *e.frame.loops_around()) for lp in ls if lp.frame is frame]
        behind = [
            lp.node
            for lp in loops
            if self.over([lp]) and lp.node not in around and frame.source.span(lp.node).start < place
        ]
        if not behind:
            return []
        number = is_number(self.facts.flow.values.get(node, ()))
        return [Spot(behind[-1], frame.source, frame.source.code(node), number)]

    def passed(self, value: cst.CSTNode, frame: Frame, depth: int) -> list[Spot]:
        """`now = loss`, `score = -loss`: what is copied, or came into the function, is looked at where it came from."""
        if isinstance(value, (cst.Name, cst.Attribute)):
            return self.of(value, frame, depth)
        return [s for part in parts(value) if is_parameter(part, frame) for s in self.of(part, frame, depth)]

    def given(self, name: str, frame: Frame, depth: int) -> list[Spot]:
        """What the callers give for a parameter."""
        found: list[Spot] = []
        for entry in frame.entries:
            given = argument_of(entry.call, frame, name)
            if given is not None and self.depends(self.facts.flow.values.get(given, ())):
                found.extend(self.within(given, entry.frame, depth))
        return found

    def begins_empty(self, value: cst.BaseExpression) -> bool:
        """`[]`, `{"loss": None}`, `dict()`, `defaultdict(list)`: what the evaluation gives comes in later."""
        callee = self.facts.flow.values.get(value.func, ()) if isinstance(value, cst.Call) else ()
        made = any(isinstance(o, Ext) and _MAKES_EMPTY.fullmatch(o.name) for o in callee)
        shown = isinstance(value, _SHOWN)
        # `losses, best = [], None`: what is in a list later is no part of it here
        parts = (n for n in walk(value) if n is not value and not (isinstance(n, _SHOWN) and not n.elements))
        return (made or shown) and not any(self.depends(self.facts.flow.values.get(n, ())) for n in parts)

    def kept(self, bind: Event, depth: int) -> list[Spot]:
        """`history.append(loss)`, `best["loss"] = loss`: what is put into a list or dict that began empty."""
        found: list[Spot] = []
        for e in self.facts.flow.log.of("method", "store"):
            if e.obj not in bind.value or self.in_evaluation(e):
                continue
            put = e.node.args if isinstance(e.node, cst.Call) else ()
            values = [a.value for a in put] or ([e.stmt.value] if isinstance(e.stmt, cst.Assign) else [])
            found.extend(s for v in values for s in self.within(v, e.frame, depth))
        return found

    def in_evaluation(self, event: Event) -> bool:
        return self.evaluates(event.frame) or self.over(event.loops)

    def evaluates(self, frame: Frame) -> bool:
        """Whether a function is called for the batches of such an evaluation only: what it decides stays in there."""
        if id(frame) not in self._evaluates:
            self._evaluates[id(frame)] = all(self.over(loops) for loops in frame.loops_around())
        return self._evaluates[id(frame)]

    def over(self, loops: Iterable[Loop]) -> bool:
        return any(id(o) in self.replicated for loop in loops for o in loaders_in(loop.iterates))

    def binding(self, node: cst.CSTNode, frame: Frame) -> Event | None:
        """The statement that computes a name from the evaluation: no loop's own sum."""
        place = frame.source.span(node).start
        loops = {a for a in frame.source.ancestors(node) if isinstance(a, cst.While)}  # while loss > 0.1:
        if isinstance(node, cst.Attribute):
            binds = [e for e in self.known.attribute_events(node) if isinstance(e.stmt, cst.Assign)]
        else:
            binds = [
                e
                for e in self.facts.flow.log.of("bind")
                if e.frame is frame
                and e.name == getattr(node, "value", None)
                and isinstance(e.stmt, cst.Assign)
                and (frame.source.span(e.stmt).start < place or loops & set(frame.source.ancestors(e.stmt)))
                and not isinstance(e.stmt.value, (cst.Integer, cst.Float))
            ]
        binds = [b for b in binds if self.depends(b.value)]
        outside = [b for b in binds if not self.in_evaluation(b)]
        return outside[-1] if outside else None


def agreed(facts: Facts) -> set[int]:
    """The expressions of which all ranks get rank 0's answer."""
    return facts.cached("agreed", lambda _: set[int]())


def parts(node: cst.CSTNode) -> list[cst.CSTNode]:
    """The names and attributes in an expression."""
    return [n for n in walk(node) if isinstance(n, (cst.Name, cst.Attribute))]


def is_parameter(node: cst.CSTNode, frame: Frame) -> bool:
    """A name that a caller gives its value, and nothing else."""
    return isinstance(node, cst.Name) and node.value in frame.arguments and node.value not in frame.assigned


def is_number(value: Value) -> bool:
    """A number or text for certain: no tensor."""
    known = data_of(value)
    return known is not None and known.form in ("int", "float", "number", "bool", "str")
