"""DDP312: shards of training data that are cut by hand."""

from __future__ import annotations

from collections.abc import Iterator

from ddpify.facts import Facts
from ddpify.facts.cuts import uneven_cut
from ddpify.facts.unreduced import shared_out
from ddpify.rules._base import Bad, Finding, Good, Rule


class UnevenShards(Rule):
    """Ranks train on shards that are not equally long.

    ## What it does
    Finds training loaders over data that each rank cuts out for itself: `data[rank::world_size]`,
    `Subset(data, range(rank, len(data), world_size))`, `array_split(data, world_size)[rank]`, slices of
    `ceil(len(data) / world_size)`.

    ## Why is this bad?
    Where the length does not divide, some ranks have a sample, and so a batch, more than others: they wait in the last
    backward for ranks that have none, and the job hangs or ends with an error.

    ## Fix
    Use a `DistributedSampler`, which makes all shards equally long, or cut the data to a multiple of the world size
    first.
    """

    code = "DDP312"
    references = ("https://github.com/k2-fsa/snowfall/issues/152", "https://github.com/dmlc/dgl/issues/2539")
    good = (
        Good("""
            from torch.utils.data import Subset
            even = len(dataset) // dist.get_world_size() * dist.get_world_size()
            part = Subset(dataset, range(dist.get_rank(), even, dist.get_world_size()))
            ddp = DDP(model)
            for x, y in DataLoader(part, 4):
                ddp(x).mean().backward()
            """),
        Good("""
            part = torch.utils.data.Subset(dataset, range(dist.get_rank(), len(dataset), dist.get_world_size()))
            with torch.no_grad():
                for x, y in DataLoader(part, 4):
                    model(x)
            """),
    )
    bad = (
        Bad("""
            part = torch.utils.data.Subset(dataset, range(dist.get_rank(), len(dataset), dist.get_world_size()))
            ddp = DDP(model)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            for x, y in DataLoader(part, 4):
                ddp(x).mean().backward()
                optimizer.step()
            """),
        Bad("""
            rows = torch.randn(65, 8)[dist.get_rank() :: dist.get_world_size()]
            ddp = DDP(model)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            for x in DataLoader(rows, 4):
                ddp(x).mean().backward()
                optimizer.step()
            """),
    )

    def check(self, facts: Facts) -> Iterator[Finding]:
        if facts.converting or not facts.roles.wrapped:
            return
        seen: set[int] = set()
        for loader in facts.roles.training_loaders:
            if loader.call is None or shared_out(loader):
                continue
            cut = uneven_cut(facts, loader)
            if cut is not None and id(cut[0]) not in seen and facts.editable(cut[1]):
                seen.add(id(cut[0]))
                code = cut[1].code(cut[0])
                message = f"`{code}` gives some ranks a sample more than others: they wait for each other"
                yield self.finding(cut[1], cut[0], message)
