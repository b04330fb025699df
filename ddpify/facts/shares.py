"""A loop that evaluates in, why its result is not a sum of the ranks' shares out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.contents import modules
from ddpify.facts.frames import Event, Frame
from ddpify.facts.layers import minds_its_mode
from ddpify.facts.loops import LoopFacts, divides, loaded_after, read_after
from ddpify.facts.roles import loaders_in
from ddpify.facts.values import Data, Dict, Instance, Iteration, Module, Seq, Thing, Wrapped
from ddpify.source import Source, walk

if TYPE_CHECKING:
    from ddpify.facts import Facts


def problem(facts: Facts, known: LoopFacts, events: list[Event], inside: set[int]) -> str:
    """Why an evaluation is not a sum over samples in any order."""
    source = known.source
    counted = {a.target for a in known.accumulators}
    last = known.node.body.body[-1] if known.node.body.body else None
    if isinstance(last, cst.SimpleStatementLine) and isinstance(last.body[-1], cst.Break):
        return _peek(facts, known, inside)
    for e in events:
        at = line_of(facts, e.frame.source, e.stmt)
        if e.kind in ("break", "return") and any(loop.node is known.node for loop in e.loops):
            return f"{at} leaves the loop early"
        if e.kind == "external" and e.name in ("builtins.print", "matplotlib.pyplot.show") and e.frame is known.frame:
            return f"{at} prints in the loop"
        if e.kind == "external" and e.name.startswith(("matplotlib.", "torchvision.utils.")):
            return f"{at} draws in the loop"
        if e.kind == "store" and e.frame is known.frame and source.code(e.node) in counted:
            continue  # meters["loss"] += loss.item()
        if e.kind in ("store",) or (
            e.kind == "method"
            and e.name in ("append", "extend", "update", "add", "insert")
            and isinstance(e.obj, (Seq, Dict, Thing, Data))
        ):
            return f"{at} collects values of the batches"
        if e.kind == "method" and isinstance(e.obj, Thing) and e.obj.name in ("", "writer"):
            return f"{at} hands values to an object that could not be followed"
        if (
            e.kind == "set"
            and not (isinstance(e.obj, (Module, Wrapped, Iteration)))
            and source.code(e.node) not in counted
        ):
            return f"{at} changes `{source.code(e.node)}`"
        if e.kind == "call" and e.callee is not None and _changes(e.callee, set()):
            return f"{at} calls `{e.name}`, which changes something outside itself"
    return _problem_of_values(facts, known, inside)


def line_of(facts: Facts, source: Source, node: cst.CSTNode) -> str:
    """`line 12`, or file and line in another file."""
    line = source.line(node)
    return f"line {line}" if source is facts.source else f"{source.path}:{line}"


def _peek(facts: Facts, known: LoopFacts, inside: set[int]) -> str:
    """`for batch in loader: ...; break`: the first batch, which whole batches leave on rank 0, where it is."""
    known.peeks = True
    known.per_batch = f"{line_of(facts, known.source, known.node)} looks at the first batch"
    bound = {n.value for n in walk(known.node.target) if isinstance(n, cst.Name)}
    kept = next((n for n in sorted(bound) if read_after(known, n, inside) and loaded_after(known, n, inside)), None)
    return f"`{kept}` of the first batch is used after the loop" if kept is not None else ""


def _problem_of_values(facts: Facts, known: LoopFacts, inside: set[int]) -> str:
    for a in known.accumulators:
        if not a.read_after:
            continue
        if a.agg in ("mean", "const"):
            known.per_batch = f"`{a.target}` adds up a value per batch, not per sample"
        elif a.agg not in ("sum", "size"):
            return f"`{a.target}` adds up values that could not be followed"
        if not a.fresh:
            return f"`{a.target}` is not set to a number right before the loop"
    names = {a.target for a in known.accumulators}
    bound = {
        n.value
        for node in walk(known.node.body)
        if isinstance(node, (cst.AssignTarget, cst.AnnAssign))
        for n in walk(node.target)
        if isinstance(n, cst.Name)
    }
    bound |= {n.value for n in walk(known.node.target) if isinstance(n, cst.Name)}
    for name in sorted(bound - names):
        if read_after(known, name, inside) and loaded_after(known, name, inside):
            return f"`{name}` of the last batch is used after the loop"
    lengths = _lengths(facts, known)
    if lengths is None:
        return "the number of batches is used for more than a division behind the loop"
    if lengths:
        known.per_batch = known.per_batch or "it divides by the number of batches"
        known.batch_counts = lengths
    if _uses_index(facts, known, inside):
        return "the index of the batch is used"
    if not _evaluates(facts, known):
        return "the model is not in eval mode, so that batches of another make-up would give other numbers"
    return ""


def _lengths(facts: Facts, known: LoopFacts) -> list[cst.Name | cst.Call] | None:
    """`len(loader)`: names that hold it and calls that divide by it behind the loop; None where it has other uses."""
    source, found = known.source, list[cst.Name | cst.Call]()
    end = source.span(known.node.body).end
    for e in known.frame.events:
        if not (
            e.kind == "external"
            and e.name == "builtins.len"
            and known.loader in loaders_in(e.value)
            and isinstance(e.node, cst.Call)
        ):
            continue
        parent = source.parents.get(e.node)
        if (
            isinstance(parent, cst.Assign)
            and len(parent.targets) == 1
            and isinstance(parent.targets[0].target, cst.Name)
        ):
            name = parent.targets[0].target
            uses = [
                n for n in walk(known.frame.node) if isinstance(n, cst.Name) and n.value == name.value and n is not name
            ]
            if any(not divides(source, n) or source.span(n).start < end for n in uses):
                return None
            found.append(name)
        elif divides(source, e.node) and source.span(e.node).start > end:
            found.append(e.node)
        else:
            return None
    return found


def _changes(frame: Frame, seen: set[int]) -> bool:
    """Whether a function of the project does something that outlives it."""
    if id(frame) in seen:
        return False
    seen.add(id(frame))
    for e in frame.events:
        if isinstance(e.obj, (Seq, Dict)) and e.obj.site.frame is frame:
            continue  # res.append(...) of a list that it gives back
        if e.kind in ("store",) or (e.kind == "set" and not isinstance(e.obj, (Module, Wrapped))):
            return True
        if e.kind == "augment" and isinstance(e.node, cst.AugAssign) and isinstance(e.node.target, cst.Attribute):
            return True
        if (
            e.kind == "method"
            and e.name in ("append", "extend", "update", "add")
            and isinstance(e.obj, (Seq, Dict, Instance))
        ):
            return True
        if e.kind == "external" and e.name in ("builtins.print", "builtins.open"):
            return True
        if e.callee is not None and _changes(e.callee, seen):
            return True
    return False


def _uses_index(facts: Facts, known: LoopFacts, inside: set[int]) -> bool:
    """`for i, batch in enumerate(loader)`, and `i` is used."""
    target = known.node.target
    if not (isinstance(target, cst.Tuple) and isinstance(known.node.iter, cst.Call)):
        return False
    named = [getattr(o, "name", "") for o in facts.flow.values.get(known.node.iter.func, ())]
    if "builtins.enumerate" not in named or not isinstance(target.elements[0].value, cst.Name):
        return False
    name = target.elements[0].value.value
    return any(isinstance(n, cst.Name) and n.value == name for n in walk(known.node.body))


def _evaluates(facts: Facts, known: LoopFacts) -> bool:
    """The last switch of the model before the loop is eval(), or the model does not care."""
    forwards = [
        e for e in known.frame.events if e.kind == "forward" and any(loop.node is known.node for loop in e.loops)
    ]
    for e in forwards:
        switches = [
            s for s in facts.flow.log.of("method") if s.name in ("train", "eval") and s.seq < e.seq and s.obj is e.obj
        ]
        on = switches[-1].name == "eval" or facts.flow.truth(switches[-1].value) is False if switches else False
        if not on and any(minds_its_mode(m) for m in modules((e.obj,) if e.obj is not None else ())):
            return False
    return True
