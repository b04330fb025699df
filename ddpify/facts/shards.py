"""A loader of a distributed script in, whether its data are shared out in another way than by a sampler out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.contents import constants
from ddpify.facts.definitions import definitions
from ddpify.facts.frames import Frame
from ddpify.facts.ranks import depends_on_rank, guarded
from ddpify.facts.roles import loaders_in
from ddpify.facts.values import Class, Const, Data, Dataset, Ext, Instance, Iteration, Loader, Sampler, Seq
from ddpify.source import walk

if TYPE_CHECKING:
    from ddpify.facts import Facts

#: samplers that draw the whole epoch, whoever asks
_PLAIN = re.compile(r"torch\.utils\.data(\.sampler)?\.(Weighted|Subset)?(Random|Sequential)Sampler")
_BASES = re.compile(
    r"torch\.utils\.data\.|torchvision\.|torchaudio\.|torchtext\.|typing\.|abc\.|builtins\.|collections\."
)
_LIBRARIES = re.compile(
    r"torch|numpy\.|builtins\.|datasets\.|pandas\.|random\.|json\.|pickle\.|os\.|glob\.|math\.|copy\."
)
_RANK = re.compile(
    r"get_rank|\brank\b|world_size|get_world_size|split_dataset_by_node|sharding_filter|apply_sharding|\.shard\("
)


def draws_for_itself(loader: Loader) -> str:
    """The name of a sampler that knows nothing of ranks, where it can be no other."""
    own = loader.arguments.get("sampler", ())
    names = {o.name.rsplit(".", 1)[-1] for o in own if isinstance(o, Sampler) and _PLAIN.fullmatch(o.name)}
    plain = all(isinstance(o, Sampler) and _PLAIN.fullmatch(o.name) for o in own)
    return " or ".join(sorted(names)) if plain else ""


def in_another_way(facts: Facts, loader: Loader) -> bool:
    """Whether something else than a sampler sees to it that the ranks read different data."""
    other = is_alternative(facts, loader) or made_for_rank(facts, loader) or _is_alone(facts, loader)
    return other or _streams(loader)


def is_whole(facts: Facts, loader: Loader) -> bool:
    """Whether all that the dataset is made of is read: what another file's code gives may be one rank's share."""
    if not loader.dataset:
        return False
    return all(_is_read(o, 4) for o in loader.dataset) or _is_computed(facts, loader)


def _is_computed(facts: Facts, loader: Loader) -> bool:
    """By functions of the project and of libraries alone, and none of a module that is not there."""
    args = loader.call.args if loader.call is not None else ()
    data = next((a.value for a in args if a.keyword is None or a.keyword.value == "dataset"), None)
    parts = parts_of(facts, data, loader.site.frame) if data is not None else ()
    calls = [node for node, _ in parts if isinstance(node, cst.Call)]
    bases = [o.cls.outside() for o in loader.dataset if isinstance(o, Instance) and o.cls is not None]
    read = all(any(map(_is_known, facts.flow.values.get(c.func, ()))) for c in calls)
    return bool(calls) and read and all(_BASES.match(name) for names in bases for name in names)


def _is_known(obj: object) -> bool:
    return not isinstance(obj, (Data, Ext)) or (isinstance(obj, Ext) and _LIBRARIES.match(obj.name) is not None)


def _is_read(obj: object, depth: int) -> bool:
    match obj:
        case Instance(cls=Class() as cls):
            return all(_BASES.match(name) for name in cls.outside())
        case Dataset(of=of):
            return not depth or all(_is_read(o, depth - 1) for o in of)
        case Seq() | Const() | Iteration():
            return True
        case Data(form=form):
            return form == "tensor"
    return False


def _streams(loader: Loader) -> bool:
    """`DataLoader(make_pipe(files), batch_size=None)`: data that come in batches, of which nothing else is known."""
    size = constants(loader.arguments.get("batch_size", ()))
    return size == [None] and not any(isinstance(o, Instance) for o in loader.dataset)


def _is_alone(facts: Facts, loader: Loader) -> bool:
    """It is made where there is one process only, or on one rank."""
    return any(guarded(e, facts.flow) for e in facts.flow.log.of("loader") if e.obj is loader)


def is_alternative(facts: Facts, loader: Loader) -> bool:
    """`return DataLoader(...)` in one branch and one with a DistributedSampler in the other, for the same loop."""
    for p in facts.roles.passes:
        loaders = [o for o in loaders_in(p.loop.iterates) if isinstance(o, Loader)]
        if loader in loaders and any(map(is_sharded, loaders)):
            return True
    return False


def is_sharded(loader: Loader) -> bool:
    """Whether a loader may have a DistributedSampler."""
    return any(isinstance(o, Sampler) and "Distributed" in o.name for o in loader.arguments.get("sampler", ()))


def made_for_rank(facts: Facts, loader: Loader) -> bool:
    """The dataset is made for the rank, or asks for it: `Shard(files, rank, world_size)`."""
    args = loader.call.args if loader.call is not None else ()
    data = next((a.value for a in args if a.keyword is None or a.keyword.value == "dataset"), None)
    parts = parts_of(facts, data, loader.site.frame) if data is not None else ()
    for node, frame in parts:
        if depends_on_rank(node, frame, facts.flow) or (isinstance(node, cst.Call) and _cuts(facts, node, frame)):
            return True
    for obj in loader.dataset:
        site = getattr(obj, "site", None)
        own = site.node.args if site is not None and isinstance(site.node, cst.Call) else ()
        if site is not None and any(depends_on_rank(a.value, site.frame, facts.flow) for a in own):
            return True
        cls = obj.cls if isinstance(obj, Instance) else None
        if cls is not None and any(_RANK.search(c.source.code(c.node)) for c in cls.lineage()):
            return True
    return False


def _cuts(facts: Facts, call: cst.Call, frame: Frame) -> bool:
    """A method of a class that cuts out the share of its rank: `order[self.rank * n : (self.rank + 1) * n]`."""
    known = definitions(facts.flow)
    owners = {id(c): c for f in known.callees(call, frame) if f.owner is not None for c in f.owner.lineage()}
    for cls in owners.values():
        for node in walk(cls.node):
            cut = node.slice[0].slice if isinstance(node, cst.Subscript) else None
            bound = cut.lower if isinstance(cut, cst.Slice) else None
            home = next((a for a in cls.source.ancestors(node) if isinstance(a, cst.FunctionDef)), None)
            frames = known.frames.get(id(home), ()) if bound is not None else ()
            if bound is not None and any(depends_on_rank(bound, f, facts.flow) for f in frames):
                return True
    return False


def parts_of(
    facts: Facts, given: cst.BaseExpression, frame: Frame, depth: int = 6
) -> Iterator[tuple[cst.CSTNode, Frame]]:
    """The expressions that a value is made of, names followed back."""
    known, seen = definitions(facts.flow), set[int]()
    todo: list[tuple[cst.CSTNode, Frame, int]] = [(given, frame, depth)]
    while todo:
        top, frame, left = todo.pop()
        if id(top) in seen:
            continue
        seen.add(id(top))
        for node in walk(top):
            yield node, frame
            if left and isinstance(node, (cst.Name, cst.Attribute, cst.Call)):
                todo.extend((d.node, d.frame, left - 1) for d in known.of(node, frame))
