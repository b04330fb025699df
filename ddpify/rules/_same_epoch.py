"""An epoch loop in, the call that gives every epoch the same number out: `sampler.set_epoch(args.epochs)`."""

from __future__ import annotations

import libcst as cst

from ddpify.facts import Facts
from ddpify.facts.definitions import definitions
from ddpify.facts.frames import Event
from ddpify.facts.roles import EpochLoop
from ddpify.facts.values import Sampler, Thing
from ddpify.source import walk


def same_epoch(facts: Facts, epoch: EpochLoop) -> Event | None:
    """The call of set_epoch of a loop's sampler, where the number that it gives never changes."""
    samplers = set(epoch.loader.arguments.get("sampler", ()))
    calls = [e for e in facts.flow.log.of("method") if e.name == "set_epoch"]
    mine = [e for e in calls if e.obj in samplers and facts.editable(e.frame.source)]
    others = any(not isinstance(e.obj, Sampler) for e in calls)
    return mine[0] if mine and not others and all(_same(facts, e) for e in mine) else None


def _same(facts: Facts, e: Event) -> bool:
    """Whether what is given stays as it is: a number, or an argument of the command line that nothing sets."""
    args = e.node.args if isinstance(e.node, cst.Call) else ()
    return len(args) == 1 and _stays(facts, args[0].value, e)


def _stays(facts: Facts, node: cst.BaseExpression, e: Event) -> bool:
    if not isinstance(node, cst.Attribute):
        return isinstance(node, cst.Integer)
    held = facts.flow.values.get(node.value, ())
    given = bool(held) and all(isinstance(o, Thing) and o.name == "namespace" for o in held)
    return given and not definitions(facts.flow).attribute_events(node, e.frame) and not _is_set(facts, node.attr.value)


def _is_set(facts: Facts, name: str) -> bool:
    """`args.epoch = epoch`, `args.epoch += 1`, `setattr(args, "epoch", epoch)`, somewhere in the project."""
    for source in facts.flow.modules:
        targets: list[cst.CSTNode] = [t.target for stmt in source.of(cst.Assign) for t in stmt.targets]
        targets += [n.target for n in source.of(cst.AugAssign)]
        targets += [n.target for n in source.of(cst.AnnAssign)]
        targets += [n.target for n in source.of(cst.For)]
        if any(isinstance(n, cst.Attribute) and n.attr.value == name for t in targets for n in walk(t)):
            return True
        if any(isinstance(c.func, cst.Name) and c.func.value == "setattr" for c in source.of(cst.Call)):
            return True
    return False
