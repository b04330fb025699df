"""Training without a DataLoader in, how its batches can be shared out over the ranks: by rows, in turns, or drawn."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.dependencies import bindings, bound_names, carried, read_names
from ddpify.facts.externals import role_of
from ddpify.facts.frames import Event, Loop
from ddpify.facts.levels import Level, levels
from ddpify.facts.values import Const, Data, Ext, Method, Obj, Thing, Value
from ddpify.facts.whole import Rows, Unshared, whole_rows

if TYPE_CHECKING:
    from ddpify.facts import Facts


@dataclass(frozen=True, eq=False)
class Turns:
    """A loop makes one batch a pass from its variable: the passes can be dealt out."""

    level: Level
    loop: cst.For
    #: what is dealt out, without `enumerate` and progress bars
    sequence: cst.BaseExpression
    #: draws that decide the order, which has to be the same on all ranks
    orders: tuple[Event, ...]


@dataclass(frozen=True, eq=False)
class Draws:
    """Every step draws its batch at random: each rank can draw its own."""

    level: Level
    draw: Event


Handmade = Rows | Turns | Draws | Unshared

_LOADER = "Put the tensors into a TensorDataset and a DataLoader"
_NONE = (
    "the training data are not read through a torch DataLoader, so there is nothing that a DistributedSampler could "
    "share out"
)
#: packages whose functions give plain lists, arrays and tensors
_PLAIN = ("builtins.", "numpy.", "torch.", "random.", "itertools.", "pandas.", "math.", "json.", "pickle.", "copy.")
_ORDER = ("randperm", "permutation", "shuffle", "sample", "choice", "permuted")


def handmade(facts: Facts) -> tuple[Handmade, ...]:
    """How the batches can be shared out, loop by loop, where no DataLoader makes them; or one Unshared, or nothing."""
    roles = facts.roles
    if roles.training_loaders or not roles.backwards:
        return ()
    backward = roles.backwards[0]
    first = Unshared(backward.frame.source, backward.node, _NONE, _LOADER)
    outside = next((n for obj, _ in roles.other_data if isinstance(obj, Thing) for n in _called(obj)), None)
    if outside is not None:
        return (_of_library(outside, first),)
    found: list[Handmade] = []
    for e in facts.flow.log.of("forward"):
        if e.node in roles.training_forwards and e.grad is not False and e.seq < facts.flow.main_end:
            known = _of_forward(facts, e, first)
            if isinstance(known, Unshared):
                return (known,)
            twin = next((i for i, other in enumerate(found) if _one_loop(other, known)), None)
            if twin is None:
                found.append(known)
            elif not _same(found[twin], known):
                return (first,)
    return tuple(found) or (first,)


def hand_fed(facts: Facts) -> tuple[Handmade, ...]:
    """`handmade`, computed once."""
    return facts.cached("handmade", handmade)


def shared_by_hand(facts: Facts) -> bool:
    """Whether the training batches come from no DataLoader, and can be shared out all the same."""
    found = hand_fed(facts)
    return bool(found) and not isinstance(found[0], Unshared)


def _one_loop(one: Handmade, two: Handmade) -> bool:
    return not isinstance(one, Unshared) and not isinstance(two, Unshared) and one.level.body is two.level.body


def _same(one: Handmade, two: Handmade) -> bool:
    if isinstance(one, Turns) and isinstance(two, Turns):
        return one.loop is two.loop
    if isinstance(one, Rows) and isinstance(two, Rows):
        return one.names == two.names
    return type(one) is type(two)


def _of_library(name: str, first: Unshared) -> Unshared:
    why = f"the batches come from {name}, which is no torch DataLoader: the ranks cannot share out what it makes"
    return Unshared(first.source, first.node, why, "read the data through a torch DataLoader")


def _maker(facts: Facts, level: Level, event: Event, sequence: cst.BaseExpression) -> tuple[str, bool]:
    """The function of another library that made what is iterated, and whether anything did."""
    chain = next(event.frame.chains(), ())
    frames = [level.frame, *(e.frame for e in reversed(chain))]
    node: cst.CSTNode | None = sequence
    for frame in frames:
        while isinstance(node, cst.Name) and node.value not in frame.arguments:
            holder = frame.scope.holder(node.value)
            if holder is None:
                return "", node.value in dir(builtins)
            stmt = holder.bound_at.get(node.value)
            node = getattr(stmt, "value", None) if isinstance(stmt, (cst.Assign, cst.AnnAssign)) else None
            if isinstance(node, cst.Call) and _passes_on(facts.flow.values.get(node.func, ())) and node.args:
                node = node.args[0].value
        if not isinstance(node, cst.Name):
            break
        node = frame.arguments[node.value]
    if isinstance(node, cst.Call):
        for obj in facts.flow.values.get(node.func, ()):
            if isinstance(obj, Ext) and _other_library(obj):
                return obj.name, True
            if isinstance(obj, Method) and isinstance(obj.obj, Thing) and _called(obj.obj):
                return f"{_called(obj.obj)[0]}.{obj.name}", True
    return next((n for o in facts.flow.values.get(sequence, ()) if isinstance(o, Thing) for n in _called(o)), ""), True


def _called(thing: Thing) -> list[str]:
    """`torchtext.data.BucketIterator`: the unknown function that gave a thing."""
    names = [o for o in thing.fields.get("__name__", ()) if isinstance(o, Const) and isinstance(o.value, str)]
    return [str(o.value) for o in names if _other_library(Ext(str(o.value)))]


def _other_library(obj: Obj) -> bool:
    return isinstance(obj, Ext) and "." in obj.name and not obj.name.startswith(_PLAIN)


# ---- one forward ------------------------------------------------------------------------------------------


def _of_forward(facts: Facts, event: Event, first: Unshared) -> Handmade:
    assert isinstance(event.node, cst.Call)
    given = frozenset().union(*(read_names(a.value) for a in event.node.args))
    way = levels(facts, event, given)
    state = _state(way)
    if state is not None:
        return state
    for level in way:
        for loop in reversed(level.loops):
            if isinstance(loop.node, cst.For) and bound_names(loop.node.target) & level.names:
                return _turns(facts, event, level, loop, first)
    inner = next((lv for lv in way if lv.loops), None)
    if inner is None:
        return first
    made = [b for lv in way for b in bindings(lv.body) if b.targets & lv.names]
    draw = next(_drawn(facts, inner), None)
    if made and draw is not None:
        return Draws(inner, draw)
    return whole_rows(facts, event, inner, first)


def _state(way: list[Level]) -> Unshared | None:
    """`output, hidden = model(data, hidden)`: a step that goes on where the step before it stopped."""
    for level in way:
        source = level.frame.source
        for loop in reversed(level.loops):
            if not isinstance(loop.node, (cst.For, cst.While)):
                continue
            for name, node in carried(level.names, loop.node, source):
                why = f"each step goes on from the `{name}` that the step before it left (line {source.line(node)})"
                remedy = (
                    "steps that hang together cannot be dealt out: compute the batch from the loop's variable, or, for "
                    "a recurrent state, give every rank columns of its own"
                )
                return Unshared(source, node, why, remedy)
    return None


def _drawn(facts: Facts, level: Level) -> Iterator[Event]:
    """Random draws within the loops of a level."""
    inside = {id(lp.node) for lp in level.loops}
    for e in facts.flow.log.of("external"):
        drawn = role_of(e.name) == "random" and e.seq < facts.flow.main_end
        if drawn and any(id(lp.node) in inside for loops in e.all_loops() for lp in loops):
            yield e


# ---- dealt out in turns -------------------------------------------------------------------------------------


def _turns(facts: Facts, event: Event, level: Level, loop: Loop, first: Unshared) -> Handmade:
    node, source = loop.node, level.frame.source
    assert isinstance(node, cst.For)
    sequence = node.iter
    while isinstance(sequence, cst.Call) and sequence.args and _passes_on(facts.flow.values.get(sequence.func, ())):
        sequence = sequence.args[0].value
    maker, made = _maker(facts, level, event, sequence)
    if maker:
        return _of_library(maker, first)
    if not made:
        name = source.code(sequence)
        return Unshared(
            source, sequence, f"nothing in the script makes `{name}`, which it trains on", f"define `{name}`"
        )
    if isinstance(sequence, cst.Call) and any(
        isinstance(o, Ext) and role_of(o.name) == "progress-range" for o in facts.flow.values.get(sequence.func, ())
    ):
        why = "the batches are counted by a progress bar"
        return Unshared(source, sequence, why, "write tqdm(range(...))")
    for e in facts.flow.log.of("break"):
        if e.loops and e.loops[-1].node is node and _on_loss(facts, e):
            why = f"the loop over the batches stops at a number of this rank's own (line {source.line(e.node)})"
            return Unshared(source, e.node, why, "stop where all ranks know the same number, behind the epoch")
    orders = [e for e in _orders(facts) if isinstance(e.node, cst.Call)]
    return Turns(level, node, sequence, tuple(orders))


def _on_loss(facts: Facts, event: Event) -> bool:
    tests = [n.test for n in event.under if isinstance(n, cst.If)]
    return any(isinstance(o, Data) and o.origins for t in tests for o in facts.flow.values.get(t, ()))


def _passes_on(value: Value) -> bool:
    """`enumerate` and `tqdm`, which give what they are given."""
    return any(isinstance(o, Ext) and (o.name == "builtins.enumerate" or role_of(o.name) == "progress") for o in value)


def _orders(facts: Facts) -> Iterator[Event]:
    """Draws of an order: `random.shuffle(pairs)`, `torch.randperm(n)`, `rng.permutation(n)`."""
    for e in facts.flow.log.events:
        if e.seq >= facts.flow.main_end:
            return
        last = e.name.rsplit(".", 1)[-1]
        if last in _ORDER and (
            (e.kind == "external" and role_of(e.name) == "random")
            or (e.kind == "method" and isinstance(e.obj, (Thing, Data)) and last not in ("sample", "choice"))
        ):
            yield e


__all__ = ["Draws", "Handmade", "Rows", "Turns", "Unshared", "hand_fed", "shared_by_hand"]
