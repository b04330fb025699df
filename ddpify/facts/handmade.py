"""Training without a DataLoader in, how its batches can be shared out over the ranks: by rows, in turns, or drawn."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.columns import Columns, columns
from ddpify.facts.cursors import Cursor, cursor
from ddpify.facts.dealt import every_so_often, last_pass, own_tests
from ddpify.facts.dependencies import bindings, bound_names, read_names
from ddpify.facts.draws import drawn, own_generators
from ddpify.facts.externals import role_of
from ddpify.facts.frames import Event, Loop
from ddpify.facts.levels import Level, levels
from ddpify.facts.makers import called, maker, passes_on
from ddpify.facts.positions import own_positions
from ddpify.facts.recurrence import left_behind
from ddpify.facts.totals import made_alike as alike
from ddpify.facts.trails import way_back
from ddpify.facts.values import Data, Ext, Thing
from ddpify.facts.whole import Rows, Unshared, trained_whole, whole_rows
from ddpify.source import Source, walk

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
    #: the loop's variable in tests (`if i % 100 == 0`) that have to be the same on all ranks
    counted: tuple[cst.Name, ...] = ()
    #: the place in the data that a pass begins at, where the passes move it on
    cursor: Cursor | None = None


@dataclass(frozen=True, eq=False)
class Draws:
    """Every step draws its batch at random: each rank can draw its own."""

    level: Level
    draw: Event


def drawn_by_steps(facts: Facts) -> set[int]:
    """The loops (by their nodes) whose steps draw batches of their own on each rank."""
    levels_drawn = (h.level for h in hand_fed(facts) if isinstance(h, Draws))
    return {id(lp.node) for level in levels_drawn for lp in level.loops}


Handmade = Rows | Turns | Draws | Columns | Unshared

_LOADER = "put the tensors into a TensorDataset and a DataLoader"
_WHOLE = ("randperm", "permutation", "shuffle", "permuted")
_ORDER = ("randperm", "permutation", "shuffle", "sample", "choice", "permuted")


def handmade(facts: Facts) -> tuple[Handmade, ...]:
    """How the batches can be shared out, loop by loop, where no DataLoader makes them; or one Unshared, or nothing."""
    roles = facts.roles
    if roles.training_loaders or not roles.backwards:
        return ()
    forwards = [
        e
        for e in facts.flow.log.of("forward")
        if e.node in roles.training_forwards and e.grad is not False and e.seq < facts.flow.main_end
    ]
    for obj, event in roles.other_data:
        outside = next(iter(called(obj)), None) if isinstance(obj, Thing) else None
        if outside is not None and isinstance(obj, Thing):
            return (_of_library(facts, outside, obj.site.source, obj.site.node, event),)
    found: list[Handmade] = []
    for e in forwards:
        known = _of_forward(facts, e, _unread(facts, e))
        if isinstance(known, Unshared):
            return (known,)
        twin = next((i for i, other in enumerate(found) if _one_loop(other, known)), None)
        if twin is None:
            found.append(known)
        elif _beside(found[twin], known):
            found[twin] = known if isinstance(known, Columns) else found[twin]
        elif not _same(found[twin], known):
            return (_unread(facts, e),)
    for e in forwards if found and all(isinstance(h, Turns) for h in found) else ():
        for known in _on_other_ways(facts, e):
            found += [known] if not any(_one_loop(other, known) for other in found) else []
    return tuple(found) or (_unread(facts, roles.backwards[0]),)


def _unread(facts: Facts, event: Event) -> Unshared:
    """What a training forward is given (or the loss, where none was seen) comes from nothing that can be shared out."""
    source, node = event.frame.source, event.node
    value: cst.BaseExpression | None = None
    if event.kind == "forward" and isinstance(node, cst.Call) and node.args:
        value = node.args[0].value
    elif isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        value = node.func.value
    about = way_back(facts.flow, value if value is not None else node, source, event.frame)
    why = (
        f"`{about.value}`, which it trains on, is not read through a torch DataLoader, so there is nothing that a "
        "DistributedSampler could share out"
    )
    return Unshared(source, node, why, _LOADER, about)


def hand_fed(facts: Facts) -> tuple[Handmade, ...]:
    """`handmade`, computed once."""
    return facts.cached("handmade", handmade)


def shared_by_hand(facts: Facts) -> bool:
    """Whether the training batches come from no DataLoader, and can be shared out all the same."""
    found = hand_fed(facts)
    return bool(found) and not isinstance(found[0], Unshared)


def made_alike(facts: Facts) -> set[int]:
    """Expressions and tests that go by numbers over the rows of whole tensors: DDP308 makes them alike on all ranks."""
    return {n for h in hand_fed(facts) if isinstance(h, Rows) for n in alike(h.totals)}


def _one_loop(one: Handmade, two: Handmade) -> bool:
    """Whether two forwards are of the same steps; two loops one behind the other are dealt out each by itself."""
    if isinstance(one, Unshared) or isinstance(two, Unshared):
        return False
    if isinstance(one, Turns) and isinstance(two, Turns):
        return any(n is two.loop for n in (one.loop, *walk(one.loop))) or any(n is one.loop for n in walk(two.loop))
    return one.level.body is two.level.body


def _beside(one: Handmade, two: Handmade) -> bool:
    """A model with a state and one without (`if kind == "Transformer":`) that read the same columns."""
    return isinstance(one, Columns) != isinstance(two, Columns) and {Columns, Turns} == {type(one), type(two)}


def _same(one: Handmade, two: Handmade) -> bool:
    if isinstance(one, Turns) and isinstance(two, Turns):
        return one.loop is two.loop
    if isinstance(one, Rows) and isinstance(two, Rows):
        return set(one.names) == set(two.names)
    return type(one) is type(two)


def _of_library(facts: Facts, name: str, source: Source, node: cst.CSTNode, event: Event) -> Unshared:
    about = way_back(facts.flow, node, source)
    why = (
        f"the batches come from {name} (`{about.value}`), which is no DataLoader of torch itself: ddpify does not know "
        "how the ranks could share out what it makes"
    )
    return Unshared(event.frame.source, event.node, why, "read the data through a torch DataLoader", about)


# ---- one forward ------------------------------------------------------------------------------------------


def _of_forward(facts: Facts, event: Event, first: Unshared) -> Handmade:
    assert isinstance(event.node, cst.Call)
    given = frozenset().union(*(read_names(a.value) for a in event.node.args))
    way = levels(facts, event, given)
    state = left_behind(facts, way)
    if state is not None:
        return columns(facts, event, way) or _moved(facts, event, way, first) or state
    for level in way:
        for loop in reversed(level.loops):
            if isinstance(loop.node, cst.For) and bound_names(loop.node.target) & level.names:
                return _turns(facts, event, level, loop, first)
    inner = next((lv for lv in way if lv.loops), None)
    if inner is None:
        return first
    draws = list(drawn(facts, inner))
    draw = draws[0] if draws else None
    made = any(b.targets & lv.names for lv in way for b in bindings(lv.body))
    made = made or any(n is d.node for n in walk(event.node) for d in draws)  # generator(torch.randn(32, 4))
    place = next(own_positions(facts, inner), None) if made else None
    if made and not trained_whole(facts, inner):
        own = next(own_generators(facts, inner), None) or place
        if own is not None:
            return own
        if draw is not None:
            return Draws(inner, draw)
    return whole_rows(facts, event, inner, first)


def _on_other_ways(facts: Facts, event: Event) -> Iterator[Turns]:
    """`learn(x, y)`, which two loops call: each of them is dealt out."""
    assert isinstance(event.node, cst.Call)
    given = frozenset().union(*(read_names(a.value) for a in event.node.args))
    for chain in itertools.islice(event.frame.chains(), 1, None):
        way = levels(facts, event, given, chain)
        for level, loop in ((lv, lp) for lv in way for lp in reversed(lv.loops)):
            if isinstance(loop.node, cst.For) and bound_names(loop.node.target) & level.names:
                known = _turns(facts, event, level, loop, _unread(facts, event))
                if isinstance(known, Turns) and left_behind(facts, way) is None:
                    yield known
                break


def _moved(facts: Facts, event: Event, way: list[Level], first: Unshared) -> Turns | None:
    """`at += size` at the end of each pass: the place is a number of passes, which can be dealt out."""
    found = cursor(facts, way)
    made = _turns(facts, event, found.level, found.loop, first) if found is not None else None
    return replace(made, cursor=found) if isinstance(made, Turns) else None


# ---- dealt out in turns -------------------------------------------------------------------------------------


def _turns(facts: Facts, event: Event, level: Level, loop: Loop, first: Unshared) -> Handmade:
    node, source = loop.node, level.frame.source
    assert isinstance(node, cst.For)
    sequence = node.iter
    while isinstance(sequence, cst.Call) and sequence.args and passes_on(facts.flow.values.get(sequence.func, ())):
        sequence = sequence.args[0].value
    about = way_back(facts.flow, sequence, source, level.frame)
    if isinstance(sequence, cst.Call) and any(
        isinstance(o, Ext) and role_of(o.name) == "progress-range" for o in facts.flow.values.get(sequence.func, ())
    ):
        why = f"the batches are counted by a progress bar, `{about.value}`"
        return Unshared(source, sequence, why, "write tqdm(range(...))", about)
    name, made = maker(facts, level, event, sequence)
    if name:
        return _of_library(facts, name, source, sequence, event)
    if not made:
        why = f"nothing in the script makes `{about.value}`, which it trains on"
        return Unshared(source, sequence, why, f"define `{about.value}`", about)
    for e in facts.flow.log.of("break"):
        if e.loops and e.loops[-1].node is node and _on_loss(facts, e):
            stops = next(n.test for n in reversed(e.under) if isinstance(n, cst.If))
            about = way_back(facts.flow, stops, source, level.frame)
            why = (
                f"the loop over the batches stops at a number of this rank's own (`{about.value}`, line "
                f"{source.line(e.node)})"
            )
            remedy = "stop where all ranks know the same number, behind the epoch"
            return Unshared(source, e.node, why, remedy, about)
    counted: list[cst.Name] = []
    enumerated = isinstance(node.iter, cst.Call) and _is(facts, node.iter.func, "builtins.enumerate")
    ranged = isinstance(sequence, cst.Call) and _is(facts, sequence.func, "builtins.range")
    for test in own_tests(facts, node, enumerated):
        names = every_so_often(facts, node, test.test) if ranged else None
        if names is None:
            line, text = source.line(test), source.code(test.test)
            why = f"what is done under `{text}` (line {line}) goes by the batch, and each rank has another batch"
            remedy = (
                "count the steps (`for step, batch in enumerate(...)`) and go by that number; leave a short last batch "
                "out of the sequence that is looped over"
            )
            return Unshared(source, test, why, remedy, way_back(facts.flow, test.test, source, level.frame))
        counted += names
    last = last_pass(facts, node) if enumerated else None
    if last is not None:
        why = f"`{source.code(last.test)}` (line {source.line(last)}) asks for one pass, which only one rank makes"
        remedy = "move what is done in the last pass behind the loop"
        return Unshared(source, last, why, remedy, way_back(facts.flow, last.test, source, level.frame))
    orders = [e for e in _orders(facts) if isinstance(e.node, cst.Call)]
    return Turns(level, node, sequence, tuple(orders), tuple(counted))


def _is(facts: Facts, func: cst.BaseExpression, name: str) -> bool:
    return any(isinstance(o, Ext) and o.name == name for o in facts.flow.values.get(func, ()))


def _on_loss(facts: Facts, event: Event) -> bool:
    tests = [n.test for n in event.under if isinstance(n, cst.If)]
    return any(isinstance(o, Data) and o.origins for t in tests for o in facts.flow.values.get(t, ()))


def _orders(facts: Facts) -> Iterator[Event]:
    """Draws of an order: `random.shuffle(pairs)`, `torch.randperm(n)`, `rng.permutation(n)`."""
    for e in facts.flow.log.events:
        if e.seq >= facts.flow.main_end:
            return
        last = e.name.rsplit(".", 1)[-1]
        if last in _ORDER and (
            (e.kind == "external" and role_of(e.name) == "random")
            or (e.kind == "method" and isinstance(e.obj, (Thing, Data)) and (last in _WHOLE or "frac" in e.extra))
        ):
            yield e


__all__ = ["Columns", "Draws", "Handmade", "Rows", "Turns", "Unshared", "hand_fed", "shared_by_hand"]
