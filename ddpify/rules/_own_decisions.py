"""A distributed script in, findings for what its ranks decide by their own shards out."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddpify.facts import Facts
from ddpify.facts.own import own
from ddpify.facts.ranks import guarded
from ddpify.facts.values import Scheduler
from ddpify.facts.writes import find_writes
from ddpify.rules._base import Finding, Rule, Severity


def decides(rule: Rule, facts: Facts) -> Iterator[Finding]:
    """A schedule, or the end of training, that goes by what this rank saw in its own shard."""
    known, done = own(facts), set[int]()
    for e in facts.flow.log.of("method", "break", "return"):
        source = e.frame.source
        loops = [lp for lp in e.loops if isinstance(lp.node, (cst.For, cst.While)) and lp.frame is e.frame]
        if e.kind == "method":
            if e.name != "step" or not isinstance(e.obj, Scheduler) or not isinstance(e.node, cst.Call):
                continue
        elif not loops or not trains_inside(facts, loops[-1].node):
            continue
        if not facts.editable(source) or guarded(e, facts.flow):
            continue
        if isinstance(e.node, cst.Call):
            for given in (a.value for a in e.node.args[:1] if id(a.value) not in done):
                if known.is_own(given, e.frame):
                    done.add(id(given))
                    code = source.code(given)
                    message = f"`{code}` is of this rank's own shard: the ranks' learning rates come to differ"
                    yield rule.finding(source, given, message)
            continue
        inner = set(source.ancestors(e.stmt))
        for test in (u for u in e.under if isinstance(u, cst.If) and u in inner and id(u) not in done):
            within = any(lp.node in set(source.ancestors(test)) for lp in loops)
            if within and known.is_own(test.test, e.frame):
                done.add(id(test))
                message = f"`{source.code(test.test)}` is of this rank's own shard: `{e.kind}` ends its training alone"
                yield rule.finding(source, test, message)


def keeps(rule: Rule, facts: Facts) -> Iterator[Finding]:
    """`if accuracy > best: save()`, where the accuracy is of one shard."""
    known, done = own(facts), set[int]()
    for write in facts.cached("writes", find_writes):
        for e in write.call.events if write.call.name == "torch.save" else ():
            ways = [(e.stmt, e.frame)]
            ways += [(x.stmt, x.frame) for chain in e.frame.chains(4) for x in chain]
            for stmt, frame in ways:
                tests = (a for a in frame.source.ancestors(stmt) if isinstance(a, cst.If))
                test = next((t for t in tests if known.is_own(t.test, frame)), None)
                if test is not None and id(test) not in done and facts.editable(frame.source):
                    done.add(id(test))
                    code = frame.source.code(test.test)
                    message = f"`{code}` is of this rank's own shard: which checkpoint is kept goes by it"
                    yield rule.finding(frame.source, test, message, severity=Severity.WARNING)


def trains_inside(facts: Facts, node: cst.CSTNode) -> bool:
    """Whether a loop has a backward in it."""
    return node in facts.roles.training_loops
