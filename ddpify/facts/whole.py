"""Steps that train on whole tensors in, which of their rows can be shared out over the ranks out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.errors import Way
from ddpify.facts.contents import data_of
from ddpify.facts.dependencies import bindings, bound_names, closure, read_names
from ddpify.facts.frames import Event
from ddpify.facts.levels import Level, levels
from ddpify.facts.lossrows import Step
from ddpify.facts.overrows import Kind, Over
from ddpify.facts.reshaped import FIXED
from ddpify.facts.shown import Shown, is_read, shown_behind, shown_outputs
from ddpify.facts.totals import Total, totals, within
from ddpify.facts.trails import joined, stands, way_back
from ddpify.facts.values import Data, Func, Mode, Thing, Value
from ddpify.source import Source, dotted, walk

if TYPE_CHECKING:
    from ddpify.facts import Facts


@dataclass(frozen=True, eq=False)
class Unshared:
    """The batches cannot be shared out: where, why, and what to do about it."""

    source: Source
    node: cst.CSTNode
    why: str
    remedy: str
    #: the value that could not be shared out, and how it got there
    about: Way


_NAMES = (cst.Name, cst.Attribute)


@dataclass(frozen=True, eq=False)
class Rows:
    """Every step trains on the same tensors, whole: each rank can compute its own rows of them."""

    level: Level
    #: the tensors, by their names at the level
    names: tuple[str, ...]
    #: the places at which the training step reads them
    reads: tuple[cst.Name | cst.Attribute, ...]
    #: arguments of the training forward of which each row has a part along the second dimension: recurrent states
    states: tuple[cst.BaseExpression, ...]
    shown: tuple[Shown, ...]
    backwards: tuple[Event, ...]
    #: what each backward's loss is over the rows
    losses: dict[int, Over]
    #: means and sums over the rows that are used for more than the training
    totals: tuple[Total, ...]
    #: whether gradients of the tensors themselves are taken
    of_inputs: bool


def whole_rows(facts: Facts, event: Event, level: Level, first: Unshared) -> Rows | Unshared:
    """How the rows of a step that trains on whole tensors can be shared out."""
    given = outer_tensors(facts, level, level.names)
    if not given:
        return first
    loop = level.loops[0].node
    backwards = tuple(
        b
        for b in facts.roles.backwards
        if b.seq < facts.flow.main_end and any(lp.node is loop for loops in b.all_loops() for lp in loops)
    )
    needed, names = level.names, list(given)
    for b in backwards:
        for lv in levels(facts, b, _loss_names(b)):
            needed |= lv.names
            if lv.frame is level.frame:
                names.extend(n for n in outer_tensors(facts, lv, lv.names) if n not in names)
    cuts: list[cst.BaseExpression] = []
    while True:
        step = Step(facts, names, [b.node for b in backwards], cuts)
        step.run(level.frame.source, level.body)
        kinds = [step.losses.get(id(b.node)) for b in backwards]
        state = next((k.given for k in kinds if k is not None and k.given is not None), None)
        if state is None or any(state is n for n in cuts):
            break
        cuts.append(state)  # a recurrent state, of which each row has a part
        names = [n for n in names if n not in read_names(state)]
    for b, kind in zip(backwards, kinds, strict=True):
        if kind is None or kind.over not in (Over.MEAN, Over.SUM):
            return _together(facts, names, b, kind, first)
    reads = list(_reads(facts, level, names, needed))
    odd = next((n for n in names if n not in step.by_row), None)
    if odd is not None:
        node = next((n for n in reads if dotted(n) == odd), level.body)
        source = level.frame.source
        why = f"what line {source.line(node)} does with `{odd}` could not be followed row by row"
        why = f"every step trains on all of {quoted(names)}, and {why}"
        return Unshared(source, node, why, first.remedy, way_back(facts.flow, node, source, level.frame, value=odd))
    steps = _training_statements(facts, level, needed)
    losses = {id(b.node): k.over for b, k in zip(backwards, kinds, strict=True) if k is not None}
    shown = [
        replace(s, many=step.env[s.name].many if s.name in step.env else False)
        for s in (*shown_outputs(facts, level, steps), *shown_behind(level, steps, step.env))
    ]
    odd_one = next((s for s in shown if s.name in step.env and _is_turned(step.env[s.name])), None)
    if odd_one is not None:
        return _out_of_order(facts, level, odd_one, step.env[odd_one.name])
    found = tuple(t for t in totals(step.totals.values(), _trains(facts, backwards, steps)) if not _is_told(facts, t))
    ends = next((u for t in found for n in level.loops for u in t.reads_in(n.node)), None)
    if ends is not None:
        why = f"the loop ends by the loss of one rank's rows (`{level.frame.source.code(ends)}`)"
        remedy = "end it by an `if` with `break` at the end of its body"
        return Unshared(
            level.frame.source, ends, why, remedy, way_back(facts.flow, ends, level.frame.source, level.frame)
        )
    return Rows(level, tuple(names), tuple(reads), tuple(cuts), tuple(shown), backwards, losses, found, step.of_inputs)


def _is_turned(kind: Kind) -> bool:
    return kind.over is Over.ROWS and (kind.flat or kind.axis > 0 or bool(kind.items))


def _out_of_order(facts: Facts, level: Level, shown: Shown, kind: Kind) -> Unshared:
    """An output that is shown, and of which the rows cannot be put together again."""
    source, use = level.frame.source, shown.uses[0]
    about = way_back(facts.flow, use, source, level.frame)
    where = "has the entries of all rows in one dimension" if kind.flat else "does not begin with the rows"
    why = f"`{shown.name}`, which is used besides, {where}"
    remedy = f"give what is shown a name of its own, of the shape that the model gives (not `{shown.name}`)"
    if kind.items:
        why = f"`{shown.name}`, which is used besides, is made of several outputs"
        remedy = f"give each part of `{shown.name}` that is shown a name of its own"
    return Unshared(source, use, why, remedy, about)


def _is_told(facts: Facts, total: Total) -> bool:
    """`loss = train_step(x, y)`: the function that has the backward gives the number of all rows already."""
    value = total.bind.value if isinstance(total.bind, (cst.Assign, cst.AnnAssign)) else None
    called = facts.flow.values.get(value.func, ()) if isinstance(value, cst.Call) else ()
    backwards = {id(b.node) for b in facts.roles.backwards}
    return any(isinstance(f, Func) and any(id(n) in backwards for n in walk(f.node)) for f in called)


def _trains(
    facts: Facts, backwards: tuple[Event, ...], steps: list[cst.CSTNode]
) -> Callable[[Source, cst.CSTNode], bool]:
    """Knows what leads to the backward: the step's statements, and in functions what the loss is computed from."""
    known = within(steps)
    calls = {id(b.node) for b in backwards}
    for b in backwards:
        scope = next((a for a in b.frame.source.ancestors(b.node) if isinstance(a, cst.FunctionDef)), None)
        if scope is not None:
            needed = closure(_loss_names(b), bindings(scope.body))
            made = [x.node for x in bindings(scope.body) if x.targets & needed]
            known |= within(n.iter if isinstance(n, cst.For) else n for n in made)  # its body is looked at by itself

    def trains(source: Source, node: cst.CSTNode) -> bool:
        return id(node) in known or any(id(a) in calls for a in source.ancestors(node))

    return trains


def _together(facts: Facts, tensors: list[str], event: Event, kind: Kind | None, first: Unshared) -> Unshared:
    """Rows that depend on each other in the loss."""
    source, node = event.frame.source, event.node
    loss = node.func.value if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) else node
    why = f"the loss `{source.code(loss)}` could not be followed row by row"
    about = way_back(facts.flow, loss, source, event.frame)
    if kind is not None and kind.mixed and kind.source is not None and kind.node is not None:
        source, node = kind.source, kind.node
        part = source.code(node).split("\n")[0]
        about, text = joined(about, Way(part, (stands(source, node, part),))), f"`{part}`"
        why = kind.why.replace("{}", text) or f"{text} needs all rows at once, or may need them"
    elif kind is not None and kind.over is Over.ROWS:
        why = f"`{source.code(node)}` has one loss for each row"
    why = f"every step trains on all of {quoted(tensors)}, and {why}"
    if why.endswith(FIXED):
        return Unshared(source, node, why, "take their number from the tensor (`x.size(0)`)", about)
    why = f"{why}: the rows of one step belong together"
    remedy = "put the tensors into a TensorDataset and a DataLoader, if a loss of each batch by itself will do"
    return Unshared(source, node, why, remedy, about)


def quoted(names: Sequence[str]) -> str:
    """`x`, `y` and `z`, in a sentence."""
    texts = [f"`{n}`" for n in names]
    return " and ".join([", ".join(texts[:-1]), texts[-1]]) if len(texts) > 1 else "".join(texts)


def _loss_names(event: Event) -> frozenset[str]:
    """The names in `loss` of `loss.backward()`."""
    func = event.node.func if isinstance(event.node, cst.Call) else None
    return read_names(func.value if isinstance(func, cst.Attribute) else event.node)


def _bodies(facts: Facts, level: Level) -> list[cst.CSTNode]:
    """The code of the steps: the loop's, and that of functions beside it (`def closure(): ...`) that it calls."""
    steps = {id(n) for n in facts.roles.training_forwards} | {id(b.node) for b in facts.roles.backwards}
    source, found = level.frame.source, [level.body]
    for e in facts.flow.log.of("forward", "method"):
        func = e.frame.func.node if e.frame.func is not None and id(e.node) in steps else None
        if not isinstance(func, cst.FunctionDef) or e.frame.source is not source or func.body in found:
            continue
        beside = level.frame.func is None or any(a is level.frame.node for a in source.ancestors(func))
        within_loop = any(a is level.body for a in source.ancestors(func))
        runs = any(lp.node is level.loops[0].node for loops in e.all_loops() for lp in loops)
        if beside and runs and not within_loop and e.frame is not level.frame:
            found.append(func.body)
    return found


def outer_tensors(facts: Facts, level: Level, names: frozenset[str]) -> list[str]:
    """The names that hold tensors from before the loop, in the order in which the loop reads them."""
    found: dict[str, None] = {}
    loop = {t for x in bindings(level.body) for t in x.targets}
    bodies = [(b, names - loop - {t for x in bindings(b) for t in x.targets}) for b in _bodies(facts, level)]
    for outer, node in ((outer, n) for b, outer in bodies for n in walk(b)):
        known = isinstance(node, (cst.Name, cst.Attribute)) and dotted(node) in outer
        part = isinstance(node, cst.Attribute) and isinstance(data_of(facts.flow.values.get(node.value, ())), Data)
        if known and not part and _holds_data(facts.flow.values.get(node, ())):
            found[dotted(node)] = None
    return list(found)


def trained_whole(facts: Facts, level: Level) -> bool:
    """`net(x + noise)`, `net(x)`: whether what is trained on is a whole tensor, and no rows are picked out of it."""
    names = set(outer_tensors(facts, level, level.names))
    forwards = {id(n) for n in facts.roles.training_forwards}
    for node in walk(level.body):
        if isinstance(node, _NAMES) and dotted(node) in names and is_read(level, node):
            parent = level.frame.source.parents.get(node)
            call = level.frame.source.parents.get(parent) if isinstance(parent, cst.Arg) else None
            if isinstance(parent, cst.BinaryOperation) or id(call) in forwards:
                return True
    return False


def _reads(facts: Facts, level: Level, names: list[str], needed: frozenset[str]) -> Iterator[cst.Name | cst.Attribute]:
    """The places of the training step that read the tensors."""
    for stmt in _training_statements(facts, level, needed):
        for node in walk(stmt):
            if isinstance(node, _NAMES) and dotted(node) in names and is_read(level, node):
                yield node


def _holds_data(value: Value) -> bool:
    return bool(value) and all(
        (isinstance(o, Data) and o.form in ("tensor", "any")) or (isinstance(o, Thing) and o.name in ("", "loaded"))
        for o in value
    )


def _training_statements(facts: Facts, level: Level, needed: frozenset[str]) -> list[cst.CSTNode]:
    """The statements that lead from the tensors to the backward, those of functions inside the loop included."""
    forwards = {id(n) for n in facts.roles.training_forwards}
    backwards = {id(b.node) for b in facts.roles.backwards}
    found: list[cst.CSTNode] = []
    for node in (n for b in _bodies(facts, level) for n in walk(b)):
        if isinstance(node, cst.BaseSmallStatement) and _without_gradients(facts, level.frame.source, node):
            continue
        if isinstance(node, (cst.Assign, cst.AnnAssign, cst.AugAssign)):
            targets = [t.target for t in node.targets] if isinstance(node, cst.Assign) else [node.target]
            bound = frozenset().union(*(bound_names(t) for t in targets))
            if bound & needed or any(id(n) in forwards for n in walk(node)):
                found.append(node)
        elif isinstance(node, cst.BaseSmallStatement) and any(id(n) in backwards | forwards for n in walk(node)):
            found.append(node)
    within_loops = [a for n in found for a in level.frame.source.ancestors(n) if isinstance(a, cst.For)]
    inner = [a.iter for a in dict.fromkeys(within_loops) if all(a is not lp.node for lp in level.loops)]
    return [*found, *inner]  # for i in range(len(y)): loss += criterion(out[i], y[i])


def _without_gradients(facts: Facts, source: Source, node: cst.CSTNode) -> bool:
    """`with torch.no_grad():`"""
    return any(
        isinstance(o, Mode) and o.grad is False
        for a in source.ancestors(node)
        if isinstance(a, cst.With)
        for item in a.items
        for o in facts.flow.values.get(item.item, ())
    )
