"""Calls of Python's own functions in, what they give out: `zip`, `len`, `getattr`, `sorted`."""

from __future__ import annotations

import libcst as cst

from ddpify.facts.contents import constants, data_of, join, made_as_set, modules, origins, take_in
from ddpify.facts.externals import role_of
from ddpify.facts.frames import Frame
from ddpify.facts.methods import Methods
from ddpify.facts.registries import ANY, of_library, of_project
from ddpify.facts.spelled import Spelled, spelled
from ddpify.facts.state import Given
from ddpify.facts.values import (
    NONE,
    UNKNOWN,
    Class,
    Const,
    Data,
    Dataset,
    Dict,
    Ext,
    FromLength,
    Func,
    Instance,
    Iteration,
    Loader,
    Mod,
    Mode,
    Module,
    Obj,
    Optimizer,
    Origin,
    Parameters,
    Seq,
    Thing,
    Value,
    Wrapped,
)
from ddpify.source import Source, walk

_TRANSPARENT = frozenset({"list", "tuple", "iter", "reversed", "sorted", "set", "filter", "next", "frozenset"})


class Builtins(Methods, Spelled):
    """Summaries of builtins, and of functions of torch and numpy that do the same."""

    def builtin(self, name: str, node: cst.Call, given: list[Given], named: dict[str, Given], frame: Frame) -> Value:
        site = self.site(node, frame)
        values = [v for _, v in given]
        first = values[0] if values else ()
        if name in ("enumerate", "zip", "range"):
            return self.refreshed(Iteration(site, how=name, of=tuple(values)), node, frame)
        if name == "map":
            return self.mapped(values, node, frame)
        if name == "next":
            parts = (self.iterated(o, node) if isinstance(o, Iteration) else self.element_of(o, node) for o in first)
            return join(*parts) or UNKNOWN
        if name == "globals" and (found := self.globals_of(node, frame)):
            return found
        if name in ("list", "set") and not values:
            return self.made(node, frame, Seq(site, elements=[]))
        if name in _TRANSPARENT:
            return self.transparent(
                name, first if name != "filter" else (values[1] if len(values) > 1 else ()), node, frame
            )
        if name == "len":
            return self.length(first, node)
        if name in ("sum", "min", "max"):
            inner = join(*(self.element_of(o, node) if isinstance(o, (Seq, Dict)) else (o,) for v in values for o in v))
            if name != "sum" and any(isinstance(o, (Instance, Module, Wrapped)) for o in inner):
                for key in named.get("key", (None, ()))[1]:
                    if isinstance(key, Func):
                        self.call_function(key, [(None, inner)], {}, node, frame)
                return inner  # min(learners, key=lambda one: one.score)
            known = data_of(inner)
            return (Data("any" if known is None else known.form, known.agg if known else "other", origins(inner)),)
        if name in ("float", "int", "abs", "round", "bool"):
            consts = constants(first)
            if name in ("int", "float") and consts and len(consts) == len(values) == 1:
                literal = consts[0]
                if isinstance(literal, (int, float, str)):
                    return _number(name, literal)
            return self.computed("number", f"builtins.{name}", given, named, origins(first))
        if name in ("getattr", "setattr", "hasattr", "isinstance"):
            return self.reflection(name, values, node, frame)
        if name == "type" and len(values) == 1:
            classes = tuple(o.cls for o in first if isinstance(o, (Instance, Module)) and o.cls is not None)
            if classes and len(classes) == len(first):
                return classes  # type(self.model).from_pretrained(folder)
            return (Data("any", "const"),)  # the class of a batch is the same on every rank
        if name == "dict":
            copied = tuple(o for o in first if isinstance(o, Data))  # dict(table.average)
            made = Dict(site, joined=copied, closed=not given)
            self.merge_dicts(made, tuple(o for o in first if isinstance(o, Dict)))
            made.items.update({k: v for k, (_, v) in named.items()})
            return self.made(node, frame, made)
        if name == "eval":
            found = self.evaluated(node, frame)
            if found:
                return found
        if name == "exec":  # exec(open("configurator.py").read()): the settings may be others behind it
            for bound, value in frame.scope.names.items():
                if any(isinstance(o, Const) for o in value):
                    frame.scope.names[bound] = join(value, (Data("any", "const"),))
        self.callbacks(given, named, node, frame)
        known_all = frozenset().union(*(origins(v) for v in values)) if values else frozenset()
        return (Data("str" if name in ("str", "repr", "format", "input") else "any", "other", known_all),)

    def mapped(self, values: list[Value], node: cst.Call, frame: Frame) -> Value:
        """`map(f, xs)`: a function of the project is called with the elements."""
        site = self.site(node, frame)
        for obj in values[0] if values else ():
            if isinstance(obj, Func):
                given: list[Given] = [
                    (None, join(*(self.element_of(o, node) for o in v)) or UNKNOWN) for v in values[1:]
                ]
                return (Seq(site, joined=self.call_function(obj, given, {}, node, frame)),)
        return self.refreshed(Iteration(site, how="iter", of=tuple(values[1:])), node, frame)

    def refreshed(self, made: Iteration, node: cst.Call, frame: Frame) -> Value:
        result = self.made(node, frame, made)
        self.refresh(result[0], made)
        return result

    def globals_of(self, node: cst.Call, frame: Frame) -> Value:
        """`globals()[config["model"]]`: the class of that name, or those that nothing else in the module uses."""
        home, above = self.modules.get(frame.source), frame.source.parents.get(node)
        match above:
            case cst.Subscript(slice=[cst.SubscriptElement(slice=cst.Index(value=key))]) if home is not None:
                calls = any(isinstance(n, cst.Call) for n in (key, *walk(key)))
                known = constants(self.expr(key, frame)) if not calls else None
                names = home.scope.names
                asked = {k: names[k] for k in known or () if isinstance(k, str) and k in names}
                if not known:
                    found = of_project(Mod(frame.source), names)
                    asked = {o.name: (o,) for o in found if isinstance(o, (Class, Func))}
                if asked:
                    return (Dict(self.site(node, frame), items=dict(asked.items()), closed=False),)
                if _is_called(frame.source, above):
                    return (Dict(self.site(node, frame), joined=ANY, closed=False),)
        return ()

    def evaluated(self, node: cst.Call, frame: Frame) -> Value:
        """`eval(args.model)(width)`, `eval("models." + args.model).Net()`: a class or function, as it is used."""
        text = spelled(node.args[0].value, lambda part: constants(self.values.get(part, ()))) if node.args else ""
        above = frame.source.parents.get(node)
        if isinstance(above, cst.Attribute):
            return self.named(text, node, frame, above.attr.value)
        if not _is_called(frame.source, node):
            return ()
        return self.named(text, node, frame) or (ANY if "*" in text else ())

    def transparent(self, name: str, first: Value, node: cst.Call, frame: Frame) -> Value:
        if name in ("list", "tuple", "filter", "iter") and any(isinstance(o, (Parameters, Seq)) for o in first):
            sets = [o for o in first if made_as_set(o)]
            if not sets or name not in ("list", "tuple"):
                return first
            elements = join(*(self.element_of(o, node) for o in sets))
            return join(tuple(o for o in first if o not in sets), (Seq(self.site(node, frame), joined=elements),))
        if name == "sorted" and any(isinstance(o, Seq) for o in first):
            elements = join(*(self.element_of(o, node) for o in first))
            if any(isinstance(o, (Instance, Module, Wrapped)) for o in elements):
                return (Seq(self.site(node, frame), joined=elements),)  # sorted(learners, key=...)[0]
        made = Iteration(self.site(node, frame), how="iter" if name not in ("set", "frozenset") else "set", of=(first,))
        return self.refreshed(made, node, frame)

    def length(self, first: Value, node: cst.Call) -> Value:
        for obj in first:
            reads = isinstance(obj, Instance) and any(isinstance(o, Loader) for v in obj.fields.values() for o in v)
            if (
                reads and isinstance(obj, Instance) and obj.cls is not None
            ):  # def __len__(self): return len(self.loader)
                asked = [f for f in obj.cls.member("__len__") if isinstance(f, Func)]
                told = [self.call_function(self.bound(f, obj, node), [], {}, node, obj.site.frame) for f in asked[:1]]
                if any(isinstance(o, FromLength) and isinstance(o.of, Loader) for o in origins(join(*told))):
                    return told[0]
            if isinstance(obj, (Loader, Dataset, Instance, Thing)):
                return (Data("int", "length", frozenset({FromLength(obj)})),)
            if isinstance(obj, Iteration) and obj.of:
                return self.length(obj.of[0], node)
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
        if name == "getattr" and len(values) == 2:
            return join(*map(self.looked_up, values[0])) or UNKNOWN
        if name == "setattr" and names and len(values) > 2:
            for obj in values[0]:
                for n in names:
                    self.set_field(obj, str(n), values[2])
                    self.event("set", node, frame, obj, str(n), values[2])
            return NONE
        if name == "setattr" and len(values) > 2:
            self.injected(values[0], values[2], node, frame)
        if name not in ("hasattr", "isinstance"):
            return UNKNOWN
        if name == "isinstance" and len(values) > 1 and values[0] and all(map(_is_stream, values[0])):
            asks_text = any(isinstance(o, Ext) and o.name == "builtins.str" for o in values[1])
            return (Const(False),) if asks_text else (Data("bool", "const"),)
        replaced = bool(self.log.of("dataparallel"))
        asked = _of_wrapper(name, values[0], values[1], replaced) if len(values) > 1 else None
        return (Const(asked),) if asked is not None else (Data("bool", "const"),)

    def injected(self, into: Value, value: Value, node: cst.Call, frame: Frame) -> None:
        """`setattr(parent, name, LoRA(child))`, of a name that a loop over the children gives: a layer is exchanged."""
        if not any(m.has_parameters for m in modules(value)):
            return
        inside = [m for o in into for m in (o.modules if isinstance(o, Parameters) else modules((o,)))]
        for module in dict.fromkeys(inside):
            take_in(module, value)
            self.event("set", node, frame, module, "", value)

    def looked_up(self, module: Obj) -> Value:
        """`getattr(models, args.arch)`: what of a module is asked for is known at run time only."""
        if isinstance(module, Mod) and module.source in self.modules:
            return of_project(module, self.modules[module.source].scope.names) or ANY
        return of_library(module) if isinstance(module, Ext) else ()

    def refresh(self, kept: Obj, made: Obj) -> None:
        """A second run of the same expression (a loop) may see more."""
        if kept is made:
            return
        if isinstance(kept, Wrapped) and isinstance(made, Wrapped):
            kept.module = join(kept.module, made.module)
        elif isinstance(kept, Optimizer) and isinstance(made, Optimizer):
            # model = make() in a loop: what the trial pass made is no model of its own
            before = [m for m in kept.modules if not m.site.frame.trial or self.trial]
            kept.modules = list(dict.fromkeys([*before, *made.modules]))
        elif isinstance(kept, Iteration) and isinstance(made, Iteration):
            kept.of = made.of
        elif isinstance(kept, Mode) and isinstance(made, Mode):
            kept.grad = made.grad

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


def _is_called(source: Source, node: cst.CSTNode) -> bool:
    above = source.parents.get(node)
    return isinstance(above, cst.Call) and above.func is node


def _is_stream(obj: Obj) -> bool:
    """`sys.stdout`, given where a file's name may be given, too."""
    return isinstance(obj, Ext) and obj.name in ("sys.stdout", "sys.stderr")


def _number(name: str, literal: float | str) -> Value:
    """`int("3")`"""
    try:
        return (Const(int(literal) if name == "int" else float(literal)),)
    except ValueError:
        return UNKNOWN


def reduced(reduction: list[object] | None) -> str:
    """What a loss is, by its `reduction`."""
    known = set(reduction or [])
    return (
        {"mean": "mean", "sum": "sum", "none": "sample", "batchmean": "mean"}.get(str(next(iter(known))), "other")
        if len(known) == 1
        else "other"
    )


def _of_wrapper(name: str, first: Value, second: Value, replaced: bool) -> bool | None:
    """What a script that strips the wrapper by itself is told: `hasattr(model, "module")`, `isinstance(model, DDP)`.

    `replaced`: nn.DataParallel is taken out, and tests for it become tests for DDP.
    """
    if not first or not all(isinstance(o, Wrapped) for o in first):
        return None
    if name == "hasattr":
        return True if constants(second) == ["module"] else None
    classes = [c for o in second for c in (join(*(o.elements or ())) if isinstance(o, Seq) else (o,))]
    roles = [role_of(c.name) if isinstance(c, Ext) else None for c in classes]
    if "ddp" in roles or (replaced and "dataparallel" in roles):
        return True
    return False if roles and set(roles) == {"dataparallel"} else None
