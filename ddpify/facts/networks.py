"""Calls that make or run modules in, modules and their outputs out."""

from __future__ import annotations

import libcst as cst

from ddpify.facts.builtin import Builtins, reduced
from ddpify.facts.contents import constants, data_of, detached, join, modules, origins
from ddpify.facts.externals import role_of
from ddpify.facts.frames import Frame
from ddpify.facts.state import Given
from ddpify.facts.values import (
    UNKNOWN,
    Const,
    Data,
    Dict,
    FromForward,
    Func,
    Instance,
    Method,
    Module,
    Origin,
    Parameters,
    Seq,
    Site,
    Thing,
    Value,
    Wrapped,
)

_CONTAINERS = (".Sequential", ".ModuleList", ".ModuleDict")


class Networks(Builtins):
    """nn.Module objects of libraries, and forwards."""

    def make_module(
        self, role: str, name: str, node: cst.Call, given: list[Given], named: dict[str, Given], frame: Frame
    ) -> Value:
        first = self.first(given, named, "module", "model")
        # torch.compile(net), of what turned out to be a model when the optimizer took its parameters
        known = [o.module if isinstance(o, Thing) and o.module is not None else o for o in first]
        inner = [o for o in known if isinstance(o, (Module, Wrapped))]
        if role == "copy" and inner and (isinstance(inner[0], Module) or self.inserted):
            # of what will be wrapped, the plan copies the module: copy.deepcopy(model.module)
            copied = modules(tuple(inner))
            if not copied:
                return first
            kept = self.made(node, frame, _copy(copied[0], self.site(node, frame)))
            self.event("new", node, frame, kept[0], name)
            return kept
        if role in ("same-module", "copy") or (role == "copy-module" and not inner):
            return first or UNKNOWN
        if role == "dataparallel":
            # nn.DataParallel(model): the same module, which also answers to `.module`
            for m in modules(first):
                m.parallel = True
            self.event("dataparallel", node, frame, inner[0] if inner else None, name, first)
            return first or UNKNOWN
        if inner and (role == "copy-module" or name == "torch.compile"):
            core = inner[0].module[0] if isinstance(inner[0], Wrapped) and inner[0].module else inner[0]
            made = Module(
                self.site(node, frame),
                name=name,
                evidence=f"{name}(...)",
                inner=core if isinstance(core, Module) else None,
            )
            return self.made(node, frame, made)
        made = Module(self.site(node, frame), name=name, evidence=f"{name}(...)", has_parameters=role == "module")
        parts = [v for _, v in (*given, *named.values())]
        for part in parts:
            named_parts = [(k, v) for o in part if isinstance(o, Dict) for k, v in o.items.items()]
            for key, value in named_parts if name.endswith((".ModuleDict", ".Sequential")) else ():
                for m in modules(value):
                    m.part_of = m.part_of or made
                    made.fields[str(key)] = (m,)
            for m in modules(part):
                m.part_of = m.part_of or made
                made.fields.setdefault(str(len(made.fields)), (m,))
            if name.endswith(_CONTAINERS) and any(isinstance(o, (Parameters, Data, Thing, Method)) for o in part):
                owners = [o.obj for o in part if isinstance(o, Method) and isinstance(o.obj, Module)]
                layers = (Parameters(self.site(node, frame), modules=tuple(owners), part=True),) if owners else ()
                made.parts.append((*part, *layers))  # net.layer1, *list(net.children())[:-1]
        if name.endswith(_CONTAINERS) and not any(
            isinstance(o, (Data, Parameters, Thing, Method)) or (isinstance(o, Dict) and not o.closed)
            for p in parts
            for o in p
        ):
            made.has_parameters = (
                any(m.has_parameters for p in (*parts, *made.fields.values()) for m in modules(p))
                or name.endswith("List")
                or not parts
            )
        if role == "loss-module":
            made.fields["reduction"] = _reduction(named)
        result = self.made(node, frame, made)
        self.event("new", node, frame, result[0], name)
        return result

    def forward(self, obj: Module | Wrapped, node: cst.Call, given: list[Given], frame: Frame) -> Value:
        """`model(x)`: the output comes from the module and from its inputs."""
        known = frozenset().union(*(origins(v) for _, v in given)) if given else frozenset()
        inner = obj.module if isinstance(obj, Wrapped) else (obj,)
        module = next((m for m in inner if isinstance(m, Module)), None)
        self.event("forward", node, frame, obj, value=given[0][1] if given else ())
        if module is None:
            return (Data("tensor", "sample", known),)
        if role_of(module.name) == "loss-module":
            return (Data("tensor", reduced(constants(module.fields.get("reduction", ()))), known),)
        root = module.inner or module
        module.called = module.called or not self.quiet
        root.named = root.named or self.has_name(node.func, frame)
        if root.has_parameters:
            known |= {FromForward(root, node)}
        known = detached(known) if self.grad is False else known
        agg = "sample"
        compiled = module.inner is not None and module.name == "torch.compile"
        runs = module.inner if compiled and module.inner is not None else module
        if runs.cls is not None and runs.cls.member("forward"):
            result = self.inside_forward(runs, node, given, frame)
            computed = data_of(result)
            if computed is not None and computed.agg in ("mean", "sum"):
                agg = computed.agg
            parts = [o for o in result if isinstance(o, (Seq, Dict))]
            if parts and isinstance(parts[0], Seq) and parts[0].elements is not None:
                elements = [self.output(e, known) for e in parts[0].elements]
                several: Value = (Seq(self.site(node, frame), elements=elements),)
                # `return loss, parts` on one way and `return loss` on another
                return (Data("tensor", agg, known), *several) if computed is not None else several
        return (Data("tensor", agg, known),)

    def has_name(self, func: cst.BaseExpression, frame: Frame) -> bool:
        """Whether a variable or an attribute of an object holds a model by itself, not a list or dict of models."""
        if isinstance(func, cst.Attribute):
            return any(isinstance(o, Instance) for o in self.values.get(func.value, ()))
        if not isinstance(func, cst.Name):
            return False
        given = frame.arguments.get(func.value)
        holder = frame.scope.holder(func.value)
        stmt = holder.bound_at.get(func.value) if holder is not None else None
        bound = isinstance(stmt, cst.Assign) and not isinstance(stmt.value, cst.Subscript)
        return isinstance(given, (cst.Name, cst.Attribute)) or (given is None and bound)

    def output(self, value: Value, known: frozenset[Origin]) -> Value:
        computed = data_of(value)
        agg = computed.agg if computed is not None and computed.agg in ("mean", "sum") else "sample"
        return (Data("tensor", agg, known),)

    def inside_forward(self, module: Module, node: cst.Call, given: list[Given], frame: Frame) -> Value:
        """What the module's own forward computes; what happens in it is the module's affair."""
        self.quiet += 1
        try:
            assert module.cls is not None
            found = [
                self.call_function(self.bound(m, module, node), given, {}, node, frame)
                for m in module.cls.member("forward")
                if isinstance(m, Func)
            ]
        finally:
            self.quiet -= 1
        return join(*found) if found else UNKNOWN

    def first(self, given: list[Given], named: dict[str, Given], *names: str) -> Value:
        for name in names:
            if name in named:
                return named[name][1]
        return given[0][1] if given else ()


def _copy(old: Module, site: Site) -> Module:
    """`copy.deepcopy(model)`"""
    copy = Module(site, cls=old.cls, name=old.name, evidence="a copy", has_parameters=old.has_parameters)
    copy.fields = dict(old.fields)
    return copy


def _reduction(named: dict[str, Given]) -> Value:
    """`reduction=` of a loss, or what torch's older arguments say of it."""
    if "reduce" in named and constants(named["reduce"][1]) == [False]:
        return (Const("none"),)
    if "size_average" in named and constants(named["size_average"][1]) == [False]:
        return (Const("sum"),)
    return named["reduction"][1] if "reduction" in named else (Const("mean"),)
