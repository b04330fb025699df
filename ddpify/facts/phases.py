"""One text, two phases: what tells training from evaluation where the same statement does both."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.contents import constants
from ddpify.facts.frames import Event, Frame, Loop

if TYPE_CHECKING:
    from ddpify.facts import Facts


def loops_around(event: Event) -> list[tuple[Loop, ...]]:
    return list(event.all_loops())


def phase_test(facts: Facts, training: Event, evaluating: Event) -> str | None:
    """The Python test that is true while training, None where nothing tells the two apart.

    `phase == 'train'` (a loop over literals) or `train` (a parameter).
    """
    if training.frame is evaluating.frame:
        for one in (lp for loops in loops_around(training) for lp in loops):
            for two in (lp for loops in loops_around(evaluating) for lp in loops):
                if (
                    one.node is two.node
                    and one.element is not None
                    and two.element is not None
                    and one.element != two.element
                ):
                    return _literal(facts, one, training.frame)
    return _parameter(training.frame, evaluating.frame)


def _literal(facts: Facts, loop: Loop, frame: Frame) -> str | None:
    target, known = getattr(loop.node, "target", None), constants(loop.element or ())
    if not isinstance(target, cst.Name) or not known or len(known) != 1 or loop.frame is not frame:
        return None
    quote = "'" if "'" in frame.source.code(getattr(loop.node, "iter", target)) else '"'
    value = known[0]
    return f"{target.value} == {quote}{value}{quote}" if isinstance(value, str) else f"{target.value} == {value!r}"


def _parameter(one: Frame, two: Frame) -> str | None:
    """A parameter that is True in the one call and False in the other."""
    if one.node is not two.node or one.func is None:
        return None
    for name in one.arguments:
        if name in one.assigned:
            continue
        a, b = constants(one.scope.names.get(name, ())), constants(two.scope.names.get(name, ()))
        if a is not None and b is not None and len(a) == len(b) == 1 and a != b:
            if {a[0], b[0]} == {True, False} and isinstance(a[0], bool):
                return name if a[0] else f"not {name}"
            if isinstance(a[0], str):
                return f"{name} == {a[0]!r}"
    return None
