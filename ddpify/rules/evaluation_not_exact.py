"""DDP304: evaluation that counts each sample once."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from ddpify.edits import AddHelper, AddImport, DropArguments, Edit, InsertBefore, Replace, SetArgument, Surround
from ddpify.facts import Facts
from ddpify.facts.contents import constants
from ddpify.facts.dependencies import Binding, bindings, closure, read_names
from ddpify.facts.evaluation import Evaluation, evaluations
from ddpify.facts.given_ranks import ever_made
from ddpify.facts.loops import LoopFacts
from ddpify.facts.metrics import loop_facts
from ddpify.facts.sharding import LoaderFacts, measured
from ddpify.facts.summaries import loader_argument
from ddpify.facts.trails import way_of_loader
from ddpify.facts.values import Sampler
from ddpify.rules._base import Bad, Converts, Finding, Good, Rule, Severity
from ddpify.rules._hoisting import hoisted
from ddpify.rules._samplers import set_sampler
from ddpify.source import walk


class EvaluationNotExact(Rule):
    """An evaluation counts samples twice: a DistributedSampler pads.

    ## What it does
    Finds evaluation loaders with a DistributedSampler, and shares evaluation out without padding in a conversion.

    ## Why is this bad?
    A DistributedSampler repeats samples until every rank has as many, so that a metric depends on the number of GPUs.

    ## Fix
    Shard by hand, `Subset(dataset, range(rank, len(dataset), world_size))`, and reduce sums and counts once after
    the loop.

    ## Edit
    `sampler=range(rank, len(dataset), world_size)`: every sample once, where the result is a sum over samples in any
    order. Otherwise every rank evaluates the whole set, which gives the original's numbers at the original's cost; the
    report says why.
    """

    code = "DDP304"
    severity = Severity.WARNING
    references = ("https://github.com/pytorch/pytorch/issues/25162",)
    good = (
        Good("""
            ddp = DDP(model)
            loader = DataLoader(dataset, sampler=range(dist.get_rank(), len(dataset), dist.get_world_size()))
            total = 0.0
            with torch.no_grad():
                for x, y in loader:
                    total += ddp.module(x).sum().item()
            """),
    )
    bad = (
        Bad("""
            ddp = DDP(model)
            loader = DataLoader(dataset, sampler=DistributedSampler(dataset))
            total = 0.0
            with torch.no_grad():
                for x, y in loader:
                    total += ddp.module(x).sum().item()
            mean = total / 64
            """),
    )
    converts = (
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            data = TensorDataset(torch.ones(8, 4), torch.ones(8))
            loader = DataLoader(data, batch_size=2)
            held_out = DataLoader(data, batch_size=2)
            net = nn.Linear(4, 1)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for x, y in loader:
                net(x).mean().backward()
                optimizer.step()
            right = 0
            with torch.no_grad():
                for x, y in held_out:
                    right += (net(x)[:, 0] > y).sum().item()
            print(right / len(data))
            """,
            gives=(
                "held_out = DataLoader(data, batch_size=2, "
                "sampler=range(dist.get_rank(), len(data), dist.get_world_size()))",
                "    [right] = all_reduce_sum(right)",
            ),
        ),
    )

    def check(self, facts: Facts) -> Iterator[Finding]:
        if not facts.converting:
            yield from self.lint(facts)
            return
        found = facts.cached("evaluations", evaluations)
        done: set[int] = set()
        for e in found:
            if e.known is None or not facts.editable(e.known.source) or id(e.known.call) in done:
                continue
            done.add(id(e.known.call))
            name = e.known.source.code(e.known.dataset).split("\n")[0] if e.known.dataset is not None else "the dataset"
            if e.mode == "batch":
                yield self.finding(
                    e.known.source,
                    e.known.call,
                    f"the evaluation over `{name}` is dealt out by whole batches",
                    *self.deal(facts, e),
                    reason=f"{e.reason}: each batch stays as it was, and is counted once",
                )
            elif e.mode == "all" and any(lp.reduces for lp in e.loops):
                yield self.finding(
                    e.known.source,
                    e.known.call,
                    f"the evaluation over `{name}` reduces over ranks by itself, and could not be shared out: "
                    f"{e.reason}",
                    refuse=way_of_loader(facts.flow, facts.roles, e.known.loader, e.known.dataset),
                )
            elif e.mode == "sample":
                yield self.finding(
                    e.known.source,
                    e.known.call,
                    f"the evaluation over `{name}` is shared out by sample",
                    *self.share(facts, e.known),
                    *(Replace(s, p.attr, "dataset") for s, p in measured(facts, e.known) if p.attr.value == "sampler"),
                    reason="each sample is counted once, without padding; the sums are reduced after the loop",
                )
            else:
                yield self.finding(
                    e.known.source, e.known.call, f"every rank evaluates the whole of `{name}`: {e.reason}", note=True
                )

    def share(self, facts: Facts, known: LoaderFacts) -> list[Edit]:
        dist = facts.names_of(known.source)["dist"]
        assert known.dataset is not None
        source = known.source
        name, edits = hoisted(facts, known, "val_set")
        value = f"range({dist}.get_rank(), len({name}), {dist}.get_world_size())"
        if known.plain is not None:  # sampler=SequentialSampler(data)
            own = f"range({dist}.get_rank(), len({known.plain.source.code(known.plain.data)}), {dist}.get_world_size())"
            return [Replace(known.plain.source, known.plain.call, own), AddImport(known.plain.source, "dist")]
        edits += [*set_sampler(known, value), AddImport(source, "dist")]
        if known.splat_shuffles and known.splat is not None:
            splat = source.code(known.splat)
            shared = (
                sum(
                    lo.splat is known.loader.splat
                    for lo in (*facts.roles.training_loaders, *facts.roles.evaluation_loaders)
                )
                > 1
            )
            if shared:
                edits.append(Replace(source, known.splat, f'{{**{splat}, "shuffle": False}}'))
            else:
                edits.append(InsertBefore(source, known.stmt, (f'{splat}.pop("shuffle", None)',)))
        return edits

    def deal(self, facts: Facts, e: Evaluation) -> list[Edit]:
        """The batches of one process, every world-th to each rank; batch 0 stays on rank 0."""
        known = e.known
        assert known is not None
        names = facts.names_of(known.source)
        if e.batch_size is None:
            made = Surround(known.source, known.call, f"{names['batches_of_rank']}(", ")")
            return [made, AddHelper(known.source, "batches_of_rank")]
        dist = names["dist"]
        assert known.dataset is not None
        assert e.batch_size is not None
        source = known.source
        dataset, edits = hoisted(facts, known, "val_set")
        order = f"range(len({dataset}))"
        if known.plain is not None and not known.plain.shuffles:
            order = next(
                source.code(a.value) for at, a in enumerate(known.call.args) if loader_argument(at, a) == "sampler"
            )
        batches = f"BatchSampler({order}, {source.code(e.batch_size)}, drop_last={known.drop_last is True})"
        name = names.fresh("val_batches")
        line = f"{name} = list({names['torch']}.utils.data.{batches})[{dist}.get_rank()::{dist}.get_world_size()]"
        drop = ("batch_size", "shuffle", "drop_last", "sampler")
        edits += [InsertBefore(source, known.stmt, (line,)), AddImport(source, "dist"), AddImport(source, "torch")]
        gone: list[int] = []
        for at, arg in enumerate(known.call.args):
            what = loader_argument(at, arg)
            if arg.keyword is None and what in (*drop, "batch_sampler"):
                gone.append(at)
            elif arg.keyword is None and at and what:  # DataLoader(ds, 64, False, None, None, 2, pad): by name
                edits.append(Surround(source, arg.value, f"{what}=", ""))
        if gone:
            edits.append(DropArguments(source, known.call, tuple(gone)))
        return [*edits, SetArgument(source, known.call, "batch_sampler", name, drop)]

    def lint(self, facts: Facts) -> Iterator[Finding]:
        loops = facts.cached("loops", loop_facts)
        used = {
            id(lp.loader) for lp in loops if any(a.read_after for a in lp.accumulators) or _reduces_itself(facts, lp)
        }
        for loader in facts.roles.evaluation_loaders:
            samplers = [
                s
                for s in loader.arguments.get("sampler", ())
                if isinstance(s, Sampler) and s.name.endswith("DistributedSampler") and ever_made(s.site)
            ]
            if (
                samplers
                and facts.editable(loader.site.source)
                and id(loader) in used
                and constants(samplers[0].arguments.get("drop_last", ())) != [True]
            ):
                yield self.finding(
                    loader.site.source,
                    loader.site.node,
                    "an evaluation through a DistributedSampler counts the samples that it pads with twice",
                )


_REDUCES = re.compile(r"torch\.distributed\.(\w+\.)*(all_)?reduce")


def _reduces_itself(facts: Facts, loop: LoopFacts) -> bool:
    """`meter.update(reduce_mean(loss))`: numbers of all ranks are added up in the loop, or behind it."""
    begin, inside, made = loop.source.span(loop.node).start, set(walk(loop.node)), _made_in(loop)
    for e in facts.flow.log.of("external"):
        if _REDUCES.fullmatch(e.name):
            ways = [(e.frame, e.node), *((c.frame, c.call) for chain in e.frame.chains(8) for c in chain)]
            calls = [n for f, n in ways if f is loop.frame and loop.source.span(n).start >= begin]
            if any(n in inside or closure(read_names(n), _behind(loop)) & made for n in calls):
                return True
    return False


def _behind(loop: LoopFacts) -> list[Binding]:
    """What is computed behind a loop, and in no other: `sums = torch.tensor([hits, seen])`."""
    source, home = loop.source, loop.frame.node
    outer, end = set(source.ancestors(loop.node)), source.span(loop.node).end
    behind = bindings(home.body if isinstance(home, cst.FunctionDef) else home)
    return [
        b
        for b in behind
        if source.span(b.node).start >= end
        and not any(isinstance(a, (cst.For, cst.While)) and a not in outer for a in source.ancestors(b.node))
    ]


def _made_in(loop: LoopFacts) -> set[str]:
    """The names of what changes in a loop: `total` of `total += n`, `meter` of `meter.update(x)`."""
    found: set[str] = set()
    for node in walk(loop.node.body):
        match node:
            case cst.AssignTarget(target=target) | cst.AugAssign(target=target):
                found |= {n.value for n in (target, *walk(target)) if isinstance(n, cst.Name)}
            case cst.Call(func=cst.Attribute(value=cst.Name(value=name))):
                found.add(name)
    return found
