"""A test of `None` in, whether a wrapper is there where it holds out: both may come of one `if`, from either side."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddpify.facts.definitions import Definition, Definitions, definitions
from ddpify.facts.flow import Flow
from ddpify.facts.frames import Event, Frame
from ddpify.facts.values import Wrapped
from ddpify.source import Source


def is_elsewhere(flow: Flow, e: Event, wrapped: Wrapped) -> bool:
    """`if scaler is None: engine.micro_steps = 0`, where `scaler` is None only on the side that wraps nothing.

    if args.deepspeed: scaler, model = None, engine
    else: scaler, model = GradScaler(), DDP(model)
    """
    source, known = e.frame.source, definitions(flow)
    below: cst.CSTNode = e.node
    for above in source.ancestors(e.node):
        if isinstance(above, cst.If) and below is above.body and (name := _is_none(above.test)) is not None:
            nones = [d for d in _sources(known, name, e.frame) if _is_literal_none(d.node)]
            site = wrapped.site
            if nones and all(
                d.frame.source is site.source and _on_other_sides(site.source, d.node, site.node) for d in nones
            ):
                return True
        below = above
    return False


def _is_none(test: cst.BaseExpression) -> cst.BaseExpression | None:
    match test:
        case cst.Comparison(
            left=left, comparisons=[cst.ComparisonTarget(operator=cst.Is(), comparator=cst.Name(value="None"))]
        ):
            return left
    return None


def _is_literal_none(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Name) and node.value == "None"


def _sources(known: Definitions, node: cst.CSTNode, frame: Frame, depth: int = 3) -> Iterator[Definition]:
    """What a name is given, through the parameters of functions."""
    for d in known.of(node, frame):
        if depth and isinstance(d.node, cst.Name) and not _is_literal_none(d.node):
            yield from _sources(known, d.node, d.frame, depth - 1)
        else:
            yield d


def _on_other_sides(source: Source, one: cst.CSTNode, two: cst.CSTNode) -> bool:
    """Whether two nodes stand in the two branches of one `if`."""
    branches = {id(above): below for above, below in _branches(source, one)}
    for above, below in _branches(source, two):
        if id(above) in branches:
            return branches[id(above)] is not below
    return False


def _branches(source: Source, node: cst.CSTNode) -> Iterator[tuple[cst.If, cst.CSTNode]]:
    below = node
    for above in source.ancestors(node):
        if isinstance(above, cst.If):
            yield above, below
        below = above
