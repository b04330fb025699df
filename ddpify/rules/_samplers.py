"""A DataLoader call and a sampler in, the edits that put the sampler into the call out."""

from __future__ import annotations

from ddpify.edits import Edit, Replace, SetArgument
from ddpify.facts.sharding import LoaderFacts


def set_sampler(known: LoaderFacts, value: str) -> list[Edit]:
    """`sampler=value` in the place of shuffle, wherever that stands."""
    if known.position is not None:
        args = known.call.args
        text = f"sampler={value}"
        rest = [a for a in args[known.position + 1 :] if a.keyword is None and not a.star]
        if rest:  # DataLoader(ds, 8, True, None, None, 4): the sampler is the next place
            places = (args[known.position].value, "False"), (args[known.position + 1].value, value)
            return [Replace(known.source, node, text) for node, text in places]
        return [SetArgument(known.source, known.call, "sampler", value, (), ((known.position, text),))]
    return [SetArgument(known.source, known.call, "sampler", value, ("shuffle",))]
