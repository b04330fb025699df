"""What calls outside the project give: torch, its data and optim packages, builtins."""

from __future__ import annotations

import libcst as cst

from ddpify.facts.expressions import Expressions
from ddpify.facts.externals import role_of
from ddpify.facts.frames import Frame
from ddpify.facts.methods import Methods
from ddpify.facts.values import (
    NONE,
    UNKNOWN,
    Const,
    Data,
    Dataset,
    Device,
    Dict,
    Ext,
    FromForward,
    FromLength,
    FromWorld,
    Func,
    Instance,
    Iteration,
    Loader,
    Mode,
    Module,
    Obj,
    Optimizer,
    Origin,
    Parameters,
    Sampler,
    Scheduler,
    Seq,
    Site,
    Thing,
    Value,
    Wrapped,
    constants,
    data_of,
    join,
    modules,
    origins,
)

Given = tuple[cst.BaseExpression | None, Value]
LOADER_ARGUMENTS = (
    "dataset",
    "batch_size",
    "shuffle",
    "sampler",
    "batch_sampler",
    "num_workers",
    "collate_fn",
    "pin_memory",
    "drop_last",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
)
_TRANSPARENT = frozenset({"list", "tuple", "iter", "reversed", "sorted", "set", "filter", "next", "frozenset"})


class Library(Methods, Expressions):
    """Summaries of functions and classes outside the project."""

    def outside(
        self, ext: Ext, node: cst.Call, given: list[Given], named: dict[str, Given], splats: list[Value], frame: Frame
    ) -> Value:
        name = ext.name
        known: frozenset[Origin] = frozenset().union(*(origins(v) for _, v in (*given, *named.values())))
        extra = {k: v for k, (_, v) in named.items()}
        extra.update({str(i): v for i, (_, v) in enumerate(given)})
        self.event("external", node, frame, ext, name, given[0][1] if given else (), extra=extra)
        if name.startswith("builtins."):
            return self.builtin(name[9:], node, given, named, frame)
        if name.startswith("itertools."):
            inner = tuple(v for _, v in given)
            return self.made(
                node,
                frame,
                Iteration(self.site(node, frame), how="zip" if name.endswith("zip_longest") else "iter", of=inner),
            )
        role = role_of(name)
        if role in ("module", "plain-module", "loss-module", "copy-module", "dataparallel", "same-module", "copy"):
            return self.make_module(role, name, node, given, named, frame)
        if role == "loader":
            return self.make_loader(node, given, named, splats, frame)
        if role in ("loss", "sum", "mean", "number", "same", "metric"):
            return self.computed(role, name, given, named, known)
        return self.make_thing(role, name, node, given, named, known, frame)

    def first(self, given: list[Given], named: dict[str, Given], *names: str) -> Value:
        for name in names:
            if name in named:
                return named[name][1]
        return given[0][1] if given else ()

    # -- modules --------------------------------------------------------------------------------------------

    def make_module(
        self, role: str, name: str, node: cst.Call, given: list[Given], named: dict[str, Given], frame: Frame
    ) -> Value:
        first = self.first(given, named, "module", "model")
        inner = [o for o in first if isinstance(o, (Module, Wrapped))]
        if role in ("same-module", "copy") or (role == "copy-module" and not inner):
            if role == "copy" and inner and isinstance(inner[0], Module):
                old = inner[0]
                copy = Module(
                    self.site(node, frame),
                    cls=old.cls,
                    name=old.name,
                    evidence="a copy",
                    has_parameters=old.has_parameters,
                )
                copy.fields = dict(old.fields)
                return self.made(node, frame, copy)
            return first or UNKNOWN
        if inner and (role in ("dataparallel", "copy-module") or name == "torch.compile"):
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
            for m in modules(part):
                m.part_of = m.part_of or made
                made.fields.setdefault(str(len(made.fields)), (m,))
        if name.endswith((".Sequential", ".ModuleList", ".ModuleDict")) and not any(
            p for p in parts for o in p if isinstance(o, Data)
        ):
            made.has_parameters = (
                any(m.has_parameters for p in parts for m in modules(p)) or name.endswith("List") or not parts
            )
        if role == "loss-module":
            made.fields["reduction"] = named["reduction"][1] if "reduction" in named else (Const("mean"),)
            if "size_average" in named and constants(named["size_average"][1]) == [False]:
                made.fields["reduction"] = (Const("sum"),)
            if "reduce" in named and constants(named["reduce"][1]) == [False]:
                made.fields["reduction"] = (Const("none"),)
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
        if root.has_parameters:
            known |= {FromForward(root, node)}
        agg = "sample"
        if module.cls is not None and module.cls.member("forward"):
            result = self.inside_forward(module, node, given, frame)
            computed = data_of(result)
            if computed is not None and computed.agg in ("mean", "sum"):
                agg = computed.agg
            parts = [o for o in result if isinstance(o, (Seq, Dict))]
            if parts and isinstance(parts[0], Seq) and parts[0].elements is not None:
                elements = [self.output(e, known) for e in parts[0].elements]
                return (Seq(self.site(node, frame), elements=elements),)
        return (Data("tensor", agg, known),)

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

    # -- data -------------------------------------------------------------------------------------------------

    def make_loader(
        self, node: cst.Call, given: list[Given], named: dict[str, Given], splats: list[Value], frame: Frame
    ) -> Value:
        made = Loader(self.site(node, frame), call=node)
        for name, (_, value) in zip(LOADER_ARGUMENTS, given, strict=False):
            made.arguments[name] = value
        made.arguments.update({k: v for k, (_, v) in named.items()})
        made.dataset = made.arguments.get("dataset", ())
        for splat in splats:
            dicts = [o for o in splat if isinstance(o, Dict)]
            if len(dicts) == 1 and len(splat) == 1 and made.splat is None and dicts[0].closed:
                made.splat = dicts[0]
            else:
                made.unknown_splat = made.unknown_splat or not all(d.closed for d in dicts) or len(dicts) != len(splat)
                made.splat = made.splat or (dicts[0] if dicts else None)
        (kept,) = self.made(node, frame, made)
        if isinstance(kept, Loader) and kept is not made:
            kept.dataset = join(kept.dataset, made.dataset)
            kept.arguments = {**kept.arguments, **made.arguments}
        self.event("loader", node, frame, kept, "DataLoader")
        return (kept,)

    # -- numbers ------------------------------------------------------------------------------------------------

    def computed(
        self, role: str, name: str, given: list[Given], named: dict[str, Given], known: frozenset[Origin]
    ) -> Value:
        first = data_of(given[0][1]) if given else None
        form, agg, on_cpu = (first.form, first.agg, first.on_cpu) if first is not None else ("any", "other", False)
        if role == "loss":
            return (Data("tensor", reduced(self.reduction(named)), known),)
        if role in ("sum", "mean"):
            whole = len(given) == 1 and "dim" not in named and "axis" not in named
            agg = agg if not whole or agg not in ("sample",) else role
        elif role == "metric":
            form, agg = "float", "other"
        elif role == "number":
            form = {"builtins.int": "int", "builtins.float": "float", "builtins.bool": "bool"}.get(name, form)
            if form == "tensor" and name.startswith("numpy."):
                form = "any"
        elif role == "same" and name.endswith(("tensor", "from_numpy")):
            form = "tensor"
        return (Data(form, agg, known, on_cpu),)

    def reduction(self, named: dict[str, Given]) -> list[object] | None:
        if "reduction" in named:
            return constants(named["reduction"][1])
        if "size_average" in named and constants(named["size_average"][1]) == [False]:
            return ["sum"]
        return ["mean"]

    # -- the rest of the table ------------------------------------------------------------------------------------

    def make_thing(
        self,
        role: str,
        name: str,
        node: cst.Call,
        given: list[Given],
        named: dict[str, Given],
        known: frozenset[Origin],
        frame: Frame,
    ) -> Value:
        site, first = (
            self.site(node, frame),
            self.first(given, named, "dataset", "iterable", "optimizer", "params", "data_source"),
        )
        made: Obj | None = None
        match role:
            case "ddp":
                made = Wrapped(site, module=self.first(given, named, "module"))
            case "optimizer":
                held, loose = self.parameters_in(first)
                made = Optimizer(site, name=name, modules=held, loose=loose)
            case "scheduler":
                made = Scheduler(site, name=name)
            case "sampler":
                made = Sampler(
                    site, name=name, call=node, dataset=first, arguments={k: v for k, (_, v) in named.items()}
                )
            case "dataset":
                made = Dataset(site, name=name, of=first if "torch.utils.data" in name else ())
            case "random-split":
                return self.splits(node, first, given, named, frame)
            case "device" | "accelerator-device":
                made = Device(site, kind="accelerator") if role != "device" else device_of(site, first, given)
            case "grad-off" | "grad-on":
                if given and isinstance(given[0][1][0] if given[0][1] else None, Func):
                    return given[0][1]
                made = Mode(site, grad=role == "grad-on")
            case "grad-set":
                made = Mode(site, grad=self.truth(first))
                if not any(isinstance(u, cst.With) and any(i.item is node for i in u.items) for u in [self.stmt]):
                    self.grad = self.truth(first)
            case "progress":
                made = Iteration(site, how="progress", of=(first,) if first else ())
            case "progress-range":
                made = Iteration(site, how="range")
            case "parameter" | "parser" | "namespace" | "writer" | "scaler":
                made = Thing(
                    site, name=role, fields={k: v for k, (_, v) in named.items()} if role == "namespace" else {}
                )
            case "load":
                made = Thing(site, name="loaded")
            case "split":
                elements: list[Value] = [
                    (Data("any", "other", known | {FromWorld("split")}),) for _ in range(2 * max(1, len(given)))
                ]
                made = Seq(site, elements=elements)
            case "world" | "random":
                what = known | {FromWorld(name)}
                return (Data("tensor" if name.startswith("torch.") else "any", "other", what),)
            case "available":
                return (Data("bool", "const"),)
            case "save" | "seed":
                return NONE
        if made is not None:
            result = self.made(node, frame, made)
            self.refresh(result[0], made)
            self.event("new", node, frame, result[0], name)
            return result
        return self.unknown_call(name, node, given, named, known, frame)

    def refresh(self, kept: Obj, made: Obj) -> None:
        """A second run of the same expression (a loop) may see more."""
        if kept is made:
            return
        if isinstance(kept, Wrapped) and isinstance(made, Wrapped):
            kept.module = join(kept.module, made.module)
        elif isinstance(kept, Optimizer) and isinstance(made, Optimizer):
            kept.modules = list(dict.fromkeys([*kept.modules, *made.modules]))
        elif isinstance(kept, Iteration) and isinstance(made, Iteration):
            kept.of = made.of
        elif isinstance(kept, Mode) and isinstance(made, Mode):
            kept.grad = made.grad

    def unknown_call(
        self,
        name: str,
        node: cst.Call,
        given: list[Given],
        named: dict[str, Given],
        known: frozenset[Origin],
        frame: Frame,
    ) -> Value:
        """Nothing is known of this function: its result depends on its arguments, and may be any object."""
        self.callbacks(given, named, node, frame)
        parts = [d for d in (data_of(v) for _, v in (*given, *named.values())) if d is not None]
        if parts and known:
            tensor = any(p.form == "tensor" for p in parts)
            agg = "sample" if any(p.agg == "sample" for p in parts) else "other"
            return (Data("tensor" if tensor else "any", agg, known),)
        made = Thing(self.site(node, frame), name="", fields={}, origins=known)
        (kept,) = self.made(node, frame, made, f"unknown {name}")
        if isinstance(kept, Thing):
            kept.fields.setdefault("__name__", (Const(name),))
        return (kept,)

    def splits(self, node: cst.Call, first: Value, given: list[Given], named: dict[str, Given], frame: Frame) -> Value:
        lengths = named["lengths"][1] if "lengths" in named else given[1][1] if len(given) > 1 else ()
        count = next((len(o.elements) for o in lengths if isinstance(o, Seq) and o.elements is not None), None)
        site = self.site(node, frame)
        parts: list[Value] = [
            self.made(node, frame, Dataset(site, name="torch.utils.data.Subset", of=first), f"split {i}")
            for i in range(count or 2)
        ]
        made = Seq(site, elements=parts if count else None, joined=() if count else join(*parts))
        return self.made(node, frame, made)

    def parameters_in(self, value: Value) -> tuple[list[Module], bool]:
        """The modules whose parameters are handed over, and whether there are others that belong to none."""
        held: list[Module] = []
        loose = False
        for obj in value:
            if isinstance(obj, Parameters):
                held.extend(obj.modules)
                loose = loose or obj.loose
            elif isinstance(obj, (Module, Wrapped)):
                held.extend(modules((obj,)))
            elif isinstance(obj, (Seq, Iteration)):
                parts = [obj.joined, *(obj.elements or ())] if isinstance(obj, Seq) else list(obj.of)
                for part in parts:
                    more, other = self.parameters_in(part)
                    held.extend(more)
                    loose = loose or other
            elif isinstance(obj, Dict):
                more, other = self.parameters_in(join(obj.items.get("params", ()), obj.joined))
                held.extend(more)
                loose = loose or other
            elif isinstance(obj, Thing) and obj.name == "parameter":
                loose = True
        return list(dict.fromkeys(held)), loose

    # -- builtins ---------------------------------------------------------------------------------------------------

    def builtin(self, name: str, node: cst.Call, given: list[Given], named: dict[str, Given], frame: Frame) -> Value:
        site = self.site(node, frame)
        values = [v for _, v in given]
        first = values[0] if values else ()
        if name in ("enumerate", "zip", "range", "map"):
            if name == "map" and values:
                for obj in first:
                    if isinstance(obj, Func):
                        parts: list[Given] = [(None, join(*(self.element_of(o, node) for o in v)) or UNKNOWN) for v in values[1:]]
                        return (Seq(site, joined=self.call_function(obj, parts, {}, node, frame)),)
                values = values[1:]
            made = Iteration(site, how=name if name != "map" else "iter", of=tuple(values))
            return self.refreshed(made, node, frame)
        if name == "next":
            return (
                join(
                    *(
                        self.element_of(o, node) if not isinstance(o, Iteration) else self.iterated(o, node)
                        for o in first
                    )
                )
                or UNKNOWN
            )
        if name in _TRANSPARENT:
            return self.transparent(
                name, first if name != "filter" else (values[1] if len(values) > 1 else ()), node, frame
            )
        if name == "len":
            return self.length(first)
        if name in ("sum", "min", "max"):
            inner = join(*(self.element_of(o, node) if isinstance(o, (Seq, Dict)) else (o,) for v in values for o in v))
            known = data_of(inner)
            return (Data("any" if known is None else known.form, known.agg if known else "other", origins(inner)),)
        if name in ("float", "int", "abs", "round", "bool"):
            consts = constants(first)
            if (
                consts
                and len(consts) == 1
                and len(values) == 1
                and isinstance(consts[0], (int, float, str))
                and name in ("int", "float")
            ):
                try:
                    return (Const(int(consts[0]) if name == "int" else float(consts[0])),)
                except ValueError:
                    return UNKNOWN
            return self.computed("number", f"builtins.{name}", given, named, origins(first))
        if name in ("getattr", "setattr", "hasattr", "isinstance"):
            return self.reflection(name, values, node, frame)
        if name == "dict":
            return self.made(node, frame, Dict(site, items={k: v for k, (_, v) in named.items()}, closed=not given))
        self.callbacks(given, named, node, frame)
        known_all = frozenset().union(*(origins(v) for v in values)) if values else frozenset()
        return (Data("str" if name in ("str", "repr", "format", "input") else "any", "other", known_all),)

    def refreshed(self, made: Iteration, node: cst.Call, frame: Frame) -> Value:
        result = self.made(node, frame, made)
        self.refresh(result[0], made)
        return result

    def transparent(self, name: str, first: Value, node: cst.Call, frame: Frame) -> Value:
        if name in ("list", "tuple", "filter", "iter") and any(isinstance(o, (Parameters, Seq)) for o in first):
            return first
        made = Iteration(self.site(node, frame), how="iter" if name not in ("set", "frozenset") else "set", of=(first,))
        return self.refreshed(made, node, frame)

    def length(self, first: Value) -> Value:
        for obj in first:
            if isinstance(obj, (Loader, Dataset, Instance, Thing)):
                return (Data("int", "length", frozenset({FromLength(obj)})),)
            if isinstance(obj, Iteration) and obj.of:
                return self.length(obj.of[0])
            if isinstance(obj, Seq) and obj.elements is not None:
                return (Const(len(obj.elements)),)
        known = data_of(first)
        if known is not None and known.agg == "sample":
            return (Data("int", "size", known.origins),)
        return (Data("int", "const", origins(first)),)

    def reflection(self, name: str, values: list[Value], node: cst.Call, frame: Frame) -> Value:
        names = constants(values[1]) if len(values) > 1 else None
        if name == "getattr" and names and len(names) == 1 and isinstance(names[0], str):
            return join(*(self.get(o, names[0], node, frame) for o in values[0])) or UNKNOWN
        if name == "setattr" and names and len(values) > 2:
            for obj in values[0]:
                for n in names:
                    self.set_field(obj, str(n), values[2])
            return NONE
        return (Data("bool", "const"),) if name in ("hasattr", "isinstance") else UNKNOWN


def reduced(reduction: list[object] | None) -> str:
    """What a loss is, by its `reduction`."""
    known = set(reduction or [])
    return (
        {"mean": "mean", "sum": "sum", "none": "sample", "batchmean": "mean"}.get(str(next(iter(known))), "other")
        if len(known) == 1
        else "other"
    )


def device_of(site: Site, first: Value, given: list[Given]) -> Device:
    """`torch.device(...)` of literals: the kind and the index, where they are known."""
    known = [k for k in (constants(first) or []) if isinstance(k, (str, int))]
    kinds = {k.split(":")[0] if isinstance(k, str) else "cuda" for k in known}
    index: int | None = None
    for k in known:
        if isinstance(k, int):
            index = k
        elif ":" in k and k.split(":")[1].isdigit():
            index = int(k.split(":")[1])
    if len(given) > 1:
        second = constants(given[1][1])
        index = second[0] if second and isinstance(second[0], int) else index
    kind = kinds.pop() if len(kinds) == 1 else "any"
    return Device(site, kind=kind, index=index)
