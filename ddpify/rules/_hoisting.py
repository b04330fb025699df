"""The dataset of a loader in, a statement of its own out."""

from __future__ import annotations

import libcst as cst

from ddpify.edits import AddHelper, Edit, Hoist
from ddpify.facts import Facts
from ddpify.facts.contents import constants
from ddpify.facts.sharding import LoaderFacts
from ddpify.source import walk


def hoisted(facts: Facts, known: LoaderFacts, name: str) -> tuple[str, list[Edit]]:
    """The dataset as a name; made inside the call it gets a statement of its own (guarded where it downloads)."""
    source = known.source
    if known.dataset is None or known.is_simple or isinstance(known.dataset, cst.Subscript):
        return known.data, []
    name = facts.names_of(source).fresh(name)
    downloads = any(
        isinstance(n, cst.Arg)
        and n.keyword is not None
        and n.keyword.value == "download"
        and constants(facts.flow.values.get(n.value, ())) != [False]
        for n in walk(known.dataset)
    )
    header = f"with {facts.names_of(source)['main_process_first']}():" if downloads else ""
    edits: list[Edit] = [Hoist(source, known.dataset, name, known.stmt, header=header, in_turn=True)]
    return name, [*edits, AddHelper(source, "main_process_first")] if downloads else edits
