"""Command-line libraries in, edits for what they write and print by themselves out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from ddpify.edits import AddHelper, AddImport, Edit, InsertBefore, Surround
from ddpify.facts import Facts
from ddpify.facts.commands import FIRE
from ddpify.facts.frames import Event
from ddpify.facts.values import Const, Ext, Func, Instance
from ddpify.source import Source

#: what makes hydra write nothing: no directory, no .hydra, no log file
_QUIET = ("hydra.run.dir=.", "hydra.output_subdir=null", "hydra/job_logging=none")


@dataclass(frozen=True, eq=False)
class Launched:
    """A call of a function that hydra runs, in the file and the statement where it stands."""

    source: Source
    stmt: cst.CSTNode
    edits: tuple[Edit, ...]
    #: the decorator, where hydra changes into the run directory
    moves: cst.CSTNode | None


def by_hydra(facts: Facts) -> Iterator[Launched]:
    """`main()` of `@hydra.main`: hydra makes a run directory in every process, named by its own clock."""
    seen: set[int] = set()
    for e in facts.flow.log.of("call"):
        func = e.obj
        if not isinstance(func, Func) or "hydra.main" not in func.decorators or id(e.stmt) in seen:
            continue
        seen.add(id(e.stmt))
        source, names = e.frame.source, facts.names_of(e.frame.source)
        given = ", ".join(f'"{part}"' for part in _QUIET)
        test = f"if not {names['is_main_process']}():  # rank 0 has hydra's run directory"
        lines = f"{test}\n    {names['sys']}.argv += [{given}]"
        edits = (
            InsertBefore(source, e.stmt, (lines,)),
            AddHelper(source, "is_main_process"),
            AddImport(source, "sys"),
        )
        yield Launched(source, e.stmt, edits, _moving(facts, func, e))


def _moving(facts: Facts, func: Func, event: Event) -> cst.CSTNode | None:
    """The decorator of a function that hydra runs inside the run directory, as it did before 1.2."""
    for d in func.node.decorators if isinstance(func.node, cst.FunctionDef) else ():
        call = d.decorator
        if isinstance(call, cst.Call):
            told = next(
                (a.value for a in call.args if a.keyword is not None and a.keyword.value == "version_base"), None
            )
            held = facts.flow.values.get(told, ()) if told is not None else (Const("1.1"),)
            if any(isinstance(o, Const) and str(o.value) in ("1.0", "1.1") for o in held):
                return d
    return None


def printed_by_fire(facts: Facts) -> Iterator[tuple[Source, cst.Return, tuple[Edit, ...]]]:
    """`return losses` of a function that fire runs: fire prints what comes back, in every process."""
    seen: set[int] = set()
    for e in facts.flow.log.of("return"):
        stmt = e.stmt
        if not isinstance(stmt, cst.Return) or stmt.value is None or id(stmt) in seen:
            continue
        if all(isinstance(o, Instance) or (isinstance(o, Const) and o.value is None) for o in e.value):
            continue
        entries = [x for frame in facts.flow.frames if frame.node is e.frame.node for x in frame.entries]
        commands = bool(entries) and all(_from_fire(facts, entry.frame.source, entry.call) for entry in entries)
        if commands and not _is_used(facts, e.frame.node):
            seen.add(id(stmt))
            source = e.frame.source
            test = f" if {facts.names_of(source)['is_main_process']}() else None"
            yield source, stmt, (Surround(source, stmt.value, "", test), AddHelper(source, "is_main_process"))


def _is_used(facts: Facts, function: cst.CSTNode) -> bool:
    """Whether the project itself calls a function or hands it on (`collate_fn=join`): what it gives back is needed.

    `fire.Fire()` takes all functions of its module for commands, those that it imports included.
    """
    for source in facts.project.files():
        for node in source.of(cst.Name, cst.Attribute):
            held = facts.flow.values.get(node, ())
            if any(isinstance(o, Func) and o.node is function for o in held) and not _to_fire(facts, source, node):
                return True
    return False


def _to_fire(facts: Facts, source: Source, node: cst.CSTNode) -> bool:
    """`fire.Fire(train)`, `fire.Fire({"train": train})`"""
    calls = [a for a in source.ancestors(node) if isinstance(a, cst.Call)]
    return any(isinstance(o, Ext) and o.name in FIRE for c in calls for o in facts.flow.values.get(c.func, ()))


def _from_fire(facts: Facts, source: Source, node: cst.CSTNode) -> bool:
    call = source.parents.get(node)
    call = call if isinstance(call, cst.Call) else source.parents.get(call) if call is not None else None
    held = facts.flow.values.get(call.func, ()) if isinstance(call, cst.Call) else ()
    return any(isinstance(o, Ext) and o.name in FIRE for o in held)
