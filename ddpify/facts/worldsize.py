"""An expression in, whether the number of ranks is in it out: `args.batch_size // world_size`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.contents import constants
from ddpify.facts.definitions import Definition, definitions
from ddpify.facts.frames import Frame
from ddpify.facts.ranks import ranks
from ddpify.facts.values import Ext, Instance, Module, Thing
from ddpify.source import walk

if TYPE_CHECKING:
    from ddpify.facts import Facts

_COUNTS = re.compile(r"torch\.distributed\.(\w+\.)*get_world_size|torch\.cuda\.device_count|.*\bget_world_size")
_VARIABLES = frozenset({"WORLD_SIZE", "LOCAL_WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE"})
#: what takes the number of ranks, by which keyword or at which place
_TAKES = {
    "torch.distributed.init_process_group": ("world_size", 3),
    "torch.distributed.distributed_c10d.init_process_group": ("world_size", 3),
    "torch.multiprocessing.spawn": ("nprocs", 2),
    "torch.multiprocessing.spawn.spawn": ("nprocs", 2),
    "torch.utils.data.distributed.DistributedSampler": ("num_replicas", 1),
    "torch.utils.data.DistributedSampler": ("num_replicas", 1),
}
#: of a parameter that nobody passes the name alone is there to tell
_NAMES = frozenset({"world_size", "num_gpus", "n_gpu", "ngpus_per_node", "nprocs", "num_replicas"})


def counts_ranks(facts: Facts, node: cst.CSTNode, frame: Frame) -> bool:
    """Whether an expression is computed with the number of ranks."""
    return _Search(facts).of(node, frame, 8)


class _Search:
    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.seen: set[tuple[int, int]] = set()

    def of(self, node: cst.CSTNode, frame: Frame, depth: int) -> bool:
        if depth == 0 or (id(node), id(frame)) in self.seen:
            return False
        self.seen.add((id(node), id(frame)))
        known = definitions(self.facts.flow)
        for part in walk(node):
            if self.says(part, frame):
                return True
            if isinstance(part, (cst.Name, cst.Attribute, cst.Call)) and any(
                self.defined(d, depth) for d in known.of(part, frame)
            ):
                return True
        return False

    def defined(self, d: Definition, depth: int) -> bool:
        if self.of(d.node, d.frame, depth - 1):
            return True
        if d.event is not None and isinstance(d.event.stmt, cst.AugAssign):
            return False
        # if world_size > 1: batch_size = batch_size // 2
        above = d.frame.source.ancestors(d.event.stmt) if d.event is not None else ()
        return any(isinstance(a, cst.If) and self.of(a.test, d.frame, depth - 1) for a in above)

    def says(self, node: cst.CSTNode, frame: Frame) -> bool:
        values = self.facts.flow.values
        match node:
            case cst.Call(func=func):
                return any(isinstance(o, Ext) and _COUNTS.fullmatch(o.name) for o in values.get(func, ()))
            case cst.SimpleString():
                return any(c in _VARIABLES for c in constants(values.get(node, ())) or [node.evaluated_value])
            case cst.Name(value=name):
                return bool(self.places(node, frame) & self.taken) or (
                    name in _NAMES and ranks(self.facts.flow).opaque(node, frame)
                )
            case cst.Attribute(value=base, attr=attr):
                if self.places(node, frame) & self.taken:
                    return True
                # `args.cards` of a function that is spawned, and `nprocs=args.cards`
                alike = attr.value in _NAMES or any(attr.value == name for _, name in self.taken)
                return alike and ranks(self.facts.flow).opaque(base, frame)
        return False

    @property
    def taken(self) -> set[tuple[int, str]]:
        return self.facts.cached("numbers of ranks", lambda _: self.find_taken())

    def find_taken(self) -> set[tuple[int, str]]:
        """Where the number of ranks is kept: `n` of `init_process_group(world_size=n)`, `args.n` of `nprocs=args.n`."""
        found: set[tuple[int, str]] = set()
        for e in self.facts.flow.log.of("external", "sampler"):
            keyword, at = _TAKES.get(e.name, ("", 0))
            given = _given(e.node, keyword, at) if keyword and isinstance(e.node, cst.Call) else None
            if given is not None:
                todo = [(given, e.frame)]
                for node, frame in todo:
                    found |= self.places(node, frame)
                    if len(todo) < 64:
                        todo += [(d.node, d.frame) for d in definitions(self.facts.flow).of(node, frame)]
        return found

    def places(self, node: cst.CSTNode, frame: Frame) -> set[tuple[int, str]]:
        """The variable, or the field of an object, that an expression names."""
        match node:
            case cst.Name(value=name):
                holder = frame.scope.holder(name)
                return {(id(holder.names), name)} if holder is not None else set()
            case cst.Attribute(value=base, attr=attr):
                held = self.facts.flow.values.get(base, ())
                return {(id(o), attr.value) for o in held if isinstance(o, (Instance, Module, Thing))}
        return set()


def _given(call: cst.Call, keyword: str, at: int) -> cst.BaseExpression | None:
    for arg in call.args:
        if arg.keyword is not None and arg.keyword.value == keyword:
            return arg.value
    plain = [a.value for a in call.args if a.keyword is None and not a.star]
    return plain[at] if at < len(plain) else None
