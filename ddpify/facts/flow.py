"""Project in, value flow out: the script is run abstractly, statement by statement, calls followed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import libcst as cst

from ddpify.facts.calls import Calls
from ddpify.facts.frames import Entry, Frame, Loop, Scope
from ddpify.facts.values import (
    UNKNOWN,
    Class,
    Const,
    Data,
    Dict,
    Ext,
    FromLoop,
    Func,
    Instance,
    Iteration,
    Mod,
    Mode,
    Module,
    Seq,
    Thing,
    Value,
    Wrapped,
    constants,
    join,
)
from ddpify.project import Project
from ddpify.source import Source

#: Loops over at most this many literals are run once per element (`for phase in ['train', 'val']`).
_UNROLL = 6


class Flow(Calls):
    """The evaluator's statements; expressions and calls are in the classes that it extends."""

    #: how many events there are when the script ends; functions that nothing calls are run after that
    main_end = 0

    def __init__(
        self, project: Project, *, inserted: Mapping[cst.CSTNode, list[cst.BaseExpression]] | None = None
    ) -> None:
        super().__init__(project)
        #: statements of the script -> the variables that the plan will wrap behind them
        self.inserted = inserted or {}

    def run(self) -> Flow:
        """Run the entry script as `python script.py` does."""
        source = self.project.entry
        frame = self.module_frame(source, "__main__")
        self.block(source.module.body, frame)
        self.main_end = len(self.log.events)
        self.run_uncalled(source)
        return self

    def after(self, stmt: cst.CSTNode, frame: Frame) -> None:
        """`model = DDP(model)`, as the plan will put it behind this statement."""
        for target in self.inserted.get(stmt, ()):
            held = self.expr(target, frame)
            known = (o.module if isinstance(o, Thing) else o for o in held if isinstance(o, (Module, Thing)))
            inner = tuple(m for m in known if m is not None)
            if inner:
                rest = tuple(o for o in held if not isinstance(o, (Module, Thing)))
                self.bind(
                    target, (*self.made(target, frame, Wrapped(self.site(stmt, frame), module=inner)), *rest), frame
                )

    def run_uncalled(self, source: Source) -> None:
        """Functions that nothing calls (in lint, a file is often a library) are roots with unknown arguments."""
        scope = self.modules[source].scope
        for value in list(scope.names.values()):
            for obj in value:
                if isinstance(obj, Func) and obj.source is source and obj.node not in self.followed and self.uncalled:
                    self.call_function(obj, [], {}, obj.node, self.modules[source])
                elif (
                    isinstance(obj, Class) and obj.source is source and obj.node not in self.followed and self.uncalled
                ):
                    self.instantiate_uncalled(obj, self.modules[source])

    def module_frame(self, source: Source, name: str) -> Frame:
        scope = Scope(source, None, source.module)
        scope.names["__name__"] = (Const(name),)
        scope.names["__file__"] = (Data("str"),)
        frame = Frame(source, scope, None, True)
        self.modules[source] = frame
        self.frames.append(frame)
        return frame

    def import_module(self, source: Source, frame: Frame, stmt: cst.CSTNode) -> Frame:
        """Run a module of the project on its first import."""
        if source in self.modules:
            return self.modules[source]
        new = self.module_frame(source, "imported")
        new.entries.append(Entry(frame, stmt, stmt, tuple(self.loops), self.grad))
        kept, self.stmt, self.loops, self.grad = (self.stmt, self.loops, self.grad), source.module, [], True
        self.block(source.module.body, new)
        self.stmt, self.loops, self.grad = kept
        return new

    # -- statements ---------------------------------------------------------------------------------

    def block(self, body: Sequence[cst.CSTNode], frame: Frame) -> bool:
        """Run statements; True where the end is not reached (return, raise, break, continue)."""
        return any(self.statement(stmt, frame) for stmt in body)

    def statement(self, stmt: cst.CSTNode, frame: Frame) -> bool:
        self.spend()
        if isinstance(stmt, cst.SimpleStatementLine):
            return any(self.small(small, frame) for small in stmt.body)
        if isinstance(stmt, cst.BaseSmallStatement):
            return self.small(stmt, frame)  # the body of `if x: a`
        outer, self.stmt = self.stmt, stmt
        try:
            ended = self.compound(stmt, frame)
            if stmt in self.inserted:
                self.after(stmt, frame)
            return ended
        finally:
            self.stmt = outer

    def compound(self, stmt: cst.CSTNode, frame: Frame) -> bool:
        if isinstance(stmt, cst.FunctionDef):
            self.define(stmt, frame)
        elif isinstance(stmt, cst.ClassDef):
            self.define_class(stmt, frame)
        elif isinstance(stmt, cst.If):
            return self.branch(stmt, frame)
        elif isinstance(stmt, cst.For):
            self.loop_for(stmt, frame)
        elif isinstance(stmt, cst.While):
            return self.loop_while(stmt, frame)
        elif isinstance(stmt, cst.With):
            return self.with_block(stmt, frame)
        elif isinstance(stmt, (cst.Try, cst.TryStar)):
            return self.try_block(stmt, frame)
        elif isinstance(stmt, cst.Match):
            self.expr(stmt.subject, frame)
            for case in stmt.cases:
                self.uncertain(functools.partial(self.block, case.body.body, frame), frame)
        return False

    def small(self, stmt: cst.BaseSmallStatement, frame: Frame) -> bool:
        outer, self.stmt = self.stmt, stmt
        try:
            ended = self.small_statement(stmt, frame)
            if stmt in self.inserted:
                self.after(stmt, frame)
            return ended
        finally:
            self.stmt = outer

    def small_statement(self, stmt: cst.BaseSmallStatement, frame: Frame) -> bool:
        match stmt:
            case cst.Expr(value=value):
                self.expr(value, frame)
            case cst.Assign(targets=targets, value=value):
                held = self.literal(value, frame)
                for target in targets:
                    self.bind(target.target, held, frame)
            case cst.AnnAssign(target=target, value=value):
                if value is not None:
                    self.bind(target, self.literal(value, frame), frame)
            case cst.AugAssign(target=target, value=value):
                before, added = self.expr(target, frame), self.expr(value, frame)
                self.event("augment", stmt, frame, value=added, extra={"before": before})
                self.bind(target, self.arithmetic(type(stmt.operator).__name__, before, added, stmt, frame), frame)
            case cst.Return(value=value):
                held = self.expr(value, frame) if value is not None else (Const(None),)
                self.returned[-1] = join(self.returned[-1], held)
                self.event("return", stmt, frame, value=held)
                return True
            case cst.Raise(exc=exc):
                if exc is not None:
                    self.expr(exc, frame)
                return True
            case cst.Break() | cst.Continue():
                self.event("break" if isinstance(stmt, cst.Break) else "continue", stmt, frame)
                return True
            case cst.Assert(test=test, msg=msg):
                self.expr(test, frame)
                if msg is not None:
                    self.expr(msg, frame)
            case cst.Import() | cst.ImportFrom():
                self.imports(stmt, frame)
            case cst.Global(names=names):
                for item in names:
                    frame.scope.outer[item.name.value] = frame.scope.module
            case cst.Nonlocal(names=names):
                for item in names:
                    scope = frame.scope.parent.holder(item.name.value) if frame.scope.parent else None
                    if scope is not None:
                        frame.scope.outer[item.name.value] = scope
            case cst.Del(target=target):
                self.expr(target, frame) if not isinstance(target, cst.Tuple) else None
        return False

    def literal(self, value: cst.BaseExpression, frame: Frame) -> Value:
        """A literal that is given a name keeps its place: `device = 0` may turn out to be a device."""
        held = self.expr(value, frame)
        if len(held) == 1 and isinstance(held[0], Const) and isinstance(value, (cst.Integer, cst.SimpleString)):
            return (Const(held[0].value, value),)
        return held

    def define(self, node: cst.FunctionDef, frame: Frame) -> None:
        names = tuple(self.qualified(d.decorator, frame) for d in node.decorators)
        for d in node.decorators:
            self.expr(d.decorator, frame)
        func = Func(node, frame.source, frame.scope, decorators=names)
        self.defaults[node] = {
            p.name.value: self.expr(p.default, frame)
            for p in (*node.params.params, *node.params.kwonly_params, *node.params.posonly_params)
            if p.default is not None
        }
        frame.scope.names[node.name.value] = (func,)
        frame.scope.bound_at[node.name.value] = node

    def define_class(self, node: cst.ClassDef, frame: Frame) -> None:
        bases = join(*(self.expr(b.value, frame) for b in node.bases))
        scope = Scope(frame.source, frame.scope, node)
        cls = Class(node, frame.source, frame.scope, bases, scope.names)
        inner = Frame(frame.source, scope, None, True)
        inner.entries = frame.entries
        self.block(node.body.body, inner)
        for value in scope.names.values():
            for obj in value:
                if isinstance(obj, Func):
                    obj.owner = cls
        frame.scope.names[node.name.value] = (cls,)
        frame.scope.bound_at[node.name.value] = node

    def branch(self, stmt: cst.If, frame: Frame) -> bool:
        test = self.expr(stmt.test, frame)
        known = self.truth(test)
        self.under.append(stmt)
        try:
            if known is True:
                return self.block(stmt.body.body, frame)
            if known is False:
                return self.orelse(stmt.orelse, frame)
            return self.either(
                lambda: self.block(stmt.body.body, frame), lambda: self.orelse(stmt.orelse, frame), frame
            )
        finally:
            self.under.pop()

    def orelse(self, node: cst.If | cst.Else | None, frame: Frame) -> bool:
        if isinstance(node, cst.If):
            return self.statement(node, frame)
        return self.block(node.body.body, frame) if node is not None else False

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
        telling = (str, Module, Wrapped)
        if all(
            any(isinstance(o, telling[1:]) or (isinstance(o, Const) and isinstance(o.value, str)) for o in e)
            for e in obj.elements
        ):
            return obj.elements
        return None

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
        self.unsure += not once
        if not once and not self.quiet:
            self.quiet += 1
            each()
            self.block(body, frame)
            self.quiet -= 1
            for name, held in before.items():
                frame.scope.names[name] = join(held, frame.scope.names.get(name, ()))
        each()
        self.block(body, frame)
        self.unsure -= not once
        if not once:
            for name, held in before.items():
                frame.scope.names[name] = join(held, frame.scope.names.get(name, ()))
        self.loops.pop()
        self.event("loop", loop.node, frame, value=loop.iterates, name="end")

    def with_block(self, stmt: cst.With, frame: Frame) -> bool:
        grad = self.grad
        for item in stmt.items:
            held = self.expr(item.item, frame)
            for obj in held:
                if isinstance(obj, Mode):
                    self.grad = obj.grad
            if item.asname is not None:
                name = item.asname.name
                self.bind(name, held, frame)
        self.under.append(stmt)
        try:
            return self.block(stmt.body.body, frame)
        finally:
            self.under.pop()
            self.grad = grad

    def try_block(self, stmt: cst.Try | cst.TryStar, frame: Frame) -> bool:
        self.under.append(stmt)
        before = dict(frame.scope.names)
        ended = self.block(stmt.body.body, frame)
        if not ended and stmt.orelse is not None:
            ended = self.block(stmt.orelse.body.body, frame)
        after = [] if ended else [dict(frame.scope.names)]
        for handler in stmt.handlers:
            merged = {n: join(before.get(n, ()), v) for n, v in frame.scope.names.items()}
            frame.scope.names.clear()
            frame.scope.names.update(merged)
            if handler.name is not None:
                self.bind(handler.name.name, UNKNOWN, frame)
            if not self.block(handler.body.body, frame):
                after.append(dict(frame.scope.names))
        if after:
            names = {n for a in after for n in a}
            frame.scope.names.clear()
            frame.scope.names.update({n: join(*(a.get(n, ()) for a in after)) for n in names})
        if stmt.finalbody is not None:
            self.block(stmt.finalbody.body.body, frame)
        self.under.pop()
        return not after

    def imports(self, stmt: cst.Import | cst.ImportFrom, frame: Frame) -> None:
        names = frame.scope.names
        if isinstance(stmt, cst.Import):
            for alias in stmt.names:
                dotted = _dotted(alias.name)
                source = self.project.find(dotted)
                if source is not None:
                    self.import_module(source, frame, stmt)
                if alias.asname is not None:
                    bound, whole = _dotted(alias.asname.name), dotted
                else:
                    bound = whole = dotted.split(".")[0]
                held = self.project.find(whole)
                names[bound] = (Mod(held),) if held is not None else (Ext(whole),)
            return
        module = _dotted(stmt.module) if stmt.module is not None else ""
        source = self.project.find(module, len(stmt.relative), frame.source)
        inner = self.import_module(source, frame, stmt) if source is not None else None
        if isinstance(stmt.names, cst.ImportStar):
            if inner is not None:
                names.update({n: v for n, v in inner.scope.names.items() if not n.startswith("_")})
            else:
                self.star_imports.setdefault(frame.source, []).append(module)
            return
        for alias in stmt.names:
            name = _dotted(alias.name)
            bound = _dotted(alias.asname.name) if alias.asname is not None else name
            names[bound] = self.imported(module, name, inner, len(stmt.relative), frame, stmt)

    def imported(
        self, module: str, name: str, inner: Frame | None, level: int, frame: Frame, stmt: cst.CSTNode
    ) -> Value:
        if inner is not None and name in inner.scope.names:
            return inner.scope.names[name]
        sub = self.project.find(f"{module}.{name}" if module else name, level, frame.source)
        if sub is not None:
            self.import_module(sub, frame, stmt)
            return (Mod(sub),)
        return UNKNOWN if inner is not None else (Ext(f"{module}.{name}" if not level else f".{module}.{name}"),)

    # -- branches -----------------------------------------------------------------------------------

    def either(self, one: Callable[[], bool], other: Callable[[], bool], frame: Frame) -> bool:
        """Two ways, joined behind; a way that ends early drops out."""
        names = frame.scope.names
        before = dict(names)
        self.unsure += 1
        ended_one = one()
        after_one = dict(names)
        names.clear()
        names.update(before)
        ended_other = other()
        self.unsure -= 1
        if ended_one and ended_other:
            return True
        if not ended_one:
            after_other = {} if ended_other else dict(names)
            names.clear()
            for name in {**after_one, **after_other}:
                names[name] = join(after_one.get(name, ()), after_other.get(name, ()))
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

    def element(self, over: Value, loop: cst.CSTNode) -> Value:
        """What one turn of a loop gets."""
        return join(*(self.element_of(obj, loop) for obj in over)) if over else UNKNOWN


def epoch_value(loop: cst.CSTNode) -> Value:
    """The variable of a loop over numbers."""
    return (Data("int", "const", frozenset({FromLoop(loop)})),)


def _dotted(node: cst.BaseExpression | None) -> str:
    match node:
        case cst.Name(value=value):
            return value
        case cst.Attribute(value=value, attr=attr):
            return f"{_dotted(value)}.{attr.value}"
    return ""
