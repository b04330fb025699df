"""An expression in, whether the number of ranks is in it out: `args.batch_size // world_size`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.contents import constants
from ddpify.facts.definitions import Definition, definitions
from ddpify.facts.frames import Frame
from ddpify.facts.values import Ext
from ddpify.source import walk

if TYPE_CHECKING:
    from ddpify.facts import Facts

_COUNTS = re.compile(
    r"torch\.distributed\.(\w+\.)*get_world_size|torch\.cuda\.device_count|.*\b(get_)?world_size|.*\b(num|n)_gpus?"
)
_VARIABLES = frozenset({"WORLD_SIZE", "LOCAL_WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE"})
#: `args.world_size` of a launcher that is not there
_FIELDS = frozenset({"world_size", "num_gpus", "n_gpu", "ngpus_per_node", "nprocs", "num_replicas"})


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
            if self.says(part):
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

    def says(self, node: cst.CSTNode) -> bool:
        values = self.facts.flow.values
        match node:
            case cst.Call(func=func):
                return any(isinstance(o, Ext) and _COUNTS.fullmatch(o.name) for o in values.get(func, ()))
            case cst.Attribute(attr=attr):
                return attr.value in _FIELDS
            case cst.SimpleString():
                return any(c in _VARIABLES for c in constants(values.get(node, ())) or [node.evaluated_value])
            case cst.Name(value=name):
                return name in _FIELDS
        return False
