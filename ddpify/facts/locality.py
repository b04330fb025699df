"""Flow and loops in, an answer out: is a number this rank's own (its batches, the clock, chance) and nothing else?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.collected import given_to, holder_of
from ddpify.facts.contents import origins
from ddpify.facts.frames import Event, Frame, Loop
from ddpify.facts.kept import together
from ddpify.facts.metrics import loop_facts
from ddpify.facts.roles import loaders_in
from ddpify.facts.selected import Selected
from ddpify.facts.signals import comes_by_signal
from ddpify.facts.unloaded import of_unloaded
from ddpify.facts.values import FromBatch, FromForward, FromWorld, Loader
from ddpify.source import children

if TYPE_CHECKING:
    from ddpify.facts import Facts

_DEPTH = 6


class Locality:
    """Which values are one rank's own once the planned reductions stand behind the loops."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        loops = facts.cached("loops", loop_facts)
        self.reduced = {(id(lp.node), a.target) for lp in loops for a in lp.accumulators if a.fresh and a.read_after}
        # losses[:] = all_reduce_mean(*losses)
        self.together = together(facts) if facts.converting else frozenset()
        self.training = set(facts.roles.training_loaders)
        self.binds: dict[tuple[int, str], list[Event]] = {}
        for e in facts.flow.log.of("bind", "set"):
            self.binds.setdefault((id(e.frame), _bound(e)), []).append(e)
        # losses.append(loss.item()), meter.update(loss.item(), n): what goes into a list or an object of the project
        self.put: dict[tuple[int, str], list[cst.BaseExpression]] = {}
        for e in facts.flow.log.of("method", "call", "augment"):
            holder = holder_of(e)
            if holder is not None:
                self.put.setdefault((id(e.frame), e.frame.source.code(holder)), []).extend(given_to(e))

        #: names that are made of each other are looked at once
        self.seen: dict[tuple[int, int, int], tuple[cst.CSTNode, bool]] = {}
        self.selected = Selected(facts.flow, self.values_of)

    def values_of(self, frame: Frame, name: str) -> list[cst.CSTNode]:
        """What a name of a frame is given."""
        values = (getattr(e.stmt, "value", None) for e in self.binds.get((id(frame), name), ()))
        return [v for v in values if isinstance(v, cst.CSTNode)]

    def batch_loops(self, loops: tuple[Loop, ...]) -> list[Loop]:
        """The loops over training loaders among some."""
        return [
            lp for lp in loops if any(isinstance(o, Loader) and o in self.training for o in loaders_in(lp.iterates))
        ]

    def is_local(self, node: cst.CSTNode, frame: Frame, depth: int = _DEPTH) -> bool:
        """Whether an expression is computed from a batch of this rank, from the clock or from chance."""
        if depth == 0:
            return False
        key = (id(node), id(frame), depth)
        if key not in self.seen:
            self.seen[key] = (node, self.looks_local(node, frame, depth))
        return self.seen[key][1]

    def looks_local(self, node: cst.CSTNode, frame: Frame, depth: int) -> bool:
        if isinstance(node, (cst.Name, cst.Attribute)):
            code = frame.source.code(node)
            if (id(frame), code) in self.together:
                return False
            given = self.put.get((id(frame), code), ())
            if any(self.is_local(g, frame, depth - 1) for g in given):
                return True
        if not self.may_be(node):
            return False
        match node:
            case cst.Comparison(
                left=cst.Name(value=name), comparisons=[cst.ComparisonTarget(operator=cst.Is() | cst.IsNot())]
            ):
                return self.is_chosen(name, frame, depth)  # `loss is None`: what it is, not how large
        if isinstance(node, (cst.Name, cst.Attribute, cst.Subscript)) and comes_by_signal(
            self.facts.flow.values.get(node, ())
        ):
            return True
        if isinstance(node, cst.Name):
            return any(self.bound_locally(e, frame, depth) for e in self.binds.get((id(frame), node.value), ()))
        if isinstance(node, cst.Attribute):
            sets = self.binds.get((id(frame), frame.source.code(node)), ())
            if any(self.bound_locally(e, frame, depth) for e in sets):
                return True  # self.loss = criterion(...)
        if isinstance(node, cst.Call):
            if any(getattr(o, "name", "") == "builtins.len" for o in self.facts.flow.values.get(node.func, ())):
                # as many on every rank, but for `len(np.where(mask)[0])`
                return any(
                    self.selected.holds(a.value, frame) and self.is_local(a.value, frame, depth) for a in node.args
                )
            inner = [e.callee for e in frame.events if e.kind == "call" and e.node is node and e.callee is not None]
            for callee in inner:
                for e in callee.events:
                    value = getattr(e.stmt, "value", None) if e.kind == "return" else None
                    if isinstance(value, cst.CSTNode) and self.is_local(value, callee, depth - 1):
                        return True
            if inner:
                return False
            if any(isinstance(o, FromWorld) for o in origins(self.facts.flow.values.get(node, ()))) and not node.args:
                return True  # time.time()
        return any(self.is_local(child, frame, depth) for child in children(node))

    def is_chosen(self, name: str, frame: Frame, depth: int) -> bool:
        """Whether a test of this rank's own numbers has a say in what a name is given."""
        around = [
            (u.test, set(frame.source.ancestors(e.stmt)), u)
            for e in self.binds.get((id(frame), name), ())
            for u in e.under
            if isinstance(u, cst.If)
        ]
        return any(u in above and self.is_local(test, frame, depth - 1) for test, above, u in around)

    def may_be(self, node: cst.CSTNode) -> bool:
        """Whether a batch, the clock or chance is in a value at all (nodes that hold no value are looked into)."""
        value = self.facts.flow.values.get(node)
        if value is None:
            return True
        if of_unloaded(self.facts, value):
            return False  # an evaluation that every rank does by itself: DDP503 sees to it
        return any(isinstance(o, (FromBatch, FromForward, FromWorld)) for o in origins(value))

    def bound_locally(self, bind: Event, frame: Frame, depth: int) -> bool:
        loops = self.batch_loops(bind.loops)
        value = getattr(bind.stmt, "value", None)
        if any((id(lp.node), _bound(bind)) in self.reduced for lp in bind.loops):
            return False
        if loops:
            read = [o.loader for o in origins(bind.value) if isinstance(o, FromBatch)]
            if read and not any(loader in self.training for loader in read):
                return False  # an evaluation in the middle of training: other rules see to it
            return bool(read) or any(isinstance(o, FromForward) for o in origins(bind.value))
        return isinstance(value, cst.CSTNode) and self.is_local(value, frame, depth - 1)


def _bound(event: Event) -> str:
    """`loss`, or `self.loss` as it is written."""
    return event.frame.source.code(event.node) if isinstance(event.node, cst.Attribute) else event.name


def locality(facts: Facts) -> Locality:
    """The answers, shared by the rules."""
    return facts.cached("locality", Locality)
