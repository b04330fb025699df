"""What calls outside the project give: torch, its data and optim packages, builtins."""

from __future__ import annotations

import libcst as cst

from ddpify.facts.contents import bare_in, constants, data_of, join, origins, parameters_in
from ddpify.facts.externals import LOGGER, role_of
from ddpify.facts.factories import Factories
from ddpify.facts.frames import Frame
from ddpify.facts.outside import made_by
from ddpify.facts.registries import RUN_TIME_MODULE
from ddpify.facts.state import Given
from ddpify.facts.values import (
    NONE,
    UNKNOWN,
    Const,
    Data,
    Dataset,
    Device,
    Dict,
    Ext,
    FromWorld,
    Func,
    Iteration,
    Loader,
    Method,
    Mod,
    Mode,
    Obj,
    Optimizer,
    Origin,
    Sampler,
    Scheduler,
    Seq,
    Site,
    Thing,
    Value,
    Wrapped,
)

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

#: The parameters that hold what a thing is made of.
_FIRST = ("dataset", "iterable", "optimizer", "params", "data_source")


def loader_argument(at: int, arg: cst.Arg) -> str:
    """Which parameter of DataLoader an argument is for, by its keyword or its place; empty for `*args`, `**kwargs`."""
    if arg.keyword is not None:
        return arg.keyword.value
    return LOADER_ARGUMENTS[at] if not arg.star and at < len(LOADER_ARGUMENTS) else ""


FILLED = frozenset(f"torch.{n}" for n in ("zeros", "ones", "full", "empty", "randn", "rand", "tensor"))


#: what does not hold while a script trains
_NEVER = frozenset({"torch.jit.is_scripting", "torch.jit.is_tracing", "torch.onnx.is_in_onnx_export"})


class Library(Factories):
    """Summaries of functions and classes outside the project."""

    def method(
        self, method: Method, node: cst.Call, given: list[Given], named: dict[str, Given], frame: Frame
    ) -> Value:
        """`it.next()` of scripts that Python 2 ran is `next(it)`, and `progress.track(xs)` is `track(xs)`."""
        if isinstance(method.obj, Iteration) and method.name in ("next", "__next__"):
            return self.outside(Ext("builtins.next"), node, [(None, (method.obj,))], {}, [], frame)
        if method.name == "track" and made_by(method.obj) == "rich.progress.Progress":
            return self.outside(Ext("rich.progress.track"), node, given, named, [], frame)
        return super().method(method, node, given, named, frame)

    def outside(
        self, ext: Ext, node: cst.Call, given: list[Given], named: dict[str, Given], splats: list[Value], frame: Frame
    ) -> Value:
        name = ext.name
        known: frozenset[Origin] = frozenset().union(*(origins(v) for _, v in (*given, *named.values())))
        extra = {k: v for k, (_, v) in named.items()}
        extra.update({str(i): v for i, (_, v) in enumerate(given)})
        self.event("external", node, frame, ext, name, given[0][1] if given else (), extra=extra)
        if name in _NEVER:
            return (Const(False),)
        if name == "torch.cuda.current_device":
            return (Device(self.site(node, frame), kind="cuda"),)  # the one that set_device chose
        if name == "importlib.import_module":
            return self.module_by_name(given[0][1] if given else (), node, frame)
        if name == "importlib.util.module_from_spec":
            return (Ext(RUN_TIME_MODULE),)  # of a file that the script names by its path
        if name.startswith("builtins."):
            return self.builtin(name[9:], node, given, named, frame)
        if name == "collections.OrderedDict":
            return self.dict_of_pairs(given, named, node, frame)
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
        if role in ("partial", "named-tuple"):
            return self.make_factory(role, node, given, named, frame)
        if role == "loader":
            return self.make_loader(node, given, named, splats, frame)
        if name in FILLED and "requires_grad" in named and constants(named["requires_grad"][1]) == [True]:
            role = "parameter"  # log_var = torch.zeros(1, requires_grad=True)
        if role in ("loss", "sum", "mean", "number", "same", "metric"):
            return self.computed(role, name, given, named, known)
        return self.make_thing(role, name, node, given, named, known, frame)

    def dict_of_pairs(self, given: list[Given], named: dict[str, Given], node: cst.Call, frame: Frame) -> Value:
        """`OrderedDict([("fc", nn.Linear(4, 2)), ...])`, as far as the keys are known."""
        made = Dict(self.site(node, frame), items={k: v for k, (_, v) in named.items()})
        for obj in given[0][1] if given else ():
            pairs = obj.elements if isinstance(obj, Seq) else None
            for pair in pairs or ():
                parts = next((o.elements for o in pair if isinstance(o, Seq) and o.elements), [])
                keys = constants(parts[0]) if len(parts) == 2 else None
                made.closed = made.closed and keys is not None
                self.set_item(made, keys, parts[1] if len(parts) == 2 else UNKNOWN)
            if pairs is None:
                made.closed = False
                self.merge_dicts(made, (obj,)) if isinstance(obj, Dict) else None
        return self.made(node, frame, made)

    def module_by_name(self, given: Value, node: cst.Call, frame: Frame) -> Value:
        """`importlib.import_module("models.net")`; by a name that is known at run time only, one of a library."""
        known = constants(given)
        if known is None or len(known) != 1 or not isinstance(known[0], str):
            return (Ext(RUN_TIME_MODULE),)
        source = self.project.find(known[0])
        if source is None:
            return (Ext(known[0]),)
        self.import_module(source, frame, node)
        return (Mod(source),)

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

    def loader_made(
        self, obj: Loader, node: cst.Call, given: list[Given], named: dict[str, Given], frame: Frame
    ) -> Value:
        if obj.whole:
            return NONE
        obj.site, obj.call = self.site(node, frame), node
        obj.arguments.update({name: value for name, (_, value) in zip(LOADER_ARGUMENTS, given, strict=False)})
        obj.arguments.update({name: value for name, (_, value) in named.items()})
        obj.dataset = obj.arguments.get("dataset", ())
        splats = [self.values.get(arg.value, ()) for arg in node.args if arg.star]
        known = [o for splat in splats for o in splat if isinstance(o, Dict) and o.closed]
        obj.splat = known[0] if len(known) == len(splats) == 1 else None
        obj.unknown_splat = bool(splats) and obj.splat is None
        self.event("loader", node, frame, obj, "DataLoader")
        return NONE

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
        first = self.first(given, named, *_FIRST)
        match role:
            case "random-split":
                return self.splits(node, first, given, named, frame)
            case "grad-off" | "grad-on" if given and isinstance(given[0][1][0] if given[0][1] else None, Func):
                return given[0][1]  # no_grad as a function: what it decorates
            case "world" | "random":
                what = known | {FromWorld(name)}
                return (Data("tensor" if name.startswith("torch.") else "any", "other", what),)
            case "available":
                return (Data("bool", "const"),)
            case "save" | "seed":
                return NONE
            case "option":
                return (Data("any", "const"),)
        made = self.thing(role, name, node, first, given, named, known, frame)
        if made is None:
            return self.unknown_call(name, node, given, named, known, frame)
        result = self.made(node, frame, made)
        self.refresh(result[0], made)
        self.event("new", node, frame, result[0], name)
        return result

    def thing(
        self,
        role: str,
        name: str,
        node: cst.Call,
        first: Value,
        given: list[Given],
        named: dict[str, Given],
        known: frozenset[Origin],
        frame: Frame,
    ) -> Obj | None:
        """The object that a class of a library makes, by its role; None where it has none."""
        site = self.site(node, frame)
        match role:
            case "ddp":
                return Wrapped(site, module=self.first(given, named, "module"))
            case "optimizer":
                over = self.first(given, named, "params")
                held, loose = parameters_in(over)
                return Optimizer(site, name=name, modules=held, bare=bare_in(over), loose=loose)
            case "scheduler":
                return Scheduler(site, name=name)
            case "sampler":
                return Sampler(
                    site, name=name, call=node, dataset=first, arguments={k: v for k, (_, v) in named.items()}
                )
            case "dataset":
                if name == "datasets.load_dataset" and "streaming" in named:
                    name = "datasets.IterableDataset" if constants(named["streaming"][1]) == [True] else name
                return Dataset(site, name=name, of=first if "torch.utils.data" in name else ())
            case "device" | "accelerator-device":
                return Device(site, kind="accelerator") if role != "device" else device_of(site, first, given)
            case "grad-off" | "grad-on":
                return Mode(site, grad=role == "grad-on")
            case "grad-set":
                if not any(isinstance(u, cst.With) and any(i.item is node for i in u.items) for u in [self.stmt]):
                    self.grad = self.truth(first)
                return Mode(site, grad=self.truth(first))
            case "progress":
                first = first or named.get("sequence", named.get("iterable", (None, ())))[1]
                return Iteration(site, how="progress", of=(first,) if first else ())
            case "progress-range":
                return Iteration(site, how="range")
            case "parameter" | "parser" | "namespace" | "writer" | "scaler" | "commands":
                return Thing(
                    site, name=role, fields={k: v for k, (_, v) in named.items()} if role == "namespace" else {}
                )
            case "load":
                return Thing(site, name="loaded")
            case "split":
                elements: list[Value] = [
                    (Data("any", "other", known | {FromWorld("split")}),) for _ in range(2 * max(1, len(given)))
                ]
                return Seq(site, elements=elements)
        return None

    def unknown_call(
        self,
        name: str,
        node: cst.Call,
        given: list[Given],
        named: dict[str, Given],
        known: frozenset[Origin],
        frame: Frame,
    ) -> Value:
        """Nothing is known of this function: its result depends on its arguments, and may be any object.

        A logger named by the time is a logger.
        """
        self.callbacks(given, named, node, frame)
        parts = [d for d in (data_of(v) for _, v in (*given, *named.values())) if d is not None]
        if parts and known and not LOGGER.fullmatch(name):
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
