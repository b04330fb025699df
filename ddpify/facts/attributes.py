"""Objects in, their attributes and items out; and what binding a name, an attribute or an item changes."""

from __future__ import annotations

from dataclasses import replace

import libcst as cst

from ddpify.facts.contents import constants, detached, join, origins, take_in
from ddpify.facts.fields import Fields
from ddpify.facts.frames import Frame
from ddpify.facts.surface import SURFACE, given_back
from ddpify.facts.values import (
    UNKNOWN,
    Class,
    Const,
    Data,
    Device,
    Dict,
    Ext,
    FromForward,
    Func,
    Instance,
    Iteration,
    Loader,
    Method,
    Mod,
    Module,
    Obj,
    Optimizer,
    Sampler,
    Seq,
    Thing,
    Value,
    Wrapped,
)

#: What makes a tensor to be filled.
_TENSORS = frozenset(f"torch.{name}" for name in ("zeros", "ones", "empty", "full", "zeros_like", "empty_like"))
#: Attributes of tensors that are tensors of the same samples.
_SAME = frozenset({"T", "mT", "real", "logits", "loss", "sample", "prev_sample", "last_hidden_state", "pooler_output"})


class Attributes(Fields):
    """Reading attributes, and binding targets."""

    def attribute(self, node: cst.Attribute, frame: Frame) -> Value:
        base = self.expr(node.value, frame)
        name = node.attr.value
        found: list[Value] = []
        for obj in base:
            if isinstance(obj, (Wrapped, Module)) and node not in self.reached:
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
                return tuple(self.of_class(m, obj, node) for m in obj.member(name)) or (Method(obj, name),)
            case Instance() | Module():
                return self.field(obj, name, node, frame)
            case Wrapped():
                stays = name in SURFACE or given_back(frame.source, node)
                if self.planned and not stays and obj.module:
                    # the plan writes `.module` there
                    return join(*(self.get(m, name, node, frame) for m in obj.module))
                return obj.module if name == "module" else (Method(obj, name),)
            case Loader():
                return self.loader_field(obj, name, node)
            case Seq():
                return obj.fields.get(name) or (Method(obj, name),)
            case Thing():
                return obj.fields.get(name) or (
                    (Data("any", "const"),) if obj.name == "namespace" else (Method(obj, name),)
                )
            case Device():
                return (Data("str"),) if name == "type" else (Data("int", "const"),) if name == "index" else UNKNOWN
            case Data():
                if name == "data":
                    return (replace(obj, origins=detached(obj.origins)),)
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
        if name == "module" and isinstance(obj, Module) and obj.parallel:
            return (obj,)
        if name in ("forward", "__call__") and isinstance(obj, Module):
            return (Method(obj, name),)  # net.forward(x) is a forward of the model like net(x)
        member = obj.cls.member(name) if obj.cls is not None else ()
        if isinstance(obj, Module) and obj.inner is not None and obj.name == "torch.compile":
            inside = self.field(obj.inner, name, node, frame)  # the compiled model hands on what it does not have
            return inside if not any(isinstance(o, Method) for o in inside) else (Method(obj, name),)
        if not member:
            return (Method(obj, name),)
        found: list[Value] = []
        for m in member:
            if isinstance(m, Func):
                bound = self.bound(m, obj, node)
                found.append(self.call_function(bound, [], {}, node, frame) if m.is_property else (bound,))
            else:
                found.append((m,))
        return join(*found)

    def of_class(self, member: Obj, cls: Class, node: cst.CSTNode) -> Obj:
        """`Data.random`: a class method gets the class, what else is asked of a class stands as it is."""
        is_bound = isinstance(member, Func) and "builtins.classmethod" in member.decorators
        return self.bound(member, cls, node) if isinstance(member, Func) and is_bound else member

    def bound(self, func: Func, obj: Obj, node: cst.CSTNode) -> Func:
        if "builtins.staticmethod" in func.decorators:
            return func
        if "builtins.classmethod" in func.decorators and isinstance(obj, (Instance, Module)) and obj.cls is not None:
            obj = obj.cls
        key = (id(func), id(obj), "bound")
        made = self.sites.setdefault(key, Func(func.node, func.source, func.scope, obj, func.owner, func.decorators))
        assert isinstance(made, Func)
        return made

    def loader_field(self, obj: Loader, name: str, node: cst.CSTNode) -> Value:
        own = tuple(m for c in obj.fields.get("__class__", ()) if isinstance(c, Class) for m in c.member(name))
        if name in obj.fields:
            return obj.fields[name]
        if own and name != "__init__":
            return tuple(self.bound(m, obj, node) if isinstance(m, Func) else m for m in own)
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
                if scope is frame.scope:
                    scope.names[name] = value
                else:
                    self.set_attribute(scope, name, value)
                scope.bound_at[name] = self.stmt
                self.note(target, value)
                self.event("bind", target, frame, name=name, value=value)
            case cst.Attribute(value=base, attr=attr):
                for obj in self.expr(base, frame):
                    self.set_field(obj, attr.value, value)
                    self.event("set", target, frame, obj, attr.value, value)
                self.note(target, value)
            case cst.Subscript(value=base, slice=index):
                keys = [self.expr(i.slice.value, frame) for i in index if isinstance(i.slice, cst.Index)]
                for obj in self.expr(base, frame):
                    self.set_item(obj, constants(keys[0]) if len(keys) == 1 else None, value)
                    self.event("store", target, frame, obj, "", value)
                if isinstance(base, cst.Name):
                    self.fill(base.value, value, frame)
            case cst.Tuple(elements=elements) | cst.List(elements=elements):
                self.unpack([e.value for e in elements], value, frame)
            case cst.StarredElement(value=inner):
                self.bind(inner, value, frame)

    def fill(self, name: str, value: Value, frame: Frame) -> None:
        """`outputs[t] = decoder(x)`: a tensor that outputs are written into leads back to the models that gave them."""
        given = origins(value)
        scope = frame.scope.holder(name)
        if scope is None or not any(isinstance(o, FromForward) and not o.cut for o in given):
            return
        held = scope.names.get(name, ())
        filled = tuple(
            replace(o, origins=o.origins | given)
            if isinstance(o, Data)
            else Data("tensor", "sample", o.origins | given)
            if isinstance(o, Thing) and _TENSORS.issuperset(constants(o.fields.get("__name__", ())) or ("",))
            else o
            for o in held
        )
        if filled != held:
            scope.names[name] = filled

    def set_field(self, obj: Obj, name: str, value: Value) -> None:
        if isinstance(obj, (Instance, Module, Thing, Optimizer, Loader)):
            self.set_attribute(obj, name, value)
            if isinstance(obj, Module):
                take_in(obj, value)
        elif isinstance(obj, Wrapped) and self.planned:
            for inner in obj.module:
                self.set_field(inner, name, value)
        elif isinstance(obj, Class):
            obj.members[name] = value
        elif isinstance(obj, Mod) and obj.source in self.modules:
            self.modules[obj.source].scope.names[name] = value

    def set_item(self, obj: Obj, keys: list[object] | None, value: Value) -> None:
        if isinstance(obj, Module):
            take_in(obj, value)
        if isinstance(obj, Dict):
            if keys is None:
                obj.joined, obj.closed = join(obj.joined, value), False
                self.loosen(obj)  # for k, v in settings.items(): defaults[k] = v
                return
            for key in keys:
                if self.unsure and key not in obj.items:
                    obj.maybe.add(key)
                obj.items[key] = join(obj.items.get(key, ()), value) if self.unsure else value
        elif isinstance(obj, Thing) and obj.name == "namespace":
            if keys is None:
                self.loosen(obj)
            for key in keys or ():
                before = obj.fields.get(str(key), ()) if self.unsure else ()
                self.set_attribute(obj, str(key), join(before, value))
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
        """`a, b = value`: element by element where they are known; of `return loader` and `return a, b`, the pair."""
        sizes = [len(o.elements) if isinstance(o, Seq) and o.elements is not None else -1 for o in value]
        if len(targets) in sizes and not any(isinstance(t, cst.StarredElement) for t in targets):
            value = tuple(o for o, size in zip(value, sizes, strict=True) if size in (-1, len(targets)))
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
