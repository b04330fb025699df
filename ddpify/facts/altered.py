"""A training loop in, the objects out that it changes by values of its batches, also in functions that it calls."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.contents import origins
from ddpify.facts.definitions import argument_of
from ddpify.facts.dependencies import Binding, bindings, bound_names, carried, closure, named, read_names
from ddpify.facts.frames import Event, Frame
from ddpify.facts.loops import LoopFacts, uses_of
from ddpify.facts.outside import made_by
from ddpify.facts.values import (
    Data,
    Dataset,
    Dict,
    FromBatch,
    FromForward,
    Func,
    Instance,
    Iteration,
    Loader,
    Module,
    Obj,
    Optimizer,
    Parameters,
    Scheduler,
    Seq,
    StateDict,
    Value,
    Wrapped,
)
from ddpify.source import walk

if TYPE_CHECKING:
    from ddpify.facts import Facts

#: events that change something by other ways than statements of the loop
OTHERWISE = ("call", "external", "method")
#: methods of lists, sets, dicts and counters that change them
_FILLS = frozenset({"append", "appendleft", "extend", "insert", "add", "update", "setdefault", "push"})
#: functions of numpy that change what they are given first
_CHANGES = re.compile(r"numpy\.(\w+\.at|put|put_along_axis|copyto|place|putmask)")
#: what makes an array: `torch.zeros`
_ARRAY = re.compile(r"(torch|numpy)\.\w+")
_NO_NUMBERS = (Module, Wrapped, Optimizer, Scheduler, Parameters, StateDict, Loader, Dataset, Iteration, Instance)
#: methods with a `_` that change no numbers
_OTHERS = frozenset({"requires_grad_", "detach_", "share_memory_", "zero_"})


def altered(facts: Facts, loop: LoopFacts, by: tuple[str, ...] = ()) -> list[str]:
    """`hits` of `hits[y] += 1`, `hits.index_add_(0, y, ok)` and `count(hits, y)`, where it was there before the loop.

    `by`: only by events of these kinds.
    """
    inside = {id(n) for n in walk(loop.node.body)}
    events = [e for e in loop.frame.events if id(e.node) in inside and (not by or e.kind in by)]
    return [name for name in _changed(facts, loop, loop.frame, events, set()) if goes_on(loop, name)]


def goes_on(loop: LoopFacts, name: str) -> bool:
    """Whether a pass has what the pass before it left: not `x`, which the loop sets anew for each batch."""
    parts = name.split(".")
    owners = [".".join(parts[: at + 1]) for at in range(len(parts))]
    if set(owners) & {n.split(".")[0] for n in bound_names(loop.node.target)}:
        return False
    body = bindings(loop.node.body)
    anew = [o for o in owners if any(o in b.targets and not b.keeps for b in body)]
    return all(carried(frozenset({o}), loop.node, loop.source) for o in anew)


def _changed(facts: Facts, loop: LoopFacts, frame: Frame, events: Iterable[Event], seen: set[int]) -> list[str]:
    """The names of what these events change, as they are called in their frame."""
    found: dict[str, None] = {}
    for e in events:
        if e.kind == "call" and e.callee is not None:
            if id(e.callee) not in seen:
                found.update(dict.fromkeys(_by_call(facts, loop, e, e.callee, seen | {id(frame)})))
            continue
        node = _holder(e, loop.frame)
        if node is None or not named(node) or not _is_plain(facts, node):
            continue
        if any(of_shard(facts, loop, v) for v in _put(facts, e)):
            found[frame.source.code(node)] = None
    return list(found)


def _by_call(facts: Facts, loop: LoopFacts, e: Event, callee: Frame, seen: set[int]) -> Iterator[str]:
    """What a function changes of what it is given, of its object, or of the module that it stands in."""
    for name in _changed(facts, loop, callee, callee.events, seen):
        base, dot, rest = name.partition(".")
        owner = e.node.func.value if isinstance(e.node, cst.Call) and isinstance(e.node.func, cst.Attribute) else None
        if base == _me(callee) and rest:
            if owner is not None and named(owner):
                yield e.frame.source.code(owner) + dot + rest
        elif base in callee.arguments and base not in callee.assigned:
            given = argument_of(e.node, callee, base)
            if given is not None and named(given):
                yield e.frame.source.code(given) + dot + rest
        elif base not in callee.assigned and callee.source is e.frame.source and base in callee.scope.module.names:
            yield name


def _me(frame: Frame) -> str:
    """`self` of a method that runs."""
    params = frame.func.node.params.params if frame.func is not None and frame.func.bound is not None else ()
    return params[0].name.value if params else ""


def _holder(e: Event, top: Frame) -> cst.BaseExpression | None:
    """`hits` of `hits[y] += 1`, `hits.add_(n)`, `hits[c].append(p)`, `np.add.at(hits, y, 1)`."""
    node: cst.CSTNode | None = None
    match e.kind, e.node:
        case "store", cst.Subscript(value=node):
            pass
        case "augment", cst.AugAssign(target=cst.Subscript(value=node) | (cst.Attribute() as node)):
            pass
        case "augment", cst.AugAssign(target=cst.Name() as name):
            # of an array that is a parameter, the caller's is changed
            given = name.value in e.frame.arguments and name.value not in _rebound(e.frame)
            node = name if given or e.frame is top else None
        case "method", cst.Call(func=cst.Attribute(value=node)) if e.name in _FILLS or _in_place(e.name):
            if not _is_of_numbers(e.obj):
                return None
        case "external", cst.Call(args=[cst.Arg(value=node), *_]) if _CHANGES.fullmatch(e.name):
            pass
    while isinstance(node, cst.Subscript):
        node = node.value
    return node if isinstance(node, cst.BaseExpression) else None


def _in_place(method: str) -> bool:
    return method.endswith("_") and not method.startswith("_") and method not in _OTHERS


def _rebound(frame: Frame) -> set[str]:
    """The parameters that a function sets: what they are then is no object of the caller's."""
    return {n for b in bindings(frame.node) if not b.keeps for n in b.targets}


def _is_plain(facts: Facts, node: cst.CSTNode) -> bool:
    """Numbers, tensors, lists and dicts, as far as is known: no model, optimizer, loader or writer."""
    held = facts.flow.values.get(node, ())
    return any(map(_is_of_numbers, held)) and not any(isinstance(o, _NO_NUMBERS) for o in held)


def _is_of_numbers(obj: Obj | None) -> bool:
    return isinstance(obj, (Data, Seq, Dict)) or _ARRAY.fullmatch(made_by(obj)) is not None


def _put(facts: Facts, e: Event) -> Iterator[Value]:
    """What is put in, and where: a count by label is one of the batch's, whatever is added."""
    yield from (e.value, *e.extra.values())
    target = e.node.target if isinstance(e.node, cst.AugAssign) else e.node
    if isinstance(e.stmt, (cst.Assign, cst.AugAssign)):
        yield from _given(facts, e.stmt.value)
    while isinstance(target, (cst.Subscript, cst.Call, cst.Attribute)):  # hits[y][p] += 1, hits[y].append(p)
        if isinstance(target, cst.Subscript):
            for part in target.slice:
                inner = part.slice.value if isinstance(part.slice, cst.Index) else None
                yield facts.flow.values.get(inner, ()) if inner is not None else ()
        target = target.func if isinstance(target, cst.Call) else target.value


def _given(facts: Facts, node: cst.BaseExpression) -> Iterator[Value]:
    """What the functions of the project in an expression are given: an array of counts says less."""
    for call in (n for n in (node, *walk(node)) if isinstance(n, cst.Call)):
        if any(isinstance(o, Func) for o in facts.flow.values.get(call.func, ())):
            yield from (facts.flow.values.get(a.value, ()) for a in call.args)


def of_shard(facts: Facts, loop: LoopFacts, value: Value) -> bool:
    """Whether a value comes of the batches that the loop trains on, of which each rank has its own."""
    return any(
        (isinstance(o, FromBatch) and o.loader is loop.loader)
        or (isinstance(o, FromForward) and o.node in facts.roles.training_forwards)
        for o in origins(value)
    )


def seen_outside(facts: Facts, loop: LoopFacts, name: str) -> bool:
    """Whether what a function changes of its arguments, or of its module, is used where it is not."""
    return _seen_outside(facts, loop.frame, name.partition(".")[0].partition("[")[0], set())


def _seen_outside(facts: Facts, frame: Frame, name: str, seen: set[int]) -> bool:
    if frame.func is None or id(frame) in seen:
        return False
    if name in frame.arguments and name not in _rebound(frame):
        for entry in frame.entries:
            given = argument_of(entry.call, frame, name)
            base = next((n for n in walk(given) if isinstance(n, cst.Name)), None) if given is not None else None
            given = given if isinstance(given, cst.Name) else base
            if not isinstance(given, cst.Name):
                continue
            inside = {id(n) for n in walk(entry.call)}
            source = entry.frame.source
            uses = (n for n in uses_of(entry.frame.node, given.value) if id(n) not in inside)
            if any(not isinstance(source.parents.get(n), (cst.AssignTarget, cst.Param)) for n in uses):
                return True
            if _seen_outside(facts, entry.frame, given.value, seen | {id(frame)}):
                return True
        return False
    if name in frame.assigned and name not in frame.scope.outer:
        return False
    mine = {id(n) for n in walk(frame.node)}
    uses = (n for n in walk(frame.source.module) if isinstance(n, cst.Name) and n.value == name and id(n) not in mine)
    return any(not isinstance(frame.source.parents.get(n), cst.AssignTarget) for n in uses)


def chosen_anew(facts: Facts, loop: LoopFacts) -> list[str]:
    """`worst` of `worst = max(worst, loss.item())`, `hits` of `hits = count(hits, y)`: a pass goes on from the last."""
    body = bindings(loop.node.body)
    names = {n for b in body for n in b.targets if _of_batches(facts, loop, b)} - fed(loop)
    return sorted({name for name, _ in carried(frozenset(names), loop.node, loop.source)})


def fed(loop: LoopFacts) -> frozenset[str]:
    """What goes into the forwards of a loop: `hidden` of `output, hidden = model(data, hidden)` is no number."""
    inside = {id(n) for n in walk(loop.node.body)}
    forwards = [e for e in loop.frame.events if e.kind == "forward" and id(e.node) in inside]
    return closure({n for e in forwards for n in read_names(e.node)}, bindings(loop.node.body))


def _of_batches(facts: Facts, loop: LoopFacts, binding: Binding) -> bool:
    value = binding.node.value if isinstance(binding.node, cst.Assign) else None
    if value is None or binding.keeps:
        return False
    held = facts.flow.values.get(value, ())
    return all(map(_is_of_numbers, held)) and any(of_shard(facts, loop, v) for v in (held, *_given(facts, value)))
