"""A loop that evaluates in, why its result is not a sum of the ranks' shares out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.batchcounts import counted_by_index, index_of, lengths, says_on_bar
from ddpify.facts.collected import holder_of
from ddpify.facts.contents import modules
from ddpify.facts.dependencies import bindings, carried, closure, read_names
from ddpify.facts.frames import Event, Frame
from ddpify.facts.heldout import HeldOut, held_out
from ddpify.facts.layers import minds_its_mode
from ddpify.facts.leavings import left_by
from ddpify.facts.loops import Accumulator, LoopFacts, loaded_after, read_after, uses_of
from ddpify.facts.pass_own import Owned, owned_by_pass
from ddpify.facts.starts import base_of
from ddpify.facts.values import Data, Dict, Instance, Iteration, Module, Seq, Thing, Wrapped
from ddpify.source import Source, walk

if TYPE_CHECKING:
    from ddpify.facts import Facts


def problem(facts: Facts, known: LoopFacts, events: list[Event], inside: set[int]) -> str:
    """Why an evaluation is not a sum over samples in any order."""
    source = known.source
    held = held_out(facts, known)
    counted = {a.target for a in known.accumulators}
    own = owned_by_pass(facts, known)
    last = known.node.body.body[-1] if known.node.body.body else None
    if isinstance(last, cst.SimpleStatementLine) and isinstance(last.body[-1], cst.Break):
        return _peek(facts, known, inside)
    for e in events:
        if _is_held(known, held, e):
            continue
        at = line_of(facts, e.frame.source, e.stmt)
        if e.kind in ("break", "return") and any(loop.node is known.node for loop in e.loops):
            return f"{at} leaves the loop early"
        if e.kind == "external" and e.name in ("builtins.print", "matplotlib.pyplot.show") and e.frame is known.frame:
            return f"{at} prints in the loop"
        if e.kind == "external" and e.name.startswith(("matplotlib.", "torchvision.utils.")):
            return f"{at} draws in the loop"
        if left := left_by(facts, e):
            return f"{at} {left} in the loop"
        if e.kind == "store" and e.frame is known.frame and source.code(e.node) in counted:
            continue  # meters["loss"] += loss.item()
        if e.frame is known.frame and own.changed_by(e):
            continue
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
        callee, after = e.callee, own.handed_on(e.node, e.callee) if e.callee is not None else own
        if e.kind == "call" and callee is not None and _changes(facts, callee, after, set()):
            if used := _used_within(facts, known, e):
                return used
            return f"{at} calls `{e.name}`, which changes something outside itself"
    if held.needed:
        known.held = held
    if held.by_batch:
        known.per_batch = f"`{held.by_batch[0]}` gets an entry for each batch"
    elif held.whole:
        known.per_batch = f"`{held.whole}` adds up what each batch gives"
    elif held.meters:
        known.per_batch = f"`{held.meters[0].target}` is given values of batches"
    return _problem_of_values(facts, known, inside)


def _is_held(known: LoopFacts, held: HeldOut, e: Event) -> bool:
    """Whether what an event changes is brought together behind the loop."""
    if e.frame is not known.frame:
        return False
    node = e.node.target if isinstance(e.node, cst.AugAssign) else e.node if e.kind == "store" else holder_of(e)
    while isinstance(node, cst.Subscript):
        node = node.value
    return isinstance(node, cst.Name) and node.value in held.names


def _used_within(facts: Facts, known: LoopFacts, e: Event) -> str:
    """`losses.update(...)` and `print(losses.avg)` in the same loop: what is shown there would be one rank's."""
    holder = holder_of(e)
    if e.frame is not known.frame or not isinstance(holder, cst.Name):
        return ""
    calls = [x for x in known.source.of(cst.Call) if getattr(x.func, "value", None) is not holder]
    shown = {id(n) for c in calls for a in c.args for n in (a.value, *walk(a.value))}
    for n in sorted(uses_of(known.node.body, holder.value), key=lambda n: known.source.span(n).start):
        if id(n) in shown:
            return f"{line_of(facts, known.source, n)} uses `{holder.value}` while the loop runs"
    return ""


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
    going_on = _going_on(known)
    held = known.held.names if known.held is not None else set()
    for a in known.accumulators:
        if not a.read_after or base_of(a.target) in held:
            continue
        if a.agg in ("mean", "const") or (a.agg == "other" and a.number and not _reads(known, a, going_on)):
            known.per_batch = f"`{a.target}` adds up a value per batch, not per sample"
        elif a.agg not in ("sum", "size"):
            return f"`{a.target}` adds up values that could not be followed"
        if not a.fresh:
            return f"`{a.target}` is not set to a number right before the loop"
    names = {a.target for a in known.accumulators} | held
    bound = {
        n.value
        for node in walk(known.node.body)
        if isinstance(node, (cst.AssignTarget, cst.AnnAssign))
        for n in walk(node.target)
        if isinstance(n, cst.Name)
    }
    bound |= {n.value for n in walk(known.node.target) if isinstance(n, cst.Name)}
    index = index_of(facts, known)
    for name in sorted(bound - names):
        if read_after(known, name, inside) and loaded_after(known, name, inside):
            counts = counted_by_index(facts, known, inside) if index is not None and name == index.value else None
            grown = [b for b in bindings(known.node.body) if name in b.targets and (b.keeps or name in b.reads)]
            if counts is None and grown:  # preds = x if preds is None else np.append(preds, x, axis=0)
                return f"`{name}` goes on from batch to batch and is used after the loop"
            if counts is None:
                return f"`{name}` of the last batch is used after the loop"
            known.batch_counts += counts
    found, otherwise = lengths(facts, known)
    if otherwise:
        return otherwise
    known.batch_counts += found
    if known.batch_counts:
        known.per_batch = known.per_batch or "it divides by the number of batches"
    if _uses_index(facts, known, inside):
        return "the index of the batch is used"
    if not _evaluates(facts, known):
        return "the model is not in eval mode, so that batches of another make-up would give other numbers"
    return ""


def _changes(facts: Facts, frame: Frame, own: Owned, seen: set[int]) -> bool:
    """Whether a function of the project does something that outlives it; `own`: what ends with the pass."""
    if id(frame) in seen:
        return False
    seen.add(id(frame))
    for e in frame.events:
        if isinstance(e.obj, (Seq, Dict)) and e.obj.site.frame is frame:
            continue  # res.append(...) of a list that it gives back
        if own.changed_by(e):
            continue
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
        if (e.kind == "external" and e.name in ("builtins.print", "builtins.open")) or left_by(facts, e):
            return True
        if e.callee is not None and _changes(facts, e.callee, own.handed_on(e.node, e.callee), seen):
            return True
    return False


def _going_on(known: LoopFacts) -> set[str]:
    """What a pass has from the pass before it, the sums left out."""
    found = carried(frozenset(n for b in bindings(known.node.body) for n in b.targets), known.node, known.source)
    return {name for name, _ in found} - {a.target for a in known.accumulators}


def _reads(known: LoopFacts, a: Accumulator, names: set[str]) -> bool:
    """Whether what is added goes by more than the batch: a running mean, or the sum itself."""
    read = closure({n for node in a.added for n in read_names(node)}, bindings(known.node.body))
    return bool(read & {*names, *(other.target for other in known.accumulators)})


def _uses_index(facts: Facts, known: LoopFacts, inside: set[int]) -> bool:
    """`for i, batch in enumerate(loader)`, and `i` is used for more than the words of a progress bar."""
    index = index_of(facts, known)
    if index is None:
        return False
    uses = (n for n in walk(known.node.body) if isinstance(n, cst.Name) and n.value == index.value)
    return any(not says_on_bar(facts, known.source, n) for n in uses)


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
