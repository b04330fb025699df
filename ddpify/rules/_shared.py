"""What several rules write: a sum over all ranks, a mean over them, a loop that is out of reach."""

from __future__ import annotations

import libcst as cst

from ddpify.edits import AddHelper, AddImport, Edit, Surround
from ddpify.errors import Seen
from ddpify.facts import Facts
from ddpify.facts.frames import Frame
from ddpify.facts.setup import reduce_options
from ddpify.facts.trails import shown
from ddpify.facts.values import Wrapped
from ddpify.rules._base import Finding, Rule
from ddpify.source import Source, walk


def times_world_size(facts: Facts, source: Source, loss: cst.BaseExpression) -> tuple[Edit, ...]:
    """`(loss * dist.get_world_size()).backward()`: DDP averages over ranks what one process would add up."""
    return times(source, loss, f"{facts.names_of(source)['dist']}.get_world_size()"), AddImport(source, "dist")


def times(source: Source, loss: cst.BaseExpression, factor: str) -> Edit:
    """`(loss * factor).backward()`"""
    simple = isinstance(loss, (cst.Name, cst.Attribute, cst.Call, cst.Subscript))
    before, after = ("(", f" * {factor})") if simple else ("((", f") * {factor})")
    return Surround(source, loss, before, after)


def mean_helpers(facts: Facts, source: Source, options: frozenset[str] = frozenset()) -> tuple[Edit, ...]:
    """`all_reduce_mean`, and the sum that it is made of."""
    return (
        AddHelper(source, "all_reduce_mean"),
        AddHelper(source, "all_reduce_sum", reduce_options(facts) | options),
    )


def behind_wrapper(facts: Facts, frame: Frame, target: str) -> str:
    """`net.module.losses` for the `net.losses` that a loop fills: by then the name holds the wrapper."""
    for node in walk(frame.node):
        if not isinstance(node, cst.Attribute) or not target.startswith(code := frame.source.code(node)):
            continue
        held = facts.after.values.get(node.value, ())
        if target[len(code) :][:1] in ("", ".", "[") and held and all(isinstance(o, Wrapped) for o in held):
            base = frame.source.code(node.value)
            return target if node.attr.value == "module" else f"{base}.module{target[len(base) :]}"
    return target


def loop_elsewhere(rule: Rule, source: Source, loop: cst.CSTNode) -> Finding:
    """The refusal of a training loop in a file that gets no changed copy."""
    return rule.finding(
        source,
        loop,
        f"the training loop `{shown(source, loop)}` stands in a file of which ddpify makes no changed copy",
        refuse=Seen(shown(source, loop)),
        left="Move the loop into a module of its own or into the script",
    )
