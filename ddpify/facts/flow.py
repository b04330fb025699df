"""Project in, value flow out: the script is run abstractly, statement by statement, calls followed.

Each class of the evaluator knows one kind of thing and extends the one before it: State, Fields, Attributes, Iterating,
Containers and Operators, Expressions, Methods, Builtins, Networks, Library, Calls, Instances, Commands, Signals,
Importing, Paths, and here Flow.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import libcst as cst

from ddpify.facts.contents import join
from ddpify.facts.externals import LEAVES
from ddpify.facts.frames import Frame, Scope
from ddpify.facts.paths import Paths
from ddpify.facts.values import (
    UNKNOWN,
    Class,
    Const,
    Dict,
    Ext,
    Func,
    Mode,
    Module,
    Obj,
    Seq,
    Thing,
    Value,
    Wrapped,
)
from ddpify.project import Project
from ddpify.source import Source


@dataclass(frozen=True, eq=False)
class _Wrap:
    """A variable that the plan wraps behind a statement."""

    target: cst.CSTNode
    stmt: cst.CSTNode
    frame: Frame
    #: only where a parameter of the model is trained: the variable may hold the model itself, too
    may_be: bool = False


class Flow(Paths):
    """The evaluator, whole: statements."""

    #: how many events there are when the script ends; functions that nothing calls are run after that
    main_end = 0

    def __init__(
        self,
        project: Project,
        *,
        settings: bool = False,
        inserted: Mapping[cst.CSTNode, list[cst.BaseExpression]] | None = None,
        doubtful: Collection[cst.BaseExpression] = (),
        around: Collection[cst.CSTNode] = (),
        models: Collection[cst.CSTNode] = (),
        routed: Mapping[cst.CSTNode, cst.BaseExpression] | None = None,
    ) -> None:
        super().__init__(project)
        self.both_ways = settings
        self.inserted, self.doubtful = inserted or {}, doubtful
        self.around, self.routed = around, routed or {}
        self.reached = {n for call, base in self.routed.items() for n in _between(call, base)}
        #: expressions of which it is known already that they make a model (of a library that could not be read)
        self.models = models

    def run(self) -> Flow:
        """Run the entry script as `python script.py` does."""
        source = self.project.entry
        frame = self.module_frame(source, "__main__")
        self.block(source.module.body, frame)
        self.main_end = len(self.log.events)
        self.settled = frozenset(self.values) if self.log.of("backward") else frozenset()
        self.run_uncalled(source)
        return self

    def after(self, stmt: cst.CSTNode, frame: Frame) -> None:
        """`model = DDP(model)`, as the plan will put it behind this statement."""
        for target in self.inserted.get(stmt, ()):
            held = self.expr(target, frame)
            wrapped = self.wrapped(held, _Wrap(target, stmt, frame, target in self.doubtful))
            if wrapped != held:
                self.bind(target, wrapped, frame)

    def expr(self, node: cst.CSTNode, frame: Frame) -> Value:
        """`DDP(Net())`, where the plan will wrap what an expression makes."""
        value = super().expr(node, frame)
        return self.wrapped(value, _Wrap(node, node, frame)) if self.around and node in self.around else value

    def wrapped(self, value: Value, at: _Wrap, key: str | None = None) -> Value:
        """`DDP(model)`; of a list or dict of models, a new one with each in a wrapper of its own."""
        known = (self.model_of(o) if isinstance(o, Thing) else o for o in value if isinstance(o, (Module, Thing)))
        inner = tuple(m for m in known if m is not None)
        rest = tuple(o for o in value if not inner or not isinstance(o, (Module, Thing)))
        if key is None:
            rest = tuple(self.each_wrapped(o, at) if isinstance(o, (Seq, Dict)) else o for o in rest)
        if not inner:
            return rest
        made = self.made(at.target, at.frame, Wrapped(self.site(at.stmt, at.frame), module=inner), f"Wrapped {key}")
        self.event("new", at.stmt, at.frame, made[0], "torch.nn.parallel.DistributedDataParallel")
        return (*made, *inner, *rest) if at.may_be else (*made, *rest)

    def model_of(self, obj: Thing) -> Module | None:
        """The model that something unknown turns out to be, behind the statement if not before."""
        return self.by_use(obj) if obj.module is None and obj.site.node in self.models else obj.module

    def each_wrapped(self, obj: Seq | Dict, at: _Wrap) -> Obj:
        """`[DDP(net) for net in nets]`"""
        joined = self.wrapped(obj.joined, at, "joined")
        if isinstance(obj, Seq):
            parts = [self.wrapped(e, at, str(i)) for i, e in enumerate(obj.elements or ())]
            made: Obj = Seq(obj.site, elements=parts if obj.elements is not None else None, joined=joined)
        else:
            items = {k: self.wrapped(v, at, repr(k)) for k, v in obj.items.items()}
            made = Dict(obj.site, {}, items, joined, set(obj.maybe), obj.closed)
        (kept,) = self.made(at.target, at.frame, made)
        return kept

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
            if self.inserted and stmt in self.inserted:
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
            if self.inserted and stmt in self.inserted:
                self.after(stmt, frame)
            return ended
        finally:
            self.stmt = outer

    def small_statement(self, stmt: cst.BaseSmallStatement, frame: Frame) -> bool:
        match stmt:
            case cst.Expr(value=value):
                self.expr(value, frame)
                return self.leaves(value, frame)
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
                    self.leaves(exc, frame)
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

    def leaves(self, node: cst.BaseExpression, frame: Frame) -> bool:
        """`sys.exit(0)`: nothing comes behind it."""
        named = node.func if isinstance(node, cst.Call) else node
        if not any(isinstance(o, Ext) and o.name in LEAVES for o in self.values.get(named, ())):
            return False
        code = self.values.get(node.args[0].value, UNKNOWN) if isinstance(node, cst.Call) and node.args else ()
        self.event("exit", node, frame, value=code)
        return isinstance(node, cst.Call)

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
        self.register(func, frame)
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
            with self.may_happen():
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

    # -- branches -----------------------------------------------------------------------------------


def _between(call: cst.CSTNode, base: cst.BaseExpression) -> list[cst.CSTNode]:
    """`model.layers[0]` and `model.layers` of `model.layers[0](x)`"""
    found: list[cst.CSTNode] = []
    node = call.func if isinstance(call, cst.Call) else base
    while isinstance(node, (cst.Attribute, cst.Subscript)) and node is not base:
        found.append(node)
        node = node.value
    return found
