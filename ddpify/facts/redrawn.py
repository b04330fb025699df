"""Flow in, the statements out that draw training data at random, where every rank would have other data, or more."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.dependencies import bindings, closure, read_names
from ddpify.facts.drawing import is_certain, is_seeded, unseeded_data
from ddpify.facts.externals import role_of
from ddpify.facts.frames import Event, Frame, Loop
from ddpify.facts.handmade import Turns, hand_fed
from ddpify.facts.levels import Level, outside
from ddpify.facts.placing import steps
from ddpify.facts.seeds import is_noisy, seeds
from ddpify.facts.sharding import loader_facts
from ddpify.facts.splits import unseeded_orders
from ddpify.facts.values import Dataset, Instance, Obj, Value
from ddpify.source import Source, walk

if TYPE_CHECKING:
    from ddpify.facts import Facts

_GENERATORS = re.compile(
    r"numpy\.random\.(default_rng|RandomState|Generator|MT19937|PCG64)|random\.(Random|SystemRandom)"
)
#: what loader workers do for each sample
_PER_SAMPLE = frozenset({"__getitem__", "__getitems__", "__iter__", "__next__", "__call__", "forward", "collate_fn"})
_PATHS = (cst.Name, cst.Attribute)
_LOOPS = (cst.For, cst.While)


@dataclass(eq=False)
class Redrawn:
    """A statement in which training data are drawn: on the way to it stand the draws."""

    source: Source
    place: cst.CSTNode
    events: list[Event]
    #: the sequence of a dealt loop, where its batches are drawn as it goes
    turns: Turns | None = None

    @property
    def kinds(self) -> frozenset[str]:
        return frozenset(kind_of(e) for e in self.events)


def kind_of(event: Event) -> str:
    """Which of the global generators an event draws from."""
    if event.kind == "method":
        return "numpy"  # pandas' df.sample(frac=1)
    package = event.name.split(".")[0]
    return package if package in ("torch", "random") else "numpy"


def redrawn(facts: Facts) -> list[Redrawn]:
    """`triples = sample(users)` in each epoch: as many as the draw gives, and other ones in every process."""
    return facts.cached("redrawn", lambda f: list(_found(f)))


def covered(facts: Facts) -> set[int]:
    """The events that are drawn alike there."""
    return {id(e) for r in redrawn(facts) for e in r.events}


def _found(facts: Facts) -> Iterator[Redrawn]:
    if not facts.converting:
        return
    roots = list(_roots(facts))
    data = {id(o) for loader in facts.roles.training_loaders for o in _instances(loader.dataset)}
    if not roots and not data:
        return
    handled = {id(e) for d in unseeded_data(facts) if not d.looped for e in d.events}
    handled |= {id(e) for e in unseeded_orders(facts)}
    fixed = frozenset() if is_noisy(facts) else frozenset(s.what for s in seeds(facts) if is_certain(facts, s))
    places: dict[int, Redrawn] = {}
    beside: list[tuple[Event, Redrawn]] = []
    for e in _draws(facts):
        if kind_of(e) in fixed or (not _in_training(facts, e) and is_seeded(facts, kind_of(e), e)):
            continue
        for found in _places(facts, e, roots, data):
            if id(e) in handled or _is_order(facts, e):
                beside.append((e, found))  # by itself: what it gives is rank 0's
                continue
            known = places.setdefault(id(found.place), found)
            known.events += [e] if e not in known.events else []
    for e, found in beside:
        if id(found.place) in places:
            places[id(found.place)].events.append(e)
    yield from places.values()


def _draws(facts: Facts) -> Iterator[Event]:
    for e in facts.flow.log.of("external", "method"):
        if e.seq >= facts.flow.main_end or not isinstance(e.node, cst.Call) or "generator" in e.extra:
            continue
        if e.kind == "method":
            if e.name == "sample" and "frac" in e.extra and "random_state" not in e.extra:
                yield e
        elif role_of(e.name) == "random" and not _GENERATORS.fullmatch(e.name) and "random_state" not in e.extra:
            yield e


def _is_order(facts: Facts, event: Event) -> bool:
    """An order that is drawn once for each epoch: DDP309 sends it."""
    training = {id(n) for n in facts.roles.training_loops}
    again = any(id(lp.node) not in training for _, _, loops in steps(event) for lp in loops)
    return not again and event.name.rpartition(".")[2] in ("randperm", "permutation", "shuffle", "sample", "choice")


def _in_training(facts: Facts, event: Event) -> bool:
    training = {id(n) for n in facts.roles.training_loops}
    return any(id(lp.node) in training for loops in event.all_loops() for lp in loops)


@dataclass(frozen=True, eq=False)
class _Root:
    """A frame on the way to the batches, and the names there that what they are cut from is computed from."""

    frame: Frame
    names: frozenset[str]
    turns: Turns | None
    #: the statement that leads on to the batches
    leads: cst.CSTNode


def _roots(facts: Facts) -> Iterator[_Root]:
    for known in hand_fed(facts):
        if isinstance(known, Turns):
            yield from _outward(known.level.frame, read_names(known.sequence), known, known.loop)
    for loader in (loader_facts(facts, o) for o in facts.roles.training_loaders):
        if loader is not None and loader.dataset is not None:
            yield from _outward(loader.loader.site.frame, read_names(loader.dataset), None, loader.stmt)


def _outward(frame: Frame, names: frozenset[str], turns: Turns | None, leads: cst.CSTNode) -> Iterator[_Root]:
    chain = next(frame.chains(1), ())
    for at, stmt in ((frame, leads), *((e.frame, e.stmt) for e in reversed(chain))):
        names = closure(names, bindings(at.node))
        yield _Root(at, names, turns, stmt)
        names = outside(Level(at, (), names))


def _places(facts: Facts, event: Event, roots: Iterable[_Root], data: set[int]) -> Iterator[Redrawn]:
    """Where an event draws what the batches are made of, in the innermost frame that knows of them."""
    ways, by_frame = steps(event), {id(r.frame): r for r in roots}
    if data and {f.func.name for f, _, _ in ways if f.func is not None} & _PER_SAMPLE:
        return
    for n, (frame, stmt, loops) in reversed(list(enumerate(ways))):
        root = by_frame.get(id(frame))
        inner = ways[n + 1][0].func if n + 1 < len(ways) else None
        entered = inner is not None and id(inner.bound) in data
        ours = entered and not (frame.func is not None and id(frame.func.bound) in data)
        if root is not None and root.turns is not None:
            if stmt is root.turns.loop and inner is not None:
                yield Redrawn(frame.source, stmt, [], root.turns)
                return
            if stmt is root.leads or any(lp.node is root.turns.loop for lp in loops):
                return  # noise of each batch
        if ours or (root is not None and _gives(event, frame, stmt, root.names)):
            place = _whole(facts, frame, stmt, loops)
            if place is not None:
                yield Redrawn(frame.source, place, [])
            return


def _gives(event: Event, frame: Frame, stmt: cst.CSTNode, names: frozenset[str]) -> bool:
    """Whether a statement gives a value to one of the names, or changes what it holds."""
    inside = {id(stmt), *(id(n) for n in walk(stmt))}
    if any(b.targets & names and id(b.node) in inside for b in bindings(frame.node)):
        return True
    if isinstance(stmt, cst.Expr) and isinstance(stmt.value, cst.Call):
        call = stmt.value
        given = frozenset().union(*(read_names(a.value) for a in call.args if isinstance(a.value, _PATHS)))
        given -= {"True", "False", "None"}
        given = given if call is event.node else frozenset()  # random.shuffle(rows), not evaluate(rows)
        given |= read_names(call.func.value) if isinstance(call.func, cst.Attribute) else frozenset()
        return bool(given & names)
    return False


def _whole(facts: Facts, frame: Frame, stmt: cst.CSTNode, loops: tuple[Loop, ...]) -> cst.CSTNode | None:
    """The statement, or the loop below the epochs that does it again and again; None where a training is in it."""
    training = {id(n) for n in facts.roles.training_loops}
    own = [lp.node for lp in loops if lp.frame is frame and isinstance(lp.node, _LOOPS) and id(lp.node) not in training]
    place = own[0] if own else stmt
    leads = {id(n) for b in facts.roles.backwards for f, s, _ in steps(b) for n in (s, *f.source.ancestors(s))}
    return None if id(place) in leads else place


def _instances(value: Value, depth: int = 3) -> Iterator[Obj]:
    for obj in value:
        if isinstance(obj, Instance):
            yield obj
        elif isinstance(obj, Dataset) and depth:
            yield from _instances(obj.of, depth - 1)
