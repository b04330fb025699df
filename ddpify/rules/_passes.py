"""Loaders in, where passes over them begin that nothing counts out: `it = iter(loader)`, loaders made anew."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import libcst as cst

from ddpify.edits import AddHelper, AddImport, Edit, InsertBefore
from ddpify.facts import Facts
from ddpify.facts.contents import constants, origins
from ddpify.facts.counting import counts
from ddpify.facts.frames import Event
from ddpify.facts.roles import EpochLoop, expression_for, loaders_in
from ddpify.facts.sharding import loader_facts
from ddpify.facts.values import Ext, FromBatch, Loader, Scheduler, Site
from ddpify.rules._base import Finding, Rule
from ddpify.source import Source, walk


@dataclass(frozen=True, eq=False)
class Pass:
    """A pass over `loader` begins at `node`, where it is called `name`; without one, `problem` says what is wrong."""

    source: Source
    node: cst.CSTNode
    loader: Loader
    name: str = ""
    problem: str = ""
    #: no loop comes here again, nor another call
    once: bool = False
    #: the variable of the only loop around it, where that counts the passes
    turn: str = ""
    #: whether the name holds a loader of another call, too, whose sampler has no epoch
    mixed: bool = False

    def remade_in(self, facts: Facts) -> cst.CSTNode | None:
        """The outermost loop that makes the loader anew for each pass over it: its sampler cannot count them."""
        taken = [e for e in facts.flow.log.of("external") if e.name == "builtins.next" and _of(self.loader, e)]
        drawn = [set(e.frame.source.ancestors(e.node)) for e in taken]
        around = set(self.source.ancestors(self.node))
        loops = [
            a for a in self.loader.site.source.ancestors(self.loader.site.node) if isinstance(a, (cst.For, cst.While))
        ]
        passes = [a for a in loops if a in around and any(a in inner for inner in drawn)]
        return passes[-1] if passes else None


def one_by_one(facts: Facts, shuffles: Callable[[Loader], bool]) -> Iterator[Pass]:
    """The passes over the training loaders that no loop reads, each place once."""
    looped = {e.loader for e in facts.roles.epoch_loops}
    placed: set[int] = set()
    for loader in facts.roles.training_loaders:
        known = loader_facts(facts, loader)
        if loader in looped or known is None or known.shuffles is False or known.problem or not _trains(facts, loader):
            continue
        found = [*_handed(facts, loader, shuffles)] or [*_asked(facts, loader, shuffles)]
        first = [one for one in found if one.once]
        for one in found if len(found) == 1 else [replace(one, turn="") for one in found]:
            if len(first) == 1 and one.node is first[0].node:
                continue  # the sampler begins with epoch 0
            if id(one.node) not in placed:
                placed.add(id(one.node))  # a function that is called twice has one text
                yield one
        calls = facts.flow.log.of("external")
        if not found and not any(e.name == "itertools.cycle" and loader in e.value for e in calls):
            why = "batches of this loader are taken one by one, so the passes over it could not be found"
            yield Pass(known.source, known.call, loader, problem=why)


def _of(loader: Loader, e: Event) -> bool:
    return loader in loaders_in(e.value) or any(
        isinstance(o, FromBatch) and o.loader is loader for o in origins(e.value)
    )


def _trains(facts: Facts, loader: Loader) -> bool:
    return any(
        isinstance(o, FromBatch) and o.loader is loader for e in facts.roles.backwards for o in origins(e.value[:1])
    )


def _handed(facts: Facts, loader: Loader, shuffles: Callable[[Loader], bool]) -> Iterator[Pass]:
    """`def cycle(loader): while True: for batch in loader: yield batch`"""
    for handed in facts.flow.handed:
        source, name = handed.frame.source, expression_for(loader, handed.frame, facts.flow)
        if name is not None and loader in loaders_in(handed.iterates) and facts.editable(source):
            held = [
                o for h in facts.flow.handed if h.node is handed.node for o in loaders_in(h.iterates) if o is not loader
            ]
            yield Pass(source, handed.node, loader, name, mixed=_mixed(held, shuffles))


def _mixed(held: Iterable[object], shuffles: Callable[[Loader], bool]) -> bool:
    """Whether some of it has a sampler without an epoch: the loader of an evaluation that is read in the same place."""
    return any(isinstance(o, Loader) and not shuffles(o) for o in held)


def _asked(facts: Facts, loader: Loader, shuffles: Callable[[Loader], bool]) -> Iterator[Pass]:
    """`it = iter(loader)`, and again where it has come to its end."""
    for e in facts.flow.log.of("external"):
        if e.name == "builtins.iter" and loader in e.value and facts.editable(e.frame.source):
            name = _picked(facts, e, shuffles) or _named(facts, loader, e)
            why = "" if name else "another pass over the loader begins here, in the order of the last one"
            asked = e.node.args[0].value if isinstance(e.node, cst.Call) and e.node.args else e.node
            mixed = _mixed(facts.flow.values.get(asked, ()), shuffles)
            once = not why and [*e.all_loops()] == [()]
            yield Pass(e.frame.source, e.node, loader, name, why, once, _turn(facts, e), mixed)


def _turn(facts: Facts, e: Event) -> str:
    """`for epoch in range(n): it = iter(loader)`: each turn of the only loop around it begins a pass."""
    around = list(e.all_loops())
    loops = {id(lp.node): lp for ways in around for lp in ways}
    loop = next(iter(loops.values()), None)
    if loop is None or len(loops) > 1 or loop.frame is not e.frame or any(len(ways) != 1 for ways in around):
        return ""
    target = loop.node.target if isinstance(loop.node, cst.For) and counts(facts, loop.node) else None
    return target.value if isinstance(target, cst.Name) and target.value != "_" else ""


def _picked(facts: Facts, e: Event, shuffles: Callable[[Loader], bool]) -> str:
    """`iter(loader)`, `iter(self.loaders[i])`, where all that it may be gets a sampler whose order has an epoch."""
    picked = e.node.args[0].value if isinstance(e.node, cst.Call) and e.node.args else None
    if not isinstance(picked, (cst.Name, cst.Attribute, cst.Subscript)):
        return ""
    held = facts.flow.values.get(picked, ())
    plain = not any(isinstance(n, cst.Call) for n in walk(picked))
    alike = bool(held) and all(isinstance(o, Loader) and shuffles(o) for o in held)
    return e.frame.source.code(picked) if plain and alike else ""


def _named(facts: Facts, loader: Loader, e: Event) -> str:
    """What the loader is called there; one of those that a loop makes has its name in that loop only."""
    source = loader.site.source
    around = source.ancestors(loader.site.node)
    loop = next((a for a in around if isinstance(a, (cst.For, cst.While, cst.BaseComp))), None)
    if loop is not None and (source is not e.frame.source or loop not in source.ancestors(e.node)):
        return ""
    found = expression_for(loader, e.frame, facts.flow, e.node) or expression_for(loader, e.frame, facts.flow)
    return found or ""


def remade(epoch: EpochLoop) -> bool:
    """Whether a function that is called in each epoch makes the loader."""
    made, loop = epoch.loader.site.frame, epoch.loop
    return loop is not None and any(lp.node is loop.node for loops in made.loops_around() for lp in loops)


def begins_again(facts: Facts, epoch: EpochLoop) -> bool:
    """`for epoch in ...: for net in nets: train(net, loader)`: the inner loop counts from 0 in each turn of the outer.

    Where a turn of the outer loop has a loader or a model of its own, it is another training.
    """
    sites = [epoch.loader.site, *(m.site for m in facts.roles.trained)]
    return any(lp.element is None and not any(_made_in(lp.node, s) for s in sites) for lp in epoch.outer)


def _made_in(node: cst.CSTNode, site: Site) -> bool:
    """Whether an object is made in a loop, or in a function that is called there."""
    ways = [(site.source, site.node), *((e.frame.source, e.stmt) for c in site.frame.chains() for e in c)]
    return any(node in source.ancestors(at) for source, at in ways if at in source.parents)


def may_draw(facts: Facts, epoch: EpochLoop, at: int, name: str) -> bool:
    """`fit(loader)` for several loaders: whether one draws by a sampler of its own there, which has no epoch."""
    assert epoch.loop is not None
    node, stmt = epoch.loop.node, epoch.way[at][1]
    for other in facts.roles.epoch_loops:
        if other.loop is None or other.loop.node is not node or stmt not in [s for _, s in other.way[at : at + 1]]:
            continue
        known = loader_facts(facts, other.loader)
        within, alike = node if at == 0 else None, facts.roles.training_loaders  # the loaders of other branches
        named = expression_for(other.loader, other.way[at][0], facts.flow, within, alike)
        if known is not None and known.draws is not None and named == name:
            return True
    return False


def set_epoch(facts: Facts, loader: Loader, name: str, epoch: str = "") -> str:
    """`loader.sampler.set_epoch(epoch)`; where nothing counts the passes, the sampler does."""
    known = loader_facts(facts, loader)
    sampler = f"{name}.{known.sampler_path if known is not None else 'sampler'}"
    return f"{sampler}.set_epoch({epoch or f'{sampler}.epoch + 1'})"


def steps_in(facts: Facts, loop: cst.CSTNode) -> bool:
    """Whether weights change in a loop: an attack in an evaluation goes backward, too, and steps nothing."""
    steps = [e for e in facts.flow.log.of("method") if e.name == "step" and not isinstance(e.obj, Scheduler)]
    inside = (lp.node for e in steps for loops in e.all_loops() for lp in loops)
    return not steps or any(node is loop for node in inside)


def begun(rule: Rule, facts: Facts, found: Pass, place: cst.CSTNode) -> Finding:
    """`it = iter(loader)`: the order of the pass that begins there."""
    line = set_epoch(facts, found.loader, found.name, found.turn)
    edits: list[Edit] = [InsertBefore(found.source, place, (line,))]
    if found.mixed:  # a class that train and test loader are given to
        kind = facts.names_of(found.source)["DistributedSampler"]
        test = f"if isinstance({line.partition('.set_epoch(')[0]}, {kind}):\n    {line}"
        edits = [InsertBefore(found.source, place, (test,)), AddImport(found.source, "DistributedSampler")]
    return rule.finding(
        found.source,
        place,
        f"`{found.name}` is shuffled anew in every pass",
        *edits,
        reason="the order of a DistributedSampler depends on its epoch"
        + ("" if found.turn else ", and nothing counts the passes here"),
    )


def passes(rule: Rule, facts: Facts, source: Source, place: cst.CSTNode, loader: Loader, name: str) -> Finding:
    return rule.finding(
        source,
        place,
        f"`{name}` is shuffled anew in every pass",
        InsertBefore(source, place, (set_epoch(facts, loader, name),)),
        reason="the order of a DistributedSampler depends on its epoch, and nothing counts the passes here",
    )


def drawn(rule: Rule, facts: Facts, source: Source, place: cst.CSTNode, loader: Loader, name: str) -> Finding:
    """`def train(data): loader = DataLoader(data)`: each call has a new sampler, and no epoch is known there."""
    names = facts.names_of(source)
    number = f"{names['broadcast_value']}({names['torch']}.randint(2**31, ()).item())"
    return rule.finding(
        source,
        place,
        f"`{name}` is shuffled anew in every pass",
        InsertBefore(source, place, (set_epoch(facts, loader, name, number),)),
        AddHelper(source, "broadcast_value"),
        AddImport(source, "torch"),
        reason="the loader is made anew for each pass: the number of its order is drawn, and rank 0's on all ranks",
    )


def counted(rule: Rule, facts: Facts, found: Pass, loop: cst.CSTNode, place: cst.CSTNode) -> Finding:
    """`while True: it = iter(DataLoader(...))`: each has a new sampler, so the passes are counted beside it."""
    count = facts.names_of(found.source).fresh("passes")
    line = set_epoch(facts, found.loader, found.name, count)
    return rule.finding(
        found.source,
        place,
        f"`{found.name}` is shuffled anew in every pass",
        InsertBefore(found.source, loop, (f"{count} = 0",)),
        InsertBefore(found.source, place, (f"{count} += 1", line)),
        reason="the order of a DistributedSampler depends on its epoch, and nothing counts the passes here",
    )


def is_once(facts: Facts, loop: cst.CSTNode) -> bool:
    """`for epoch in range(1):` has one order."""
    call = loop.iter if isinstance(loop, cst.For) else None
    if not isinstance(call, cst.Call) or not 1 <= len(call.args) <= 2:
        return False
    if not any(isinstance(o, Ext) and o.name == "builtins.range" for o in facts.flow.values.get(call.func, ())):
        return False
    ends = [constants(facts.flow.values.get(a.value, ())) for a in call.args]
    numbers = [e[0] for e in ends if e is not None and len(e) == 1 and isinstance(e[0], int)]
    return len(numbers) == len(call.args) and len(range(*numbers)) <= 1
