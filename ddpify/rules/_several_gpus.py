"""The GPUs of one process in, the edits out that give each process its own: the numbers move on by its local rank."""

from __future__ import annotations

from collections.abc import Iterator

from ddpify.edits import AddHelper, Edit, Replace
from ddpify.facts import Facts
from ddpify.facts.several_gpus import SeveralGpus
from ddpify.rules._base import Finding, Rule


def shifted(rule: Rule, facts: Facts, known: SeveralGpus) -> Iterator[Finding]:
    """`.to("cuda:1")` -> `.to(own_gpu(1))`"""
    options = frozenset({f"gpus{known.count}"})
    for n in known.named:
        helper = facts.names_of(n.source)["own_gpu"]
        edits: list[Edit] = [
            Replace(n.source, n.whole or n.node, f"{helper}({n.number})"),
            AddHelper(n.source, "own_gpu", options),
        ]
        yield rule.finding(
            n.source,
            n.node,
            f"`{n.source.code(n.whole or n.node)}` is the same GPU in every process",
            *edits,
            reason=f"each process drives {known.count} GPUs of its own",
        )
    yield rule.finding(
        known.first.source,
        known.first.node,
        f"the model stands on {known.count} GPUs: start one process for each {known.count} of a machine "
        f"(--nproc-per-node is their number divided by {known.count}); DDP gets no device_ids",
        note=True,
    )
