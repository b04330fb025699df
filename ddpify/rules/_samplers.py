"""A DataLoader call and a sampler in, the edits that put the sampler into the call out."""

from __future__ import annotations

from ddpify.edits import Edit, Replace, SetArgument, Surround
from ddpify.facts import Facts
from ddpify.facts.phases import told
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


def telling(facts: Facts, known: LoaderFacts) -> list[Edit]:
    """`def make_loader(data, distributed=False)` and `make_loader(train_set, distributed=True)`."""
    new = told(facts, known.call)
    if new is None:
        return []
    edits: list[Edit] = []
    for source, function in new.functions:
        last = function.params.params[-1]
        end = last.default or (last.annotation.annotation if last.annotation is not None else last.name)
        edits.append(Surround(source, end, "", f", {new.name}=False"))
    return edits + [SetArgument(source, call, new.name, value) for source, call, value in new.calls]
