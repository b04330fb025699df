"""Passes over loaders in, their accumulators out: what a loop adds up, in which form, and what else it leaves behind."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.calls import assigned_names
from ddpify.facts.contents import data_of, modules, origins
from ddpify.facts.frames import Event, Frame
from ddpify.facts.roles import Pass, loaders_in
from ddpify.facts.values import Data, Dict, FromLength, Instance, Iteration, Loader, Module, Obj, Seq, Thing, Value, Wrapped
from ddpify.source import Source, children, walk

if TYPE_CHECKING:
    from ddpify.facts import Facts


@dataclass(frozen=True, eq=False)
class Accumulator:
    """A number or tensor that a loop adds to: `total += loss.item()`. `agg` is sum, size, mean, const or other; `tensor` its form."""

    target: str
    agg: str
    tensor: bool
    on_cpu: bool
    #: the number that it starts from is set before the loop, in the same pass of the loops around
    fresh: bool
    read_after: bool


@dataclass
class LoopFacts:
    """One loop over a loader, in one function."""

    loader: Obj
    node: cst.For
    frame: Frame
    source: Source
    training: bool
    start: Event
    accumulators: list[Accumulator] = field(default_factory=list)
    #: why the result of the loop cannot be put together from the ranks' shares, "" where it can
    problem: str = ""
    #: only the first batch is looked at
    peeks: bool = False
    #: the script itself adds up over ranks where there are any (a helper with all_reduce)
    reduces: bool = False
    #: why it is a sum over batches only, not over samples, "" where it is over samples
    per_batch: str = ""
    #: names that hold `len(loader)`, and calls of len(loader) that divide a result
    batch_counts: list[cst.Name | cst.Call] = field(default_factory=list)


def loop_facts(facts: Facts) -> list[LoopFacts]:
    """Every `for` over a loader, once per function context."""
    found: list[LoopFacts] = []
    for p in facts.roles.passes:
        node = p.loop.node
        if isinstance(node, cst.For) and p.start.seq < facts.flow.main_end:
            found.append(_analyse(facts, p, node))
    return found


def _analyse(facts: Facts, p: Pass, node: cst.For) -> LoopFacts:
    frame = p.start.frame
    known = LoopFacts(p.loader, node, frame, frame.source, p.training, p.start)
    inside = {id(n) for n in walk(node.body)}
    events = [e for e in frame.events if id(e.node) in inside or id(e.stmt) in inside]
    _accumulators(facts, known, events, inside)
    end = known.source.span(node.body).end
    after = [e for e in frame.events if e.callee is not None and known.source.span(e.stmt).start >= end]
    within = any(e.callee is not None and _meets(e.callee, set()) for e in events)
    known.reduces = within or any(_meets(e.callee, set()) for e in after if e.callee is not None)
    if known.reduces and not p.training:
        known.problem = "a helper that the loop calls meets the other ranks in each batch" if within else ""
        return known
    if not p.training:
        known.problem = _problem(facts, known, events, inside)
    return known


def _meets(frame: Frame, seen: set[int]) -> bool:
    """Whether a function of the project reaches a collective."""
    if id(frame) in seen:
        return False
    seen.add(id(frame))
    return any(
        (e.kind == "external" and _COLLECTIVE.fullmatch(e.name) is not None)
        or (e.callee is not None and _meets(e.callee, seen))
        for e in frame.events
    )


_COLLECTIVE = re.compile(
    r"torch\.distributed\.(\w+\.)*(all_reduce|reduce|all_gather\w*|gather\w*|barrier|broadcast\w*)"
)


def _accumulators(facts: Facts, known: LoopFacts, events: list[Event], inside: set[int]) -> None:
    source, _frame = known.source, known.frame
    targets: dict[str, list[Event]] = {}
    for e in events:
        if (
            e.kind == "augment"
            and isinstance(e.node, cst.AugAssign)
            and isinstance(e.node.operator, (cst.AddAssign, cst.SubtractAssign))
        ):
            if isinstance(e.node.target, (cst.Name, cst.Attribute)):
                targets.setdefault(source.code(e.node.target), []).append(e)
        elif e.kind == "bind" and isinstance(e.stmt, cst.Assign) and _adds_to_itself(e.stmt):
            targets.setdefault(e.name, []).append(e)
    for target, adds in targets.items():
        values = [e.value if e.kind == "augment" else _added(facts, e.stmt) for e in adds]
        parts = [d for v in values if (d := data_of(v)) is not None]
        if not parts or any(p.form == "str" for p in parts):
            continue
        aggs = {p.agg for p in parts}
        agg = aggs.pop() if len(aggs) == 1 else "other"
        tensor = any(p.form == "tensor" for p in parts)
        read = _read_after(known, target, inside)
        known.accumulators.append(
            Accumulator(
                target,
                agg,
                tensor,
                all(p.on_cpu for p in parts if p.form == "tensor") and tensor,
                _fresh(source, known, target),
                read,
            )
        )


def _adds_to_itself(stmt: cst.Assign) -> bool:
    """`total = total + x`"""
    target = stmt.targets[0].target
    value = stmt.value
    return (
        isinstance(target, cst.Name)
        and isinstance(value, cst.BinaryOperation)
        and isinstance(value.operator, cst.Add)
        and isinstance(value.left, cst.Name)
        and value.left.value == target.value
    )


def _added(facts: Facts, stmt: cst.CSTNode) -> Value:
    value = getattr(stmt, "value", None)
    return facts.flow.values.get(value.right, ()) if isinstance(value, cst.BinaryOperation) else ()


def _read_after(known: LoopFacts, target: str, inside: set[int]) -> bool:
    """Whether the function's text uses a name behind the loop (attributes are always taken to be)."""
    if "." in target:
        return True
    end = known.source.span(known.node.body).end
    scope = known.frame.node
    if any(id(n) not in inside and known.source.span(n).start > end for n in _uses(scope, target)):
        return True
    return any(isinstance(n, cst.Global) and any(i.name.value == target for i in n.names) for n in walk(scope))


def _uses(scope: cst.CSTNode, name: str) -> list[cst.Name]:
    """The places at which a scope's name stands, those of inner functions that have a local of that name left out."""
    found: list[cst.Name] = []
    todo = list(children(scope))
    while todo:
        node = todo.pop()
        if isinstance(node, (cst.FunctionDef, cst.Lambda)):
            params = [
                p.name.value for p in (*node.params.params, *node.params.kwonly_params, *node.params.posonly_params)
            ]
            if name in params or name in assigned_names(node):
                continue
        if isinstance(node, (cst.Attribute, cst.Arg)):
            todo.append(node.value)
        elif isinstance(node, cst.Name) and node.value == name:
            found.append(node)
        else:
            todo.extend(children(node))
    return found


def _fresh(source: Source, known: LoopFacts, target: str) -> bool:
    """`total = 0` stands before the loop, with no other loop around only one of them, and not inside it."""
    start = source.span(known.node).start
    loops = [a for a in source.ancestors(known.node) if isinstance(a, (cst.For, cst.While))]
    best = False
    for node in walk(known.frame.node):
        names: list[str] = []
        if isinstance(node, cst.Assign):
            names = [source.code(e) for t in node.targets for e in _targets(t.target)]
            value: cst.BaseExpression | None = node.value
        elif isinstance(node, cst.AnnAssign):
            names, value = [source.code(node.target)], node.value
        if target not in names:
            continue
        place = source.span(node).start
        inner = any(a is known.node for a in source.ancestors(node))
        if inner and not _adds_to_itself(node) if isinstance(node, cst.Assign) else False:
            return False  # reset inside the loop: a running value
        if place < start and value is not None:
            around = [a for a in source.ancestors(node) if isinstance(a, (cst.For, cst.While))]
            best = around == loops and not any(
                isinstance(a, (cst.FunctionDef, cst.ClassDef)) and a is not known.frame.node
                for a in _between(source, node, known)
            )
    return best


def _between(source: Source, node: cst.CSTNode, known: LoopFacts) -> list[cst.CSTNode]:
    found = []
    for above in source.ancestors(node):
        if above is known.frame.node:
            break
        found.append(above)
    return found


def _targets(target: cst.BaseExpression) -> list[cst.BaseExpression]:
    if isinstance(target, (cst.Tuple, cst.List)):
        return [e.value for e in target.elements]
    return [target]


def _problem(facts: Facts, known: LoopFacts, events: list[Event], inside: set[int]) -> str:
    """Why an evaluation is not a sum over samples in any order."""
    source = known.source
    counted = {a.target for a in known.accumulators}
    last = known.node.body.body[-1] if known.node.body.body else None
    if isinstance(last, cst.SimpleStatementLine) and isinstance(last.body[-1], cst.Break):
        return _peek(known, inside)
    for e in events:
        line = source.line(e.stmt)
        if e.kind in ("break", "return") and any(loop.node is known.node for loop in e.loops):
            return f"line {line} leaves the loop early"
        if e.kind == "external" and e.name in ("builtins.print", "matplotlib.pyplot.show") and e.frame is known.frame:
            return f"line {line} prints in the loop"
        if e.kind == "external" and e.name.startswith(("matplotlib.", "torchvision.utils.")):
            return f"line {line} draws in the loop"
        if e.kind in ("store",) or (
            e.kind == "method"
            and e.name in ("append", "extend", "update", "add", "insert")
            and isinstance(e.obj, (Seq, Dict, Thing, Data))
        ):
            return f"line {line} collects values of the batches"
        if e.kind == "method" and isinstance(e.obj, Thing) and e.obj.name in ("", "writer"):
            return f"line {line} hands values to an object that could not be followed"
        if e.kind == "set" and not (isinstance(e.obj, (Module, Wrapped, Iteration))) and source.code(e.node) not in counted:
            return f"line {line} changes `{source.code(e.node)}`"
        if e.kind == "call" and e.callee is not None and _changes(e.callee, set()):
            return f"line {line} calls `{e.name}`, which changes something outside itself"
    return _problem_of_values(facts, known, inside)


def _peek(known: LoopFacts, inside: set[int]) -> str:
    """`for batch in loader: ...; break`: the first batch, which whole batches leave on rank 0, where it is."""
    known.peeks = True
    known.per_batch = f"line {known.source.line(known.node)} looks at the first batch"
    bound = {n.value for n in walk(known.node.target) if isinstance(n, cst.Name)}
    kept = next((n for n in sorted(bound) if _read_after(known, n, inside) and _loaded_after(known, n, inside)), None)
    return f"`{kept}` of the first batch is used after the loop" if kept is not None else ""


def _problem_of_values(facts: Facts, known: LoopFacts, inside: set[int]) -> str:
    for a in known.accumulators:
        if not a.read_after:
            continue
        if a.agg in ("mean", "const"):
            known.per_batch = f"`{a.target}` adds up a value per batch, not per sample"
        elif a.agg not in ("sum", "size"):
            return f"`{a.target}` adds up values that could not be followed"
        if a.tensor:
            return f"`{a.target}` is a tensor, which an empty shard would leave a number"
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
        if _read_after(known, name, inside) and _loaded_after(known, name, inside):
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
    """`len(loader)` in the function: names that hold it and calls that divide by it behind the loop; None where it has other uses."""
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


def divides(source: Source, node: cst.CSTNode) -> bool:
    """`x / node` or `x /= node`"""
    parent = source.parents.get(node)
    if isinstance(parent, cst.BinaryOperation):
        return parent.right is node and isinstance(parent.operator, (cst.Divide, cst.FloorDivide))
    return isinstance(parent, cst.AugAssign) and parent.value is node and isinstance(parent.operator, cst.DivideAssign)


def _loaded_after(known: LoopFacts, name: str, inside: set[int]) -> bool:
    """The first thing that happens to a name behind the loop is a read."""
    end = known.source.span(known.node.body).end
    uses = [n for n in _uses(known.frame.node, name) if id(n) not in inside and known.source.span(n).start > end]
    if not uses:
        return False
    first = min(uses, key=lambda n: known.source.span(n).start)
    parent = known.source.parents.get(first)
    stored = isinstance(parent, (cst.AssignTarget, cst.For, cst.CompFor)) or (
        isinstance(parent, cst.Element)
        and isinstance(known.source.parents.get(known.source.parents[parent]), (cst.AssignTarget, cst.For, cst.CompFor))
    )
    return not stored


def _changes(frame: Frame, seen: set[int]) -> bool:
    """Whether a function of the project does something that outlives it."""
    if id(frame) in seen:
        return False
    seen.add(id(frame))
    for e in frame.events:
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
        if not on and any(facts_noisy(m) for m in modules((e.obj,) if e.obj is not None else ())):
            return False
    return True


#: Layers that draw random numbers, and layers that keep statistics of the batches.
NOISE = (
    "Dropout",
    "dropout",
    "DropPath",
    "drop_path",
    "RReLU",
    "randn",
    "rand_like",
    "bernoulli",
    "normal_",
    "rsample",
    "gumbel_softmax",
)
BUFFERS = ("BatchNorm", "InstanceNorm", "register_buffer", "SyncBatchNorm", "SpectralNorm", "spectral_norm", "EMA")


def mentions(module: Module, words: tuple[str, ...]) -> bool:
    """Whether the text of a module's class (or of the classes of its parts) has one of the words; unknown modules count as having them."""
    seen: set[int] = set()

    def look(m: Module) -> bool:
        if id(m) in seen:
            return False
        seen.add(id(m))
        if m.cls is not None:
            texts = [c.source.code(c.node) for c in m.cls.lineage()]
            if any(w in t for w in words for t in texts) or any(w in b for w in words for b in m.cls.outside()):
                return True
            outside = {b for b in m.cls.outside() if not b.startswith("torch.nn.")}
            if outside:
                return True
        elif m.name and any(w in m.name for w in words):
            return True
        elif not m.name.startswith("torch.nn."):
            return m.inner is None or look(m.inner)  # a library's model: take it to have both
        parts = [p for v in (*m.fields.values(), *m.parts) for p in v]
        if any(isinstance(p, Thing) and not p.name for p in parts):
            return True  # a layer of a library that is not known
        return any(look(p) for part in parts for p in modules((part,)))

    return look(module)


def facts_noisy(module: Module) -> bool:
    return mentions(module, (*NOISE, *BUFFERS))


def reads_length(value: Value, loader: Loader) -> bool:
    """Whether a number comes from `len(loader)`."""
    return any(isinstance(o, FromLength) and o.of is loader for o in origins(value))
