"""A function in, the names that it assigns out."""

from __future__ import annotations

import functools

import libcst as cst

from ddpify.source import walk

_BINDS = frozenset({cst.AssignTarget, cst.AnnAssign, cst.AugAssign, cst.For, cst.NamedExpr, cst.AsName})


@functools.lru_cache(maxsize=256)
def assigned_names(node: cst.CSTNode) -> frozenset[str]:
    """The names that a function assigns, its inner functions left out."""
    found: set[str] = set()
    for inner in walk(node):
        if type(inner) not in _BINDS:  # few do, and `isinstance` is slow for these classes
            continue
        if isinstance(inner, (cst.AssignTarget, cst.AnnAssign, cst.AugAssign, cst.For, cst.NamedExpr)):
            target: cst.CSTNode = inner.target
        elif isinstance(inner, cst.AsName):
            target = inner.name
        else:
            continue
        found |= _names_of(target)
    return frozenset(found)


def _names_of(target: cst.CSTNode) -> set[str]:
    """`a, (b, *c)`; of `self.net, rest[0] = ...` none."""
    match target:
        case cst.Name(value=name):
            return {name}
        case cst.Tuple(elements=elements) | cst.List(elements=elements):
            return set().union(*(_names_of(e.value) for e in elements))
    return set()
