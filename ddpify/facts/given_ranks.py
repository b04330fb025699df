"""A call and the way to it in, an answer out: do the arguments on the way rule it out, as `rank=-1` does?"""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from ddpify.facts.contents import constants
from ddpify.facts.definitions import argument_of
from ddpify.facts.flow import Flow
from ddpify.facts.frames import Entry, Event, Frame
from ddpify.facts.values import Site
from ddpify.source import dotted


def never_on(node: cst.CSTNode, frame: Frame, chain: Sequence[Entry]) -> bool:
    """`if rank not in (-1, 0): barrier()`, on a way on which a caller gives -1 for the rank."""
    below = node
    for above in frame.source.ancestors(node):
        if isinstance(above, cst.FunctionDef):
            return False
        if isinstance(above, (cst.If, cst.IfExp)) and below is above.body and _is_false(above.test, frame, chain):
            return True
        below = above
    return False


def never_runs(event: Event) -> bool:
    """Whether the arguments rule an event out on every way to it: `if verbose > 1:`, where all callers give 0."""
    chains = list(event.frame.chains(8))
    return bool(chains) and all(
        never_on(event.node, event.frame, chain)
        or any(never_on(e.call, e.frame, chain[:at]) for at, e in enumerate(chain))
        for chain in chains
    )


def of_one_process(event: Event, flow: Flow) -> bool:
    """`if self.world_size > 1: model = DDP(model)`, where the number is 1 whoever asks: nobody gives another."""
    below, source = event.node, event.frame.source
    chains = [list(chain) for chain in event.frame.chains(8)]
    if not chains or not all(isinstance(e.call, cst.Call) for chain in chains for e in chain):
        return False  # of a function that nothing here calls
    for above in source.ancestors(event.node):
        match above:
            case cst.FunctionDef():
                return False
            case cst.If(test=cst.Comparison(left=left, comparisons=[cst.ComparisonTarget(operator=op, comparator=to)])):
                larger = isinstance(op, (cst.GreaterThan, cst.NotEqual)) and _number(to) == 1
                if larger and below is above.body and constants(flow.values.get(left, ())) == [1]:
                    return True
        below = above
    return False


def joins_alone(event: Event) -> bool:
    """`init_process_group("gloo", rank=0, world_size=1, ...)`: a group for what a library asks of it, and no others."""
    args = event.node.args if isinstance(event.node, cst.Call) else ()
    return any(a.keyword is not None and a.keyword.value == "world_size" and _number(a.value) == 1 for a in args)


def ever_made(site: Site) -> bool:
    """`DistributedSampler(data) if rank != -1 else None`: is there a way here on which it is made?"""
    chains = list(site.frame.chains())
    return not chains or any(not never_on(site.node, site.frame, chain) for chain in chains)


def _is_false(test: cst.BaseExpression, frame: Frame, chain: Sequence[Entry]) -> bool:
    if isinstance(test, cst.Name):
        return test.value not in frame.assigned and _is_nothing(_given(test, frame, chain))
    if not isinstance(test, cst.Comparison) or len(test.comparisons) != 1 or not isinstance(test.left, cst.Name):
        return False
    given = number(test.left, frame, chain)
    operator, right = test.comparisons[0].operator, test.comparisons[0].comparator
    known = [_number(e.value) for e in right.elements] if isinstance(right, (cst.List, cst.Tuple, cst.Set)) else []
    other = _number(right)
    if given is None:
        return False
    match operator:
        case cst.NotIn():
            return given in known
        case cst.In():
            return bool(known) and None not in known and given not in known
        case cst.Equal():
            return other is not None and given != other
        case cst.NotEqual():
            return given == other
        case cst.GreaterThan():
            return other is not None and given <= other
        case cst.GreaterThanEqual():
            return other is not None and given < other
    return False


def number(node: cst.BaseExpression, frame: Frame, chain: Sequence[Entry]) -> int | None:
    """The number that an expression is, or that its callers give for it on this way."""
    return _number(_given(node, frame, chain) if isinstance(node, cst.Name) else node)


def _given(name: cst.Name, frame: Frame, chain: Sequence[Entry]) -> cst.BaseExpression:
    """What a parameter gets on this way, handed on from caller to caller."""
    for entry in reversed(chain):
        given = argument_of(entry.call, frame, name.value) if name.value not in frame.assigned else None
        if given is None and isinstance(entry.call, cst.Call) and not any(a.star for a in entry.call.args):
            given = default_of(frame, name.value)
        if not isinstance(given, cst.Name):
            return given if given is not None else name
        name, frame = given, entry.frame
    return name


def default_of(frame: Frame, name: str) -> cst.BaseExpression | None:
    """What a parameter of a frame's function is where nobody gives it."""
    params = frame.func.node.params if frame.func is not None else cst.Parameters()
    every = (*params.posonly_params, *params.params, *params.kwonly_params)
    return next((p.default for p in every if p.name.value == name), None)


def _is_nothing(node: cst.BaseExpression) -> bool:
    return dotted(node) in ("False", "None") or _number(node) == 0


def _number(node: cst.BaseExpression) -> int | None:
    match node:
        case cst.Integer():
            return node.evaluated_value
        case cst.UnaryOperation(operator=cst.Minus(), expression=cst.Integer() as inner):
            return -inner.evaluated_value
    return None
