"""An event in, an answer out: does one process of each node do it before the others, by a context manager?"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.caches import in_cache
from ddpify.facts.fetches import makes_dataset
from ddpify.facts.filled import over_nothing
from ddpify.facts.frames import Event, Frame
from ddpify.facts.given_ranks import never_runs
from ddpify.facts.ranks import guarded, ranks
from ddpify.facts.reads import asks_files
from ddpify.source import walk

if TYPE_CHECKING:
    from ddpify.facts import Facts


def goes_first(facts: Facts, event: Event) -> bool:
    """Under a context manager of the project that lets one process go ahead: `with main_process_first():`"""
    chain = [(event.frame, event.node), *((e.frame, e.call) for c in event.frame.chains() for e in c)]
    for frame, node in chain:
        for above in frame.source.ancestors(node):
            if isinstance(above, cst.With) and any(_waits(facts, i.item) for i in above.items):
                return True
        if _behind_barrier(facts, frame, node):
            return True
    return False


def _behind_barrier(facts: Facts, frame: Frame, node: cst.CSTNode) -> bool:
    """Between `if local_rank != 0: barrier()` and `if local_rank == 0: barrier()`."""
    source = frame.source
    below = node
    for above in source.ancestors(node):
        if isinstance(above, (cst.IndentedBlock, cst.Module)):
            at = next((i for i, s in enumerate(above.body) if s is below), 0)
            sides = (above.body[:at], above.body[at + 1 :])
            if all(any(_waits_by_rank(facts, frame, s) for s in side) for side in sides):
                return True
        if isinstance(above, cst.FunctionDef):
            break
        below = above
    return False


def _waits_by_rank(facts: Facts, frame: Frame, stmt: cst.CSTNode) -> bool:
    if not isinstance(stmt, cst.If) or len(stmt.body.body) != 1 or not ranks(facts.flow).tests_rank(stmt.test, frame):
        return False
    return any(
        str(getattr(o, "name", "")).endswith("distributed.barrier")
        for n in walk(stmt.body)
        if isinstance(n, cst.Call)
        for o in facts.flow.values.get(n.func, ())
    )


def by_one(facts: Facts, event: Event) -> bool:
    """What one process does, or one of each node: under a test of the rank, ahead of the others, for a cache."""
    return (
        guarded(event, facts.flow)
        or goes_first(facts, event)
        or in_cache(event, facts)
        or _in_download(event, facts)
        or (not facts.converting and (_in_lock(facts, event) or never_runs(event) or over_nothing(event, facts.flow)))
    )


#: what one process of a node at a time holds
_LOCK = re.compile(r"(.*\.)?(FileLock|SoftFileLock|InterProcessLock|UnixFileLock)|portalocker\.(Lock|RLock)")


def _in_lock(facts: Facts, event: Event) -> bool:
    """`with FileLock(path):`, and in it the question whether another process has done it already."""
    ways = [[(e.frame, e.call) for e in chain] for chain in event.frame.chains()]
    own = _locked(facts, event.frame, event.node)
    return own or (bool(ways) and all(any(_locked(facts, f, n) for f, n in way) for way in ways))


def _locked(facts: Facts, frame: Frame, node: cst.CSTNode) -> bool:
    for above in frame.source.ancestors(node):
        if isinstance(above, cst.With):
            funcs = [i.item.func for i in above.items if isinstance(i.item, cst.Call)]
            names = [getattr(o, "name", "") for f in funcs for o in facts.flow.values.get(f, ())]
            if any(map(_LOCK.fullmatch, names)):
                return any(isinstance(n, cst.If) and asks_files(n.test, facts) for n in walk(above.body))
        if isinstance(above, cst.FunctionDef):
            break
    return False


def _in_download(event: Event, facts: Facts) -> bool:
    """What a dataset of the project writes when it is made with `download=True`: one process of each node makes it."""
    if not facts.converting:
        return False
    made = facts.cached("fetched", _fetched)
    return bool(made) and event.frame.reached_through(lambda entry: id(entry.call) in made)


def _fetched(facts: Facts) -> frozenset[int]:
    return frozenset(id(e.node) for e in facts.flow.log.events if makes_dataset(e, facts.flow.values))


def _waits(facts: Facts, item: cst.BaseExpression) -> bool:
    callee = facts.flow.values.get(item.func, ()) if isinstance(item, cst.Call) else ()
    for obj in callee:
        node = getattr(obj, "node", None)
        if node is not None and any(
            "barrier" in str(getattr(o, "name", ""))
            for n in walk(node)
            if isinstance(n, cst.Call)
            for o in facts.flow.values.get(n.func, ())
        ):
            return True
    return False
