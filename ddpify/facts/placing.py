"""Where statements stand to each other: blocks, order, the frame in which a script does its work."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from ddpify.facts.frames import Event, Frame, Loop
from ddpify.source import Source

Step = tuple[Frame, cst.CSTNode, tuple[Loop, ...]]


def steps(event: Event) -> list[Step]:
    """The frames that lead to an event, outermost first, each with the statement that leads on."""
    chain = next(event.frame.chains(1), ())
    return [*((e.frame, e.stmt, e.loops) for e in chain), (event.frame, event.stmt, event.loops)]


def blocks(source: Source, stmt: cst.CSTNode) -> list[cst.CSTNode]:
    """The blocks around a statement, innermost first, the module last; those of other functions left out."""
    found: list[cst.CSTNode] = []
    for node in source.ancestors(stmt):
        if isinstance(node, (cst.IndentedBlock, cst.Module, cst.SimpleStatementSuite)):
            found.append(node)
        if isinstance(node, (cst.FunctionDef, cst.ClassDef)):
            break
    return found


def common_block(source: Source, stmts: Iterable[cst.CSTNode]) -> cst.CSTNode | None:
    """The innermost block that holds all of the statements."""
    common: list[cst.CSTNode] | None = None
    for stmt in stmts:
        around = blocks(source, stmt)
        common = around if common is None else [b for b in common if b in around]
    return common[0] if common else None


def in_block(source: Source, stmt: cst.CSTNode, block: cst.CSTNode) -> cst.CSTNode:
    """The statement of a block that holds a statement (or is it)."""
    node = stmt
    for above in source.ancestors(stmt):
        if above is block:
            break
        node = above
    return _statement(node)


def _statement(node: cst.CSTNode) -> cst.CSTNode:
    """The small statement, where a line holds just one."""
    return node.body[0] if isinstance(node, cst.SimpleStatementLine) else node


def following(source: Source, stmt: cst.CSTNode) -> list[cst.CSTNode]:
    """The statements behind one, in its own block."""
    owner = source.parents.get(stmt)
    line: cst.CSTNode = owner if isinstance(owner, cst.SimpleStatementLine) else stmt
    block = source.parents.get(line)
    body = list(getattr(block, "body", ()))
    at = body.index(line) if line in body else len(body)
    return [_statement(s) for s in body[at + 1 :]]


def statement_of(source: Source, node: cst.CSTNode) -> cst.CSTNode:
    """The innermost statement around an expression."""
    if isinstance(node, (cst.BaseSmallStatement, cst.BaseCompoundStatement)):
        return node
    for above in source.ancestors(node):
        if isinstance(above, (cst.BaseSmallStatement, cst.BaseCompoundStatement)):
            return above
    return node


def is_guard(node: cst.CSTNode) -> bool:
    """`if __name__ == "__main__":`"""
    return (
        isinstance(node, cst.If)
        and isinstance(node.test, cst.Comparison)
        and any(
            isinstance(n, cst.Name) and n.value == "__name__"
            for n in (node.test.left, node.test.comparisons[0].comparator)
        )
    )
