"""Classes of the project in, their objects out: modules, datasets, trainers, dataclasses."""

from __future__ import annotations

import libcst as cst

from ddpify.facts.calls import Calls
from ddpify.facts.externals import makes_module, role_of
from ddpify.facts.frames import Frame
from ddpify.facts.handing_on import hands_on_all
from ddpify.facts.state import Given
from ddpify.facts.values import (
    Class,
    Const,
    Data,
    Dict,
    Ext,
    Func,
    Heap,
    Instance,
    Loader,
    Module,
    Obj,
    Seq,
    Thing,
    Value,
)
from ddpify.source import walk


class Instances(Calls):
    """Classes that are called."""

    def instantiate(
        self,
        cls: Class,
        given: list[Given],
        named: dict[str, Given],
        node: cst.CSTNode,
        frame: Frame,
        splats: list[Value] | None = None,
    ) -> Value:
        self.followed.add(cls.node)
        bases = cls.outside()
        loader = next((b for b in bases if role_of(b) == "loader"), None)
        if loader is not None and isinstance(node, cst.Call):
            if not cls.member("__init__"):
                return self.outside(Ext(loader), node, given, named, splats or [], frame)
            own = Loader(self.site(node, frame), fields={"__class__": (cls,)})
            (kept,) = self.made(node, frame, own, f"new {cls.name}")
            if self.begins(kept, own):
                inits = [m.node for m in cls.member("__init__") if isinstance(m, Func)]
                if isinstance(kept, Loader) and all(isinstance(n, cst.FunctionDef) and hands_on_all(n) for n in inits):
                    self.loader_made(kept, node, given, named, frame)
                    kept.whole = True
                self.call_members(cls.member("__init__"), kept, given, named, node, frame)
            return (kept,)
        site = self.site(node, frame)
        if makes_module(bases):
            made: Obj = Module(site, cls=cls, evidence=f"class {cls.name} derives from nn.Module")
        else:
            made = Instance(site, cls=cls)
        (obj,) = self.made(node, frame, made, f"new {cls.name}")
        assert isinstance(obj, (Instance, Module))
        if self.begins(obj, made):
            init = cls.member("__init__")
            if init:
                self.call_members(init, obj, given, named, node, frame)
            elif any(b in ("builtins.object", "typing.NamedTuple") for b in bases) or not bases:
                self.plain_fields(cls, obj, given, named)
            if isinstance(obj, Module):
                self.settle(obj, given, named)
            self.event("new", node, frame, obj, cls.name)
        return (obj,)

    def begins(self, obj: Obj, made: Obj) -> bool:
        """Whether an object's `__init__` runs: once, and again where only the trial pass of a loop has run it."""
        if obj is not made:
            if self.quiet or id(obj) in self.told or not isinstance(obj, Heap):
                return False
            obj.fields = {k: v for k, v in obj.fields.items() if k == "__class__"}
            if isinstance(obj, Module):
                obj.parts = []
        if not self.quiet:
            self.told.add(id(obj))
        return True

    def plain_fields(self, cls: Class, obj: Instance | Module, given: list[Given], named: dict[str, Given]) -> None:
        """A dataclass: its annotated names are its fields."""
        for name, (_, value) in zip(cls.plain_names(), given, strict=False):
            obj.fields[name] = value
        obj.fields.update({k: v for k, (_, v) in named.items()})

    def settle(self, obj: Module, given: list[Given], named: dict[str, Given]) -> None:
        """What a module of the project is made of, once its __init__ has run."""
        parts = [p for v in (*obj.fields.values(), *obj.parts) for p in v]
        outside = {b for b in obj.cls.outside() if b != "torch.nn.Module"} if obj.cls is not None else set()
        held = any(isinstance(p, Module) and (p.has_parameters or p.name == "") for p in parts)
        held = held or any(isinstance(p, Thing) and (p.name == "parameter" or _may_be_layer(p)) for p in parts)
        held = (
            held or any(isinstance(p, (Seq, Dict)) and p for p in parts) or any(role_of(b) == "module" for b in outside)
        )
        obj.has_parameters = held or any(isinstance(p, Data) and not p.origins and p.form == "any" for p in parts)

    def instantiate_uncalled(self, cls: Class, frame: Frame) -> None:
        (obj,) = self.instantiate(cls, [], {}, cls.node, frame)
        methods = [m for c in cls.lineage() for v in list(c.members.values()) for m in v if isinstance(m, Func)]
        calls = (n for m in methods for n in walk(m.node) if isinstance(n, cst.Call))
        inner = {n.func.attr.value for n in calls if isinstance(n.func, cst.Attribute)}
        # what other methods call is run by them, under the tests that stand around the calls
        for m in sorted(methods, key=lambda m: m.name in inner):
            if m.node not in self.followed:
                self.call_function(self.bound(m, obj, cls.node), [], {}, m.node, frame)


def _may_be_layer(obj: Thing) -> bool:
    """`GCNConv(16, 16)`: what an unknown library's class made may have parameters."""
    made_by = [str(o.value) for o in obj.fields.get("__name__", ()) if isinstance(o, Const)]
    return obj.name == "" and any(name.rsplit(".", 1)[-1][:1].isupper() for name in made_by)
