"""Directories that are made in, those out whose name was searched for: the first that is not there yet.

    while os.path.exists(path):
        number += 1
        path = f"runs/exp{number}"
    os.makedirs(path)

As soon as one rank has made it, the others find another name. So it is with `len(os.listdir("runs"))` in a name.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from ddpify.facts.chance import used_paths
from ddpify.facts.definitions import Definition, Definitions, definitions
from ddpify.facts.flow import Flow
from ddpify.facts.frames import Entry, Event, Frame
from ddpify.facts.values import Ext
from ddpify.source import walk

_ASKS = re.compile(r"os\.path\.(exists|lexists|isdir|isfile)")
_ASKS_PATH = {"exists", "is_dir", "is_file"}
_LISTS = re.compile(r"os\.(listdir|scandir)|glob\.i?glob")
_MAKES = re.compile(r"os\.(makedirs|mkdir)")
_DEPTH = 6


@dataclass(frozen=True, eq=False)
class Searched:
    """`event` binds the name in a loop, which asks what is there; `calls` run the function that gives it back.

    Without such a function `name` is looked for where the script works, and `made_inside` says that the loop makes the
    directory, too. `asks` is the loop, or the expression that counts what a directory holds.
    """

    event: Event
    asks: cst.For | cst.While | cst.BaseExpression
    name: str
    calls: tuple[Entry, ...]
    made_inside: bool


@functools.lru_cache(maxsize=4)
def searched_paths(flow: Flow) -> tuple[Searched, ...]:
    """The names behind the directories that a script makes, each loop once."""
    known = definitions(flow)
    found: dict[cst.CSTNode, Searched] = {}
    for made, path in used_paths(flow, _MAKES):
        for d in _ways(known, path, made.frame):
            asks = _search(flow, d) or _count(flow, d)
            if asks is None or not _runs(d.frame) or d.event is None:
                continue
            calls = tuple(_calls(flow, d.frame))
            place = d.frame.node if calls else asks  # one function gives one name, whatever it asks for
            if place not in found:
                inside = asks in set(made.frame.source.ancestors(made.node))
                found[place] = Searched(d.event, asks, d.event.name, calls, inside)
    return tuple(found.values())


def _runs(frame: Frame) -> bool:
    """A module's own code, or a function that something calls."""
    called = any(isinstance(e.call, cst.Call) for e in frame.entries)
    return called or not isinstance(frame.node, cst.FunctionDef)


def _ways(
    known: Definitions, node: cst.CSTNode, frame: Frame, seen: set[int] | None = None, depth: int = _DEPTH
) -> Iterator[Definition]:
    """What a path is made of, back through names, parameters and what functions give back."""
    seen = set() if seen is None else seen
    for part in walk(node):
        if not depth or id(part) in seen or not isinstance(part, (cst.Name, cst.Attribute, cst.Call)):
            continue
        seen.add(id(part))
        for d in known.of(part, frame):
            yield d
            yield from _ways(known, d.node, d.frame, seen, depth - 1)


def _search(flow: Flow, d: Definition) -> cst.For | cst.While | None:
    """The loop that a name is bound in, where it goes on or ends by what is there."""
    if d.event is None or not isinstance(d.event.stmt, (cst.Assign, cst.AugAssign)):
        return None
    for above in d.frame.source.ancestors(d.event.stmt):
        if isinstance(above, (cst.FunctionDef, cst.ClassDef)):
            return None
        if isinstance(above, cst.While) and _asks(flow, above.test):
            return above
        tests = (
            [n for n in walk(above.body) if isinstance(n, cst.If)] if isinstance(above, (cst.For, cst.While)) else ()
        )
        if any(_asks(flow, n.test) and any(isinstance(m, (cst.Break, cst.Return)) for m in walk(n)) for n in tests):
            assert isinstance(above, (cst.For, cst.While))
            return above
    return None


def _count(flow: Flow, d: Definition) -> cst.BaseExpression | None:
    """`version = len(os.listdir("runs"))`, `last = max(glob.glob("runs/*"))`: all of the right side."""
    stmt = d.event.stmt if d.event is not None else None
    if not isinstance(stmt, cst.Assign) or stmt.value is not d.node or d.index is not None:
        return None
    calls = [n for n in walk(d.node) if isinstance(n, cst.Call)]
    lists = any(isinstance(o, Ext) and _LISTS.fullmatch(o.name) for n in calls for o in flow.values.get(n.func, ()))
    return d.node if lists else None


def _asks(flow: Flow, test: cst.BaseExpression) -> bool:
    for node in walk(test):
        if isinstance(node, cst.Call):
            if any(isinstance(o, Ext) and _ASKS.fullmatch(o.name) for o in flow.values.get(node.func, ())):
                return True
            if isinstance(node.func, cst.Attribute) and node.func.attr.value in _ASKS_PATH and not node.args:
                return True
    return False


def _calls(flow: Flow, frame: Frame) -> Iterator[Entry]:
    """The calls of the function that searches, where it gives the name back and keeps nothing elsewhere."""
    if not isinstance(frame.node, cst.FunctionDef):
        return
    gives = any(isinstance(n, cst.Return) and n.value is not None for n in walk(frame.node.body))
    frames = [f for f in flow.frames if f.node is frame.node]
    if gives and not any(e.kind == "set" for f in frames for e in f.events):
        yield from {id(e.call): e for f in frames for e in f.entries if isinstance(e.call, cst.Call)}.values()
