"""A loop that evaluates in, whether it counts on batches of one size out: `for i in range(4): labels[i]`."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddpify.facts.dependencies import bindings, closure, read_names
from ddpify.facts.loops import LoopFacts
from ddpify.source import Source, walk


def counts_on_size(loop: LoopFacts, home: Source, size: cst.BaseExpression | None) -> str:
    """How it does, "" where it does not: by a number of samples, or by the name that the batch size has.

    The shards of several ranks end in a batch of another size than the whole set does.
    """
    source = loop.source
    if isinstance(size, (cst.Name, cst.Attribute)):
        code = home.code(size)
        for node in walk(loop.node.body):
            if isinstance(node, type(size)) and source.code(node) == code:
                return f"line {source.line(node)} counts on batches of `{code}` samples"
    for inner, count in _counted(loop):
        return f"line {source.line(inner)} counts on batches of `{source.code(count)}` samples"
    return ""


def _counted(loop: LoopFacts) -> Iterator[tuple[cst.For, cst.BaseExpression]]:
    """`for i in range(4): right[labels[i]] += hits[i]`, of what the batch holds or gives."""
    own = list(bindings(loop.node.body))
    batch = {n.value for n in walk(loop.node.target) if isinstance(n, cst.Name)}
    made = {t for b in own for t in b.targets if closure(b.reads, own) & batch}
    made -= {t for b in own for t in b.targets if b.keeps}  # a sum for each class
    for inner in walk(loop.node.body):
        call = inner.iter if isinstance(inner, cst.For) else None
        ranged = isinstance(call, cst.Call) and isinstance(call.func, cst.Name) and call.func.value == "range"
        if not isinstance(inner, cst.For) or not isinstance(call, cst.Call) or not ranged or len(call.args) != 1:
            continue
        count = call.args[0].value
        if closure(read_names(count), own) & batch or not isinstance(inner.target, cst.Name):
            continue
        entries = [n for n in walk(inner.body) if isinstance(n, cst.Subscript) and isinstance(n.value, cst.Name)]
        of_batch = [n for n in entries if isinstance(n.value, cst.Name) and n.value.value in made | batch]
        if any(inner.target.value in read_names(part) for n in of_batch for part in n.slice):
            yield inner, count
