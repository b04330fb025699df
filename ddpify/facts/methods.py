"""Methods of objects that no class of the project defines: of modules, tensors, optimizers, dicts and lists."""

from __future__ import annotations

import libcst as cst

from ddpify.facts.contents import (
    all_parameters,
    bare_in,
    constants,
    data_of,
    detached,
    is_flat,
    join,
    looked_up_in,
    modules,
    origins,
    parameters_in,
    take_in,
)
from ddpify.facts.frames import Frame
from ddpify.facts.learned import LAYERS, PARAMETERS, Learned
from ddpify.facts.state import Given
from ddpify.facts.values import (
    NONE,
    UNKNOWN,
    Const,
    Data,
    Dataset,
    Dict,
    FromForward,
    Iteration,
    Loader,
    Method,
    Module,
    Optimizer,
    Origin,
    Parameters,
    Seq,
    StateDict,
    Thing,
    Value,
    Wrapped,
)

_LIKE_IT = frozenset({"copy", "union", "intersection", "difference", "symmetric_difference"})  # of a list or set
#: Methods of nn.Module that change it in place and give it back.
PREPARES = frozenset(
    {
        "to",
        "cuda",
        "cpu",
        "half",
        "double",
        "float",
        "bfloat16",
        "apply",
        "load_state_dict",
        "to_empty",
        "xpu",
        "share_memory",
        "requires_grad_",
        "type",
        "compile",
        "init_weights",
        "reset_parameters",
    }
)
#: Methods that change which layers and hooks a module has.
EXCHANGES = frozenset(
    {
        "add_module",
        "append",
        "extend",
        "insert",
        "register_buffer",
        "register_forward_hook",
        "register_full_backward_hook",
        "register_module",
        "register_parameter",
        "reset_classifier",
        "resize_token_embeddings",
        "__setattr__",
        "__setitem__",
    }
)
_TAKES_IN = frozenset({"add_module", "append", "extend", "insert", "register_module", "update"})
#: Methods of tensors behind which no gradient flows back.
_CUTS = frozenset({"detach", "detach_", "item", "numpy", "tolist", "argmax"})
#: methods of settings that take in those of a file, of the command line, or others
_MERGES = frozenset({"update", "merge_from_file", "merge_from_list", "merge_from_other_cfg", "merge", "merge_with"})
_NUMBERS = frozenset({"item", "tolist", "numpy"})

_KEPT = """
item tolist float double int long half bfloat16 to type type_as astype cpu cuda detach clone numpy contiguous
view reshape squeeze unsqueeze neg mul div requires_grad_ retain_grad register_hook
"""
#: methods that leave a sum what it is, or are linear in it
_LINEAR = frozenset(_KEPT.split())


class Methods(Learned):
    """Calls of methods outside the project."""

    def method(
        self, method: Method, node: cst.Call, given: list[Given], named: dict[str, Given], frame: Frame
    ) -> Value:
        obj, name = method.obj, method.name
        obj = (obj.module or obj) if isinstance(obj, Thing) else obj  # known by use
        extra = {k: v for k, (_, v) in named.items()}
        extra.update({str(i): v for i, (_, v) in enumerate(given)})
        self.event("method", node, frame, obj, name, given[0][1] if given else (), extra=extra)
        if name == "requires_grad_" and isinstance(obj, Thing) and not (given and self.truth(given[0][1]) is False):
            made_by = constants(obj.fields.get("__name__", ())) or [""]
            obj.name = "parameter" if str(made_by[0]).startswith("torch.") else obj.name  # torch.ones(1)
        if isinstance(obj, Thing) and name in _MERGES:
            self.loosen(obj, depth=4)
        if name == "copy_" and given and isinstance(obj, (Data, Thing)):
            self.filled(node, given[0][1], frame)
        match obj:
            case Module() | Wrapped():
                return self.of_module(obj, name, node, given, named, frame)
            case Data():
                return self.of_data(obj, name, node, given, named, frame)
            case Dict():
                return self.of_dict(obj, name, node, given, named, frame)
            case Seq():
                return self.of_seq(obj, name, given)
            case Optimizer():
                if name == "state_dict":
                    return self.made(node, frame, StateDict(self.site(node, frame), of=obj))
                if name == "add_param_group" and given:
                    held, loose = parameters_in(given[0][1])
                    obj.modules = list(dict.fromkeys([*obj.modules, *held]))
                    obj.bare = list(dict.fromkeys([*obj.bare, *bare_in(given[0][1])]))
                    obj.loose = obj.loose or loose
                self.callbacks(given, named, node, frame)
                return UNKNOWN
            case Thing():
                return self.of_thing(obj, name, node, given, named, frame)
            case Parameters():
                if name in ("append", "extend", "insert"):  # params = list(net.parameters()); params.append(scale)
                    more = all_parameters(obj.site, (obj, *(o for _, v in given for o in v)))
                    obj.modules, obj.bare, obj.loose = more.modules, more.bare, more.loose
                return (obj,)
            case Iteration():
                return UNKNOWN if name.startswith("set_") else (obj,)
            case Const(value=str()):
                known = frozenset().union(*(origins(v) for _, v in (*given, *named.values())))
                return (Data("str", "other", known),)
            case Dataset(name="datasets.IterableDataset"):
                if name == "shuffle" and "seed" not in named and not given:
                    obj.fields["unseeded"] = (Const(True),)
                return (obj,)  # .map(f), .filter(f), .with_format("torch"): a stream still
            case Loader():
                return self.loader_made(obj, node, given, named, frame) if name == "__init__" else UNKNOWN
            case Method() if name in PARAMETERS and isinstance(top := looked_up_in(obj), (Module, Thing)):
                top = self.by_use(top) if isinstance(top, Thing) else top  # net.layer1.parameters()
                return self.learned(node, frame, name, (top,), part=True)
        self.callbacks(given, named, node, frame)
        known = frozenset().union(origins((obj,)), *(origins(v) for _, v in (*given, *named.values())))
        return (Data("any", "other", known),)

    def loader_made(
        self, obj: Loader, node: cst.Call, given: list[Given], named: dict[str, Given], frame: Frame
    ) -> Value:
        """`super().__init__(dataset, batch_size=8)` in a DataLoader of the project: what it passes on."""
        raise NotImplementedError

    def of_module(
        self,
        obj: Module | Wrapped,
        name: str,
        node: cst.Call,
        given: list[Given],
        named: dict[str, Given],
        frame: Frame,
    ) -> Value:
        inner = modules((obj,))
        if name in PREPARES or name in ("train", "eval"):
            self.callbacks(given, named, node, frame)
            if name == "requires_grad_" and isinstance(obj, Module):
                obj.frozen = self.truth(given[0][1]) is False if given else False
            return UNKNOWN if name == "load_state_dict" else (obj,)  # what was missing in it
        if name in PARAMETERS or name in LAYERS:
            return self.learned(node, frame, name, tuple(inner))
        if name == "state_dict":
            return self.made(node, frame, StateDict(self.site(node, frame), of=obj))
        if name in ("forward", "__call__"):
            return self.forward(obj, node, [*given, *named.values()], frame)
        if name in ("no_sync", "join"):
            return UNKNOWN
        if name in _TAKES_IN and isinstance(obj, Module):
            for _, value in (*given, *named.values()):
                take_in(obj, value)
        known: frozenset[Origin] = frozenset().union(*(origins(v) for _, v in (*given, *named.values())))
        if known and inner:
            return (Data("tensor", "sample", known | {FromForward(inner[0], node)}),)
        return (Data("any"),)

    def of_data(
        self, obj: Data, name: str, node: cst.Call, given: list[Given], named: dict[str, Given], frame: Frame
    ) -> Value:
        known = frozenset(obj.origins).union(*(origins(v) for _, v in (*given, *named.values())))
        if name == "backward":
            self.event("backward", node, frame, obj, value=(obj,))
            return NONE
        if name in PARAMETERS:
            return self.learned(node, frame, name, self.asked(node), part=True)
        known = detached(known) if name in _CUTS else known
        whole = (not given and "dim" not in named and "axis" not in named) or is_flat(node)
        agg = obj.agg
        if name in ("sum", "count_nonzero"):
            agg = "sum" if agg == "sample" and whole else agg
        elif name == "mean":
            agg = "mean" if agg == "sample" and whole else agg
        elif name in ("max", "min", "median", "std", "var", "norm") and whole:
            agg = "other"
        elif name == "size":
            keys = constants(given[0][1]) if given else None
            if not keys:
                return (Data("any", "shape" if agg == "sample" else "other", known),)
            return (Data("int", "size" if keys == [0] and agg == "sample" else "const", known),)
        elif name in ("numel", "nelement") and whole and agg == "sample":
            return (Data("int", "size", known),)
        elif name in ("append", "add_", "extend"):
            return NONE
        elif agg not in ("sample", "sum", "mean", "size") or (agg in ("sum", "size") and name not in _LINEAR):
            agg = "other"
        parts = [d for d in (data_of(v) for _, v in given) if d is not None]
        if agg in ("other",) and any(p.agg == "sample" for p in parts):
            agg = "sample"
        form = "any" if name in _NUMBERS and name != "item" else "number" if name == "item" else obj.form
        if name == "item":
            form = "number"
        on_cpu = name in ("cpu", "numpy") or (obj.on_cpu and name not in ("cuda", "to"))
        self.callbacks(given, named, node, frame)
        return (Data(form, agg, known, on_cpu),)

    def filled(self, node: cst.Call, value: Value, frame: Frame) -> None:
        """`images.resize_as_(batch).copy_(batch)`: from here on the variable holds what was copied into it."""
        into: cst.CSTNode = node.func
        while isinstance(into, (cst.Attribute, cst.Call)):
            into = into.value if isinstance(into, cst.Attribute) else into.func
        holder = frame.scope.holder(into.value) if isinstance(into, cst.Name) else None
        if isinstance(into, cst.Name) and holder is not None:
            holder.names[into.value] = join(holder.names.get(into.value, ()), value)

    def of_dict(
        self, obj: Dict, name: str, node: cst.Call, given: list[Given], named: dict[str, Given], frame: Frame
    ) -> Value:
        first = given[0][1] if given else ()
        keys = constants(first) if given else None
        if name in ("get", "pop", "setdefault"):
            default = given[1][1] if len(given) > 1 else NONE
            found = join(*(obj.items.get(k, ()) for k in keys)) if keys is not None else join(*obj.items.values())
            if name == "setdefault" and keys is not None:
                self.set_item(obj, keys, join(found, default))
            if name == "pop" and keys is not None:
                for k in keys:
                    obj.maybe.add(k) if self.unsure else obj.items.pop(k, None)
            return join(found, obj.joined) or default
        if name == "update":
            self.merge_dicts(obj, first) if given else None
            for key, (_, value) in named.items():
                self.set_item(obj, [key], value)
            return NONE
        if name == "copy":
            return (
                Dict(self.site(node, frame), dict(obj.fields), dict(obj.items), obj.joined, set(obj.maybe), obj.closed),
            )
        if name == "values":
            return (
                Seq(
                    self.site(node, frame), elements=list(obj.items.values()) if obj.closed else None, joined=obj.joined
                ),
            )
        if name == "items":
            elements: list[Value] = [
                (Seq(self.site(node, frame), elements=[(Const(k),), v]),) for k, v in obj.items.items()
            ]
            joined: Value = (
                Seq(self.site(node, frame), elements=[(Data("str"),), join(obj.joined, *obj.items.values())]),
            )
            pairs = Seq(
                self.site(node, frame), elements=elements if obj.closed else None, joined=() if obj.closed else joined
            )
            return (Iteration(self.site(node, frame), how="items", of=((pairs,),)),) if obj.closed else (pairs,)
        if name == "keys":
            return (Seq(self.site(node, frame), elements=[(Const(k),) for k in obj.items]),)
        return UNKNOWN

    def of_seq(self, obj: Seq, name: str, given: list[Given]) -> Value:
        first = given[-1][1] if given else ()
        if name in ("append", "add", "insert", "appendleft"):
            obj.joined = join(obj.joined, first)
            if obj.elements is not None and (self.unsure or name == "insert"):
                obj.joined, obj.elements = join(obj.joined, *obj.elements), None
            elif obj.elements is not None:
                obj.elements = [*obj.elements, first]
                obj.joined = ()
            return NONE
        if name in ("extend", "update"):
            inner = join(*(self.element_of(o, self.stmt) for o in first)) if first else ()
            obj.joined, obj.elements = join(obj.joined, inner, *(obj.elements or ())), None
            return NONE
        if name in ("pop", "popleft"):
            return join(obj.joined, *(obj.elements or ())) or UNKNOWN
        return (obj,) if name in _LIKE_IT else UNKNOWN

    def of_thing(
        self, obj: Thing, name: str, node: cst.Call, given: list[Given], named: dict[str, Given], frame: Frame
    ) -> Value:
        if obj.name == "parser" and name in ("parse_args", "parse_known_args", "parse_args_into_dataclasses"):
            space = self.made(node, frame, Thing(self.site(node, frame), name="namespace"))
            if isinstance(space[0], Thing):
                space[0].fields.update(obj.fields)
            self.event("parsed", node, frame, space[0], name)
            return space if name == "parse_args" else (Seq(self.site(node, frame), elements=[space, UNKNOWN]),)
        if obj.name == "parser":
            if name == "set_defaults":  # sub.set_defaults(func=train); args.func(args)
                for key, (_, value) in named.items():
                    told: Value = (Data("any", "const"),) if any(isinstance(o, Const) for o in value) else ()
                    obj.fields[key] = join(obj.fields.get(key, ()), value, told)
            return (obj,)
        if name in ("parameters", "named_parameters") and obj.name in ("", "loaded"):
            return self.learned(node, frame, name, (self.by_use(obj),))
        if obj.name == "scaler" and name == "scale":
            return given[0][1] if given else UNKNOWN
        if obj.name in ("", "loaded") and name in ("train", "eval", "to", "cuda", "cpu"):
            obj.moved = True
            return (obj,)
        self.callbacks(given, named, node, frame)
        known = frozenset(obj.origins).union(*(origins(v) for _, v in (*given, *named.values())))
        return (Data("any", "other", known),)
