"""A training step in, which outputs of its forward are used for more than the loss, and where, out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.dependencies import bindings
from ddpify.facts.levels import Level
from ddpify.facts.overrows import Kind, Over
from ddpify.facts.roles import is_label
from ddpify.facts.values import Data, FromForward
from ddpify.source import Source, dotted, walk

if TYPE_CHECKING:
    from ddpify.facts import Facts

_NAMES = (cst.Name, cst.Attribute)


@dataclass(frozen=True, eq=False)
class Shown:
    """An output of the training forward that is used for more than the loss: by its name, and where.

    `many` says that it is a list of such outputs, `behind` that it is used behind the loop.
    """

    source: Source
    name: str
    uses: tuple[cst.Name | cst.Attribute, ...]
    many: bool = False
    behind: bool = False


def is_read(level: Level, node: cst.Name | cst.Attribute) -> bool:
    """Not an attribute, a keyword, or a parameter of that name."""
    source = level.frame.source
    if is_label(source, node):
        return False
    base = dotted(node).split(".")[0]
    return not any(
        isinstance(a, cst.FunctionDef) and any(p.name.value == base for p in a.params.params)
        for a in takewhile(lambda a: a is not level.body, source.ancestors(node))
    )


def shown_outputs(facts: Facts, level: Level, steps: list[cst.CSTNode]) -> Iterator[Shown]:
    """`prediction = out.argmax(1)`, `plt.plot(x, out)`: outputs that are used outside the training statements."""
    training = {id(n) for s in steps for n in walk(s)}
    outputs = {dotted(n) for s in steps for n in walk(s) if isinstance(n, _NAMES) and _is_target(level, n)}
    found: dict[str, list[cst.Name | cst.Attribute]] = {}
    for node in walk(level.body):
        named = isinstance(node, _NAMES) and dotted(node) in outputs and id(node) not in training
        if isinstance(node, _NAMES) and named and is_read(level, node):
            held = facts.flow.values.get(node, ())
            if any(isinstance(o, Data) and o.agg == "sample" and _trained_on(facts, o) for o in held):
                found.setdefault(dotted(node), []).append(node)
    for name, uses in found.items():
        yield Shown(level.frame.source, name, tuple(uses))


def shown_behind(level: Level, steps: list[cst.CSTNode], env: dict[str, Kind]) -> Iterator[Shown]:
    """Outputs of the last step that are used when the loop is over."""
    source, loop = level.frame.source, level.loops[0].node
    end, scope = source.span(loop).end, level.frame.node
    outputs = {dotted(n) for s in steps for n in walk(s) if isinstance(n, _NAMES) and _is_target(level, n)}
    outputs = {n for n in outputs if n in env and env[n].over is Over.ROWS}
    again = [b for b in bindings(scope) if b.targets & outputs and source.span(b.node).start >= end]
    found: dict[str, list[cst.Name | cst.Attribute]] = {}
    for node in walk(scope):
        if isinstance(node, _NAMES) and dotted(node) in outputs and source.span(node).start >= end:
            stands = source.span(node).start
            anew = any(dotted(node) in b.targets and source.span(b.node).end <= stands for b in again)
            if not anew and not is_label(source, node) and not _is_target(level, node):
                found.setdefault(dotted(node), []).append(node)
    for name, uses in found.items():
        yield Shown(source, name, tuple(uses), behind=True)


def _is_target(level: Level, node: cst.CSTNode) -> bool:
    return isinstance(level.frame.source.parents.get(node), (cst.AssignTarget, cst.AnnAssign, cst.Element))


def _trained_on(facts: Facts, data: Data) -> bool:
    return any(isinstance(o, FromForward) and o.node in facts.roles.training_forwards for o in data.origins)
