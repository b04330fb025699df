"""A function of the script that seeds all generators in, the call that seeds a rank otherwise out."""

from __future__ import annotations

import re
from collections.abc import Sequence

import libcst as cst

from ddpify.facts import Facts
from ddpify.facts.definitions import argument_of
from ddpify.facts.dependencies import read_names
from ddpify.facts.drawing import is_certain, tests_around
from ddpify.facts.frames import Entry, Frame
from ddpify.facts.given_ranks import default_of
from ddpify.facts.placing import steps
from ddpify.facts.seeds import Seed
from ddpify.facts.values import Ext
from ddpify.source import Source

#: what such a function may do besides: it is done again
_SETTINGS = re.compile(
    r".*seed\w*|torch\.(use_deterministic_algorithms|set_\w+|cuda\.is_available|backends\..*)"
    r"|builtins\.(str|int)|os\.(environ\b.*|putenv)"
)


def called_apart(
    facts: Facts, source: Source, frame: Frame, fixed: Sequence[tuple[str, Seed]], rank: str
) -> tuple[str, str]:
    """`set_seed(args.seed + dist.get_rank())`, where the script calls `set_seed(args.seed)`; "" where it cannot.

    With the test under which it does.
    """
    for test, seed in fixed:
        of = seed.call.args[0].value
        around = seed.event.frame
        if not isinstance(of, cst.Name) or of.value in around.assigned or not _only_seeds(around):
            continue
        for entry in around.entries:
            text = _again(facts, source, frame, entry, around, of.value, rank)
            if text:
                return test, text
    return "", ""


def as_torch_began(facts: Facts, source: Source, fixed: Sequence[Seed]) -> list[tuple[str, str]]:
    """`torch.manual_seed(torch.initial_seed() + dist.get_rank())`, of a seed that has no name in this file.

    The other generators that the script seeds follow, where the file imports their modules.
    """
    names, given = facts.names_of(source), facts.flow.modules[source].scope.names.items()
    began = f"{names['torch']}.initial_seed() + {names['dist']}.get_rank()"
    lines = [("", f"{names['torch']}.manual_seed({began})")]
    seeded = {s.what for s in fixed}
    for what, method, number in (("numpy", "random.seed", f"({began}) % 2**32"), ("random", "seed", began)):
        name = next((n for n, held in given if any(isinstance(o, Ext) and o.name == what for o in held)), "")
        lines += [("", f"{name}.{method}({number})")] if name and what in seeded else []
    return lines


def asked_for(facts: Facts, seed: Seed, source: Source, frame: Frame, place: cst.CSTNode) -> str | None:
    """`args.seed is not None`: the test under which a seed is set, "" where it always is; None where it has no name."""
    if is_certain(facts, seed):
        return ""
    ways = [(frame, place), *((e.frame, e.stmt) for chain in frame.chains() for e in chain)]
    around = {id(a) for f, stmt in ways for a in f.source.ancestors(stmt)}
    found = ""
    for there, stmt, _ in steps(seed.event):
        for test in tests_around(there, stmt):
            if id(test) in around:
                continue
            within = any(a is test.body for a in there.source.ancestors(stmt))
            if (
                found
                or not within
                or there.source is not source
                or not nameable(facts, test.test, there, frame.node, frame)
            ):
                return None
            text = source.code(test.test)
            loose = isinstance(test.test, (cst.IfExp, cst.Lambda)) or (
                isinstance(test.test, cst.BooleanOperation) and isinstance(test.test.operator, cst.Or)
            )
            found = f"({text})" if loose and not test.test.lpar else text
    return found


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
    hidden = set(frame.scope.names) if frame.func is not None and entry.frame.node is not frame.node else set()
    if not all(nameable(facts, n, entry.frame, frame.node) and not read_names(n) & hidden for n in used):
        return ""
    if given is None:
        default = default_of(seeding, name)
        text = f"{name}={default.evaluated_value} + {rank}" if isinstance(default, cst.Integer) else ""
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


def nameable(facts: Facts, node: cst.CSTNode, there: Frame, scope: cst.CSTNode, frame: Frame | None = None) -> bool:
    """Whether the names in an expression of one frame mean the same in a function, or module, of the same file.

    `frame`: one in which that function runs; its parameters may have been given what has the same name there.
    """
    source = there.source
    if not any(n is scope for n in (source.module, *source.parents)):
        return False
    if there.node is scope:
        return True
    top = facts.flow.modules[source].scope.names
    hidden = set() if there.func is None else set(there.scope.names)
    names = (name for name in read_names(node) if "." not in name and name not in ("None", "True", "False"))
    return all((name in top and name not in hidden) or _handed_on(name, there, frame) for name in names)


def _handed_on(name: str, there: Frame, frame: Frame | None) -> bool:
    """`args` in `worker(gpu, args)`, called as `worker(0, args)` where `args` is meant, in each call of it."""
    if frame is None or not frame.entries or name in frame.assigned:
        return False
    given = frame.arguments.get(name)
    same = isinstance(given, cst.Name) and given.value == name
    return same and all(
        argument_of(e.call, frame, name) is not None
        and (e.frame.node is there.node or _handed_on(name, there, e.frame))
        for e in frame.entries
    )
