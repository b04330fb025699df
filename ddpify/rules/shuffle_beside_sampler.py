"""DDP310: DataLoader arguments that exclude each other."""

from __future__ import annotations

from collections.abc import Iterator

from ddpify.edits import Edit, SetArgument
from ddpify.facts import Facts
from ddpify.facts.contents import constants
from ddpify.facts.values import Loader, Sampler
from ddpify.rules._base import Bad, Finding, Good, Rule


class ShuffleBesideSampler(Rule):
    """A DataLoader gets a sampler and `shuffle=True`.

    ## What it does
    Finds DataLoaders with a sampler and `shuffle=True`, by keyword or position.

    ## Why is this bad?
    `ValueError: sampler option is mutually exclusive with shuffle`: the script ends when the loader is made.

    ## Fix
    Leave `shuffle` out: a DistributedSampler shuffles by itself (`DistributedSampler(dataset, shuffle=True)`).
    """

    code = "DDP310"
    references = ("https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.DataLoader",)
    good = (
        Good("loader = DataLoader(dataset, sampler=DistributedSampler(dataset, shuffle=True))"),
        Good("""
            sampler = DistributedSampler(dataset) if dist.get_world_size() > 1 else None
            loader = DataLoader(dataset, shuffle=sampler is None, sampler=sampler)
            """),
        Good("""
            sampler = None
            if dist.get_world_size() > 1:
                sampler = DistributedSampler(dataset)
            loader = DataLoader(dataset, shuffle=(sampler is None), sampler=sampler)
            """),
    )
    bad = (
        Bad("loader = DataLoader(dataset, shuffle=True, sampler=DistributedSampler(dataset))"),
        Bad("loader = DataLoader(dataset, 8, True, DistributedSampler(dataset))"),
    )

    def check(self, facts: Facts) -> Iterator[Finding]:
        if facts.converting:
            return  # the single-GPU script would not run
        seen: set[int] = set()
        for e in facts.flow.log.of("loader"):
            loader = e.obj
            if not isinstance(loader, Loader) or loader.call is None or id(loader.call) in seen:
                continue
            samplers, source = loader.arguments.get("sampler", ()), loader.site.source
            certain = bool(samplers) and all(isinstance(o, Sampler) for o in samplers)
            if not certain or constants(loader.arguments.get("shuffle", ())) != [True] or not facts.editable(source):
                continue
            seen.add(id(loader.call))
            given = next((a.value for a in loader.call.args if a.keyword and a.keyword.value == "sampler"), None)
            edits: tuple[Edit, ...] = ()
            if given is not None and any(a.keyword and a.keyword.value == "shuffle" for a in loader.call.args):
                edits = (SetArgument(source, loader.call, "sampler", source.code(given), ("shuffle",)),)
            yield self.finding(
                source,
                loader.call,
                "this DataLoader gets `shuffle=True` beside a sampler: it raises ValueError",
                *edits,
            )
