"""A script that adds nothing up over the ranks in, findings for counts of one shard out: `right / len(dataset)`."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddpify.facts import Facts
from ddpify.facts.contents import origins
from ddpify.facts.unreduced import shared_out
from ddpify.facts.values import Ext, FromBatch, FromLength, Loader
from ddpify.rules._base import Finding, Rule
from ddpify.source import walk


def of_one_shard(rule: Rule, facts: Facts) -> Iterator[Finding]:
    """What was counted over a shared-out loader, divided by the size of the whole set."""
    values, source = facts.flow.values, facts.source
    for node in source.of(cst.BinaryOperation):
        if not isinstance(node.operator, cst.Divide):
            continue
        whole = {id(o.of) for o in origins(values.get(node.right, ())) if isinstance(o, FromLength)}
        read = [o.loader for o in origins(values.get(node.left, ())) if isinstance(o, FromBatch)]
        loaders = [ld for ld in read if isinstance(ld, Loader)]
        if not loaders or len(loaders) != len(read) or not all(map(shared_out, loaders)):
            continue
        datasets = {id(d) for ld in loaders for d in ld.dataset}
        if whole and whole <= datasets and not _scaled(facts, node):
            code = source.code(node).split("\n")[0]
            message = f"`{code}` divides what this rank has counted by the size of the whole set"
            yield rule.finding(source, node, message)


def _scaled(facts: Facts, node: cst.BaseExpression) -> bool:
    """`seen * dist.get_world_size() / len(data)`: what all ranks have counted, as their shares are of one length."""
    called = (n.func for n in walk(node) if isinstance(n, cst.Call))
    held = (o for func in called for o in facts.flow.values.get(func, ()))
    return any(isinstance(o, Ext) and o.name.endswith(".get_world_size") for o in held)
