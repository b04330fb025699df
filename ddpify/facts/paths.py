"""Loops and branches in, the values that hold behind them out: ways that may be taken are joined."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import libcst as cst

from ddpify.facts.contents import constants, join
from ddpify.facts.frames import Frame, Loop
from ddpify.facts.importing import Importing
from ddpify.facts.narrowing import choose, narrowed
from ddpify.facts.settings import is_setting
from ddpify.facts.values import (
    UNKNOWN,
    Class,
    Const,
    Dataset,
    Dict,
    Func,
    Instance,
    Iteration,
    Loader,
    Module,
    Seq,
    Value,
    Wrapped,
)

#: Loops over at most this many literals are run once per element (`for phase in ['train', 'val']`).
_UNROLL = 6


class Paths(Importing):
    """`for` runs once per literal, other loops twice so that values settle, `if` both ways where neither is certain."""

    def loop_for(self, stmt: cst.For, frame: Frame) -> None:
        over = self.expr(stmt.iter, frame)
        elements = self.literals(over)
        if elements is not None and len(elements) <= _UNROLL:
            for element in elements:
                self.bind(stmt.target, element, frame)
                self.in_loop(Loop(stmt, frame, over, element), stmt.body.body, frame, once=True)
        else:
            self.in_loop(
                Loop(stmt, frame, over),
                stmt.body.body,
                frame,
                lambda: self.bind(stmt.target, self.element(over, stmt), frame),
            )
        if stmt.orelse is not None:
            self.block(stmt.orelse.body.body, frame)

    def loop_while(self, stmt: cst.While, frame: Frame) -> bool:
        test = self.expr(stmt.test, frame)
        if self.truth(test) is False:
            return self.block(stmt.orelse.body.body, frame) if stmt.orelse is not None else False
        self.in_loop(Loop(stmt, frame), stmt.body.body, frame, lambda: self.expr(stmt.test, frame))
        return False

    def in_loop(
        self,
        loop: Loop,
        body: Sequence[cst.CSTNode],
        frame: Frame,
        each: Callable[[], object] = lambda: None,
        once: bool = False,
    ) -> None:
        """Run a body until its values are settled: twice, what happens in the first pass kept quiet."""
        self.event("loop", loop.node, frame, value=loop.iterates, name="start")
        self.loops.append(loop)
        before = dict(frame.scope.names)
        if once:
            each()
            self.block(body, frame)
        else:
            with self.may_happen() as written:
                if not self.quiet:
                    self.quiet, self.trial = self.quiet + 1, self.trial + 1
                    each()
                    self.block(body, frame)
                    self.quiet, self.trial = self.quiet - 1, self.trial - 1
                    self.again(before, frame)
                    self.rejoin(written)
                each()
                self.block(body, frame)
            self.again(before, frame)
        self.loops.pop()
        self.event("loop", loop.node, frame, value=loop.iterates, name="end")

    def again(self, before: dict[str, Value], frame: Frame) -> None:
        """A loop's next turn, or what is behind it: names hold what they held before it, too."""
        for name, held in before.items():
            frame.scope.names[name] = join(held, frame.scope.names.get(name, ()))

    def literals(self, over: Value) -> list[Value] | None:
        """The elements of a short list of literals, models or loaders, each known."""
        if len(over) != 1 or not isinstance(over[0], (Seq, Dict, Iteration)):
            return None
        obj = over[0]
        if isinstance(obj, Iteration):
            if obj.how == "enumerate" and len(obj.of) == 1:
                inner = self.literals(obj.of[0])
                if inner is not None:
                    return [(Seq(obj.site, elements=[(Const(i),), part]),) for i, part in enumerate(inner)]
            if obj.how in ("items", "zip") and obj.of and all(isinstance(p, Seq) for v in obj.of for p in v):
                return obj.of[0][0].elements if obj.how == "items" and isinstance(obj.of[0][0], Seq) else None
            return None
        if isinstance(obj, Dict):
            return [(Const(k),) for k in obj.items] if obj.closed and obj.items and not obj.maybe else None
        if obj.elements is None or not obj.elements:
            return None
        return obj.elements if all(_tells(e) for e in obj.elements) else None

    def element(self, over: Value, loop: cst.CSTNode) -> Value:
        """What one turn of a loop gets."""
        return join(*(self.element_of(obj, loop) for obj in over)) if over else UNKNOWN

    # -- branches -----------------------------------------------------------------------------------

    def branch(self, stmt: cst.If, frame: Frame) -> bool:
        test = self.expr(stmt.test, frame)
        known = self.truth(test)
        if known is not None and self.both_ways and is_setting(stmt, frame):
            known = None
        self.under.append(stmt)
        try:
            if known is True:
                return self.block(stmt.body.body, frame)
            if known is False:
                return self.orelse(stmt.orelse, frame)
            return self.either(
                lambda: self.block(stmt.body.body, frame), lambda: self.orelse(stmt.orelse, frame), frame, stmt.test
            )
        finally:
            self.under.pop()

    def orelse(self, node: cst.If | cst.Else | None, frame: Frame) -> bool:
        if isinstance(node, cst.If):
            return self.statement(node, frame)
        return self.block(node.body.body, frame) if node is not None else False

    def either(
        self,
        one: Callable[[], bool],
        other: Callable[[], bool],
        frame: Frame,
        test: cst.BaseExpression | None = None,
    ) -> bool:
        """Two ways, joined behind; a way that ends early drops out."""
        names = frame.scope.names
        before = dict(names)
        after_one: dict[str, Value] = {}
        known = narrowed(test, self.expr, frame) if test is not None else {}
        for name, sides in known.items():
            names[name], before[name] = sides

        def begin() -> bool:
            ended = one()
            after_one.update(names)
            return ended

        def begin_again() -> bool:
            names.clear()
            names.update(before)
            return other()

        ended_one, ended_other = self.one_or_other(begin, begin_again)
        if ended_one and ended_other:
            return True
        if not ended_one:
            after_other = {} if ended_other else dict(names)
            names.clear()
            for name in {**after_one, **after_other}:
                names[name] = join(after_one.get(name, ()), after_other.get(name, ()))
            if test is not None and not (ended_other or self.planned):
                choose(test, frame, after_one, after_other)
        return False

    def uncertain(self, body: Callable[[], bool], frame: Frame) -> None:
        self.either(body, lambda: False, frame)

    def truth(self, test: Value) -> bool | None:
        known = constants(test)
        if known:
            truths = {bool(k) for k in known}
            return truths.pop() if len(truths) == 1 else None
        if test and all(isinstance(o, (Module, Wrapped, Func, Class, Instance)) for o in test):
            return True
        return None


def _tells(element: Value, depth: int = 2) -> bool:
    """Whether it matters which element of a list a turn of a loop has: a phase, a model, a loader, a pair with one."""
    return any(
        isinstance(o, (Module, Wrapped, Loader, Dataset, Class))
        or (isinstance(o, Const) and isinstance(o.value, str))
        or (isinstance(o, Seq) and depth > 0 and any(_tells(part, depth - 1) for part in o.elements or ()))
        for o in element
    )
