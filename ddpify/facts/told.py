"""A function that makes training and evaluation loaders in, a parameter that tells the two apart out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.frames import Entry, Frame
from ddpify.facts.values import Class, Func
from ddpify.source import Source

if TYPE_CHECKING:
    from ddpify.facts import Facts

NAME = "distributed"
_DEPTH = 4


@dataclass(frozen=True, eq=False)
class Told:
    """`name` is a new parameter, False by default, of `functions`; `calls` give it a value."""

    name: str
    functions: tuple[tuple[Source, cst.FunctionDef], ...]
    calls: tuple[tuple[Source, cst.Call, str], ...]


def told_apart(facts: Facts, call: cst.Call) -> Told | None:
    """`make_loader(train_set, 32)` and `make_loader(test_set, 32)`: the calls differ, though no argument says how.

    None where one call, at the end of the way out, makes both, or where a way leads through what cannot be changed.
    """
    return facts.cached(f"told apart {id(call)}", lambda known: _told_apart(known, call))


def _told_apart(facts: Facts, call: cst.Call) -> Told | None:
    training = [x.site.frame for x in facts.roles.training_loaders if x.call is call]
    others = [x.site.frame for x in facts.roles.evaluation_loaders if x.call is call]
    functions: dict[cst.FunctionDef, Source] = {}
    calls: dict[cst.Call, tuple[Source, str]] = {}
    for _ in range(_DEPTH):
        nodes = {f.node for f in (*training, *others)}
        if len(nodes) != 1 or not all(_can_change(facts, f) for f in (*training, *others)):
            return None
        frame = training[0]
        assert isinstance(frame.node, cst.FunctionDef)
        functions[frame.node] = frame.source
        yes, no = _ways(training), _ways(others)
        if not all(_is_call(facts, e) for e in (*yes, *no)):
            return None
        both = {e.call for e in yes} & {e.call for e in no}
        for e in yes:
            assert isinstance(e.call, cst.Call)
            calls[e.call] = (e.frame.source, NAME if e.call in both else "True")
        if not both:
            return Told(
                NAME, tuple((s, f) for f, s in functions.items()), tuple((s, c, v) for c, (s, v) in calls.items())
            )
        # the same call makes both: the function around it has to be told
        training = [e.frame for e in yes if e.call in both]
        others = [e.frame for e in no if e.call in both]
        if {id(f) for f in training} & {id(f) for f in others}:
            return None
        if len({f.node for f in training}) > 1 or any(f.node in functions for f in training):
            return None
    return None


def _ways(frames: Sequence[Frame]) -> list[Entry]:
    return [entry for frame in frames for entry in frame.entries]


def _can_change(facts: Facts, frame: Frame) -> bool:
    """A function of the project with a last parameter that another one can follow."""
    node = frame.node
    if frame.home is not frame or not isinstance(node, cst.FunctionDef) or not facts.editable(frame.source):
        return False
    params = node.params
    plain = params.star_kwarg is None and isinstance(params.star_arg, cst.MaybeSentinel) and not params.kwonly_params
    names = {p.name.value for p in (*params.posonly_params, *params.params)} | set(frame.scope.names)
    return plain and bool(params.params) and NAME not in names


def _is_call(facts: Facts, entry: Entry) -> bool:
    """A call of the function by its name, in a file that may be changed: no map, no partial, no decorator."""
    call = entry.call
    if not isinstance(call, cst.Call) or not facts.editable(entry.frame.source):
        return False
    return any(isinstance(o, (Func, Class)) for o in facts.flow.values.get(call.func, ()))
