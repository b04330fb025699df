"""The set-up in, the places where the script comes to its normal end out: the last statement, returns, exits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.definitions import returns
from ddpify.facts.externals import LEAVES, role_of
from ddpify.facts.frames import Event, Frame
from ddpify.facts.placing import in_block, steps
from ddpify.facts.setup import SetUp
from ddpify.facts.values import Const, Ext, Func, Obj, Thing
from ddpify.source import Source

if TYPE_CHECKING:
    from ddpify.facts import Facts

#: Functions that run another one and end the process with it.
_RUN = frozenset({"typer.run", "typer.main.run", "absl.app.run"})


@dataclass(frozen=True, eq=False)
class Ending:
    """The process group is not needed any more behind a statement, or (`before`) in front of it."""

    source: Source
    stmt: cst.CSTNode
    before: bool


def endings(facts: Facts, setup: SetUp) -> list[Ending]:
    """Where the process group is to be destroyed: each way through the script passes one of them."""
    start = setup.source.span(in_block(setup.source, setup.first, setup.block)).start
    found = list(_of_block(facts, setup.frame, setup.block, start))
    found += _exits(facts, setup, start)
    kept: dict[int, Ending] = {}
    for ending in found:
        kept.setdefault(id(ending.stmt), ending)
    return list(kept.values())


def _of_block(facts: Facts, frame: Frame, block: cst.CSTNode, start: int, depth: int = 6) -> Iterator[Ending]:
    body = list(getattr(block, "body", ()))
    last = body[-1].body[-1] if isinstance(body[-1], cst.SimpleStatementLine) else body[-1]
    if is_exit(facts, last) or _ends_process(facts, last):
        inner = _entered(facts, frame, last) if depth else []
        for callee in inner:
            if isinstance(callee.node, cst.FunctionDef):
                yield from _of_block(facts, callee, callee.node.body, -1, depth - 1)
        if not inner:
            yield Ending(frame.source, last, before=True)
    elif not isinstance(last, (cst.Return, cst.Raise)):
        yield Ending(frame.source, last, before=False)
    for stmt in returns(block):
        if frame.source.span(stmt).start > start:
            yield Ending(frame.source, stmt, before=True)


def _exits(facts: Facts, setup: SetUp, start: int) -> Iterator[Ending]:
    """`sys.exit(0)` in the midst. An exit that tells of a failure is no normal end."""
    for e in facts.flow.log.of("exit"):
        own = next((stmt for f, stmt, _ in steps(e) if f is setup.frame), None)
        if own is None or e.seq >= facts.flow.main_end or not facts.editable(e.frame.source) or not is_success(e):
            continue
        if _is_caught(e.frame.source, e.stmt):
            continue
        inside = setup.block in setup.source.ancestors(own)
        if inside and setup.source.span(own).start > start and not _entered(facts, e.frame, e.stmt):
            yield Ending(e.frame.source, e.stmt, before=True)


def _is_caught(source: Source, stmt: cst.CSTNode) -> bool:
    """`try: sys.exit(0)` with an `except SystemExit: os._exit(0)`: the handler ends the process, or nothing does."""
    below = stmt
    for above in source.ancestors(stmt):
        if isinstance(above, cst.Try) and above.body is below:
            kinds = [source.code(h.type) if h.type is not None else "SystemExit" for h in above.handlers]
            return any("SystemExit" in k or "BaseException" in k for k in kinds)
        below = above
    return False


def is_success(event: Event) -> bool:
    """Whether an exit reports that all is well: no code, None or 0."""
    return all(isinstance(o, Const) and not o.value and not isinstance(o.value, str) for o in event.value)


def is_exit(facts: Facts, stmt: cst.CSTNode) -> bool:
    """`sys.exit(...)`, `raise SystemExit(...)`"""
    call = stmt.exc if isinstance(stmt, cst.Raise) else stmt.value if isinstance(stmt, cst.Expr) else None
    named = call.func if isinstance(call, cst.Call) else call if isinstance(stmt, cst.Raise) else None
    held = facts.flow.values.get(named, ()) if named is not None else ()
    return any(isinstance(o, Ext) and o.name in LEAVES for o in held)


def _ends_process(facts: Facts, stmt: cst.CSTNode) -> bool:
    """`main()` of click, `app()` of typer, `app.run(main)` of absl: the call does not come back."""
    call = stmt.value if isinstance(stmt, cst.Expr) else None
    if not isinstance(call, cst.Call) or any(a.keyword and a.keyword.value == "standalone_mode" for a in call.args):
        return False
    return any(_is_command_line(facts, o) for o in facts.flow.values.get(call.func, ()))


def _is_command_line(facts: Facts, obj: Obj) -> bool:
    if isinstance(obj, Func):
        return any(role_of(d) == "command" and not d.startswith("hydra") for d in obj.decorators)
    return (isinstance(obj, Thing) and obj.name == "commands") or (isinstance(obj, Ext) and obj.name in _RUN)


def _entered(facts: Facts, frame: Frame, stmt: cst.CSTNode) -> list[Frame]:
    """The functions that a statement that ends the process runs: a command each, or the outermost call."""
    calls = [e for e in frame.events if e.kind == "call" and e.stmt is stmt and e.callee is not None]
    calls = [e for e in calls if isinstance(e.callee and e.callee.node, cst.FunctionDef)]
    commands = [e for e in calls if not isinstance(e.node, cst.Call)]
    groups = set(facts.flow.commands)
    chosen = [e for e in commands if isinstance(e.obj, Func) and id(e.obj.node) not in groups] or calls[-1:]
    return list(dict.fromkeys(e.callee for e in chosen if e.callee is not None))
