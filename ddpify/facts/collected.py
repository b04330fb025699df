"""A training loop in, the lists, meters and dicts that keep its batches' numbers out: one rank's own, of its shard."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.contents import data_of, origins
from ddpify.facts.dependencies import Binding, bindings, closure, named
from ddpify.facts.frames import Event
from ddpify.facts.loops import LoopFacts, loaded_after, read_after, uses_of
from ddpify.facts.values import Dict, Ext, FromBatch, FromForward, Func, Instance, Seq, Thing
from ddpify.source import Source, walk

if TYPE_CHECKING:
    from ddpify.facts import Facts


def collected(facts: Facts, loop: LoopFacts) -> list[str]:
    """What holds numbers of the batches and is used behind the loop: `losses` of `losses.append(loss.item())`."""
    inside = {id(n) for n in walk(loop.node.body)}
    found: list[str] = []
    for e in loop.frame.events:
        if id(e.node) not in inside:
            continue
        holder = holder_of(e)
        if holder is None or not _of_batches(facts, e):
            continue
        while isinstance(holder, cst.Subscript):
            holder = holder.value  # kept[index]["x"]
        text = loop.source.code(holder)
        if text not in found and read_after(loop, text, inside):
            found.append(text)
    return found


def left_over(facts: Facts, loop: LoopFacts) -> list[str]:
    """`mean` of `mean = total / (i + 1)` in the loop, used behind it: made of sums that are one rank's own there.

    Also a running average, `mean = 0.9 * mean + 0.1 * loss.item()`.
    """
    inside = {id(n) for n in walk(loop.node.body)}
    sums = {a.target for a in loop.accumulators if a.agg != "const"}
    bound = list(bindings(loop.node.body))
    names = sorted({n for b in bound for n in b.targets} - {a.target for a in loop.accumulators})
    return [
        name
        for name in names
        if (closure([name], bound) & sums or any(_goes_on(facts, b, name) for b in bound))
        and read_after(loop, name, inside)
        and loaded_after(loop, name, inside)
    ]


def _goes_on(facts: Facts, binding: Binding, name: str) -> bool:
    """`mean = 0.9 * mean + 0.1 * loss.item()`, also `... if mean is None else ...`: a number, no state of a model."""
    value = binding.node.value if isinstance(binding.node, cst.Assign) else None
    if not isinstance(value, (cst.BinaryOperation, cst.IfExp)) or name not in binding.targets & binding.reads:
        return False
    held = facts.flow.values.get(value, ())
    known = data_of(held)
    tensor = known is not None and known.form == "tensor"
    return not tensor and any(isinstance(o, FromForward) for o in origins(held))


def mean_lists(facts: Facts, loop: LoopFacts) -> list[str]:
    """`losses` of `losses.append(loss.item())`: lists that get one mean of a batch in each pass, and nothing else."""
    inside = {id(n) for n in walk(loop.node.body)}
    direct = {id(line) for line in loop.node.body.body}
    found: dict[str, bool] = {}
    for e in loop.frame.events:
        holder = holder_of(e) if id(e.node) in inside else None
        if holder is None:
            continue
        values = [data_of(facts.flow.values.get(node, ())) for node in given_to(e)]
        one = values[0] if len(values) == 1 else None
        one_mean = (
            one is not None
            and one.form in ("float", "number")
            and (one.agg == "mean" or (one.agg == "other" and _only_averaged(facts, loop, loop.source.code(holder))))
        )
        once = id(loop.source.parents.get(e.stmt)) in direct
        is_list = e.kind == "method" and e.name == "append" and isinstance(e.obj, Seq) and named(holder)
        text = loop.source.code(holder)
        found[text] = found.get(text, True) and is_list and one_mean and once
    return [text for text, good in found.items() if good]


def _only_averaged(facts: Facts, loop: LoopFacts, name: str) -> bool:
    """`np.mean(hits)`, `sum(hits) / len(hits)`: then entries that are averaged over the ranks give the mean of all."""
    source, end = loop.source, loop.source.span(loop.node.body).end
    uses = [n for n in uses_of(loop.frame.node, name) if source.span(n).start > end]
    return bool(uses) and all(_averages(facts, source, n) for n in uses)


def _averages(facts: Facts, source: Source, node: cst.Name) -> bool:
    arg = source.parents.get(node)
    call = source.parents.get(arg) if isinstance(arg, cst.Arg) else None
    if not isinstance(call, cst.Call):
        return False
    called = {o.name for o in facts.flow.values.get(call.func, ()) if isinstance(o, Ext)}
    if called & {"numpy.mean", "numpy.average", "statistics.mean", "statistics.fmean"}:
        return True
    parent = source.parents.get(call)
    return (
        bool(called & {"builtins.sum", "builtins.len"})
        and isinstance(parent, cst.BinaryOperation)
        and isinstance(parent.operator, cst.Divide)
        and source.code(parent) == f"sum({node.value}) / len({node.value})"
    )


def holder_of(event: Event) -> cst.BaseExpression | None:
    """What a number is put into."""
    node = event.node
    match event.kind:
        case "method" if event.name in ("append", "extend", "update", "add"):
            if isinstance(event.obj, (Seq, Dict, Thing)) and isinstance(node, cst.Call):
                return node.func.value if isinstance(node.func, cst.Attribute) else None
        case "call" if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
            # meter.update(loss.item(), n) of a class of the project
            meter = isinstance(event.obj, Func) and isinstance(event.obj.bound, Instance)
            if meter and event.callee is not None and any(e.kind in ("set", "augment") for e in event.callee.events):
                return node.func.value
        case "store" if isinstance(node, cst.Subscript):
            return node.value
        case "augment" if isinstance(node, cst.AugAssign) and isinstance(node.target, cst.Subscript):
            return node.target.value
    return None


def given_to(event: Event) -> list[cst.BaseExpression]:
    """What is put into the holder."""
    if isinstance(event.node, cst.AugAssign):
        return [event.node.value]
    return [a.value for a in event.node.args] if isinstance(event.node, cst.Call) else []


def _of_batches(facts: Facts, event: Event) -> bool:
    values = [facts.flow.values.get(node, ()) for node in given_to(event)]
    if event.kind == "store":
        values.append(event.value)
    return any(isinstance(o, (FromBatch, FromForward)) for v in values for o in origins(v))
