"""Writes and reads in, caches out: files that are built where they are missing, and that every rank then reads."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.drawing import is_seeded
from ddpify.facts.externals import role_of
from ddpify.facts.frames import Event, Frame
from ddpify.facts.placing import in_branches, steps
from ddpify.facts.ranks import guarded
from ddpify.facts.reads import Paths, Read, asks_files, find_reads
from ddpify.facts.values import Loader, Module
from ddpify.facts.work import work
from ddpify.facts.writes import Write, find_writes
from ddpify.source import Source, walk

if TYPE_CHECKING:
    from ddpify.facts import Facts

_REMOVES = re.compile(r"os\.(remove|unlink|rmdir|removedirs|truncate)|unlink|rmdir")
_DRAWS = frozenset({"random", "random-split", "split", "seed"})


@dataclass(frozen=True, eq=False)
class Cache:
    """`place` is the statement (`if not os.path.exists(path): build(path)`) that one process has to pass first."""

    source: Source
    place: cst.CSTNode
    frame: Frame
    write: Write
    event: Event


def find_caches(facts: Facts) -> list[Cache]:
    """The places at which files are built, each once; those inside another one are a part of it."""
    paths = Paths(facts)
    reads = find_reads(facts)
    first = min((e.seq for e in facts.roles.backwards), default=facts.flow.main_end)
    found: dict[int, Cache] = {}
    for write in facts.cached("writes", find_writes):
        if _REMOVES.fullmatch(write.call.name or write.call.method):
            continue
        for event in write.call.events if write.path is not None else ():
            early = event.seq < first and not _in_training(facts, event)
            if early and not guarded(event, facts.flow) and _read_by_all(facts, paths, reads, write, event):
                cache = _around(facts, write, event)
                if cache is not None:
                    found.setdefault(id(cache.place), cache)
    places = {id(c.place) for c in found.values()}
    return [c for c in found.values() if not any(id(a) in places for a in c.source.ancestors(c.place))]


def caches(facts: Facts) -> list[Cache]:
    """The caches of a conversion, found once."""
    made = facts.cached("caches", find_caches)
    return made


def in_cache(event: Event, facts: Facts) -> bool:
    """Whether something happens while a cache is built, on every way that leads to it."""
    if not facts.converting:
        return False
    places = {id(c.place) for c in caches(facts)}
    if not places:
        return False

    def inside(source: Source, node: cst.CSTNode) -> bool:
        return id(node) in places or any(id(a) in places for a in source.ancestors(node))

    here = inside(event.frame.source, event.node)
    return here or event.frame.reached_through(lambda entry: inside(entry.frame.source, entry.call))


def finds_cache(event: Event, facts: Facts) -> bool:
    """Whether something is done where a cache is there already, as on every rank but the one that builds it."""
    for cache in caches(facts):
        if not isinstance(cache.place, cst.If) or cache.place.orelse is None:
            continue
        built = next((s for f, s, _ in steps(cache.event) if f is cache.frame), None)
        for frame, stmt, _ in steps(event):
            if built is not None and frame.node is cache.frame.node and in_branches(cache.source, stmt, built):
                return cache.place in cache.source.ancestors(stmt)
    return False


def _in_training(facts: Facts, event: Event) -> bool:
    return any(isinstance(o, Loader) for loops in event.all_loops() for lp in loops for o in lp.iterates)


def _read_by_all(facts: Facts, paths: Paths, reads: list[Read], write: Write, event: Event) -> bool:
    assert write.path is not None
    for read in reads:
        for other in read.call.events:
            if paths.same((read.path, other.frame), (write.path, event.frame)) and not guarded(other, facts.flow):
                return True
    return False


def _around(facts: Facts, write: Write, event: Event) -> Cache | None:
    """The outermost `if` on the way to a write that asks for files, and in which nothing but building is done."""
    ways = steps(event)
    for frame, stmt, _ in ways:
        source = frame.source
        asking = [
            a
            for a in (stmt, *_of_function(source, stmt))
            if isinstance(a, cst.If) and asks_files(a.test, facts) and facts.editable(source)
        ]
        for place in reversed(asking):
            while isinstance(source.parents.get(place), cst.If):
                place = source.parents[place]  # type: ignore[assignment]  # an `elif` is no statement of its own
            if not work(facts.flow).meets(place) and not _draws(facts, place):
                return Cache(source, place, frame, write, event)
    return None


def _of_function(source: Source, stmt: cst.CSTNode) -> list[cst.CSTNode]:
    found = []
    for above in source.ancestors(stmt):
        if isinstance(above, (cst.FunctionDef, cst.ClassDef, cst.Lambda)):
            break
        found.append(above)
    return found


def _draws(facts: Facts, place: cst.CSTNode) -> bool:
    """Whether random numbers are drawn that a seed fixes, and no seed follows: the ranks that find the file go on with
    another stream.
    """
    events = work(facts.flow).events
    inside = [e for node in walk(place) for e in events.get(id(node), ())]
    if not any(_drawing(facts, e, set()) for e in inside):
        return False
    last = max(e.seq for e in inside)
    return not any(e.seq > last and role_of(e.name) == "seed" for e in facts.flow.log.of("external"))


def _drawing(facts: Facts, event: Event, seen: set[int]) -> bool:
    if event.callee is not None:
        new = id(event.callee) not in seen
        seen.add(id(event.callee))
        return new and any(_drawing(facts, e, seen) for e in event.callee.events)
    if event.kind == "new":
        return isinstance(event.obj, Module) and event.obj.has_parameters
    draws = event.kind == "external" and role_of(event.name) in _DRAWS and "generator" not in event.extra
    return draws and (not event.name.startswith("random.") or is_seeded(facts, "random", event))
