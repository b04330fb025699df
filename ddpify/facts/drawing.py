"""Flow in, data that are drawn before training with no seed before them out: other numbers in every process."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.contents import origins
from ddpify.facts.frames import Event, Frame, Loop
from ddpify.facts.placing import is_guard, statement_of, steps
from ddpify.facts.seeds import Seed, seeds
from ddpify.facts.values import FromWorld, Module, Wrapped
from ddpify.source import Source

if TYPE_CHECKING:
    from ddpify.facts import Facts

#: What synthetic data are made with.
_DATA = re.compile(
    r"torch\.(rand|randn|randint|normal)|numpy\.random\.(rand|randn|randint|random|normal|uniform|choice)"
    r"|sklearn\.datasets\.make_\w+"
)
#: Single numbers are data where a comprehension draws many of them.
_NUMBERS = re.compile(r"random\.(random|gauss|uniform|normalvariate|randint|choice|randrange)")
_COMPREHENSIONS = (cst.ListComp, cst.SetComp, cst.DictComp)
_KEPT = (cst.Assign, cst.AnnAssign, cst.AugAssign, cst.Return)


@dataclass(frozen=True, eq=False)
class Drawn:
    """Data that a script draws: the call, or the comprehension that draws them one by one."""

    source: Source
    node: cst.BaseExpression
    events: tuple[Event, ...]
    #: a loop draws piece by piece
    looped: bool


def unseeded_data(facts: Facts) -> list[Drawn]:
    """`X = torch.randn(1000, 8)` before training, with no seed before it: other numbers in every process."""
    return facts.cached("unseeded_data", lambda f: list(_found(f)))


def is_seeded(facts: Facts, kind: str, event: Event) -> bool:
    """Whether a seed comes before an event, and not only `if args.seed is not None:`."""
    return any(s.what == kind and s.event.seq < event.seq and is_certain(facts, s, event) for s in seeds(facts))


def is_certain(facts: Facts, seed: Seed, event: Event | None = None) -> bool:
    """Whether a seed is set on every way (to an event), and is the same in every process."""
    if any(isinstance(o, FromWorld) for o in origins(seed.event.value)):
        return False  # torch.manual_seed(random.randint(1, 10000))
    around = {id(n) for n in _tests(event)} if event is not None else set()
    return all(id(n) in around for n in _tests(seed.event)) or _has_default(facts, seed)


def _tests(event: Event) -> Iterator[cst.If]:
    """The tests under which an event happens, in its own function and in those that call it."""
    for frame, stmt, _ in steps(event):
        yield from tests_around(frame, stmt)


def tests_around(frame: Frame, stmt: cst.CSTNode) -> Iterator[cst.If]:
    """The tests under which a statement runs, in its own function."""
    for above in frame.source.ancestors(stmt):
        if isinstance(above, (cst.FunctionDef, cst.ClassDef)):
            break
        if isinstance(above, cst.If) and not is_guard(above):
            yield above


def _has_default(facts: Facts, seed: Seed) -> bool:
    """`parser.add_argument("--seed", type=int, default=42)`: `if args.seed is not None` holds."""
    option = seed.text.rsplit(".", 1)[-1]
    for e in facts.flow.log.of("method"):
        if e.name == "add_argument" and isinstance(e.node, cst.Call):
            texts = [a.value.evaluated_value for a in e.node.args if isinstance(a.value, cst.SimpleString)]
            given = [a.value for a in e.node.args if a.keyword is not None and a.keyword.value == "default"]
            asked = {f"-{option}", f"--{option}", f"--{option.replace('_', '-')}"} & set(texts)
            if asked and given and isinstance(given[0], cst.Integer):
                return True
    return False


def remade_behind(facts: Facts, event: Event) -> bool:
    """`for run in range(3):` draws an order, makes a loader of it and trains: no loop over epochs."""
    around: dict[int, Loop] = {id(lp.node): lp for lp in event.loops}
    return bool(around) and any(
        e.seq > event.seq and all(any(lp.node is a.node for lp in e.loops) for a in around.values())
        for loader in facts.roles.training_loaders
        for e in facts.flow.log.of("loader")
        if e.obj is loader
    )


def _found(facts: Facts) -> Iterator[Drawn]:
    drawn: dict[int, list[Event]] = {}
    places: dict[int, tuple[Source, cst.BaseExpression]] = {}
    kept = [(e, node) for e in _draws(facts) if (node := _whole(e)) is not None]
    again = {e.seq for e, _ in kept if remade_behind(facts, e)}
    made = {
        id(e.frame): calls
        for e, _ in kept
        if _in_loop(e.loops) and e.seq not in again and (calls := _calls_around(e.frame))
    }
    for event, node in kept:
        for home, whole in made.get(id(event.frame), [(event.frame.source, node)]):
            places[id(whole)] = home, whole
            drawn.setdefault(id(whole), []).append(event)
    for key, events in drawn.items():
        looped = any(_in_loop(e.loops) and id(e.frame) not in made and e.seq not in again for e in events)
        yield Drawn(*places[key], tuple(events), looped)


def _in_loop(loops: tuple[Loop, ...]) -> bool:
    return any(isinstance(lp.node, (cst.For, cst.While)) for lp in loops)


def _calls_around(frame: Frame, depth: int = 6) -> list[tuple[Source, cst.BaseExpression]]:
    """`x, y = make_set(1000)`, where a loop in it draws the set piece by piece; none where not all calls give one."""
    found: list[tuple[Source, cst.BaseExpression]] = []
    for entry in frame.entries:
        source, call = entry.frame.source, entry.call
        if _in_loop(entry.loops):
            above = _calls_around(entry.frame, depth - 1) if depth else []
        elif isinstance(call, cst.Call) and isinstance(statement_of(source, call), (cst.Assign, cst.AnnAssign)):
            above = [(source, call)]
        else:
            above = []
        if not above:
            return []
        found += above
    return found


def _draws(facts: Facts) -> Iterator[Event]:
    first = min((e.seq for e in facts.roles.backwards), default=0)
    trains = {id(n) for n in facts.roles.training_loops}
    for e in facts.flow.log.of("external"):
        number = _NUMBERS.fullmatch(e.name) is not None
        if e.seq > first or not (number or _DATA.fullmatch(e.name)) or {"generator", "random_state"} & set(e.extra):
            continue
        if any(id(lp.node) in trains for loops in e.all_loops() for lp in loops) and not remade_behind(facts, e):
            continue  # drawn anew for each step
        func = e.frame.func
        weights = func is not None and isinstance(func.bound, Module)  # the wrapper gives all ranks rank 0's
        kind = e.name.split(".")[0]
        seeded = is_seeded(facts, "numpy" if kind == "sklearn" else kind, e)
        if not (weights or seeded or _is_shown(facts, e)):
            yield e


def _is_shown(facts: Facts, event: Event) -> bool:
    """`model(torch.randn(1, 3, 224, 224))`, `summary(model, torch.randn(...))`: no data, but an example."""
    source = event.frame.source
    forwards = {id(e.node) for e in facts.flow.log.of("forward")}
    for above in source.ancestors(event.node) if event.node in source.parents else ():
        if isinstance(above, cst.Call):
            held = [o for a in above.args for o in facts.flow.values.get(a.value, ())]
            if id(above) in forwards or any(isinstance(o, (Module, Wrapped)) for o in held):
                return True
    return False


def _whole(event: Event) -> cst.BaseExpression | None:
    """The expression that is data: the call, or the outermost comprehension around it; None where nothing keeps it."""
    source, node = event.frame.source, event.node
    if not isinstance(node, cst.Call) or not isinstance(statement_of(source, node), _KEPT):
        return None
    part = source.parents.get(node)
    if isinstance(part, cst.Attribute) and part.attr.value == "item":
        return None  # at = torch.randint(len(data), (1,)).item(): one number
    found: cst.BaseExpression = node
    for above in source.ancestors(node):
        if isinstance(above, cst.Lambda):
            return None
        if isinstance(above, _COMPREHENSIONS):
            found = above
        if isinstance(above, cst.BaseSmallStatement):
            break
    return found if found is not node or _NUMBERS.fullmatch(event.name) is None else None
