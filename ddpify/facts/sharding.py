"""Roles in, what is known of each loader out: how it shuffles, what its dataset is, why it cannot be sharded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.contents import constants
from ddpify.facts.dependencies import bindings, read_names
from ddpify.facts.phases import training_key
from ddpify.facts.placing import statement_of
from ddpify.facts.samplers import Draws, Plain, Unclear, own_sampler
from ddpify.facts.summaries import loader_argument
from ddpify.facts.values import Const, Loader, Sampler, Site
from ddpify.source import Source, walk

if TYPE_CHECKING:
    from ddpify.facts import Facts


@dataclass(frozen=True, eq=False)
class LoaderFacts:
    """A DataLoader call and how its arguments stand.

    `shuffle` is the source text of the argument, None where there is none; `position` its place where it is positional;
    `splat` the text of the dict that may hold it (`**kwargs`), `splat_shuffles` whether that dict can have a `shuffle`
    key.
    """

    loader: Loader
    source: Source
    call: cst.Call
    stmt: cst.CSTNode
    dataset: cst.BaseExpression | None
    dataset_arg: cst.Arg | None
    shuffle: cst.BaseExpression | None
    position: int | None
    shuffles: bool | None
    splat: cst.BaseExpression | None
    splat_shuffles: bool
    drop_last: bool | None
    #: why it cannot be given a DistributedSampler, and the argument that is in the way
    problem: str = ""
    hindrance: cst.BaseExpression | None = None
    #: the indices of a SubsetRandomSampler, as the script says them
    subset: str = ""
    #: a RandomSampler or SequentialSampler of the script, which a DistributedSampler takes the place of
    plain: Plain | None = None
    #: a sampler, batch sampler or stream that is dealt out
    draws: Draws | None = None

    @property
    def sampler_path(self) -> str:
        """The way from the loader to its DistributedSampler."""
        return self.plain.path if self.plain is not None else "sampler"

    @property
    def batch_size(self) -> cst.BaseExpression | None:
        """The argument of the call, by keyword or in its place."""
        if self.plain is not None and self.plain.batch_size is not None:
            return self.plain.batch_size
        return next((a.value for at, a in enumerate(self.call.args) if loader_argument(at, a) == "batch_size"), None)

    @property
    def data(self) -> str:
        """How the dataset is written: `cfg["dataset"]` where it comes in by `**cfg`."""
        if self.dataset is not None:
            return self.source.code(self.dataset)
        return f'{self.source.code(self.splat)}["dataset"]' if self.splat is not None else ""

    @property
    def is_simple(self) -> bool:
        """The dataset is a name, an attribute or `sets["val"]`: it can be written twice."""
        node = self.dataset
        while isinstance(node, cst.Attribute) or (isinstance(node, cst.Subscript) and _is_entry(node)):
            node = node.value
        return isinstance(node, cst.Name)


def _is_entry(node: cst.Subscript) -> bool:
    index = node.slice[0].slice if len(node.slice) == 1 else None
    return isinstance(index, cst.Index) and isinstance(index.value, (cst.SimpleString, cst.Integer))


def loader_facts(facts: Facts, loader: Loader) -> LoaderFacts | None:
    """What is known of a loader, None where its call is no call in a file that was read."""
    call, source = loader.call, loader.site.source
    if call is None:
        return None
    dataset_arg = shuffle_arg = drop_arg = splat_arg = None
    position = None
    for at, arg in enumerate(call.args):
        name = loader_argument(at, arg)
        if name == "dataset":
            dataset_arg = arg
        elif name == "shuffle":
            shuffle_arg, position = arg, at if arg.keyword is None else None
        elif name == "drop_last":
            drop_arg = arg
        elif arg.star == "**":
            splat_arg = arg
    held = loader.arguments.get("shuffle", ()) if not subset_indices(loader) else (Const(True),)
    known = {bool(k) for k in constants(held) or ()} if constants(held) is not None else set()
    shuffles = known.pop() if len(known) == 1 else (False if not held else None)
    own = own_sampler(facts, loader) if not subset_indices(loader) else None
    plain, draws = own if isinstance(own, Plain) else None, own if isinstance(own, Draws) else None
    if plain is not None or draws is not None:
        shuffles = plain is not None and plain.shuffles
    in_splat = loader.splat is not None and "shuffle" in loader.splat.items and shuffle_arg is None
    if in_splat and loader.splat is not None and "shuffle" in loader.splat.maybe:
        shuffles = None
    if loader.unknown_splat and shuffle_arg is None and not held and own is None:
        shuffles = None
    drop = constants(loader.arguments.get("drop_last", (Const(False),)))
    if plain is not None and plain.path != "sampler":
        drop = [plain.drop_last]
    problem, hindrance = (own.why, own.node) if isinstance(own, Unclear) else _problem(facts, loader, dataset_arg)
    return LoaderFacts(
        loader,
        source,
        call,
        statement_of(source, call),
        dataset_arg.value if dataset_arg else None,
        dataset_arg,
        shuffle_arg.value if shuffle_arg else None,
        position,
        shuffles,
        splat_arg.value if splat_arg else None,
        in_splat or (loader.unknown_splat and shuffle_arg is None),
        bool(drop[0])
        if drop and len({bool(d) for d in drop}) == 1
        else (None if drop_arg or "drop_last" in loader.arguments else False),
        problem,
        hindrance,
        subset_indices(loader),
        plain,
        draws,
    )


def _problem(facts: Facts, loader: Loader, dataset: cst.Arg | None) -> tuple[str, cst.BaseExpression | None]:
    """Why a loader cannot be given a DistributedSampler, and the argument that says so."""
    call, code = loader.call, loader.site.source.code
    others = [
        x
        for x in (*facts.roles.training_loaders, *facts.roles.evaluation_loaders)
        if x is not loader and x.call is loader.call
    ]
    trains = loader in facts.roles.training_loaders
    if any((x in facts.roles.training_loaders) != trains for x in others) and training_key(facts, loader.call) is None:
        both = f"the same call, `{code(call)}`," if call is not None else "the same call"
        return f"{both} makes a training loader and an evaluation loader; make them in two calls", None
    if dataset is None and (loader.splat is None or "dataset" not in loader.splat.items):
        return "its dataset is not among the arguments that could be followed", None
    return "", None


def subset_indices(loader: Loader) -> str:
    """`sampler=SubsetRandomSampler(train_idx)`: the text of the indices, where the loader's statement sees them too."""
    found = [o for o in loader.arguments.get("sampler", ()) if isinstance(o, Sampler)]
    if len(found) != 1 or not found[0].name.endswith(".SubsetRandomSampler") or found[0].call is None:
        return ""
    site, call = found[0].site, found[0].call
    if site.frame.home is not loader.site.frame.home or len(call.args) != 1:
        return ""
    indices = call.args[0].value
    plain = isinstance(indices, (cst.Name, cst.Attribute)) or _is_slice(indices)
    return site.source.code(indices) if plain and not _bound_between(site, indices, loader.site) else ""


def _is_slice(node: cst.BaseExpression) -> bool:
    """`indices[:split]`: computed of names alone, so that it may be computed again."""
    return isinstance(node, cst.Subscript) and not any(
        isinstance(n, (cst.Call, cst.NamedExpr, cst.Await, cst.Yield)) for n in walk(node)
    )


def _bound_between(site: Site, indices: cst.BaseExpression, loader: Site) -> bool:
    """Whether a name in the indices gets another value between the sampler and the loader."""
    source, names = site.source, read_names(indices)
    start, end = source.span(site.node).end, source.span(loader.node).start
    return any(b.targets & names and start <= source.span(b.node).start < end for b in bindings(site.frame.node))


def measured(facts: Facts, known: LoaderFacts) -> Iterator[tuple[Source, cst.Attribute]]:
    """The `loader.sampler` and `loader.dataset` whose length is asked for."""
    for source in facts.project.files():
        for node in source.nodes if facts.editable(source) else ():
            match node:
                case cst.Call(func=cst.Name(value="len"), args=[cst.Arg(value=cst.Attribute() as part)]):
                    held = facts.flow.values.get(part.value, ())
                    if part.attr.value in ("sampler", "dataset") and known.loader in held:
                        yield source, part
