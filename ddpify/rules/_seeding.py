"""A function of the script that seeds all generators in, the call that seeds a rank otherwise out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import libcst as cst

from ddpify.facts import Facts
from ddpify.facts.definitions import argument_of
from ddpify.facts.dependencies import read_names
from ddpify.facts.frames import Entry, Frame
from ddpify.facts.seeds import Seed
from ddpify.source import Source

#: what such a function may do besides: it is done again
_SETTINGS = re.compile(
    r".*seed\w*|torch\.(use_deterministic_algorithms|set_\w+|cuda\.is_available|backends\..*)|builtins\.(str|int)|os\.(environ\b.*|putenv)"
)


def called_apart(facts: Facts, source: Source, frame: Frame, fixed: Sequence[Seed], rank: str) -> str:
    """`set_seed(args.seed + dist.get_rank())`, where the script calls `set_seed(args.seed)`; "" where it cannot."""
    for seed in fixed:
        of = seed.call.args[0].value
        around = seed.event.frame
        if not isinstance(of, cst.Name) or of.value in around.assigned or not _only_seeds(around):
            continue
        for entry in around.entries:
            text = _again(facts, source, frame, entry, around, of.value, rank)
            if text:
                return text
    return ""


def _only_seeds(frame: Frame) -> bool:
    """A function that seeds, and makes settings that may be made twice."""
    if not isinstance(frame.node, cst.FunctionDef) or frame.func is None or frame.func.bound is not None:
        return False
    calls = [e for e in frame.events if e.kind in ("external", "method", "call", "forward")]
    return all(e.kind == "external" and _SETTINGS.fullmatch(e.name) is not None for e in calls)


def _again(facts: Facts, source: Source, frame: Frame, entry: Entry, seeding: Frame, name: str, rank: str) -> str:
    call = entry.call
    if not isinstance(call, cst.Call) or entry.frame.source is not source or any(a.star for a in call.args):
        return ""
    given = argument_of(call, seeding, name)
    used = [call.func, *([given] if given is not None else [])]
    if not all(_visible(facts, source, frame, entry.frame, n) for node in used for n in read_names(node)):
        return ""
    if given is None:
        default = next(iter(_defaults(seeding, name)), None)
        text = f"{name}={default} + {rank}" if default is not None else ""
        parts = [*(source.code(a).rstrip(", ") for a in call.args), text]
        return f"{source.code(call.func)}({', '.join(parts)})" if text else ""
    plain = isinstance(given, (cst.Name, cst.Attribute, cst.Integer, cst.Subscript, cst.Call))
    said = source.code(given) if plain else f"({source.code(given)})"
    parts = [
        source.code(a).rstrip(", ").replace(source.code(given), f"{said} + {rank}")
        if a.value is given
        else source.code(a).rstrip(", ")
        for a in call.args
    ]
    return f"{source.code(call.func)}({', '.join(parts)})"


def _defaults(frame: Frame, name: str) -> Iterator[int]:
    assert isinstance(frame.node, cst.FunctionDef)
    for param in (*frame.node.params.params, *frame.node.params.kwonly_params):
        if param.name.value == name and isinstance(param.default, cst.Integer):
            yield int(param.default.value, 0)


def _visible(facts: Facts, source: Source, frame: Frame, there: Frame, name: str) -> bool:
    """Whether a name of the call's function is the same one where the model is wrapped."""
    if "." in name or there.node is frame.node:
        return True
    top = facts.flow.modules[source].scope.names
    hidden = set(frame.scope.names) if frame.func is not None else set()
    local = set(there.scope.names) if there.func is not None else set()
    return name in top and name not in hidden | local
