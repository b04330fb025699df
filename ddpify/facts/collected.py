"""A training loop in, the lists, meters and dicts that keep its batches' numbers out: one rank's own, of its shard."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.altered import OTHERWISE, altered, chosen_anew, seen_outside
from ddpify.facts.contents import data_of, is_of_batches, origins
from ddpify.facts.dependencies import Binding, bindings, closure, named, read_names
from ddpify.facts.frames import Event, Frame
from ddpify.facts.loops import LoopFacts, loaded_after, read_after, uses_of
from ddpify.facts.starts import base_of, same_object
from ddpify.facts.values import Data, Dict, Ext, FromBatch, FromForward, Func, Instance, Seq, Thing, Value
from ddpify.source import Source, walk

if TYPE_CHECKING:
    from ddpify.facts import Facts

_TOGETHER = frozenset(
    [f"torch.{n}" for n in ("cat", "concat", "concatenate", "hstack", "vstack", "stack")]
    + [f"numpy.{n}" for n in ("append", "concatenate", "hstack", "vstack", "stack", "r_", "c_")]
)


def collected(facts: Facts, loop: LoopFacts, needed: frozenset[str] = frozenset()) -> list[str]:
    """What holds numbers of the batches and is used behind the loop: `losses` of `losses.append(loss.item())`.

    Or is `needed` there.
    """
    inside = {id(n) for n in walk(loop.node.body)}
    return [text for text in holders(facts, loop) if text in needed or _is_used(facts, loop, text, inside)]


def holders(facts: Facts, loop: LoopFacts) -> list[str]:
    """What holds numbers of the batches, used behind the loop or not; the loop's sums are looked at by name."""
    inside = {id(n) for n in walk(loop.node.body)}
    found: list[str] = []
    for e in loop.frame.events:
        if id(e.node) in inside:
            found += [*_changed(facts, loop, e), *_grown(facts, loop, e)]
    sums = {a.target for a in loop.accumulators}
    entries = {base_of(name) for name in sums} - sums
    otherwise = altered(facts, loop, by=OTHERWISE) if entries else []
    for text in altered(facts, loop):
        known = text in sums or (text in entries and text not in otherwise)
        if not known and not any(text.startswith(f"{name}.") for name in found):
            found.append(text)
    return list(dict.fromkeys(found))


def _is_used(facts: Facts, loop: LoopFacts, text: str, inside: set[int]) -> bool:
    """Behind the loop, or by those who gave it to the function, or elsewhere in the module that it belongs to."""
    return read_after(loop, text, inside) or seen_outside(facts, loop, text)


def _changed(facts: Facts, loop: LoopFacts, event: Event) -> list[str]:
    """What gets a number of a batch there; nothing where it is one of the loop's sums, which are looked at by name."""
    sums = {a.target for a in loop.accumulators}
    node = event.stmt.target if isinstance(event.stmt, cst.AugAssign) else event.node
    if loop.source.code(node) in sums or not _of_batches(facts, loop, event):
        return []
    if event.kind == "call" and event.callee is not None and same_object(loop.frame, event):
        return [text for text in _own_numbers(event.callee, set()) if text not in sums]
    holder = holder_of(event)
    while isinstance(holder, cst.Subscript):
        holder = holder.value  # kept[index]["x"]
    return [loop.source.code(_picked_from(loop, holder))] if holder is not None else []


def _grown(facts: Facts, loop: LoopFacts, event: Event) -> list[str]:
    """`preds` of `preds += list(out)` and of `preds = torch.cat([preds, out])`: no number, and longer in each pass."""
    stmt = event.stmt
    if event.kind == "augment" and isinstance(stmt, cst.AugAssign):
        name = loop.source.code(stmt.target) if named(stmt.target) else ""
        known = data_of(facts.flow.values.get(stmt.value, ()))
        grows = known is None or known.form not in ("int", "float", "number", "tensor", "bool")
        grows = grows and is_of_batches(facts.flow.values.get(stmt.value, ()))
    elif event.kind == "bind" and isinstance(stmt, cst.Assign):
        name, put = event.name, [n for n in walk(stmt.value) if isinstance(n, cst.Call) and _puts_together(facts, n)]
        grows = any(name in read_names(n) and is_of_batches(facts.flow.values.get(n, ())) for n in put)
    else:
        return []
    return [name] if grows and name not in {a.target for a in loop.accumulators} else []


def _puts_together(facts: Facts, call: cst.Call) -> bool:
    return any(isinstance(o, Ext) and o.name in _TOGETHER for o in facts.flow.values.get(call.func, ()))


def _picked_from(loop: LoopFacts, holder: cst.BaseExpression) -> cst.BaseExpression:
    """`metrics` of `for metric in metrics: metric(out, y)` in the loop."""
    for above in loop.source.ancestors(holder):
        if above is loop.node:
            break
        if isinstance(above, cst.For) and above.target.deep_equals(holder) and named(above.iter):
            return above.iter
    return holder


def _own_numbers(frame: Frame, seen: set[int]) -> list[str]:
    """`self.last` of `self.last = loss.item()` in a method, and `self.losses` of `self.losses.append(...)`."""
    found: list[str] = []
    seen.add(id(frame))
    for e in frame.events:
        if e.callee is not None and id(e.callee) not in seen and same_object(frame, e):
            found += _own_numbers(e.callee, seen)
            continue
        known = data_of(e.value)
        holder = e.node if e.kind in ("set", "augment") else holder_of(e) if e.kind == "method" else None
        holder = holder.target if isinstance(holder, cst.AugAssign) else holder
        number = e.kind == "method" or (known is not None and known.form in ("int", "float", "number"))
        if isinstance(holder, cst.Attribute) and number and any(is_of_batches(v) for v in (e.value, *e.extra.values())):
            found.append(frame.source.code(holder))
    return found


def left_over(facts: Facts, loop: LoopFacts) -> list[str]:
    """`mean` of `mean = total / (i + 1)` in the loop, used behind it: made of sums or lists that are one rank's own.

    Also a running average, `mean = 0.9 * mean + 0.1 * loss.item()`.
    """
    inside = {id(n) for n in walk(loop.node.body)}
    gathered = set(holders(facts, loop))
    sums = {a.target for a in loop.accumulators if a.agg != "const"} | gathered
    bound = list(bindings(loop.node.body))
    names = sorted({n for b in bound for n in b.targets} - {a.target for a in loop.accumulators} - gathered)
    anew = chosen_anew(facts, loop)
    return [
        name
        for name in names
        if (closure([name], bound) & sums or any(_goes_on(facts, b, name) for b in bound) or name in anew)
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
    return [text for text, good in _appended(facts, loop).items() if good]


def holders_of_lists(facts: Facts, loop: LoopFacts) -> set[str]:
    """`history` of `history["loss"].append(loss.item())`, where all that it gets is such means."""
    found = _appended(facts, loop)
    return {base_of(text) for text in found} - {base_of(text) for text, good in found.items() if not good}


def _appended(facts: Facts, loop: LoopFacts) -> dict[str, bool]:
    """What gets something in a pass, and whether that is one mean of a batch."""
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
        is_list = e.kind == "method" and e.name == "append" and isinstance(e.obj, (Seq, Data)) and _is_fixed(holder)
        text = loop.source.code(holder)
        found[text] = found.get(text, True) and is_list and one_mean and once
    return found


def _is_fixed(node: cst.BaseExpression) -> bool:
    """`losses`, `self.losses`, `history["train"]["loss"]`: the same list in each pass."""
    while isinstance(node, cst.Subscript):
        index = node.slice[0].slice if len(node.slice) == 1 else None
        if not isinstance(index, cst.Index) or not isinstance(index.value, (cst.SimpleString, cst.Integer)):
            return False
        node = node.value
    return named(node)


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
            # defaultdict(list)["loss"].append(...): what is in there could not be followed
            loose = isinstance(event.obj, Data) and event.obj.form == "any" and isinstance(node, cst.Call)
            func = node.func if isinstance(node, cst.Call) else None
            entry = isinstance(func, cst.Attribute) and isinstance(func.value, cst.Subscript)
            loose = loose and (event.name in ("append", "extend") or entry)
            if (loose or isinstance(event.obj, (Seq, Dict, Thing))) and isinstance(node, cst.Call):
                return node.func.value if isinstance(node.func, cst.Attribute) else None
        case "call" if isinstance(node, cst.Call):
            # meter.update(loss.item(), n) of a class of the project, or meter(loss.item(), n)
            meter = isinstance(event.obj, Func) and isinstance(event.obj.bound, Instance)
            if meter and event.callee is not None and _keeps(event.callee):
                if event.name == "__call__":
                    return node.func
                return node.func.value if isinstance(node.func, cst.Attribute) else None
        case "store" if isinstance(node, cst.Subscript):
            return node.value
        case "augment" if isinstance(node, cst.AugAssign) and isinstance(node.target, cst.Subscript):
            return node.target.value
    return None


def _keeps(callee: Frame, depth: int = 2) -> bool:
    """Whether a method changes its object, or one that it holds: `self.meters[name].update(value)`."""
    params = callee.func.node.params.params[:1] if callee.func is not None else ()
    me = {p.name.value for p in params}
    for e in callee.events:
        if e.kind in ("set", "augment"):
            return True
        held: cst.CSTNode | None = e.node.func if depth and isinstance(e.node, cst.Call) else None
        while isinstance(held, (cst.Attribute, cst.Subscript)):
            held = held.value
        mine = isinstance(held, cst.Name) and held.value in me
        if mine and e.kind == "call" and e.callee is not None and _keeps(e.callee, depth - 1):
            return True
    return False


def given_to(event: Event) -> list[cst.BaseExpression]:
    """What is put into the holder."""
    if isinstance(event.node, cst.AugAssign):
        return [event.node.value]
    return [a.value for a in event.node.args] if isinstance(event.node, cst.Call) else []


def _of_batches(facts: Facts, loop: LoopFacts, event: Event) -> bool:
    values = [facts.flow.values.get(node, ()) for node in given_to(event)]
    if event.kind == "store":
        values.append(event.value)
    target: cst.CSTNode | None = event.node.target if isinstance(event.node, cst.AugAssign) else None
    while isinstance(target, cst.Subscript):  # counts[label] += 1
        values += [facts.flow.values.get(i.slice.value, ()) for i in target.slice if isinstance(i.slice, cst.Index)]
        target = target.value
    return any(is_of_batches(v) and not _is_of_an_evaluation(facts, loop, v) for v in values)


def _is_of_an_evaluation(facts: Facts, loop: LoopFacts, value: Value) -> bool:
    """`scheduler(optimizer, i, epoch, self.best)` in the steps: what an evaluation has found is no number of theirs."""
    read = {o.loader for o in origins(value) if isinstance(o, FromBatch)}
    return bool(read) and loop.loader not in read and not read & set(facts.roles.training_loaders)
