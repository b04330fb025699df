"""Values in, what they hold out: their constants, numbers, modules and origins; and two values as one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import libcst as cst

from ddpify.facts.values import (
    Const,
    Data,
    Dict,
    FromBatch,
    FromForward,
    Iteration,
    Method,
    Module,
    Obj,
    Origin,
    Parameters,
    Seq,
    Site,
    Thing,
    Value,
    Wrapped,
)

_MOST = 12
#: methods that leave the shape as it is
_ENTRYWISE = frozenset({"float", "double", "int", "long", "bool", "to", "type", "cpu", "cuda", "detach", "contiguous"})


def join(*values: Value) -> Value:
    """Either of the values; numbers and tensors melt into one."""
    given = [v for v in values if v]
    if len(given) == 1 and len(given[0]) == 1:
        return given[0]
    found: list[Obj] = []
    data: Data | None = None
    for value in given:
        for obj in value:
            if isinstance(obj, Data):
                data = obj if data is None else merge(data, obj)
            elif obj not in found and len(found) < _MOST:
                found.append(obj)
    return tuple(found) if data is None else (*found, data)


def may_hold(value: Value, obj: Obj) -> bool:
    """Whether an object is in a value, or may be among those that were one too many to keep."""
    return obj in value or len(value) >= _MOST


def made_as_set(obj: Obj) -> bool:
    """`set()`, `{1, 2}`, `set(words)`, `{w for w in words}`: its order comes from the hash seed of each process."""
    if isinstance(obj, Iteration):
        return obj.how == "set"
    node = obj.site.node if isinstance(obj, Seq) else None
    func = node.func if isinstance(node, cst.Call) else None
    return isinstance(node, (cst.Set, cst.SetComp)) or (
        isinstance(func, cst.Name) and func.value in ("set", "frozenset")
    )


def merge(a: Data, b: Data) -> Data:
    if a == b:
        return a
    return Data(
        a.form if a.form == b.form else "any",
        a.agg if a.agg == b.agg else "other",
        a.origins | b.origins,
        a.on_cpu and b.on_cpu,
    )


def origins(value: Value, depth: int = 3) -> frozenset[Origin]:
    """All that a value was computed from, containers included."""
    found: set[Origin] = set()
    for obj in value:
        if isinstance(obj, (Data, Thing)):
            found |= obj.origins
        elif depth and isinstance(obj, Seq):
            for part in obj.elements if obj.elements is not None else [obj.joined]:
                found |= origins(part, depth - 1)
        elif depth and isinstance(obj, Dict):
            for part in (*obj.items.values(), obj.joined):
                found |= origins(part, depth - 1)
        elif depth and isinstance(obj, Method):
            found |= origins((obj.obj,), depth - 1)
        elif depth and isinstance(obj, Iteration):
            for part in obj.of:
                found |= origins(part, depth - 1)
    return frozenset(found)


def detached(known: frozenset[Origin]) -> frozenset[Origin]:
    """The same origins, with no gradient on the way back to them."""
    return frozenset(replace(o, cut=True) if isinstance(o, FromForward) else o for o in known)


def data_of(value: Value) -> Data | None:
    """The number or tensor in a value; constants count as numbers."""
    found: Data | None = None
    for obj in value:
        if isinstance(obj, Const):
            form = {bool: "bool", int: "int", float: "float", str: "str"}.get(type(obj.value), "any")
            part: Data | None = Data(form, "const")
        else:
            part = obj if isinstance(obj, Data) else None
        if part is not None:
            found = part if found is None else merge(found, part)
    return found


def constants(value: Value) -> list[object] | None:
    """The literals that a value can be, or None where it can be anything else."""
    return (
        [o.value for o in value if isinstance(o, Const)] if value and all(isinstance(o, Const) for o in value) else None
    )


def modules(value: Value) -> list[Module]:
    """The modules in a value, those inside wrappers and containers included."""
    found: list[Module] = []
    for obj in value:
        if isinstance(obj, Module):
            found.append(obj)
        elif isinstance(obj, Wrapped):
            found.extend(modules(tuple(o for o in obj.module if o is not obj)))
        elif isinstance(obj, Thing) and obj.module is not None:
            found.append(obj.module)
        elif isinstance(obj, Seq):
            for part in obj.elements if obj.elements is not None else [obj.joined]:
                found.extend(modules(part))
    return list(dict.fromkeys(found))


def with_parts(module: Module) -> Iterator[Module]:
    """A module, what it wraps, and the modules that it is made of, each once."""
    seen: set[int] = set()
    todo = [module]
    while todo:
        m = todo.pop()
        if id(m) in seen:
            continue
        seen.add(id(m))
        yield m
        if m.inner is not None:
            todo.append(m.inner)
        todo.extend(x for value in (*m.fields.values(), *m.parts) for x in modules(value))


def take_in(module: Module, value: Value) -> None:
    """A value becomes a part of a module: `self.body = Block()`, `self.blocks.append(Block())`."""
    module.parts.append(value)
    for part in value:
        if isinstance(part, Thing) and part.owner is None:
            part.owner = module
        if isinstance(part, Module) and part is not module and part.part_of is None:
            part.part_of = module


def parameters_in(value: Value) -> tuple[list[Module], bool]:
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
                more, other = parameters_in(part)
                held.extend(more)
                loose = loose or other
        elif isinstance(obj, Dict):
            more, other = parameters_in(join(obj.items.get("params", ()), obj.joined))
            held.extend(more)
            loose = loose or other
        elif isinstance(obj, Thing) and obj.name == "parameter":
            held.extend([obj.owner] if obj.owner is not None else [])
        elif isinstance(obj, Data) and obj.form == "tensor":
            loose = True  # a bare tensor with requires_grad
    return list(dict.fromkeys(held)), loose


def is_of_batches(value: Value) -> bool:
    """Whether a value comes of a batch, or of a forward."""
    return any(isinstance(o, (FromBatch, FromForward)) for o in origins(value))


def start_of_chain(obj: Obj | None) -> Obj | None:
    """`model` of `model.fc.requires_grad_`, where what stands behind it is not known."""
    while isinstance(obj, Method):
        obj = obj.obj
    return obj


def looked_up_in(obj: Obj | None) -> Module | Thing | None:
    """The module that an attribute chain starts from: `model` of `model.roi_heads.box_predictor`.

    Or what looks like one: its code is not there, and it was moved to a device.
    """
    obj = start_of_chain(obj)
    obj = (obj.module or obj) if isinstance(obj, Thing) else obj
    return obj if isinstance(obj, Module) or (isinstance(obj, Thing) and obj.moved) else None


def bare_in(value: Value, depth: int = 5) -> list[Thing]:
    """The parameters among those that are handed over that are no part of a module: `[*net.parameters(), scale]`."""
    found: list[Thing] = []
    for obj in value if depth else ():
        if isinstance(obj, Thing) and obj.name == "parameter" and obj.owner is None:
            found.append(obj)
        elif isinstance(obj, Parameters):
            found += obj.bare
        elif isinstance(obj, Seq):
            found += [p for part in (obj.joined, *(obj.elements or ())) for p in bare_in(part, depth - 1)]
        elif isinstance(obj, Iteration):
            found += [p for part in obj.of for p in bare_in(part, depth - 1)]
        elif isinstance(obj, Dict):
            found += bare_in(join(obj.items.get("params", ()), obj.joined), depth - 1)
    return list(dict.fromkeys(found))


def all_parameters(site: Site, value: Value) -> Parameters:
    """`list(net.parameters()) + [scale]`"""
    held, loose = parameters_in(value)
    part = any(isinstance(o, Parameters) and o.part for o in value)
    return Parameters(site, modules=tuple(held), bare=tuple(bare_in(value)), loose=loose, part=part)


def is_flat(call: cst.Call) -> bool:
    """`hits.reshape(-1).float().sum(0)`: over the only dimension that there is."""
    node: cst.CSTNode = call.func.value if isinstance(call.func, cst.Attribute) else call
    while isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        name, args = node.func.attr.value, node.args
        if name in ("flatten", "ravel"):
            return not args
        if name in ("view", "reshape"):
            minus = args[0].value if len(args) == 1 else None
            return isinstance(minus, cst.UnaryOperation) and isinstance(minus.operator, cst.Minus)
        if name not in _ENTRYWISE:
            return False
        node = node.func.value
    return False
