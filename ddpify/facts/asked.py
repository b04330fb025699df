"""Questions to the file system in, those out whose answer rank 0 changes for the others: it makes what they ask for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.caches import caches, in_cache
from ddpify.facts.dependencies import own_nodes
from ddpify.facts.frames import Event
from ddpify.facts.outside import Outside, holding, outside_calls
from ddpify.facts.placing import exclusive
from ddpify.facts.reads import Paths
from ddpify.facts.searched import searched_paths
from ddpify.facts.values import Optimizer
from ddpify.facts.work import names_bound
from ddpify.facts.writes import find_writes, is_path
from ddpify.source import Source, dotted, walk

if TYPE_CHECKING:
    from ddpify.facts import Facts

_ASKS = re.compile(r"os\.path\.(exists|isfile|isdir|lexists)|os\.listdir")
_ASKING = frozenset({"exists", "is_dir", "is_file"})
_CHANGES = frozenset({"os.makedirs", "os.mkdir", "shutil.rmtree"})
_ENDS = frozenset({"sys.exit", "exit", "quit", "os._exit", "input"})


@dataclass(frozen=True, eq=False)
class Asked:
    """`node` is the test or value that asks, `change` the call by which rank 0 changes the answer soon after."""

    source: Source
    node: cst.BaseExpression
    event: Event
    change: Outside


def asked_before(facts: Facts) -> Iterator[Asked]:
    """Each question that decides what all ranks do, and is asked just before the file or folder is made or gone."""
    calls = facts.cached("outside", outside_calls)
    paths = Paths(facts)
    changes = [(c, path_of(c)) for c in calls if c.name in _CHANGES or c.method == "mkdir"]
    changes += [(w.call, w.path) for w in facts.cached("writes", find_writes)]
    met = [e.seq for e in facts.flow.log.events if e.kind == "backward" or isinstance(e.obj, Optimizer)]
    elsewhere = {id(c.place) for c in caches(facts)} | {id(s.asks) for s in searched_paths(facts.flow)}
    seen: set[int] = set()
    for call in calls:
        if not (_ASKS.fullmatch(call.name) or (call.method in _ASKING and is_path(call))):
            continue
        node, asked = _decides(call.source, call.node), path_of(call)
        around = (*call.source.ancestors(call.node),)
        if node is None or asked is None or id(node) in seen or any(id(a) in elsewhere for a in around):
            continue
        for e in call.events:
            if in_cache(e, facts):
                continue
            later = next(
                (
                    c
                    for c, path in changes
                    for w in c.events
                    if path is not None
                    and e.seq < w.seq
                    and not any(e.seq < m < w.seq for m in met)
                    and not exclusive(e, w)
                    and (
                        paths.same((asked, e.frame), (path, w.frame))
                        or (_makes(c) and paths.inside((asked, e.frame), (path, w.frame)))
                    )
                ),
                None,
            )
            if later is not None:
                seen.add(id(node))
                yield Asked(call.source, node, e, later)
                break


def _makes(call: Outside) -> bool:
    """A folder that is made with those above it."""
    return call.name == "os.makedirs" or call.method == "mkdir"


def path_of(call: Outside) -> cst.BaseExpression | None:
    """Of which file or folder `os.makedirs(path)`, `shutil.rmtree(path)` and `path.exists()` are."""
    if call.method:
        return call.node.func.value if isinstance(call.node.func, cst.Attribute) else None
    return call.argument(0, "path", "name")


def _decides(source: Source, call: cst.Call) -> cst.BaseExpression | None:
    """The test or the value in which a call stands, where what it says matters to all ranks."""
    stmt = holding(source, call)
    inner: cst.CSTNode = call
    for above in source.ancestors(call):
        if isinstance(above, (cst.Lambda, cst.BaseComp)):
            return None
        if above is stmt:
            break
        inner = above
    match stmt:
        case cst.If(test=test, body=body, orelse=orelse) if inner is test:
            branches = [b for b in (body, orelse) if b is not None]
            return test if any(_matters(source, b) for b in branches) else None
        case cst.Assert(test=test) if inner is test:
            return test
        case cst.Assign(value=value) if inner is value:
            return value
    return None


def _matters(source: Source, branch: cst.CSTNode) -> bool:
    """Whether the ranks have to go the same way: it leaves, asks the user, or gives names that are used behind it."""
    for node in own_nodes(branch):
        if isinstance(node, (cst.Raise, cst.Return, cst.Break, cst.Continue)):
            return True
        if isinstance(node, cst.Call) and dotted(node.func) in _ENDS:
            return True
    owner = next((a for a in source.ancestors(branch) if isinstance(a, cst.FunctionDef)), source.module)
    inside, end = set(walk(branch)), source.span(branch).end
    bound = names_bound(branch)
    return any(
        isinstance(n, cst.Name) and n.value in bound and n not in inside and source.span(n).start >= end
        for n in walk(owner)
    )
