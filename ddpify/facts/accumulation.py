"""Training loops in, those that step every so many batches out: what may go without an exchange of gradients."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.contents import modules
from ddpify.facts.dependencies import bindings, read_names
from ddpify.facts.frames import Event
from ddpify.facts.loops import LoopFacts
from ddpify.facts.metrics import loop_facts
from ddpify.facts.placing import in_block
from ddpify.facts.values import Optimizer, Scheduler, Thing, Wrapped
from ddpify.source import Source, walk

if TYPE_CHECKING:
    from ddpify.facts import Facts

#: with more models than these the line would be too long to be read
_MOST = 3
_GROUP = ("step", "update", "unscale_", "zero_grad")
_PURE = (
    cst.Name,
    cst.Attribute,
    cst.Integer,
    cst.Comparison,
    cst.ComparisonTarget,
    cst.BooleanOperation,
    cst.BinaryOperation,
    cst.UnaryOperation,
)


@dataclass(frozen=True, eq=False)
class Accumulation:
    """`if (i + 1) % k == 0: optimizer.step()`, with the forward and the backward of the batch before it."""

    source: Source
    step: cst.If
    #: the statements from the forward to the backward, one behind the other
    batch: tuple[cst.CSTNode, ...]
    #: how the loop calls the models
    models: tuple[str, ...]


def accumulations(facts: Facts) -> list[Accumulation]:
    """The loops in which a batch without a step can keep its gradients to itself, for certain."""
    if facts.roles.bare:
        return []  # their gradients are averaged behind each backward
    loops = facts.cached("loops", loop_facts)
    # in another context that runs the text of the loop its model may be no wrapper
    once = [lp for lp in loops if sum(other.node is lp.node for other in loops) == 1]
    found = [_of_loop(facts, lp) for lp in once if lp.training and not lp.dealt]
    return [a for a in found if a is not None]


def _of_loop(facts: Facts, loop: LoopFacts) -> Accumulation | None:
    forwards, backwards, touches = _events(facts, loop)
    steps = [e for e in touches if e.name == "step" and not isinstance(e.obj, Scheduler)]
    if len(backwards) != 1 or not forwards or not steps or not facts.editable(loop.source):
        return None
    models = _called(facts, loop.source, forwards)
    body = list(loop.node.body.body)
    places = [in_block(loop.source, e.stmt, loop.node.body) for e in (*forwards, backwards[0], steps[0])]
    test = places[-1]
    if not isinstance(test, cst.If) or test.orelse is not None or not _is_pure(test.test):
        return None
    inside = {id(n) for n in walk(test.body)}
    used = [e for e in touches if e.name != "zero_grad"]
    if any(id(e.node) not in inside for e in used) or _elsewhere(facts, loop, inside):
        return None
    *begin, last, at = (next(i for i, s in enumerate(body) if _same(s, p)) for p in places)
    first = min(begin)
    batch = tuple(s.body[0] if isinstance(s, cst.SimpleStatementLine) else s for s in body[first : last + 1])
    plain = all(isinstance(s, cst.With) or _assigns(s) for s in batch[:-1])
    alone = all(len(s.body) == 1 for s in body[first : last + 1] if isinstance(s, cst.SimpleStatementLine))
    if not (max(begin) <= last < at and first <= last and plain and alone and 0 < len(models) <= _MOST):
        return None
    if not isinstance(batch[-1], cst.Expr) or any(
        b.targets & read_names(test.test) for s in body[first:at] for b in bindings(s)
    ):
        return None
    return Accumulation(loop.source, test, batch, models)


def _called(facts: Facts, source: Source, forwards: list[Event]) -> tuple[str, ...]:
    """How a loop calls its models, each once; none where one of them is perhaps no wrapper."""
    found: dict[str, None] = {}
    for e in forwards:
        func = e.node.func if isinstance(e.node, cst.Call) else None
        held = facts.after.values.get(func, ()) if isinstance(func, (cst.Name, cst.Attribute)) else ()
        if func is None or not held or not all(isinstance(o, Wrapped) for o in held):
            return ()
        found[source.code(func)] = None
    return tuple(found)


def _assigns(stmt: cst.CSTNode) -> bool:
    """`loss = loss / k`, `loss /= k`, `if k > 1: loss = loss / k`"""
    if isinstance(stmt, cst.If):
        blocks = [stmt.body, *([stmt.orelse.body] if isinstance(stmt.orelse, cst.Else) else [])]
        small = [n for b in blocks for line in b.body for n in getattr(line, "body", (line,))]
        return not isinstance(stmt.orelse, cst.If) and all(_assigns(n) for n in small)
    return isinstance(stmt, (cst.Assign, cst.AnnAssign, cst.AugAssign))


def _same(stmt: cst.CSTNode, place: cst.CSTNode) -> bool:
    return stmt is place or (isinstance(stmt, cst.SimpleStatementLine) and place in stmt.body)


def _events(facts: Facts, loop: LoopFacts) -> tuple[list[Event], list[Event], list[Event]]:
    """The training forwards, backwards and uses of gradients that stand in the loop's own text."""
    inside = {id(n) for n in walk(loop.node.body)}
    log = [e for e in facts.flow.log.events if e.seq < facts.flow.main_end]
    runs = [e for e in log if any(lp.node is loop.node for ways in e.all_loops() for lp in ways)]
    forwards = [e for e in runs if e.kind == "forward" and e.node in facts.roles.training_forwards]
    backwards = [e for e in runs if e.kind == "backward"]
    touches = [e for e in runs if _touches(e)]
    if any(id(e.node) not in inside for e in (*forwards, *backwards, *touches)):
        return [], [], []  # in a function that the loop calls
    return forwards, backwards, touches


def _touches(event: Event) -> bool:
    """Whether an event reads, changes or uses gradients."""
    if event.kind == "external":
        return ".clip_grad_" in event.name or event.name == "torch.autograd.grad"
    if event.kind != "method":
        return False
    if isinstance(event.obj, Optimizer):
        return event.name in _GROUP
    scaler = isinstance(event.obj, Thing) and event.obj.name == "scaler"
    return (scaler and event.name in _GROUP) or (
        event.name == "zero_grad" and bool(modules((event.obj,) if event.obj else ()))
    )


def _elsewhere(facts: Facts, loop: LoopFacts, inside: set[int]) -> bool:
    """Whether gradients are used in another place: a step for the batches that are left, a norm that is logged."""
    log = [e for e in facts.flow.log.events if e.seq < facts.flow.main_end and id(e.node) not in inside]
    if any(_touches(e) and e.name != "zero_grad" for e in log):
        return True
    grads = (n for source in facts.project.files() for n in source.of(cst.Attribute))
    return any(n.attr.value == "grad" and id(n) not in inside for n in grads)


def _is_pure(test: cst.BaseExpression) -> bool:
    """`(i + 1) % k == 0 or i + 1 == len(loader)`: it may be asked a few lines earlier."""
    return all(_plain(n) for n in _parts(test))


def _parts(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    yield node
    if isinstance(node, cst.Call):
        yield from (a.value for a in node.args)
        return
    for child in node.children:
        if isinstance(child, (cst.BaseExpression, cst.ComparisonTarget)):
            yield from _parts(child)


def _plain(node: cst.CSTNode) -> bool:
    if isinstance(node, cst.Call):
        return isinstance(node.func, cst.Name) and node.func.value == "len" and len(node.args) == 1
    return isinstance(node, _PURE)
