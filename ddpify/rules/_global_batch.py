"""A training loader and `--global-batch keep` in, the division of its batch size out, where that stands."""

from __future__ import annotations

import libcst as cst

from ddpify.edits import AddHelper, Edit, Surround
from ddpify.facts import Facts
from ddpify.facts.contents import constants
from ddpify.facts.loops import uses_of
from ddpify.facts.phases import training_key
from ddpify.facts.setup import find_setup
from ddpify.facts.sharding import LoaderFacts


def divided(facts: Facts, known: LoaderFacts) -> list[Edit]:
    """`batch_size=per_process(32)`; nothing where the number stands in no place that is this loader's alone."""
    size = known.batch_size if known.batch_size is not None else _in_dict(facts, known)
    if size is None:
        return []
    # {x: DataLoader(sets[x], batch_size=8) for x in ["train", "val"]}: evaluation keeps its number
    key = training_key(facts, known.call)
    after = f") if {key[0]} else {known.source.code(size)}" if key is not None else ")"
    name = facts.names_of(known.source)["per_process"]
    return [Surround(known.source, size, f"{name}(", after), AddHelper(known.source, "per_process")]


def _in_dict(facts: Facts, known: LoaderFacts) -> cst.BaseExpression | None:
    """`options = {"batch_size": 32}`, where the dict is handed to this loader alone."""
    held, splat = known.loader.splat, known.splat
    if held is None or not isinstance(splat, cst.Name) or held.site.source is not known.source:
        return None
    roles, node = facts.roles, held.site.node
    others = [o for o in (*roles.training_loaders, *roles.evaluation_loaders) if o.call is not known.call]
    if (
        any(o.splat is held for o in others)
        or not isinstance(node, cst.Dict)
        or held.site.frame.home is not _home(known)
    ):
        return None
    setup, scope = facts.cached("setup", find_setup), held.site.frame.node
    early = setup is None or setup.source.span(setup.first).start > held.site.source.span(node).start
    if early and (setup is None or setup.frame is held.site.frame):
        return None  # made before there is a process group
    if not all(_hands_on(known, use) for use in uses_of(scope, splat.value)):
        return None
    sizes = [e.value for e in node.elements if isinstance(e, cst.DictElement) and _is_size(facts, e.key)]
    return sizes[0] if len(sizes) == 1 else None


def _home(known: LoaderFacts) -> object:
    return known.loader.site.frame.home


def _is_size(facts: Facts, key: cst.BaseExpression) -> bool:
    return constants(facts.flow.values.get(key, ())) == ["batch_size"]


def _hands_on(known: LoaderFacts, use: cst.Name) -> bool:
    """`options = ...`, `options.update(...)`, `DataLoader(data, **options)`: nothing that reads the number."""
    match known.source.parents.get(use):
        case cst.AssignTarget():
            return True
        case cst.Attribute(attr=cst.Name(value="update")):
            return True
        case cst.Arg(star="**") as arg:
            return known.source.parents.get(arg) is known.call
    return False
