"""The dataset of a loader in, a statement of its own out."""

from __future__ import annotations

import libcst as cst

from ddpify.edits import AddHelper, Edit, Hoist, Surround
from ddpify.facts import Facts
from ddpify.facts.contents import constants
from ddpify.facts.dependencies import bound_names, read_names
from ddpify.facts.redrawn import redrawn
from ddpify.facts.sharding import LoaderFacts
from ddpify.source import walk


def hoisted(facts: Facts, known: LoaderFacts, name: str) -> tuple[str, list[Edit]]:
    """The dataset as a name; made inside the call it gets a statement of its own (guarded where it downloads)."""
    source = known.source
    if known.dataset is None or known.is_simple or isinstance(known.dataset, cst.Subscript):
        return known.data, []
    if _is_of_each_turn(known):
        # {k: DataLoader(TensorDataset(*d), ...) for k, d in data.items()}: `d` has no value before the statement
        first = known.call.args[0] if known.call.args else None
        if first is None or first.value is not known.dataset:
            return source.code(known.dataset), []
        name = facts.names_of(source).fresh(name)
        named = first.keyword is not None
        return name, [Surround(source, known.dataset, f"{'(' * named}{name} := ", ")" * named)]
    name = facts.names_of(source).fresh(name)
    downloads = any(
        isinstance(n, cst.Arg)
        and n.keyword is not None
        and n.keyword.value == "download"
        and constants(facts.flow.values.get(n.value, ())) != [False]
        for n in walk(known.dataset)
    )
    drawn = any(r.place is known.stmt for r in redrawn(facts))  # DDP314 gives the helper
    header = f"with {facts.names_of(source)['same_draws']}():" if drawn else ""
    header = f"with {facts.names_of(source)['main_process_first']}():" if downloads else header
    edits: list[Edit] = [Hoist(source, known.dataset, name, known.stmt, header=header, in_turn=True)]
    return name, [*edits, AddHelper(source, "main_process_first")] if downloads else edits


def has_own_statement(known: LoaderFacts) -> bool:
    """Whether the dataset is made inside the call, and gets a statement before it."""
    inside = known.dataset is not None and not known.is_simple and not isinstance(known.dataset, cst.Subscript)
    return inside and not _is_of_each_turn(known)


def _is_of_each_turn(known: LoaderFacts) -> bool:
    """Whether the dataset is made of a name that a comprehension or a lambda around it binds."""
    assert known.dataset is not None
    read, bound = read_names(known.dataset), set[str]()
    for above in known.source.ancestors(known.dataset):
        if above is known.stmt:
            break
        if isinstance(above, cst.BaseComp):
            parts = (above.for_in, *walk(above.for_in))
            bound |= {name for part in parts if isinstance(part, cst.CompFor) for name in bound_names(part.target)}
        elif isinstance(above, cst.Lambda):
            bound |= {p.name.value for p in above.params.params}
    return bool(read & bound)
