"""An `if` in, whether a constant that the reader of the file is meant to change decides it."""

from __future__ import annotations

import libcst as cst

from ddpify.facts.frames import Frame, Scope
from ddpify.source import walk


def is_setting(stmt: cst.If, frame: Frame) -> bool:
    """`if DATASET == "small": loader = ...; else: loader = ...`, and `DATASET = "small"` at the top of the file.

    Only where each way does no more than give names a value: both are read then, so that both are converted.
    """
    names = [n for n in (stmt.test, *walk(stmt.test)) if isinstance(n, cst.Name)]
    plain = all(not isinstance(n, (cst.Call, cst.Attribute, cst.NamedExpr, cst.Subscript)) for n in walk(stmt.test))
    if not names or not plain or not all(_is_literal(n.value, frame.scope) for n in names if n.value not in _TRUTHS):
        return False
    return _gives_values(stmt.body) and stmt.orelse is not None and _gives_values(stmt.orelse)


_TRUTHS = frozenset({"True", "False", "None"})


def _is_literal(name: str, scope: Scope) -> bool:
    """`DATASET = "small"`, the only statement of a module that gives the name a value."""
    holder = scope.holder(name)
    stmt = holder.bound_at.get(name) if holder is not None else None
    if holder is None or holder.parent is not None or not isinstance(stmt, (cst.Assign, cst.AnnAssign)):
        return False
    value = stmt.value
    literal = isinstance(value, (cst.SimpleString, cst.Integer)) or getattr(value, "value", "") in _TRUTHS
    return literal and len(holder.names.get(name, ())) == 1


def _gives_values(block: cst.BaseSuite | cst.Else | cst.If) -> bool:
    if isinstance(block, cst.If):
        return _gives_values(block.body) and (block.orelse is None or _gives_values(block.orelse))
    if isinstance(block, cst.Else):
        return _gives_values(block.body)
    if not isinstance(block, cst.IndentedBlock):
        return False
    return all(
        isinstance(line, cst.SimpleStatementLine) and all(isinstance(s, (cst.Assign, cst.AnnAssign)) for s in line.body)
        for line in block.body
    )
