"""Loaders in, where passes over them begin that no loop makes out: `it = iter(loader)` and `next(it)`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import libcst as cst

from ddpify.facts import Facts
from ddpify.facts.contents import origins
from ddpify.facts.frames import Event
from ddpify.facts.roles import expression_for, loaders_in
from ddpify.facts.sharding import loader_facts
from ddpify.facts.values import FromBatch, Loader
from ddpify.source import Source, walk


@dataclass(frozen=True, eq=False)
class Pass:
    """A pass over `loader` begins at `node`, where it is called `name`; without one, `problem` says what is wrong."""

    source: Source
    node: cst.CSTNode
    loader: Loader
    name: str = ""
    problem: str = ""

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
        found = [*_handed(facts, loader)] or [*_asked(facts, loader, shuffles)]
        for one in found:
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


def _handed(facts: Facts, loader: Loader) -> Iterator[Pass]:
    """`def cycle(loader): while True: for batch in loader: yield batch`"""
    for handed in facts.flow.handed:
        source, name = handed.frame.source, expression_for(loader, handed.frame, facts.flow)
        if name is not None and loader in loaders_in(handed.iterates) and facts.editable(source):
            yield Pass(source, handed.node, loader, name)


def _asked(facts: Facts, loader: Loader, shuffles: Callable[[Loader], bool]) -> Iterator[Pass]:
    """`it = iter(loader)`, and again where it has come to its end."""
    for e in facts.flow.log.of("external"):
        if e.name == "builtins.iter" and loader in e.value and facts.editable(e.frame.source):
            name = _picked(facts, e, shuffles) or _named(facts, loader, e)
            why = "" if name else "another pass over the loader begins here, in the order of the last one"
            yield Pass(e.frame.source, e.node, loader, name, why)


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
