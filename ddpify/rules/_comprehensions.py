"""Comprehensions over the training loader in, findings for their numbers out: `sum(loss(x) for x in loader)`."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddpify.facts import Facts
from ddpify.facts.dependencies import bound_names
from ddpify.facts.frames import Frame
from ddpify.facts.loops import uses_of
from ddpify.facts.placing import statement_of
from ddpify.facts.trails import shown
from ddpify.rules._base import Finding, Rule
from ddpify.rules._kept import keeps_one_shard
from ddpify.rules._second_loader import Reading, second_loader


def comprehensions(rule: Rule, facts: Facts, made: dict[tuple[int, bool], str]) -> Iterator[Finding]:
    """Numbers of the training set are computed on all of it; those of the steps themselves are named."""
    done: set[int] = set()
    for p in facts.roles.passes:
        node, frame = p.loop.node, p.start.frame
        ours = p.loader in facts.roles.training_loaders and p.start.seq < facts.flow.main_end
        if not isinstance(node, cst.BaseComp) or not ours or id(node) in done or not facts.editable(frame.source):
            continue
        done.add(id(node))
        if p.training:
            yield from _of_steps(rule, node, frame)
            continue
        read = [
            Reading(q.loader, q.loop.node.for_in.iter, q.start.frame)
            for q in facts.roles.passes
            if q.loop.node is node and q.loader is p.loader and isinstance(q.loop.node, cst.BaseComp)
        ]
        what = f"`{shown(frame.source, node)}` reads the training loader for its numbers"
        edits = second_loader(facts, read, False, made)
        if edits:
            why = "numbers of the training set, each sample once"
            yield rule.finding(frame.source, node, what, *edits, reason=why)
            yield rule.finding(frame.source, node, f"{what}: every rank evaluates all of it", note=True)
        else:
            yield rule.finding(
                frame.source,
                node,
                f"{what}, and each rank has only a shard of it: they are one rank's",
                left="evaluate on a second DataLoader over the training set, without the DistributedSampler",
            )


def _of_steps(rule: Rule, node: cst.BaseComp, frame: Frame) -> Iterator[Finding]:
    """`losses = [train_step(x, y) for x, y in loader]`: what the steps give, where anything reads it."""
    stmt = statement_of(frame.source, node)
    if isinstance(stmt, cst.Expr) and stmt.value is node:
        return
    names: list[str] = []
    if isinstance(stmt, cst.Assign):
        bound = [n for t in stmt.targets for n in sorted(bound_names(t.target))]
        names = [n for n in bound if len(uses_of(frame.node, n)) > 1]
        if bound and not names:
            return
    yield rule.finding(frame.source, node, keeps_one_shard(names or [shown(frame.source, node)]), note=True)
