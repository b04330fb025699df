"""A module in, the statements of its forward out that set its parameters from the batch: a codebook of means."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.contents import with_parts
from ddpify.facts.externals import role_of
from ddpify.facts.unused import is_off
from ddpify.facts.values import Class, Ext, Func, Module, Thing
from ddpify.source import Source, dotted, walk

if TYPE_CHECKING:
    from ddpify.facts import Facts


@dataclass(frozen=True, eq=False)
class Rewritten:
    """`self.sums = nn.Parameter(...)`, `self.table.weight.data.mul_(decay)` in what forward runs."""

    source: Source
    node: cst.CSTNode
    name: str


def rewritten_parameters(facts: Facts, module: Module) -> Iterator[Rewritten]:
    """Those of the module and of its parts, each place once."""
    told: set[int] = set()
    for m in with_parts(module):
        for found in _in_class(facts, m, m.cls) if m.cls is not None else ():
            if id(found.node) not in told:
                told.add(id(found.node))
                yield found


def _in_class(facts: Facts, module: Module, cls: Class) -> Iterator[Rewritten]:
    for func in _forward_runs(cls, None if facts.converting else module):
        me = func.node.params.params[0].name.value if func.node.params.params else ""
        for node in walk(func.node.body) if me else ():
            match node:
                case cst.Assign(targets=[cst.AssignTarget(target=cst.Attribute() as target)], value=value):
                    name = dotted(target)
                    data = name.endswith(".data") and _is_parameter(module, name.removesuffix(".data"), me)
                    if name.startswith(f"{me}.") and (data or _makes_parameter(facts, value)):
                        yield Rewritten(func.source, node, name.removesuffix(".data"))
                case cst.Call(func=cst.Attribute(value=cst.Attribute(attr=cst.Name("data")) as held, attr=attr)):
                    name = dotted(held.value)
                    if attr.value.endswith("_") and _is_parameter(module, name, me):
                        yield Rewritten(func.source, node, name)


def _forward_runs(cls: Class, module: Module | None = None) -> list[Func]:
    """forward, and the methods that it calls on `self`; of a module, without those that a switch of it leaves off."""
    found = [f for f in cls.member("forward") if isinstance(f, Func)]
    for func in found:
        me = func.node.params.params[0].name.value if func.node.params.params else ""
        for node in walk(func.node.body):
            if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and dotted(node.func.value) == me:
                if module is not None and is_off(module, func.source, node, me):
                    continue  # if not self.initialized: self.initialize(x), where it is True from the start
                found.extend(f for f in cls.member(node.func.attr.value) if isinstance(f, Func) and f not in found)
    return found


def _makes_parameter(facts: Facts, value: cst.BaseExpression) -> bool:
    called = facts.flow.values.get(value.func, ()) if isinstance(value, cst.Call) else ()
    return any(isinstance(o, Ext) and role_of(o.name) == "parameter" for o in called)


def _is_parameter(module: Module, name: str, me: str) -> bool:
    """`self.sums` that was made as a parameter, `self.table.weight` of a layer."""
    parts = name.split(".")
    if parts[0] != me or len(parts) not in (2, 3):
        return False
    held = module.fields.get(parts[1], ())
    if len(parts) == 2:
        return any(isinstance(o, Thing) and o.name == "parameter" for o in held)
    return parts[2] in ("weight", "bias") and any(isinstance(o, Module) and o.has_parameters for o in held)
