"""A loader in, how what its own sampler, batch sampler or stream gives reaches the ranks out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.contents import constants
from ddpify.facts.externals import is_iterable_dataset
from ddpify.facts.streams import never_ends, stream_problem
from ddpify.facts.summaries import loader_argument
from ddpify.facts.values import Const, Data, Dataset, Instance, Iteration, Loader, Obj, Sampler, Seq, Value
from ddpify.source import Source

if TYPE_CHECKING:
    from ddpify.facts import Facts


#: A number of draws that no list of them can hold: "infinite" loaders ask for so many.
_ENDLESS = 10**8


@dataclass(frozen=True, eq=False)
class Plain:
    """`RandomSampler(data)`, `SequentialSampler(data)`: a DistributedSampler of the same data takes their place.

    `path` is the way to it from the loader: `sampler`, or `batch_sampler.sampler`.
    """

    source: Source
    call: cst.Call
    data: cst.BaseExpression
    shuffles: bool
    path: str
    #: `BatchSampler(RandomSampler(data), 8, drop_last=True)` drops its last batch
    drop_last: bool = False
    batch_size: cst.BaseExpression | None = None


@dataclass(frozen=True, eq=False)
class Draws:
    """A sampler, batch sampler or stream whose draws are dealt out: `how` is the argument that it is.

    `optional`: it may be None at run time. `endless`: it never stops to draw.
    """

    how: str
    node: cst.BaseExpression
    endless: bool = False
    optional: bool = False


@dataclass(frozen=True, eq=False)
class Unclear:
    """Why what a loader draws by cannot be shared out, and the argument that is in the way."""

    why: str
    node: cst.BaseExpression | None = None


def own_sampler(facts: Facts, loader: Loader) -> Plain | Draws | Unclear | None:
    """What the loader draws by, where that is no order of its own."""
    for how in ("batch_sampler", "sampler"):
        held = loader.arguments.get(how, ())
        some = tuple(o for o in held if not (isinstance(o, Const) and o.value is None))
        if not some or any(isinstance(o, Sampler) and "Distributed" in o.name for o in some):
            continue
        node = _argument(loader, how)
        if node is None:
            return Unclear(f"its {how} comes in the `**` of the call")
        plain = _plain(facts, loader, some, how) if len(some) == len(held) else None
        if plain is not None:
            return plain
        if not all(_can_be_drawn(o) for o in some):
            name = loader.site.source.code(node)
            return Unclear(f"it has a {how} (`{name}`) that ddpify could not follow", node)
        return Draws(how, node, any(_endless(o) for o in some), len(some) < len(held))
    return _stream(loader)


def _argument(loader: Loader, name: str) -> cst.BaseExpression | None:
    args = loader.call.args if loader.call is not None else ()
    return next((a.value for at, a in enumerate(args) if loader_argument(at, a) == name), None)


def _plain(facts: Facts, loader: Loader, some: Value, how: str) -> Plain | None:
    sampler, path, batches = _only(some), how, None
    if sampler is not None and sampler.name.endswith(".BatchSampler"):
        sampler, path, batches = _only(_inner(sampler)), f"{how}.sampler", sampler
    elif how == "batch_sampler":
        return None
    if sampler is None or sampler.call is None or not _drawn_alike(facts, loader, sampler):
        return None
    kind = sampler.name.rsplit(".", 1)[-1]
    data = _data_of(sampler.call)
    if kind not in ("RandomSampler", "SequentialSampler") or data is None:
        return None
    drop = _given(batches.call, 2, "drop_last") if batches is not None and batches.call is not None else None
    dropped = constants(facts.flow.values.get(drop, ())) if drop is not None else [False]
    if batches is not None and (dropped is None or len(dropped) != 1):
        return None
    size = _given(batches.call, 1, "batch_size") if batches is not None and batches.call is not None else None
    source = sampler.site.source
    return Plain(source, sampler.call, data, kind == "RandomSampler", path, bool(dropped and dropped[0]), size)


def _only(value: Value) -> Sampler | None:
    return value[0] if len(value) == 1 and isinstance(value[0], Sampler) else None


def _inner(batches: Sampler) -> Value:
    """`BatchSampler(sampler, 8, False)`"""
    return batches.dataset or batches.arguments.get("sampler", ())


def _data_of(call: cst.Call) -> cst.BaseExpression | None:
    """`data` of `RandomSampler(data)`, None where it draws otherwise (with replacement, or another number)."""
    rest = [a for a in call.args if a.keyword is not None and a.keyword.value not in ("data_source", "generator")]
    first = [a for a in call.args if a not in rest and (a.keyword is None or a.keyword.value == "data_source")]
    return first[0].value if len(first) == 1 and not rest and not first[0].star else None


def _given(call: cst.Call, place: int, name: str) -> cst.BaseExpression | None:
    for at, arg in enumerate(call.args):
        if (arg.keyword.value == name) if arg.keyword is not None else (at == place and not arg.star):
            return arg.value
    return None


def _drawn_alike(facts: Facts, loader: Loader, sampler: Sampler) -> bool:
    """Whether all loaders that draw by what this call makes train, as the loader does, or none of them."""
    training = facts.roles.training_loaders
    for other in {e.obj for e in facts.flow.log.of("loader") if isinstance(e.obj, Loader)}:
        calls = [s.call for how in ("sampler", "batch_sampler") for s in _samplers(other.arguments.get(how, ()))]
        if sampler.call in calls and (other in training) != (loader in training):
            return False
    return True


def _samplers(value: Value) -> Iterator[Sampler]:
    for obj in value:
        if isinstance(obj, Sampler):
            yield obj
            yield from _samplers(_inner(obj))


def _can_be_drawn(obj: Obj) -> bool:
    """Samplers of torch and of the project, lists and tensors of indices."""
    if isinstance(obj, Instance):
        return obj.cls is not None and bool(obj.cls.member("__iter__"))
    if isinstance(obj, Data):
        return obj.form == "tensor"
    return isinstance(obj, (Sampler, Seq)) or (isinstance(obj, Iteration) and obj.how in ("range", "iter"))


def _endless(obj: Obj) -> bool:
    """A sampler of the project that never stops to draw; one of torch that is told to draw 1e10 times."""
    if isinstance(obj, Sampler):
        told = constants(obj.arguments.get("num_samples", ()))
        return told is not None and all(isinstance(n, (int, float)) and n >= _ENDLESS for n in told)
    return isinstance(obj, Instance) and obj.cls is not None and never_ends(obj.cls)


def _stream(loader: Loader) -> Draws | Unclear | None:
    for obj in loader.dataset:
        name = _stream_name(obj)
        if not name:
            continue
        node = _argument(loader, "dataset")
        if node is None or len(loader.dataset) > 1:
            return Unclear(
                f"{name} is a stream, which is not given to the loader in a way that could be followed", node
            )
        why = stream_problem(obj, loader)
        return (
            Unclear(f"`{loader.site.source.code(node)}` is a stream, and {why}", node)
            if why
            else Draws("dataset", node)
        )
    return None


def _stream_name(obj: Obj) -> str:
    if isinstance(obj, Instance) and obj.cls is not None and is_iterable_dataset(obj.cls.outside()):
        return obj.cls.name
    if isinstance(obj, Dataset) and (
        obj.name.startswith("torchtext.datasets.") or "ChainDataset" in obj.name or obj.name.endswith("IterableDataset")
    ):
        return obj.name.rsplit(".", 1)[-1]
    return ""
