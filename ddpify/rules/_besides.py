"""A script that trains on a DataLoader in, findings for what it trains on other data besides out."""

from __future__ import annotations

from collections.abc import Iterator

from ddpify.facts import Facts
from ddpify.facts.contents import origins
from ddpify.facts.externals import role_of
from ddpify.facts.frames import Event
from ddpify.facts.roles import loaders_in
from ddpify.facts.values import FromBatch, FromWorld, Loader
from ddpify.rules._base import Finding, Rule


def besides(rule: Rule, facts: Facts) -> Iterator[Finding]:
    """A second training in the script, on data of no loader: nothing shares them out."""
    given = {e: [o.loader for o in origins(e.value) if isinstance(o, FromBatch)] for e in facts.roles.backwards}
    reads = [e for e, held in given.items() if any(isinstance(o, Loader) for o in held)]
    shared = {id(lp.node) for e in reads for loops in e.all_loops() for lp in loops}
    for e in facts.roles.backwards:
        over = any(isinstance(o, Loader) for ls in e.all_loops() for lp in ls for o in loaders_in(lp.iterates))
        # while i < len(loader): data = next(it); ...; a second loss of the same step, of noise
        beside = any(id(loops[-1].node) in shared for loops in e.all_loops() if loops)
        apart = e in reads or over or beside or _draws(facts, e)
        if not apart and e.seq < facts.flow.main_end and facts.editable(e.frame.source):
            yield rule.finding(
                e.frame.source,
                e.node,
                f"`{e.frame.source.code(e.node)}` trains on data that come from no DataLoader: every rank trains on "
                "all of them",
                left="read them through a DataLoader, or convert this training as a script of its own",
            )


def _draws(facts: Facts, event: Event) -> bool:
    """`critic(generator(torch.randn(64, 100)))`: every step draws its noise, and each rank its own."""
    noise = {o.what for o in origins(event.value) if isinstance(o, FromWorld) and role_of(o.what) == "random"}
    loops = {id(around[-1].node) for around in event.all_loops() if around}
    drawn = [e for e in facts.flow.log.of("external") if e.name in noise]
    return any(id(lp.node) in loops for e in drawn for around in e.all_loops() for lp in around)
