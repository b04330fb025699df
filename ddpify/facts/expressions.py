"""Expressions to abstract values: names, attributes, arithmetic, containers."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from ddpify.facts.frames import Event, Frame, Log, Loop, Scope
from ddpify.facts.values import (
    UNKNOWN,
    Class,
    Const,
    Data,
    Device,
    Dict,
    Ext,
    FromBatch,
    FromLoop,
    Func,
    Instance,
    Iteration,
    Loader,
    Method,
    Mod,
    Module,
    Obj,
    Optimizer,
    Origin,
    Parameters,
    Sampler,
    Seq,
    Site,
    StateDict,
    Thing,
    Value,
    Wrapped,
    constants,
    data_of,
    join,
    origins,
)
from ddpify.project import Project
from ddpify.source import Source

#: Attributes of tensors that are tensors of the same samples.
_SAME = frozenset(
    {"data", "T", "mT", "real", "logits", "loss", "sample", "prev_sample", "last_hidden_state", "pooler_output"}
)


class Expressions:
    """State of a run, and the evaluation of expressions."""

    def __init__(self, project: Project, *, uncalled: bool = True, budget: int = 600_000) -> None:
        self.project = project
        self.uncalled = uncalled
        self.budget = budget
        self.log = Log()
        self.modules: dict[Source, Frame] = {}
        self.frames: list[Frame] = []
        self.values: dict[cst.CSTNode, Value] = {}
        self.defaults: dict[cst.CSTNode, dict[str, Value]] = {}
        self.star_imports: dict[Source, list[str]] = {}
        self.followed: set[cst.CSTNode] = set()
        self.sites: dict[tuple[int, int, str], Obj] = {}
        self.stmt: cst.CSTNode = project.entry.module
        self.loops: list[Loop] = []
        self.under: list[cst.CSTNode] = []
        self.grad: bool | None = True
        self.quiet = 0
        self.iterating: set[int] = set()
        self.inner_frames: dict[tuple[int, int, str], Frame] = {}
        self.unsure = 0
        self.returned: list[Value] = [()]

    def spend(self) -> None:
        self.budget -= 1

    def event(
        self,
        kind: str,
        node: cst.CSTNode,
        frame: Frame,
        obj: Obj | None = None,
        name: str = "",
        value: Value = (),
        callee: Frame | None = None,
        extra: dict[str, Value] | None = None,
    ) -> None:
        """Write down what happens, unless this is a trial pass of a loop."""
        if self.quiet:
            return
        frame = frame.home
        new = Event(
            kind,
            node,
            self.stmt,
            frame,
            self.grad,
            tuple(self.loops),
            len(self.log.events),
            obj,
            name,
            value,
            callee,
            tuple(self.under),
            extra or {},
        )
        self.log.events.append(new)
        frame.events.append(new)

    def site(self, node: cst.CSTNode, frame: Frame) -> Site:
        return Site(node, frame.source, frame)

    def made(self, node: cst.CSTNode, frame: Frame, make: Obj, tag: str = "") -> Value:
        """The object that an expression makes: the same one each time it runs in the same frame."""
        key = (id(node), id(frame), tag or type(make).__name__)
        return (self.sites.setdefault(key, make),)

    # -- expressions ----------------------------------------------------------------------------------

    def expr(self, node: cst.CSTNode, frame: Frame) -> Value:
        self.spend()
        value = self.evaluate(node, frame)
        known = self.values.get(node)
        self.values[node] = value if known is None or known == value else join(known, value)
        return value

    def evaluate(self, node: cst.CSTNode, frame: Frame) -> Value:
        match node:
            case cst.Name():
                return self.name(node, frame)
            case cst.Attribute():
                return self.attribute(node, frame)
            case cst.Call():
                return self.call(node, frame)
            case cst.Integer() | cst.Float() | cst.SimpleString():
                return (Const(node.evaluated_value),)
            case cst.ConcatenatedString():
                text = node.evaluated_value
                self.expr(node.left, frame), self.expr(node.right, frame)
                return (Const(text),) if isinstance(text, str) else (Data("str"),)
            case cst.FormattedString(parts=parts):
                inner = [self.expr(p.expression, frame) for p in parts if isinstance(p, cst.FormattedStringExpression)]
                return (Data("str", "other", frozenset().union(*map(origins, inner))),)
            case cst.BinaryOperation(left=left, right=right, operator=operator):
                one, two = self.expr(left, frame), self.expr(right, frame)
                return self.arithmetic(type(operator).__name__, one, two, node, frame)
            case cst.BooleanOperation(left=left, right=right, operator=operator):
                return self.boolean(operator, self.expr(left, frame), self.expr(right, frame))
            case cst.UnaryOperation(expression=expression, operator=operator):
                return self.unary(operator, self.expr(expression, frame))
            case cst.Comparison():
                return self.comparison(node, frame)
            case cst.IfExp(test=test, body=body, orelse=orelse):
                known = self.truth(self.expr(test, frame))
                one, two = self.expr(body, frame), self.expr(orelse, frame)
                return one if known is True else two if known is False else join(one, two)
            case cst.Subscript():
                return self.subscript(node, frame)
            case cst.Tuple(elements=elements) | cst.List(elements=elements) | cst.Set(elements=elements):
                return self.sequence(node, elements, frame)
            case cst.Dict(elements=elements):
                return self.dictionary(node, elements, frame)
            case cst.NamedExpr(target=target, value=value):
                held = self.expr(value, frame)
                self.bind(target, held, frame)
                return held
            case cst.Lambda():
                return self.made(node, frame, Func(node, frame.source, frame.scope))
            case cst.ListComp() | cst.SetComp() | cst.GeneratorExp() | cst.DictComp():
                return self.comprehension(node, frame)
            case cst.Await(expression=inner):
                return self.expr(inner, frame)
            case cst.Yield(value=value):
                if value is not None:
                    inner_node = value.item if isinstance(value, cst.From) else value
                    held = self.expr(inner_node, frame)
                    made = self.made(node, frame, Iteration(self.site(node, frame), how="yield", of=(held,)))
                    self.returned[-1] = join(self.returned[-1], made)
                return UNKNOWN
        return UNKNOWN

    def name(self, node: cst.Name, frame: Frame) -> Value:
        name = node.value
        if name in ("True", "False", "None"):
            return (Const({"True": True, "False": False}.get(name)),)
        holder = frame.scope.holder(name)
        if holder is not None:
            return holder.names.get(name, UNKNOWN)
        stars = self.star_imports.get(frame.source, [])
        if len(stars) == 1:
            return (Ext(f"{stars[0]}.{name}"),)
        return (Ext(f"builtins.{name}"),)

    def attribute(self, node: cst.Attribute, frame: Frame) -> Value:
        base = self.expr(node.value, frame)
        name = node.attr.value
        found: list[Value] = []
        for obj in base:
            if isinstance(obj, (Wrapped, Module)):
                self.event("attribute", node, frame, obj, name)
            found.append(self.get(obj, name, node, frame))
        return join(*found) if found else UNKNOWN

    def get(self, obj: Obj, name: str, node: cst.CSTNode, frame: Frame) -> Value:
        """An attribute of an object."""
        match obj:
            case Ext():
                return (Ext(f"{obj.name}.{name}"),)
            case Mod():
                inner = self.modules.get(obj.source)
                if inner is not None and name in inner.scope.names:
                    return inner.scope.names[name]
                if inner is not None and name == "__dict__":
                    return (Dict(self.site(node, frame), items=dict(inner.scope.names.items())),)
                return self.submodule(obj, name)
            case Class():
                return obj.member(name) or (Method(obj, name),)
            case Instance() | Module():
                return self.field(obj, name, node, frame)
            case Wrapped():
                return obj.module if name == "module" else (Method(obj, name),)
            case Loader():
                return self.loader_field(obj, name)
            case Thing():
                return obj.fields.get(name) or (
                    (Data("any", "const"),) if obj.name == "namespace" else (Method(obj, name),)
                )
            case Device():
                return (Data("str"),) if name == "type" else (Data("int", "const"),) if name == "index" else UNKNOWN
            case Data():
                if name in _SAME or name in ("grad", "requires_grad", "device", "dtype"):
                    return (obj,) if name in _SAME else (Data("any"),)
                if name == "shape":
                    return (Data("any", "shape" if obj.agg == "sample" else "other", obj.origins),)
                return (Method(obj, name),)
        return (Method(obj, name),)

    def submodule(self, obj: Mod, name: str) -> Value:
        path = obj.source.path
        if path.name == "__init__.py":
            for candidate in (path.parent / f"{name}.py", path.parent / name / "__init__.py"):
                for source in self.modules:
                    if source.path == candidate:
                        return (Mod(source),)
        return UNKNOWN

    def field(self, obj: Instance | Module, name: str, node: cst.CSTNode, frame: Frame) -> Value:
        if name in obj.fields:
            return obj.fields[name]
        member = obj.cls.member(name) if obj.cls is not None else ()
        if not member:
            return (Method(obj, name),)
        found: list[Value] = []
        for m in member:
            if isinstance(m, Func):
                bound = self.bound(m, obj, node)
                is_property = any(d.split(".")[-1] in ("property", "cached_property") for d in m.decorators)
                found.append(self.call_function(bound, [], {}, node, frame) if is_property else (bound,))
            else:
                found.append((m,))
        return join(*found)

    def bound(self, func: Func, obj: Obj, node: cst.CSTNode) -> Func:
        if "builtins.staticmethod" in func.decorators:
            return func
        key = (id(func), id(obj), "bound")
        made = self.sites.setdefault(key, Func(func.node, func.source, func.scope, obj, func.owner, func.decorators))
        assert isinstance(made, Func)
        return made

    def loader_field(self, obj: Loader, name: str) -> Value:
        if name == "dataset":
            return obj.dataset or UNKNOWN
        if name in obj.arguments:
            return obj.arguments[name]
        if name in ("sampler", "batch_sampler"):
            return (Sampler(obj.site, name="implicit", dataset=obj.dataset),)
        return (Method(obj, name),)

    # -- binding ----------------------------------------------------------------------------------------

    def bind(self, target: cst.BaseExpression, value: Value, frame: Frame) -> None:
        match target:
            case cst.Name(value=name):
                scope = frame.scope.outer.get(name, frame.scope)
                scope.names[name] = value
                scope.bound_at[name] = self.stmt
                self.values[target] = join(self.values.get(target, ()), value)
                self.event("bind", target, frame, name=name, value=value)
            case cst.Attribute(value=base, attr=attr):
                for obj in self.expr(base, frame):
                    self.set_field(obj, attr.value, value)
                    self.event("set", target, frame, obj, attr.value, value)
                self.values[target] = join(self.values.get(target, ()), value)
            case cst.Subscript(value=base, slice=index):
                keys = [self.expr(i.slice.value, frame) for i in index if isinstance(i.slice, cst.Index)]
                for obj in self.expr(base, frame):
                    self.set_item(obj, constants(keys[0]) if len(keys) == 1 else None, value)
                    self.event("store", target, frame, obj, "", value)
            case cst.Tuple(elements=elements) | cst.List(elements=elements):
                self.unpack([e.value for e in elements], value, frame)
            case cst.StarredElement(value=inner):
                self.bind(inner, value, frame)

    def set_field(self, obj: Obj, name: str, value: Value) -> None:
        if isinstance(obj, (Instance, Module, Thing, Optimizer)):
            obj.fields[name] = join(obj.fields.get(name, ()), value) if self.unsure else value
            if isinstance(obj, Module):
                obj.parts.append(value)
                for part in value:
                    if isinstance(part, Thing) and part.owner is None:
                        part.owner = obj
                    if isinstance(part, Module) and part is not obj and part.part_of is None:
                        part.part_of = obj
        elif isinstance(obj, Class):
            obj.members[name] = value
        elif isinstance(obj, Mod) and obj.source in self.modules:
            self.modules[obj.source].scope.names[name] = value

    def set_item(self, obj: Obj, keys: list[object] | None, value: Value) -> None:
        if isinstance(obj, Dict):
            if keys is None:
                obj.joined, obj.closed = join(obj.joined, value), False
                return
            for key in keys:
                if self.unsure and key not in obj.items:
                    obj.maybe.add(key)
                obj.items[key] = join(obj.items.get(key, ()), value) if self.unsure else value
        elif isinstance(obj, Seq):
            obj.joined = join(obj.joined, value)
            if (
                obj.elements is not None
                and keys
                and isinstance(keys[0], int)
                and -len(obj.elements) <= keys[0] < len(obj.elements)
            ):
                obj.elements[keys[0]] = value

    def unpack(self, targets: list[cst.BaseExpression], value: Value, frame: Frame) -> None:
        """`a, b = value`: element by element where they are known."""
        for at, target in enumerate(targets):
            parts = [self.part(obj, at, len(targets), isinstance(target, cst.StarredElement)) for obj in value]
            self.bind(target, join(*parts) if parts else UNKNOWN, frame)

    def part(self, obj: Obj, at: int, of: int, starred: bool = False) -> Value:
        match obj:
            case Seq(elements=elements, joined=joined):
                if elements is not None and len(elements) == of and not starred:
                    return elements[at]
                return join(joined, *(elements or ())) or UNKNOWN
            case Data():
                return (Data("any" if obj.form != "tensor" else "tensor", obj.agg, obj.origins, obj.on_cpu),)
            case Iteration(of=inner):
                return inner[0] if inner else UNKNOWN
            case Dict(items=items) if items and at < len(items):
                return (Const(list(items)[at]),)
        return (Data("any", "other", origins((obj,))),)

    # -- operators ----------------------------------------------------------------------------------------

    def arithmetic(self, operator: str, one: Value, two: Value, node: cst.CSTNode, frame: Frame) -> Value:
        operator = operator.removesuffix("Assign")
        sequences = [o for o in (*one, *two) if isinstance(o, (Seq, Parameters))]
        if sequences and operator == "Add":
            return self.concatenated(sequences, node, frame)
        left, right = constants(one), constants(two)
        if left and right and len(left) == len(right) == 1:
            folded = fold(operator, left[0], right[0])
            if folded is not None:
                return (Const(folded),)
        a, b = data_of(one), data_of(two)
        known: frozenset[Origin] = origins(one) | origins(two)
        if a is None or b is None:
            other = a or b
            form = other.form if other is not None else "any"
            return (Data("tensor" if form == "tensor" else "any", other.agg if other else "other", known),)
        tensor = "tensor" in (a.form, b.form)
        form = (
            "tensor"
            if tensor
            else "str"
            if "str" in (a.form, b.form)
            else a.form
            if a.form == b.form
            else ("float" if {a.form, b.form} <= {"int", "float"} else "any")
        )
        if operator == "Divide" and form == "int":
            form = "float"
        return (Data(form, combined(operator, a.agg, b.agg), known, tensor and a.on_cpu and b.on_cpu),)

    def concatenated(self, parts: Sequence[Obj], node: cst.CSTNode, frame: Frame) -> Value:
        if any(isinstance(p, Parameters) for p in parts):
            held = [m for p in parts if isinstance(p, Parameters) for m in p.modules]
            return self.made(node, frame, Parameters(self.site(node, frame), modules=tuple(dict.fromkeys(held))))
        known = [p for p in parts if isinstance(p, Seq)]
        elements = [e for p in known for e in p.elements or ()] if all(p.elements is not None for p in known) else None
        joined = join(*(p.joined for p in known), *(e for p in known for e in p.elements or ()))
        return self.made(node, frame, Seq(self.site(node, frame), elements=elements, joined=joined))

    def boolean(self, operator: cst.BaseBooleanOp, one: Value, two: Value) -> Value:
        known = self.truth(one)
        if isinstance(operator, cst.And):
            if known is False:
                return one
            return (
                two
                if known is True
                else join((Const(False),) if self.truth(two) is False else two, (Data("bool", "const"),))
            )
        if known is True:
            return one
        return two if known is False else join(one, two)

    def unary(self, operator: cst.BaseUnaryOp, value: Value) -> Value:
        known = self.truth(value)
        if isinstance(operator, cst.Not):
            return (Const(not known),) if known is not None else (Data("bool", "const", origins(value)),)
        consts = constants(value)
        if consts and len(consts) == 1 and isinstance(operator, cst.Minus) and isinstance(consts[0], (int, float)):
            return (Const(-consts[0]),)
        return value

    def comparison(self, node: cst.Comparison, frame: Frame) -> Value:
        left = self.expr(node.left, frame)
        rights = [(type(c.operator).__name__, self.expr(c.comparator, frame)) for c in node.comparisons]
        if len(rights) == 1:
            operator, right = rights[0]
            a, b = constants(left), constants(right)
            if a and b and len(a) == len(b) == 1 and operator in ("Equal", "NotEqual", "Is", "IsNot"):
                same = a[0] == b[0]
                return (Const(same if operator in ("Equal", "Is") else not same),)
            if (
                b == [None]
                and operator in ("Is", "IsNot")
                and left
                and not any(isinstance(o, (Const, Data)) for o in left)
            ):
                return (Const(operator == "IsNot"),)
        values = [left, *(r for _, r in rights)]
        parts = [d for d in map(data_of, values) if d is not None]
        sample = any(p.agg == "sample" for p in parts)
        form = "tensor" if any(p.form == "tensor" for p in parts) else "bool"
        return (Data(form, "sample" if sample else "other", frozenset().union(*map(origins, values))),)

    # -- containers -----------------------------------------------------------------------------------------

    def sequence(self, node: cst.CSTNode, elements: Sequence[cst.BaseElement], frame: Frame) -> Value:
        held: list[Value] | None = []
        joined: Value = ()
        for element in elements:
            value = self.expr(element.value, frame)
            if isinstance(element, cst.StarredElement):
                inner = join(*(self.element_of(o, node) for o in value))
                joined, held = join(joined, inner), None
            elif held is not None:
                held.append(value)
            joined = join(joined, value) if held is None else joined
        made = Seq(self.site(node, frame), elements=held, joined=joined)
        (kept,) = self.made(node, frame, made)
        if isinstance(kept, Seq) and kept is not made:
            kept.elements, kept.joined = (
                (held, joined) if not self.unsure else (kept.elements or held, join(kept.joined, joined))
            )
            if held is not None and kept.elements is not None and len(kept.elements) == len(held):
                kept.elements = held
        return (kept,)

    def dictionary(self, node: cst.Dict, elements: Sequence[cst.BaseDictElement], frame: Frame) -> Value:
        made = Dict(self.site(node, frame))
        for element in elements:
            value = self.expr(element.value, frame)
            if isinstance(element, cst.StarredDictElement):
                self.merge_dicts(made, value)
                continue
            assert isinstance(element, cst.DictElement)
            keys = constants(self.expr(element.key, frame))
            if keys is not None and len(keys) == 1:
                made.items[keys[0]] = value
            else:
                made.joined, made.closed = join(made.joined, value), False
        (kept,) = self.made(node, frame, made)
        if isinstance(kept, Dict) and kept is not made:
            for key, value in made.items.items():
                kept.items[key] = join(kept.items.get(key, ()), value)
        return (kept,)

    def merge_dicts(self, into: Dict, value: Value) -> None:
        known = [o for o in value if isinstance(o, Dict)]
        for other in known:
            for key, held in other.items.items():
                if self.unsure or key in other.maybe or len(value) > 1:
                    if key not in into.items:
                        into.maybe.add(key)
                    into.items[key] = join(into.items.get(key, ()), held)
                else:
                    into.items[key] = held
            into.closed = into.closed and other.closed
            into.joined = join(into.joined, other.joined)
        if len(known) != len(value):
            into.closed = False

    def subscript(self, node: cst.Subscript, frame: Frame) -> Value:
        base = self.expr(node.value, frame)
        index = [self.expr(i.slice.value, frame) for i in node.slice if isinstance(i.slice, cst.Index)]
        for i in node.slice:
            if isinstance(i.slice, cst.Slice):
                for bound in (i.slice.lower, i.slice.upper, i.slice.step):
                    if bound is not None:
                        self.expr(bound, frame)
        keys = constants(index[0]) if len(index) == len(node.slice) == 1 else None
        return join(*(self.item(obj, keys, bool(index)) for obj in base)) if base else UNKNOWN

    def item(self, obj: Obj, keys: list[object] | None, single: bool) -> Value:
        match obj:
            case Seq(elements=elements, joined=joined):
                if not single:
                    return (obj,)
                if elements is not None and keys is not None:
                    found = [elements[k] for k in keys if isinstance(k, int) and -len(elements) <= k < len(elements)]
                    if found:
                        return join(*found)
                return join(joined, *(elements or ())) or UNKNOWN
            case Dict(items=items, joined=joined):
                if keys is not None:
                    return (
                        join(*(items.get(k, ()) for k in keys), () if all(k in items for k in keys) else joined)
                        or UNKNOWN
                    )
                return join(joined, *items.values()) or UNKNOWN
            case Data(agg="shape"):
                return (Data("int", "size" if keys == [0] else "const", obj.origins),)
            case Data():
                return (Data(obj.form, obj.agg, obj.origins, obj.on_cpu),)
            case Module(fields=fields):
                return join(*(v for v in fields.values())) or UNKNOWN
            case Iteration(of=inner):
                return inner[0] if inner else UNKNOWN
            case Ext(name=name):
                return (Ext(f"{name}[]"),)  # torchvision.models.__dict__[arch]
        return (Data("any", "other", origins((obj,))),)

    def comprehension(self, node: cst.BaseComp, frame: Frame) -> Value:
        if isinstance(node, (cst.DictComp, cst.ListComp)) and node.for_in.inner_for_in is None and not node.for_in.ifs:
            elements = self.literals(self.expr(node.for_in.iter, frame))
            if elements is not None and len(elements) <= 6:
                return self.unrolled(node, elements, frame)
        inner = Frame(frame.source, Scope(frame.source, frame.scope, node), frame.func, frame.grad)
        inner.entries, inner.events, inner.arguments, inner.home = (
            frame.entries,
            frame.events,
            frame.arguments,
            frame.home,
        )
        depth = 0
        part: cst.CompFor | None = node.for_in
        while part is not None:
            over = self.expr(part.iter, frame if depth == 0 else inner)
            self.event("loop", node, frame, value=over, name="start")
            self.loops.append(Loop(node, frame, over))
            depth += 1
            self.bind(part.target, join(*(self.element_of(o, node) for o in over)) if over else UNKNOWN, inner)
            for condition in part.ifs:
                self.expr(condition.test, inner)
            part = part.inner_for_in
        self.unsure += 1
        if isinstance(node, cst.DictComp):
            self.expr(node.key, inner)
            held = self.expr(node.value, inner)
            made: Obj = Dict(self.site(node, frame), joined=held, closed=False)
        else:
            assert isinstance(node, cst.BaseSimpleComp)
            held = self.expr(node.elt, inner)
            parameters = [o for o in held if isinstance(o, Parameters)]
            made = parameters[0] if parameters else Seq(self.site(node, frame), joined=held)
        self.unsure -= 1
        for _ in range(depth):
            self.loops.pop()
        (kept,) = self.made(node, frame, made)
        if isinstance(kept, (Seq, Dict)):
            kept.joined = join(kept.joined, held)
        return (kept,)

    def unrolled(self, node: cst.DictComp | cst.ListComp, elements: list[Value], frame: Frame) -> Value:
        """`{x: make(x) for x in ['train', 'val']}`: one object for each literal."""
        keys: list[Value] = []
        held: list[Value] = []
        for at, element in enumerate(elements):
            key = (id(node), id(frame), f"element {at}")
            if key not in self.inner_frames:
                made = Frame(frame.source, Scope(frame.source, frame.scope, node), frame.func, frame.grad)
                made.entries, made.events, made.arguments, made.home = (
                    frame.entries,
                    frame.events,
                    frame.arguments,
                    frame.home,
                )
                self.inner_frames[key] = made
            inner = self.inner_frames[key]
            self.loops.append(Loop(node, frame, element, element))
            self.bind(node.for_in.target, element, inner)
            if isinstance(node, cst.DictComp):
                keys.append(self.expr(node.key, inner))
                held.append(self.expr(node.value, inner))
            else:
                held.append(self.expr(node.elt, inner))
            self.loops.pop()
        if isinstance(node, cst.ListComp):
            return self.made(node, frame, Seq(self.site(node, frame), elements=held))
        made_dict = Dict(self.site(node, frame))
        for k, v in zip(keys, held, strict=True):
            known = constants(k)
            if known is not None and len(known) == 1:
                made_dict.items[known[0]] = v
            else:
                made_dict.joined, made_dict.closed = join(made_dict.joined, v), False
        return self.made(node, frame, made_dict)

    def element_of(self, obj: Obj, loop: cst.CSTNode) -> Value:
        """What iterating over an object gives."""
        match obj:
            case Loader():
                return (Data("tensor", "sample", frozenset({FromBatch(obj)})),)
            case Seq(elements=elements, joined=joined):
                return join(joined, *(elements or ())) or UNKNOWN
            case Dict(items=items):
                return tuple(Const(k) for k in items) or UNKNOWN
            case Iteration():
                return self.iterated(obj, loop)
            case Parameters():
                return (Parameters(obj.site, modules=obj.modules, loose=obj.loose),)
            case Data():
                return (
                    Data(
                        "any" if obj.form == "str" else obj.form,
                        obj.agg,
                        obj.origins or frozenset({FromBatch(obj)}),
                        obj.on_cpu,
                    ),
                )
            case Module(fields=fields):
                return join(*fields.values()) or UNKNOWN
            case Const(value=str()):
                return (Data("str"),)
            case StateDict():
                return UNKNOWN
            case Instance() if obj.cls is not None and obj.cls.member("__iter__"):
                func = next((f for f in obj.cls.member("__iter__") if isinstance(f, Func)), None)
                if func is not None:
                    given = self.call_function(self.bound(func, obj, loop), [], {}, loop, obj.site.frame)
                    return join(*(self.element_of(g, loop) for g in given if g is not obj)) or UNKNOWN
        return (Data("any", "other", frozenset({FromBatch(obj)})),)

    def iterated(self, obj: Iteration, loop: cst.CSTNode) -> Value:
        if id(obj) in self.iterating:
            return UNKNOWN  # an iteration over itself: `it = map(f, it)` in a loop
        self.iterating.add(id(obj))
        try:
            return self.turn(obj, loop)
        finally:
            self.iterating.discard(id(obj))

    def turn(self, obj: Iteration, loop: cst.CSTNode) -> Value:
        inner = [join(*(self.element_of(o, loop) for o in value)) or UNKNOWN for value in obj.of]
        if obj.how == "enumerate":
            index: Value = (Data("int", "index", frozenset({FromLoop(loop)})),)
            return (Seq(obj.site, elements=[index, inner[0] if inner else UNKNOWN]),)
        if obj.how == "zip":
            return (Seq(obj.site, elements=inner),)
        if obj.how == "range":
            return (Data("int", "index", frozenset({FromLoop(loop)})),)
        if obj.how == "yield":
            return obj.of[0] if obj.of else UNKNOWN
        return join(*inner) or UNKNOWN

    # -- given by the classes that extend this one ---------------------------------------------------------------

    def call(self, node: cst.Call, frame: Frame) -> Value:
        raise NotImplementedError

    def call_function(
        self,
        func: Func,
        given: list[tuple[cst.BaseExpression | None, Value]],
        named: dict[str, tuple[cst.BaseExpression | None, Value]],
        node: cst.CSTNode,
        frame: Frame,
    ) -> Value:
        raise NotImplementedError

    def truth(self, test: Value) -> bool | None:
        raise NotImplementedError

    def literals(self, over: Value) -> list[Value] | None:
        raise NotImplementedError


def fold(operator: str, a: object, b: object) -> object | None:
    """Arithmetic on literals."""
    if isinstance(a, str) and isinstance(b, str) and operator == "Add":
        return a + b
    if not isinstance(a, (int, float)) or not isinstance(b, (int, float)):
        return None
    try:
        match operator:
            case "Add":
                return a + b
            case "Subtract":
                return a - b
            case "Multiply":
                return a * b
            case "Divide":
                return a / b
            case "FloorDivide":
                return a // b
    except (ZeroDivisionError, OverflowError):
        return None
    return None


def combined(operator: str, a: str, b: str) -> str:
    """How the result of an operation relates to the samples of a batch."""
    pair = {a, b}
    if operator == "Multiply":
        if pair == {"mean", "size"}:
            return "sum"  # loss.item() * images.size(0)
        if pair <= {"size", "const"} and "size" in pair:
            return "size"
    if operator == "Divide" and a in ("sum", "size") and b == "size":
        return "mean"
    if operator == "Divide" and b in ("const", "other", "length"):
        return a
    if "sample" in pair:
        return "sample"
    if a == b:
        return a
    for kept in ("sum", "mean", "size"):
        if pair == {kept, "const"}:
            return kept
    if pair == {"sum", "size"} and operator in ("Add", "Subtract"):
        return "sum"
    return "other"
