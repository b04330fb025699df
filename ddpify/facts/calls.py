"""Calls: into the project they are followed, outside it a table says what they give."""

from __future__ import annotations

import libcst as cst

from ddpify.facts.assigned import assigned_names
from ddpify.facts.contents import join, origins
from ddpify.facts.externals import role_of
from ddpify.facts.frames import Entry, Frame, Scope
from ddpify.facts.state import Given
from ddpify.facts.summaries import Library
from ddpify.facts.values import (
    UNKNOWN,
    Class,
    Const,
    Data,
    Dataset,
    Dict,
    Ext,
    FromForward,
    Func,
    Instance,
    Iteration,
    Loader,
    Method,
    Module,
    Obj,
    Origin,
    Seq,
    Thing,
    Value,
    Wrapped,
)

_DEPTH = 24


class Calls(Library):
    """Calls of functions and classes of the project; the rest goes to the library's summaries."""

    #: the call that is being made has a `**` whose keys are not all known
    open_call = False
    #: what it may hold by those keys
    loose: Value = ()

    def call(self, node: cst.Call, frame: Frame) -> Value:
        if self.routed and node in self.routed:
            routed = self.through_wrapper(node, frame)
            if routed is not None:
                return routed
        return self.plain_call(node, frame)

    def plain_call(self, node: cst.Call, frame: Frame) -> Value:
        parent = self.super_call(node, frame)
        callee = parent if parent is not None else self.expr(node.func, frame)
        given: list[Given] = []
        named: dict[str, Given] = {}
        splats: list[Value] = []
        for arg in node.args:
            value = self.expr(arg.value, frame)
            if arg.star == "*":
                self.spread(value, given)
            elif arg.star == "**":
                splats.append(value)
                for obj in value:
                    if isinstance(obj, Dict):
                        for key, held in obj.items.items():
                            named.setdefault(str(key), (None, held))
            elif arg.keyword is not None:
                named[arg.keyword.value] = (arg.value, value)
            else:
                given.append((arg.value, value))
        self.open_call = not all(isinstance(o, Dict) and o.closed for splat in splats for o in splat)
        self.loose = join(*(_values_of(o) for splat in splats for o in splat))
        results = [self.call_object(obj, node, given, named, splats, frame) for obj in callee]
        self.open_call, self.loose = False, ()
        return join(*results) if results else UNKNOWN

    def through_wrapper(self, node: cst.Call, frame: Frame) -> Value | None:
        """`model.compute_loss(x)`, where the plan makes a forward of the wrapper of it."""
        held = next((o for o in self.expr(self.routed[node], frame) if isinstance(o, Wrapped)), None)
        inner = next((m for m in held.module if isinstance(m, Module)), None) if held is not None else None
        if held is None or inner is None or self.grad is False:
            return None
        given = [self.expr(arg.value, frame) for arg in node.args]
        self.event("forward", node, frame, held, value=given[0] if given else ())
        self.quiet += 1
        try:
            result = self.plain_call(node, frame)
        finally:
            self.quiet -= 1
        known: frozenset[Origin] = frozenset().union(*map(origins, given))
        known |= {FromForward(inner.inner or inner, node)}
        parts = next((o.elements for o in result if isinstance(o, Seq) and o.elements is not None), None)
        if parts is None:
            return self.output(result, known)
        return (Seq(self.site(node, frame), elements=[self.output(e, known) for e in parts]),)

    def spread(self, value: Value, given: list[Given]) -> None:
        for obj in value:
            if isinstance(obj, Seq) and obj.elements is not None:
                given.extend((None, e) for e in obj.elements)
                return
        given.append((None, join(*(self.element_of(o, self.stmt) for o in value)) if value else UNKNOWN))

    def call_object(
        self, obj: Obj, node: cst.Call, given: list[Given], named: dict[str, Given], splats: list[Value], frame: Frame
    ) -> Value:
        match obj:
            case Func():
                return self.call_function(obj, given, named, node, frame)
            case Class():
                return self.instantiate(obj, given, named, node, frame, splats)
            case Ext():
                return self.outside(obj, node, given, named, splats, frame)
        if self.loose:
            named = {**named, "**": (None, self.loose)}  # model(**batch)
        match obj:
            case Module() | Wrapped():
                return self.forward(obj, node, [*given, *named.values()], frame)
            case Method():
                return self.method(obj, node, given, named, frame)
            case Thing(name="partial"):
                func, before, beside = self.held(obj)
                given, named = [*before, *given], {**beside, **named}
                return join(*(self.call_object(f, node, given, named, splats, frame) for f in func)) or UNKNOWN
            case Thing(name="named-tuple"):
                return self.named_tuple(obj, node, given, named, frame)
            case Thing(module=Module() as by_use):
                return self.forward(by_use, node, [*given, *named.values()], frame)
            case Instance() if obj.cls is not None and obj.cls.member("__call__"):
                return self.call_members(obj.cls.member("__call__"), obj, given, named, node, frame)
        known = frozenset().union(origins((obj,)), *(origins(v) for _, v in (*given, *named.values())))
        self.callbacks(given, named, node, frame)
        return (Data("any", "other", known),)

    def call_members(
        self, member: Value, obj: Obj, given: list[Given], named: dict[str, Given], node: cst.CSTNode, frame: Frame
    ) -> Value:
        results = [
            self.call_function(self.bound(m, obj, node), given, named, node, frame)
            for m in member
            if isinstance(m, Func)
        ]
        return join(*results) if results else UNKNOWN

    def super_call(self, node: cst.Call, frame: Frame) -> Value | None:
        """`super().method(...)`: the method of the nearest base of the project, bound to self."""
        match node.func:
            case cst.Attribute(value=cst.Call(func=cst.Name(value="super")), attr=cst.Name(value=name)):
                func = frame.func
                if func is None or func.owner is None or func.bound is None:
                    return UNKNOWN
                for base in func.owner.lineage()[1:]:
                    for m in base.members.get(name, ()):
                        if isinstance(m, Func):
                            return (self.bound(m, func.bound, node),)
                return (Method(func.bound, name),) if name != "__init__" or isinstance(func.bound, Loader) else UNKNOWN
        return None

    # -- functions ----------------------------------------------------------------------------------------

    def call_function(
        self, func: Func, given: list[Given], named: dict[str, Given], node: cst.CSTNode, frame: Frame
    ) -> Value:
        self.followed.add(func.node)
        known = frozenset().union(*(origins(v) for _, v in (*given, *named.values())))
        if func.node in self.stack or len(self.stack) > _DEPTH or self.budget < 0:
            return (Data("any", "other", known),)
        params, nodes = self.parameters(func, given, named)
        grad = self.inner_grad(func)
        key = self.memo_key(func, params, grad)
        kept = self.memo.get(key)
        place = (node, frame)
        if kept is not None and kept[2] != place and self.makes(kept[0], kept[1]):
            key = (key, place)  # make(x[:48]), make(x[48:]): arguments that look alike, two loaders
            kept = self.memo.get(key)
        if kept is not None:
            result, new, _, effects = kept
        else:
            new = self.new_frame(func, params, nodes, grad)
        if not self.quiet:
            new.entries.append(Entry(frame, node, self.stmt, tuple(self.loops), self.grad))
        self.event("call", node, frame, func, func.name, callee=new)
        if kept is None:
            with self.writing() as written:
                result = self.run_frame(func, new, grad)
            effects = [(obj, name, obj.fields[name]) for (_, name), (obj, _) in written.items()]
            self.memo[key] = (result, new, place, effects)
        else:
            for obj, name, value in effects:
                self.set_attribute(obj, name, value)
        return result

    def makes(self, value: Value, frame: Frame) -> bool:
        """Whether a call gives back a loader, dataset, model or object that was made in it."""
        todo, seen = list(value), set[int]()  # a dict may hold itself: tree[key] = tree
        while todo:
            obj = todo.pop()
            if id(obj) in seen or not isinstance(obj, (Loader, Dataset, Module, Instance, Seq, Dict)):
                continue
            seen.add(id(obj))
            if obj.site.frame.number < frame.number:
                continue
            if not isinstance(obj, (Seq, Dict)):
                return True
            parts = obj.elements or () if isinstance(obj, Seq) else obj.items.values()
            todo.extend(o for part in (obj.joined, *parts) for o in part)
        return False

    def memo_key(self, func: Func, params: dict[str, Value], grad: bool | None) -> object:
        held = tuple((n, v) for n, v in params.items())
        state = (
            tuple((n, v) for n, v in func.bound.fields.items()) if isinstance(func.bound, (Instance, Module)) else ()
        )
        return (
            id(func.node),
            id(func.bound),
            id(func.scope),
            held,
            state,
            grad,
            self.quiet > 0,
            self.trial > 0,
            self.version(),
        )

    def version(self) -> object:
        """What the functions of the project can see of the outside: the globals that hold objects."""
        frame = self.modules.get(self.project.entry)
        return (
            tuple(v for v in frame.scope.names.values() if v and not isinstance(v[0], (Data, Const, Ext, Func, Class)))
            if frame
            else ()
        )

    def inner_grad(self, func: Func) -> bool | None:
        for name in func.decorators:
            role = role_of(name)
            if role in ("grad-off", "grad-on"):
                return role == "grad-on"
        return self.grad

    def new_frame(
        self, func: Func, params: dict[str, Value], nodes: dict[str, cst.BaseExpression | None], grad: bool | None
    ) -> Frame:
        scope = Scope(func.source, func.scope, func.node)
        scope.names.update(params)
        new = Frame(func.source, scope, func, grad)
        new.arguments = nodes
        if func.node not in self.assigned:
            self.assigned[func.node] = assigned_names(func.node)
        new.assigned = self.assigned[func.node]
        new.number, new.trial = len(self.frames), self.trial > 0
        self.frames.append(new)
        return new

    def run_frame(self, func: Func, new: Frame, grad: bool | None) -> Value:
        kept = (self.stmt, self.loops, self.under, self.grad)
        self.loops, self.under, self.grad = [], [], grad
        self.stack.append(func.node)
        self.returned.append(())
        try:
            if isinstance(func.node, cst.Lambda):
                return self.expr(func.node.body, new)
            ended = self.block(func.node.body.body, new)
            result = self.returned[-1]
            yields = tuple(o for o in result if isinstance(o, Iteration) and isinstance(o.site.node, cst.Yield))
            if yields:
                return yields  # a generator function: what it returns at its end is no element
            return result if result and ended else join(result, (Const(None),))
        finally:
            self.returned.pop()
            self.stack.pop()
            self.stmt, self.loops, self.under, self.grad = kept

    def parameters(
        self, func: Func, given: list[Given], named: dict[str, Given]
    ) -> tuple[dict[str, Value], dict[str, cst.BaseExpression | None]]:
        """Arguments to parameters, by position, by name and by default."""
        opened, loose = self.open_call, self.loose
        self.open_call, self.loose = False, ()
        p = func.node.params
        names = [x.name.value for x in (*p.posonly_params, *p.params)]
        values: dict[str, Value] = {}
        nodes: dict[str, cst.BaseExpression | None] = {}
        queue = list(given)
        if func.bound is not None and names:
            values[names[0]] = (func.bound,)
            names = names[1:]
        for name in names:
            if queue:
                nodes[name], values[name] = queue.pop(0)
        if isinstance(p.star_arg, cst.Param):
            values[p.star_arg.name.value] = tuple(self.rest_of(queue, func))
        every = [*names, *(x.name.value for x in p.kwonly_params)]
        for name in every:
            if name in named:
                nodes[name], values[name] = named[name]
        defaults = self.defaults.get(func.node, {})
        for name in every:
            if name not in values:
                held = defaults.get(name, UNKNOWN)
                values[name] = join(held, loose or UNKNOWN) if opened else held  # `Net(**config)` may give it, or not
        if p.star_kwarg is not None:
            extra = {k: v for k, (_, v) in named.items() if k not in every}
            # by what they hold, as of any parameter: two calls with other arguments stay two
            key = (id(func.node), len(self.stack), not opened, *((k, extra[k]) for k in sorted(extra)))
            site = self.site(func.node, self.modules[self.project.entry])
            rest = self.sites.setdefault(key, Dict(site, items=dict(extra.items()), joined=loose, closed=not opened))
            values[p.star_kwarg.name.value] = (rest,)
        return values, nodes

    def rest_of(self, queue: list[Given], func: Func) -> list[Obj]:
        elements = [v for _, v in queue]
        made = Seq(self.site(func.node, self.modules[self.project.entry]), elements=elements)
        return [self.sites.setdefault((id(func.node), "args", *elements), made)]

    def qualified(self, node: cst.BaseExpression, frame: Frame) -> str:
        """The qualified name of an expression, calls looked through: `@torch.no_grad()`."""
        inner = node.func if isinstance(node, cst.Call) else node
        for obj in self.expr(inner, frame):
            if isinstance(obj, Ext):
                return obj.name
        return ""


def _values_of(splat: Obj) -> Value:
    """What `**batch` holds by keys that are not known."""
    return splat.joined if isinstance(splat, Dict) else (splat,) if isinstance(splat, Data) else ()
