"""A loop whose batches are dealt out whole in, what it adds up of them out: a batch that comes again counts once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.collected import holder_of
from ddpify.facts.handmade import Turns
from ddpify.facts.inorder import batch_lists, idle
from ddpify.facts.kept import kept
from ddpify.facts.loops import Accumulator, LoopFacts, counts_batches, uses_of
from ddpify.facts.metrics import loop_facts
from ddpify.facts.starts import adds_to_itself, base_of
from ddpify.facts.tallies import Tally, tallies
from ddpify.source import walk

if TYPE_CHECKING:
    from ddpify.facts import Facts


@dataclass(eq=False)
class Repeats:
    """What a loop does with the numbers of its batches that are put together behind it."""

    #: what is added to a sum: a weight of 1 or 0 goes before it
    added: list[cst.BaseExpression]
    #: statements that are left out where a batch comes again: `losses.append(loss.item())`
    skipped: list[cst.CSTNode]
    #: `steps` of `steps += 1`, which tests in the loop ask for: the last pass is taken off behind the loop
    counters: list[str]
    #: sums that hold the batches twice
    unweighed: list[str]

    @property
    def weighs(self) -> bool:
        return bool(self.added or self.skipped or self.counters)


def repeats(facts: Facts, node: cst.For) -> Repeats:
    """What counts once of the batches that a loop has twice, in all contexts that it runs in."""
    known = facts.cached("repeats", lambda _: dict[int, Repeats]())
    if id(node) not in known:
        found = Repeats([], [], [], [])
        for loop in facts.cached("loops", loop_facts):
            if loop.node is node and loop.dealt and not loop.drawn and not loop.reduces:
                _of_loop(facts, loop, found)
        known[id(node)] = found
    return known[id(node)]


def takes_weights(turns: Turns) -> bool:
    """Whether the loop's target has a place for one: what comes with enumerate's number is a part of its own."""
    return not is_enumerated(turns) or (
        isinstance(turns.loop.target, cst.Tuple) and len(turns.loop.target.elements) == 2
    )


def is_enumerated(turns: Turns) -> bool:
    """`for i, batch in enumerate(batches)`, also with a progress bar around either."""
    node = turns.loop.iter
    while isinstance(node, cst.Call) and node is not turns.sequence and node.args:
        if isinstance(node.func, cst.Name) and node.func.value == "enumerate":
            return True
        node = node.args[0].value
    return False


def _of_loop(facts: Facts, loop: LoopFacts, found: Repeats) -> None:
    counted = tallies(facts, loop)
    pieces = {t.target for t in counted}
    for a in loop.accumulators:
        if a.fresh and a.read_after and base_of(a.target) not in pieces:
            _of_sum(facts, loop, a, found)
    for tally in counted:
        _of_tally(facts, loop, tally, found)
    stays = kept(facts, loop)
    events = batch_lists(facts, loop)
    found.skipped += [events[name].stmt for name in stays.ordered]
    for meter in stays.meters:
        _of_statements(facts, loop, meter.target, found, must=False)


def _of_sum(facts: Facts, loop: LoopFacts, a: Accumulator, found: Repeats) -> None:
    body = loop.node.body
    inside = {id(n) for n in walk(body)}
    adds = [n for n in walk(body) if isinstance(n, (cst.AugAssign, cst.Assign)) and _sums(loop, n, a.target)]
    own = {id(n) for add in adds for n in walk(add)}
    asked = [n for n in uses_of(body, a.target) if id(n) not in own and _steers(loop, n)]
    direct = {id(line) for line in body.body}
    once = len(adds) == 1 and id(loop.source.parents.get(adds[0])) in direct
    if asked and once and counts_batches(facts, loop, a) and loop.source.code(a.added[0]) == "1":
        found.counters.append(a.target)
    elif asked or not all(id(n) in inside for n in a.added):
        found.unweighed.append(a.target)
    else:
        for n in a.added:
            if all(n is not known for known in found.added):
                found.added.append(n)


def _sums(loop: LoopFacts, node: cst.AugAssign | cst.Assign, target: str) -> bool:
    if isinstance(node, cst.AugAssign):
        return loop.source.code(node.target) == target
    return adds_to_itself(node) and loop.source.code(node.targets[0].target) == target


def _steers(loop: LoopFacts, node: cst.CSTNode) -> bool:
    """Whether a name stands in a test of the loop."""
    below = node
    for above in loop.source.ancestors(node):
        if above is loop.node:
            return False
        if isinstance(above, (cst.If, cst.While, cst.IfExp)) and above.test is below:
            return True
        below = above
    return False


def _of_tally(facts: Facts, loop: LoopFacts, tally: Tally, found: Repeats) -> None:
    if tally.form == "entries":
        _of_statements(facts, loop, tally.target, found, must=True)
        return
    for node in walk(loop.node.body):
        if not isinstance(node, cst.AugAssign):
            continue
        root: cst.BaseExpression = node.target
        while isinstance(root, cst.Subscript):
            root = root.value
        if loop.source.code(root) == tally.target and all(node.value is not n for n in found.added):
            found.added.append(node.value)


def _of_statements(facts: Facts, loop: LoopFacts, target: str, found: Repeats, *, must: bool) -> None:
    """The statements that put something into a list or a meter."""
    stmts: dict[int, cst.CSTNode] = {}
    inside = {id(n) for n in walk(loop.node.body)}
    for e in loop.frame.events:
        if id(e.stmt) not in inside:
            continue
        holder = holder_of(e)
        grown = isinstance(e.stmt, (cst.AugAssign, cst.Assign)) and _sums(loop, e.stmt, target)
        if grown or (holder is not None and loop.source.code(holder) == target):
            stmts[id(e.stmt)] = e.stmt
    given = [part for stmt in stmts.values() for part in _values(stmt)]
    if all(idle(facts, part) for part in given):
        found.skipped += [s for s in stmts.values() if all(s is not known for known in found.skipped)]
    elif must:
        found.unweighed.append(target)


def _values(stmt: cst.CSTNode) -> list[cst.CSTNode]:
    match stmt:
        case cst.AugAssign(value=value) | cst.Assign(value=value):
            return [value]
        case cst.Expr(value=cst.Call(args=args)):
            return [a.value for a in args]
    return [stmt]
