"""A level of a training loop in, the random draws in it out, and those that are the same on every rank."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.externals import role_of
from ddpify.facts.frames import Event
from ddpify.facts.levels import Level
from ddpify.facts.trails import way_back
from ddpify.facts.values import Data, FromWorld
from ddpify.facts.whole import Unshared

if TYPE_CHECKING:
    from ddpify.facts import Facts

_GENERATORS = re.compile(r"(np|numpy)\.random\.(default_rng|RandomState|Generator)|random\.(Random|SystemRandom)")
_METHODS = """
integers choice choices permutation permuted random randint sample shuffle standard_normal normal uniform rand randn
randrange
"""
#: methods of a generator that draw
_DRAWS = frozenset(_METHODS.split())


def own_generators(facts: Facts, level: Level) -> Iterator[Unshared]:
    """`torch.randint(n, (32,), generator=g)`, `rng.integers(n, size=32)`: the same draws on every rank."""
    seeded = [e.name for e in facts.flow.log.of("external") if _GENERATORS.fullmatch(e.name) and (e.value or e.extra)]
    for e in drawn(facts, level):
        if "generator" in e.extra or (e.kind == "method" and seeded):
            source, text = e.frame.source, e.frame.source.code(e.node).split("\n")[0]
            why = f"`{text}` draws from a generator with a seed of its own: every rank would train on the same batches"
            remedy = "draw the batches from the global generator (torch.manual_seed, np.random.seed, random.seed)"
            call = e.node
            args = call.args if isinstance(call, cst.Call) else ()
            own = next((a.value for a in args if a.keyword is not None and a.keyword.value == "generator"), None)
            func = call.func if isinstance(call, cst.Call) else None
            by = own or (func.value if isinstance(func, cst.Attribute) else call)
            yield Unshared(source, e.node, why, remedy, way_back(facts.flow, by, source, e.frame, value=text))


def drawn(facts: Facts, level: Level) -> Iterator[Event]:
    """Random draws within the loops of a level."""
    inside = {id(lp.node) for lp in level.loops}
    for e in facts.flow.log.of("external", "method"):
        draws = role_of(e.name) == "random" if e.kind == "external" else _is_drawn(e)
        if draws and e.seq < facts.flow.main_end and any(id(lp.node) in inside for ls in e.all_loops() for lp in ls):
            yield e


def _is_drawn(event: Event) -> bool:
    """`rng.integers(n)`"""
    known = event.obj.origins if isinstance(event.obj, Data) else ()
    return event.name in _DRAWS and any(isinstance(o, FromWorld) and _GENERATORS.fullmatch(o.what) for o in known)
