"""Writes and reads in, caches out: files that are built where they are missing, and that every rank then reads."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.definitions import definitions, returns
from ddpify.facts.drawing import is_seeded
from ddpify.facts.externals import role_of
from ddpify.facts.frames import Event, Frame
from ddpify.facts.placing import in_branches, steps, ways
from ddpify.facts.ranks import guarded
from ddpify.facts.reads import Paths, Read, asks_files, find_reads
from ddpify.facts.values import Func, Loader, Module
from ddpify.facts.work import work
from ddpify.facts.writes import Write, find_writes
from ddpify.source import Source, walk

if TYPE_CHECKING:
    from ddpify.facts import Facts

_REMOVES = re.compile(r"os\.(remove|unlink|rmdir|removedirs|truncate)|unlink|rmdir")
_DRAWS = frozenset({"random", "random-split", "split", "seed"})


@dataclass(frozen=True, eq=False)
class Cache:
    """`place` is the statement (`if not os.path.exists(path): build(path)`) that one process has to pass first.

    `asks_inside`: it calls a function that returns where the file is there (`if os.path.exists(path): return`).
    """

    source: Source
    place: cst.CSTNode
    frame: Frame
    write: Write
    event: Event
    asks_inside: bool = False


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
            if not early or guarded(event, facts.flow):
                continue
            read = _read_by_all(facts, paths, reads, write, event)
            cache = _around(facts, write, event) if read else None
            for one in [cache] if cache is not None else _callers(facts, None if read else paths, write, event):
                found.setdefault(id(one.place), one)
    return [c for c in found.values() if not _nested(c, {id(o.place) for o in found.values() if o is not c})]


def _nested(cache: Cache, places: set[int]) -> bool:
    """Whether it is a part of another one, in its text or by the calls that lead to it."""
    calls = [(e.frame.source, e.call) for chain in cache.frame.chains() for e in chain]
    around = (a for source, node in ((cache.source, cache.place), *calls) for a in source.ancestors(node))
    return any(id(a) in places for a in around)


def caches(facts: Facts) -> list[Cache]:
    """The caches of a conversion, found once."""
    made = facts.cached("caches", find_caches)
    return made


def in_cache(event: Event, facts: Facts, asks_inside: bool = False) -> bool:
    """Whether something happens while a cache is built, on every way that leads to it."""
    if not facts.converting:
        return False
    places = {id(c.place) for c in caches(facts) if c.asks_inside or not asks_inside}
    if not places:
        return False

    def inside(source: Source, node: cst.CSTNode) -> bool:
        return id(node) in places or any(id(a) in places for a in source.ancestors(node))

    here = inside(event.frame.source, event.node)
    return here or event.frame.reached_through(lambda entry: inside(entry.frame.source, entry.call))


def finds_cache(event: Event, facts: Facts) -> bool:
    """Whether something is done where a cache is there already, as on every rank but the one that builds it."""
    if in_cache(event, facts, asks_inside=True):
        way = steps(event)
        if any(_goes_back(a, facts) for f, stmt, _ in way for a in _of_function(f.source, stmt)):
            return True
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
    for frame, stmt, _ in steps(event):
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


def _callers(facts: Facts, paths: Paths | None, write: Write, event: Event) -> Iterator[Cache]:
    """The calls of a function that returns early where the file is there: it builds, or finds, all that it is for.

    `paths`, where nothing is known to read the file: then it has to be the one that is asked for.
    """
    for way in ways(event):
        for (caller, call, _), (frame, stmt, _) in itertools.pairwise(way):
            asks = _returns_early(facts, frame, stmt) if facts.editable(caller.source) else None
            if asks is None or not isinstance(call, cst.BaseSmallStatement):
                continue
            if paths is not None and not _asks_for(facts, paths, asks, frame, write, event):
                continue
            if not work(facts.flow).meets(call) and not _draws(facts, call):
                yield Cache(caller.source, call, caller, write, event, asks_inside=True)
                break


def _returns_early(facts: Facts, frame: Frame, stmt: cst.CSTNode) -> cst.If | None:
    """`if os.path.exists(path): return load(path)` before a statement, in the function's own block."""
    if not isinstance(frame.node, cst.FunctionDef):
        return None
    inside = {id(a) for a in (stmt, *frame.source.ancestors(stmt))}
    for one in frame.node.body.body:
        if id(one) in inside:
            return None
        if isinstance(one, cst.If) and _goes_back(one, facts):
            return one
    return None


def _goes_back(stmt: cst.CSTNode, facts: Facts) -> bool:
    """`if os.path.exists(path): return load(path)`, `if self.is_there(): return`"""
    if not isinstance(stmt, cst.If) or stmt.orelse is not None:
        return False
    last = stmt.body.body[-1] if stmt.body.body else None
    if not isinstance(last.body[-1] if isinstance(last, cst.SimpleStatementLine) else last, cst.Return):
        return False
    asked = [o for n in walk(stmt.test) if isinstance(n, cst.Call) for o in facts.flow.values.get(n.func, ())]
    given = [r.value for o in asked if isinstance(o, Func) for r in returns(o.node.body) if r.value is not None]
    return any(asks_files(test, facts) for test in (stmt.test, *given))


def _asks_for(facts: Facts, paths: Paths, asks: cst.If, frame: Frame, write: Write, event: Event) -> bool:
    """Whether the file that is asked for is the one that is written."""
    assert write.path is not None
    known = definitions(facts.flow)
    calls = [(n, frame) for n in walk(asks.test) if isinstance(n, cst.Call)]
    given = [d for call, where in calls for func in known.callees(call, where) for d in known.returned(func)]
    calls += [(n, d.frame) for d in given for n in (d.node, *walk(d.node)) if isinstance(n, cst.Call)]
    for call, where in calls:
        told = [a.value for a in call.args[:1]]
        told += [call.func.value] if isinstance(call.func, cst.Attribute) else []
        if any(paths.same((one, where), (write.path, event.frame)) for one in told):
            return True
        if _texts(facts, write.path, event.frame) & {t for one in told for t in _texts(facts, one, where)}:
            return True
    return False


def _texts(facts: Facts, node: cst.BaseExpression, frame: Frame) -> set[tuple[Source, str]]:
    """`os.path.join(self.root, "data")`: what two methods call a path, where it is made of nothing of their own."""
    found = set()
    for at, where in ((node, frame), *((d.node, d.frame) for d in definitions(facts.flow).of(node, frame))):
        params = where.node.params.params[:1] if isinstance(where.node, (cst.FunctionDef, cst.Lambda)) else ()
        mine = where.assigned | set(where.arguments) - {p.name.value for p in params}
        named = {n.value for n in (at, *walk(at)) if isinstance(n, cst.Name)}
        if isinstance(at, (cst.Attribute, cst.Call)) and not named & mine:
            found.add((where.source, where.source.code(at)))
    return found


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
