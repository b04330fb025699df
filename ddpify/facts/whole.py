"""Steps that train on whole tensors in, which of their rows can be shared out over the ranks out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.dependencies import bindings, bound_names, read_names
from ddpify.facts.externals import role_of
from ddpify.facts.frames import Event
from ddpify.facts.levels import Level, levels
from ddpify.facts.rowwise import mixes_rows
from ddpify.facts.values import Data, Ext, FromForward, Module, Thing, Value, Wrapped
from ddpify.source import Source, dotted, walk

if TYPE_CHECKING:
    from ddpify.facts import Facts


@dataclass(frozen=True, eq=False)
class Unshared:
    """The batches cannot be shared out: where, why, and what to do about it."""

    source: Source
    node: cst.CSTNode
    why: str
    remedy: str


_NAMES = (cst.Name, cst.Attribute)


@dataclass(frozen=True, eq=False)
class Shown:
    """An output of the training forward that is used for more than the loss: by its name, and where."""

    source: Source
    name: str
    uses: tuple[cst.Name | cst.Attribute, ...]


@dataclass(frozen=True, eq=False)
class Rows:
    """Every step trains on the same tensors, whole: each rank can compute its own rows of them."""

    level: Level
    #: the tensors, by their names at the level
    names: tuple[str, ...]
    #: the places at which the training step reads them
    reads: tuple[cst.Name | cst.Attribute, ...]
    shown: tuple[Shown, ...]
    backwards: tuple[Event, ...]


def whole_rows(facts: Facts, event: Event, level: Level, first: Unshared) -> Rows | Unshared:
    """How the rows of a step that trains on whole tensors can be shared out."""
    module = event.obj.module[0] if isinstance(event.obj, Wrapped) and event.obj.module else event.obj
    given = _tensors(facts, level, level.names)
    if not given or not isinstance(module, Module):
        return first
    mixed = mixes_rows(facts, module)
    if mixed is not None:
        why = f"every step trains on all of {quoted(given)}, and {mixed.why}: the rows of one step belong together"
        return Unshared(mixed.source, mixed.node, why, "give the model batches that can be computed apart")
    loop = level.loops[0].node
    backwards = tuple(
        b
        for b in facts.roles.backwards
        if b.seq < facts.flow.main_end and any(lp.node is loop for loops in b.all_loops() for lp in loops)
    )
    needed, names = level.names, list(given)
    for b in backwards:
        for lv in levels(facts, b, _loss_names(b)):
            needed |= lv.names
            if lv.frame is level.frame:
                names.extend(n for n in _tensors(facts, lv, lv.names) if n not in names)
    steps = _training_statements(facts, level, needed)
    reads = [n for s in steps for n in walk(s) if isinstance(n, _NAMES) and dotted(n) in names and _is_read(level, n)]
    odd = next((n for n in reads if not _plain_use(facts, level.frame.source, n)), None)
    if odd is not None:
        why = f"what line {level.frame.source.line(odd)} does with `{dotted(odd)}` could not be followed row by row"
        return Unshared(
            level.frame.source, odd, f"every step trains on all of {quoted(names)}, and {why}", first.remedy
        )
    return Rows(level, tuple(names), tuple(reads), tuple(_shown(facts, level, steps)), backwards)


def quoted(names: Sequence[str]) -> str:
    """`x` and `y`, in a sentence."""
    return " and ".join(f"`{n}`" for n in names)


def _loss_names(event: Event) -> frozenset[str]:
    """The names in `loss` of `loss.backward()`."""
    func = event.node.func if isinstance(event.node, cst.Call) else None
    return read_names(func.value if isinstance(func, cst.Attribute) else event.node)


def _tensors(facts: Facts, level: Level, names: frozenset[str]) -> list[str]:
    """The names that hold tensors from before the loop, in the order in which the loop reads them."""
    inside = {t for b in bindings(level.body) for t in b.targets}
    found: dict[str, None] = {}
    for node in walk(level.body):
        known = isinstance(node, (cst.Name, cst.Attribute)) and dotted(node) in names - inside
        if known and _holds_data(facts.flow.values.get(node, ())):
            found[dotted(node)] = None
    return list(found)


def _holds_data(value: Value) -> bool:
    return bool(value) and all(
        (isinstance(o, Data) and o.form in ("tensor", "any")) or (isinstance(o, Thing) and o.name in ("", "loaded"))
        for o in value
    )


def _training_statements(facts: Facts, level: Level, needed: frozenset[str]) -> list[cst.CSTNode]:
    """The statements that lead from the tensors to the backward, those of functions inside the loop included."""
    forwards = {id(n) for n in facts.roles.training_forwards}
    backwards = {id(b.node) for b in facts.roles.backwards}
    found: list[cst.CSTNode] = []
    for node in walk(level.body):
        if isinstance(node, (cst.Assign, cst.AnnAssign, cst.AugAssign)):
            targets = [t.target for t in node.targets] if isinstance(node, cst.Assign) else [node.target]
            bound = frozenset().union(*(bound_names(t) for t in targets))
            if bound & needed or any(id(n) in forwards for n in walk(node)):
                found.append(node)
        elif isinstance(node, cst.BaseSmallStatement) and any(id(n) in backwards | forwards for n in walk(node)):
            found.append(node)
    return found


def _is_read(level: Level, node: cst.Name | cst.Attribute) -> bool:
    """Not an attribute, a keyword, or a parameter of that name."""
    source = level.frame.source
    parent = source.parents.get(node)
    if (isinstance(parent, cst.Attribute) and parent.attr is node) or (
        isinstance(parent, cst.Arg) and parent.keyword is node
    ):
        return False
    base = dotted(node).split(".")[0]
    return not any(
        isinstance(a, cst.FunctionDef) and any(p.name.value == base for p in a.params.params)
        for a in takewhile(lambda a: a is not level.body, source.ancestors(node))
    )


def _shown(facts: Facts, level: Level, steps: list[cst.CSTNode]) -> Iterator[Shown]:
    """`prediction = out.argmax(1)`, `plt.plot(x, out)`: outputs that are used outside the training statements."""
    training = {id(n) for s in steps for n in walk(s)}
    outputs = {dotted(n) for s in steps for n in walk(s) if isinstance(n, _NAMES) and _is_target(level, n)}
    found: dict[str, list[cst.Name | cst.Attribute]] = {}
    for node in walk(level.body):
        named = isinstance(node, _NAMES) and dotted(node) in outputs and id(node) not in training
        if isinstance(node, _NAMES) and named and _is_read(level, node):
            held = facts.flow.values.get(node, ())
            if any(isinstance(o, Data) and o.agg == "sample" and _trained_on(facts, o) for o in held):
                found.setdefault(dotted(node), []).append(node)
    for name, uses in found.items():
        yield Shown(level.frame.source, name, tuple(uses))


def _is_target(level: Level, node: cst.CSTNode) -> bool:
    return isinstance(level.frame.source.parents.get(node), (cst.AssignTarget, cst.AnnAssign, cst.Element))


def _trained_on(facts: Facts, data: Data) -> bool:
    return any(isinstance(o, FromForward) and o.node in facts.roles.training_forwards for o in data.origins)


_METHODS = """
to cuda cpu float double long int half type unsqueeze squeeze view reshape detach clone requires_grad_ contiguous
type_as byte bool
"""
#: methods that keep the rows of a tensor apart
_BY_ROW = frozenset(_METHODS.split())


def _plain_use(facts: Facts, source: Source, node: cst.CSTNode) -> bool:
    """`net(x)`, `criterion(out, y.view(-1, 1))`, `out - y`: rows that stay apart."""
    parent = source.parents.get(node)
    while parent is not None:
        if isinstance(parent, cst.Attribute) and parent.value is node:
            call = source.parents.get(parent)
            if parent.attr.value == "data":
                node, parent = parent, call
                continue
            if not (isinstance(call, cst.Call) and call.func is parent and parent.attr.value in _BY_ROW):
                return parent.attr.value in ("shape", "dtype", "device")
            node, parent = call, source.parents.get(call)
        elif isinstance(parent, cst.Arg):
            call = source.parents.get(parent)
            if parent.keyword is node:
                return True
            if not isinstance(call, cst.Call):
                return False
            called = facts.flow.values.get(call.func, ())
            if any(isinstance(o, Ext) and role_of(o.name) == "same" for o in called):
                node, parent = call, source.parents.get(call)
                continue
            return any(isinstance(o, (Module, Wrapped)) for o in called) or any(
                isinstance(o, Ext) and role_of(o.name) == "loss" for o in called
            )
        elif isinstance(parent, cst.BinaryOperation):
            return isinstance(parent.operator, (cst.Subtract, cst.Add))
        else:
            return isinstance(parent, (cst.Assign, cst.AnnAssign, cst.Element))
    return True
