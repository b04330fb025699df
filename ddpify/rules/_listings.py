"""A statement that removes files in, all that one rank has to do for it out: the listing, and the loop over it.

    kept = sorted(glob.glob("*.pt"), key=os.path.getmtime)
    for old in kept[:-3]:
        os.remove(old)

Where rank 0 alone removes, the listing of another rank names files that are gone before it asks for their time.
"""

from __future__ import annotations

import libcst as cst

from ddpify.facts import Facts
from ddpify.facts.definitions import references
from ddpify.facts.reads import asks_files
from ddpify.facts.work import changes_places, leaves, names_bound, work
from ddpify.source import Source, walk


def listing_of(facts: Facts, source: Source, stmt: cst.CSTNode) -> list[cst.CSTNode]:
    """The statements to put under a guard instead of one that removes; none where the files are named otherwise."""
    owner = next((a for a in source.ancestors(stmt) if isinstance(a, cst.FunctionDef)), source.module)
    whole: list[cst.CSTNode] = []
    for above in source.ancestors(stmt):
        if above is owner:
            break
        if not isinstance(above, (cst.For, cst.While, cst.If)):
            continue
        if isinstance(source.parents.get(above), cst.If) or getattr(above, "orelse", None) is not None:
            break
        region = _with_names(source, owner, above)
        if not _is_alone(facts, source, owner, region):
            break
        if any(asks_files(_asked(s), facts) for s in region):
            whole = region
    return whole


def _asked(stmt: cst.CSTNode) -> cst.CSTNode:
    """Of a loop or branch what it goes by, of any other statement all."""
    return stmt.iter if isinstance(stmt, cst.For) else stmt.test if isinstance(stmt, (cst.While, cst.If)) else stmt


def _with_names(source: Source, owner: cst.CSTNode, block: cst.CSTNode) -> list[cst.CSTNode]:
    """A block, and what stands right before it and serves nothing else: `files = os.listdir(...)`, `files.sort()`."""
    region = [block]
    body = list(getattr(source.parents.get(block), "body", ()))
    for line in reversed(body[: body.index(block)] if block in body else ()):
        if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
            break
        stmt: cst.CSTNode = line.body[0]
        serves = _names(stmt)
        if not serves:
            break
        region.insert(0, stmt)
    while any(not _names(s) <= _own(owner, region) for s in region[:-1]):
        region.pop(0)
    return region


def _names(stmt: cst.CSTNode) -> set[str]:
    """The variables that a small statement is about: what it binds, or the list that it sorts."""
    match stmt:
        case cst.Assign() if all(isinstance(t.target, cst.Name) for t in stmt.targets):
            return names_bound(stmt)
        case cst.Expr(value=cst.Call(func=cst.Attribute(value=cst.Name(value=name)))):
            return {name}
    return set()


def _own(owner: cst.CSTNode, region: list[cst.CSTNode]) -> set[str]:
    """The variables that some statements bind, and that stand nowhere else."""
    inside = {n for s in region for n in walk(s)}
    bound = {name for s in region for name in names_bound(s)}
    return {name for name in bound if all(ref in inside for ref in references(owner, name))}


def _is_alone(facts: Facts, source: Source, owner: cst.CSTNode, region: list[cst.CSTNode]) -> bool:
    """Whether nothing in some statements matters to other ranks: no shared work, nothing kept or made, no way out."""
    own = _own(owner, region)
    for s in region:
        if leaves(source, s) or changes_places(s) or names_bound(s) - own:
            return False
        if any(isinstance(n, cst.Attribute) and n.attr.value in ("makedirs", "mkdir") for n in walk(s)):
            return False  # the other ranks may look into it
        for node in work(facts.flow).inside(s):
            func = node.func if isinstance(node, cst.Call) else None
            if not (isinstance(func, cst.Attribute) and isinstance(func.value, cst.Name) and func.value.value in own):
                return False  # files.pop(0) changes a list that nobody else has
    return True
