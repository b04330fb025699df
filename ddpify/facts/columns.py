"""Steps that go on from a recurrent state in, the columns of the data that each rank can train on by itself out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.contents import data_of, modules
from ddpify.facts.dependencies import Binding, bindings, carried
from ddpify.facts.externals import role_of
from ddpify.facts.frames import Event
from ddpify.facts.levels import Level
from ddpify.facts.loops import uses_of
from ddpify.facts.roles import is_label, root
from ddpify.facts.rowwise import batch_dimension, is_recurrent, keeps_columns
from ddpify.facts.values import Func, Module
from ddpify.facts.whole import outer_tensors
from ddpify.source import Source, dotted, walk

if TYPE_CHECKING:
    from ddpify.facts import Facts

_ASKS = frozenset({"size", "shape", "device", "dtype", "numel"})
#: what computes over a dimension, of which it is not known that it is not the columns'
_MIXES = re.compile(
    r"\b(mean|sum|max|min|argmax|norm|normalize|std|var|bmm|matmul|mm|einsum|cumsum|sort|topk|cat|stack|flip|"
    r"softmax|log_softmax)\((?![^()]*(\([^()]*\)[^()]*)*\b(dim ?= ?)?-1 ?\))|\w @ \w|\bview\(.*size\(1\)"
)
#: `x.view(x.size(0) * x.size(1), -1)`: time and batch become one dimension
_FLAT = re.compile(
    r"\b(view|reshape)\((?P<x>[\w.]+)\.(size\(0\) ?\* ?(?P=x)\.size\(1\)|shape\[0\] ?\* ?(?P=x)\.shape\[1\]),"
)
#: what would put the columns elsewhere
_TURNS = re.compile(r"\.(t|transpose|permute|swapaxes|movedim)\(|\.m?T\b|BatchNorm")


@dataclass(frozen=True, eq=False)
class Columns:
    """`output, state = net(x[i : i + span], state)`: `x` is (time, batch), and every column goes on by itself.

    `batch` is the batch's dimension of the tensors: 0 of (batch, time), which `batch_first` layers take. Of the states
    it is 1 all the same.
    """

    level: Level
    loop: cst.For
    #: the tensors, by their names at the level
    names: tuple[str, ...]
    #: the places in the loop that read them
    reads: tuple[cst.Name | cst.Attribute, ...]
    #: the expressions that the state begins with
    states: tuple[cst.BaseExpression, ...]
    batch: int


def columns(facts: Facts, event: Event, way: list[Level]) -> Columns | None:
    """How the steps of a training forward can be shared out by columns, None where that could not be established."""
    loops = [(lv, lp.node) for lv in way for lp in lv.loops]
    found = [
        (lv, loop, left)
        for lv, loop in loops
        if isinstance(loop, (cst.For, cst.While)) and (left := carried(lv.names, loop, lv.frame.source))
    ]
    if not found or any(lv is not found[0][0] for lv, _, _ in found):
        return None
    level, loop, left = found[-1]  # the innermost loop that goes on
    names = {name for _, _, more in found for name, _ in more}
    batch = _batch_dimension(facts, event, loop) if isinstance(loop, cst.For) else None
    if not isinstance(loop, cst.For) or names != {n for n, _ in left} or batch is None:
        return None
    states = [_begins(facts, level, loop, name, names) for name in sorted(names)]
    begun = tuple(s for known in states if known is not None for s in known)
    if None in states or not begun or not _alike(facts, level, loop):
        return None
    tensors = [t for t in outer_tensors(facts, level, level.names) if t not in names]
    source = level.frame.source
    nodes = [n for n in walk(loop.body) if isinstance(n, (cst.Name, cst.Attribute))]
    reads = [n for n in nodes if dotted(n) in tensors and not is_label(source, n)]
    if not reads or not all(_cut_in_time(facts, source, n, batch) for n in reads):
        return None
    reads = [n for n in reads if not _counts(source, n, batch)]
    return Columns(level, loop, tuple(tensors), tuple(reads), begun, batch) if reads else None


def _batch_dimension(facts: Facts, event: Event, loop: cst.For) -> int | None:
    """The batch's dimension for models that compute each column by itself, the one with the state recurrent."""
    models: list[tuple[bool, list[Module]]] = []
    for e in facts.flow.log.of("forward"):
        inside = e.node in facts.roles.training_forwards and any(lp.node is loop for ls in e.all_loops() for lp in ls)
        for model in {root(m) for m in modules((e.obj,))} if inside and e.obj is not None else ():
            models.append((e.node is event.node, list(_parts(model, set()))))
    found = {batch_dimension(p) for _, parts in models for p in parts if is_recurrent(p)}
    batch = next(iter(found), 1)
    goes_on = any(mine and any(map(is_recurrent, parts)) for mine, parts in models)
    alone = len(found) == 1 and all(_keeps_columns(p, batch) for _, parts in models for p in parts)
    return batch if goes_on and alone else None


def _keeps_columns(module: Module, batch: int) -> bool:
    """A layer that computes each column by itself, or a class whose forward does nothing across dimensions."""
    if module.cls is None:
        return keeps_columns(module, batch)
    todo, done = ["forward"], set[str]()
    while todo:
        name = todo.pop()
        done.add(name)
        for func in module.cls.member(name):
            if not isinstance(func, Func) or not func.node.params.params:
                continue
            text, me = _FLAT.sub("view(-1,", func.source.code(func.node)), func.node.params.params[0].name.value
            flat = re.search(r"\b(view|reshape)\(-1,", text) is not None
            if _TURNS.search(text) or any(not (flat and "softmax" in m[0]) for m in _MIXES.finditer(text)):
                return False
            todo += [n for n in re.findall(rf"\b{me}\.(\w+)\(", text) if n not in done]
    return True


def _parts(module: Module, seen: set[int]) -> Iterator[Module]:
    if id(module) in seen:
        return
    seen.add(id(module))
    yield module
    for part in (p for value in (*module.fields.values(), *module.parts) for p in value):
        for inner in modules((part,)):
            yield from _parts(inner, seen)


def _begins(facts: Facts, level: Level, loop: cst.For, name: str, states: set[str]) -> list[cst.BaseExpression] | None:
    """What a state begins with; None where something else than the model and a cut of its history changes it."""
    source = level.frame.source
    forwards = {id(n) for n in facts.roles.training_forwards}
    own = [b for b in bindings(loop.body) if name in b.targets]
    local = frozenset().union(*(b.targets for b in bindings(loop.body))) - states
    if not any(_calls(b, forwards) for b in own):
        return None
    end = source.span(loop).start
    before = [b for b in bindings(level.frame.node) if name in b.targets and source.span(b.node).start < end]
    found: list[cst.BaseExpression] = []
    for b in (*before, *own):
        if _calls(b, forwards) or (b.reads & states and not b.reads & local and not b.keeps):
            continue  # output, state = net(x, state); state = state.detach()
        target = b.node.targets[0].target if isinstance(b.node, cst.Assign) and len(b.node.targets) == 1 else None
        if not isinstance(b.node, cst.Assign) or not isinstance(target, cst.Name) or b.reads & (local | states):
            return None
        if not (isinstance(b.node.value, cst.Name) and b.node.value.value == "None"):
            found.append(b.node.value)
    return found if before else None


def _calls(binding: Binding, forwards: set[int]) -> bool:
    return isinstance(binding.node, cst.Assign) and any(id(n) in forwards for n in walk(binding.node))


def _alike(facts: Facts, level: Level, loop: cst.For) -> bool:
    """Whether all ranks make the same steps, each of a loss that is a mean over the columns."""
    if _TURNS.search(level.frame.source.code(loop.body)):
        return False
    for e in facts.flow.log.of("external", "break"):
        if any(lp.node is loop for loops in e.all_loops() for lp in loops):
            tests = [n.test for n in e.under if isinstance(n, cst.If)]
            by_loss = any(data_of(facts.flow.values.get(t, ())) is not None for t in tests)
            if role_of(e.name) == "random" or (e.kind == "break" and by_loss and _of_model(facts, tests)):
                return False
    backwards = [b for b in facts.roles.backwards if any(lp.node is loop for loops in b.all_loops() for lp in loops)]
    kinds = [data_of(b.value) for b in backwards]
    return bool(kinds) and all(k is not None and k.agg == "mean" for k in kinds)


def _of_model(facts: Facts, tests: list[cst.BaseExpression]) -> bool:
    return any(getattr(o, "origins", None) for t in tests for o in facts.flow.values.get(t, ()))


def _cut_in_time(facts: Facts, source: Source, node: cst.CSTNode, batch: int, depth: int = 3) -> bool:
    """`x[i : i + span]`, `len(x)`, `x.size(0)`, or an argument of a function of the project that does no more."""
    above = source.parents.get(node)
    if isinstance(above, cst.Subscript) and above.value is node:
        parts = [e.slice for e in above.slice]
        time, rest = parts[1 - batch : 2 - batch], [p for at, p in enumerate(parts) if at != 1 - batch]
        whole = (isinstance(s, cst.Slice) and s.lower is None and s.upper is None and s.step is None for s in rest)
        return any(isinstance(t, cst.Slice) and t.step is None for t in time) and all(whole)
    if isinstance(above, cst.Attribute):
        return above.attr.value in _ASKS
    call = source.parents.get(above) if isinstance(above, cst.Arg) else None
    if not isinstance(above, cst.Arg) or not isinstance(call, cst.Call) or not depth:
        return False
    if isinstance(call.func, cst.Name) and call.func.value == "len":
        return True
    called = [o for o in facts.flow.values.get(call.func, ()) if isinstance(o, Func)]
    return bool(called) and all(_only_cuts(facts, f, _parameter(f, call, above), batch, depth) for f in called)


def _counts(source: Source, node: cst.CSTNode, batch: int) -> bool:
    """`len(x)`, `x.size(0)`, `x.shape[0]` of (time, batch): the same of a part of the columns."""
    above = source.parents.get(node)
    call = source.parents.get(above) if isinstance(above, (cst.Arg, cst.Attribute)) else None
    if isinstance(above, cst.Arg):
        return (
            batch == 1 and isinstance(call, cst.Call) and isinstance(call.func, cst.Name) and call.func.value == "len"
        )
    time = 1 - batch
    return call is not None and re.search(rf"\.(size\({time}\)|shape\[{time}\])$", source.code(call)) is not None


def _parameter(func: Func, call: cst.Call, arg: cst.Arg) -> str:
    if arg.star:
        return ""
    params = [p.name.value for p in func.node.params.params][1 if func.bound is not None else 0 :]
    if arg.keyword is not None:
        return arg.keyword.value
    at = call.args.index(arg)
    return params[at] if at < len(params) and not any(a.star for a in call.args[:at]) else ""


def _only_cuts(facts: Facts, func: Func, name: str, batch: int, depth: int) -> bool:
    uses = (
        [n for n in uses_of(func.node, name) if not isinstance(func.source.parents.get(n), cst.Param)] if name else []
    )
    turned = _TURNS.search(func.source.code(func.node)) is not None
    return bool(uses) and not turned and all(_cut_in_time(facts, func.source, n, batch, depth - 1) for n in uses)
