"""A device that is held as text, and whether it is used as text: `device == "cuda"`, `json.dump(vars(args), f)`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.values import Ext, Thing
from ddpify.source import Source

if TYPE_CHECKING:
    from ddpify.facts import Facts

#: Calls that take the type of a device, as a string.
_TYPES = frozenset(
    {
        "torch.autocast",
        "torch.amp.autocast",
        "torch.amp.GradScaler",
        "torch.amp.grad_scaler.GradScaler",
        "torch.get_autocast_dtype",
    }
)
#: What a device has and a text has not.
_OF_DEVICE = ("type", "index")


def is_text_there(facts: Facts, source: Source, node: cst.CSTNode) -> bool:
    """`device == "cuda"`, `device.startswith("cuda")`, `torch.autocast(device)`"""
    parent = source.parents.get(node)
    if isinstance(parent, (cst.Comparison, cst.ComparisonTarget)):
        return True
    if isinstance(parent, cst.Attribute) and parent.value is node:
        return parent.attr.value not in _OF_DEVICE
    call = source.parents.get(parent) if isinstance(parent, cst.Arg) else None
    called = facts.flow.values.get(call.func, ()) if isinstance(call, cst.Call) else ()
    return any(isinstance(o, Ext) and o.name in _TYPES for o in called)


def option_is_text(facts: Facts, option: str) -> bool:
    """Whether the device of an option (`args.device`) is used as text, or written down with all options."""
    uses = list(_uses(facts, option.rpartition(".")[2]))
    above = [(s.parents.get(node), node) for s, node in uses]
    if any(isinstance(p, cst.Attribute) and p.value is n and p.attr.value in _OF_DEVICE for p, n in above):
        return False  # `type=torch.device`
    return any(is_text_there(facts, s, node) for s, node in uses) or any(_as_dict(facts))


def _uses(facts: Facts, name: str) -> Iterator[tuple[Source, cst.Attribute]]:
    for source in facts.project.files():
        for node in source.of(cst.Attribute):
            if node.attr.value == name and _is_namespace(facts, node.value):
                yield source, node


def _as_dict(facts: Facts) -> Iterator[cst.CSTNode]:
    """`vars(args)`, `args.__dict__`"""
    for source in facts.project.files():
        for node in source.of(cst.Attribute):
            if node.attr.value == "__dict__" and _is_namespace(facts, node.value):
                yield node
        for call in source.of(cst.Call):
            named = isinstance(call.func, cst.Name) and call.func.value == "vars" and len(call.args) == 1
            if named and _is_namespace(facts, call.args[0].value):
                yield call


def _is_namespace(facts: Facts, node: cst.BaseExpression) -> bool:
    return any(isinstance(o, Thing) and o.name == "namespace" for o in facts.flow.values.get(node, ()))
