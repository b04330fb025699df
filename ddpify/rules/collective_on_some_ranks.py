"""DDP512: collectives under a test of the rank."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import libcst as cst

from ddpify.facts import Facts
from ddpify.facts.contents import constants
from ddpify.facts.frames import Event
from ddpify.facts.given_ranks import never_on
from ddpify.facts.ranks import ranks
from ddpify.facts.values import Wrapped
from ddpify.rules._base import Bad, Finding, Good, Rule
from ddpify.rules._met_elsewhere import in_training_mode, met_behind, turns_of_one_rank

_COLLECTIVES = re.compile(
    r"torch\.distributed\.(distributed_c10d\.)?((all_reduce|reduce|broadcast|all_gather|gather|scatter|reduce_scatter|"
    r"all_to_all)\w*|(monitored_)?barrier|new_group)"
)


@dataclass(frozen=True)
class Limited:
    """A collective, what lets some ranks only come to it, and whether they are those that pass the test."""

    event: Event
    name: str
    by: cst.CSTNode
    passing: bool


class CollectiveOnSomeRanks(Rule):
    """A collective is reached by some ranks only.

    ## What it does
    Finds `dist.barrier()`, `all_reduce`, `broadcast` and their kin, and the wrapping of a model, under a test of the
    rank (also behind `if rank != 0: return`, or in a function that is called so), where the other ranks make no such
    call.

    ## Why is this bad?
    A collective is answered by all ranks. One that some ranks make waits for ever, or meets another call of the others
    and both get wrong numbers, silently.

    ## Fix
    Take the call out of the test: every rank makes it, and rank 0 alone uses what comes out.
    """

    code = "DDP512"
    references: ClassVar[tuple[str, ...]] = ("https://github.com/pytorch/pytorch/issues/54059",)
    good = (
        Good("""
            loss = model(torch.ones(1, 8)).mean().detach()
            dist.all_reduce(loss)
            if dist.get_rank() == 0:
                print(loss.item())
            """),
        Good("""
            rank = dist.get_rank()
            if rank not in (-1, 0):
                dist.barrier()
            names = [1, 2]
            if rank == 0:
                dist.barrier()
            """),
        Good("""
            box = [None]
            if dist.get_rank() == 0:
                box = ["name"]
                dist.broadcast_object_list(box, src=0)
            else:
                dist.broadcast_object_list(box, src=0)
            """),
        Good("""
            rank = int(os.environ.get("RANK", -1))
            ddp = rank != -1
            if ddp:
                dist.barrier()
            """),
        Good("""
            world = 1
            def init(args):
                global world
                if args.ddp:
                    world = args.world
            def average(x):
                if world == 1:
                    return x
                dist.all_reduce(x)
                return x / world
            """),
        Good("""
            first = dist.new_group([0, 1])
            if dist.get_rank() < 2:
                dist.barrier(group=first)
            """),
    )
    bad = (
        Bad("""
            loss = model(torch.ones(1, 8)).mean().detach()
            if dist.get_rank() == 0:
                dist.all_reduce(loss)
            """),
        Bad("""
            def finish(rank):
                if rank != 0:
                    return
                dist.barrier()
            finish(dist.get_rank())
            """),
        Bad("""
            def is_main():
                return dist.get_rank() == 0
            def mean(x):
                dist.all_reduce(x)
                return x / dist.get_world_size()
            if is_main():
                mean(torch.ones(1))
            """),
    )

    def check(self, facts: Facts) -> Iterator[Finding]:
        found = list(self.limited(facts)) if not facts.converting else []
        seen: set[int] = set()
        for one in found:
            source = one.event.frame.source
            if id(one.event.node) in seen or not facts.editable(source) or self.answered(one, found):
                continue
            if met_behind(facts, one.event, one.name, one.by) or in_training_mode(one.event):
                continue
            seen.add(id(one.event.node))
            code = source.code(one.event.node).split("\n")[0]
            where = facts.source_of(one.by)
            test = where.code(getattr(one.by, "test", one.by)).split("\n")[0]
            line = f"line {where.line(one.by)}" + ("" if where is source else f" of {where.path.name}")
            who = "comes to it" if one.passing else "stays"
            yield self.finding(
                source,
                one.event.node,
                f"`{code}` needs all ranks, and not every rank {who}: `{test}` ({line})",
            )
        yield from self.counted(facts, seen) if not facts.converting else ()

    def counted(self, facts: Facts, seen: set[int]) -> Iterator[Finding]:
        """In a loop that one rank goes through more often than the others."""
        known = ranks(facts.flow, True)
        for e in facts.flow.log.of("external"):
            source = e.frame.source
            if id(e.node) in seen or not _COLLECTIVES.fullmatch(e.name) or not facts.editable(source):
                continue
            found = turns_of_one_rank(facts, e, known)
            if found is not None:
                seen.add(id(e.node))
                code = source.code(e.node).split("\n")[0]
                message = (
                    f"`{code}` needs all ranks, as often on each: `{found[1]}`, which one rank sets, counts its turns"
                )
                yield self.finding(source, e.node, f"{message} (line {source.line(found[0])})")

    def limited(self, facts: Facts) -> Iterator[Limited]:
        """Each collective that is limited on every way to it, with all that limits it."""
        known = ranks(facts.flow, True)
        joins = [e for e in facts.flow.log.of("external") if e.name.endswith(".init_process_group")]
        if joins and all(any(True for _ in known.limits(e.node, e.frame)) for e in joins):
            return  # `if rank < 2: dist.init_process_group(..., world_size=2)`: the others have no part in it
        for e in facts.flow.log.events:
            if e.kind == "external" and _COLLECTIVES.fullmatch(e.name):
                name = e.name.rsplit(".", 1)[-1]
                if constants(e.extra.get("group", ())) not in ([None], []) and "group" in e.extra:
                    continue  # it is for the ranks of that group
            elif e.kind == "new" and isinstance(e.obj, Wrapped):
                name = "wrap"
            else:
                continue
            chains = [c for c in e.frame.chains() if not never_on(e.node, e.frame, c)]
            if not chains and any(True for _ in e.frame.chains()):
                continue  # with a rank that the callers give as -1
            own = list(known.limits(e.node, e.frame))
            ways = [[limit for entry in chain for limit in known.limits(entry.call, entry.frame)] for chain in chains]
            if own or (ways and all(ways)):
                for by, passing in [*own, *(limit for way in ways for limit in way)]:
                    yield Limited(e, name, by, passing)

    def answered(self, one: Limited, found: list[Limited]) -> bool:
        """Whether the ranks that do not come make the same call: in the other branch, or under another test."""
        for other in found:
            if other.name != one.name or (other.event is one.event and other.passing == one.passing):
                continue
            if other.by is one.by and other.passing != one.passing:
                return True
            if other.event.node is not one.event.node and other.event.frame.node is one.event.frame.node:
                source = one.event.frame.source
                tests = [source.code(getattr(x.by, "test", x.by)) for x in (one, other) if x.by in source.parents]
                if len(tests) == 2 and tests[0] != tests[1]:
                    return True  # if rank != 0: barrier() ... if rank == 0: barrier()
        return False
