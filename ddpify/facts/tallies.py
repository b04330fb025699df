"""A training loop in, the lists, dicts and arrays out that it counts into, or puts its samples' values into."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.batchsize import relation
from ddpify.facts.collected import given_to, holder_of, mean_lists
from ddpify.facts.contents import constants, data_of
from ddpify.facts.frames import Event
from ddpify.facts.loops import LoopFacts, read_after, uses_of
from ddpify.facts.starts import adds_to_itself, fixed_item, is_number, names, start_of, zero_by_key
from ddpify.facts.values import Data
from ddpify.source import walk

if TYPE_CHECKING:
    from ddpify.facts import Facts

#: what gives a count for each class, whatever the flow knows of it
_COUNTS = {
    "numpy.bincount",
    "torch.bincount",
    "sklearn.metrics.confusion_matrix",
    "sklearn.metrics.multilabel_confusion_matrix",
}
#: methods after which the numbers are the same
_SAME = {"cpu", "numpy", "float", "double", "long", "int", "detach", "to", "reshape", "view"}
_PLAIN_TYPES = {f"numpy.{n}" for n in ("int32", "int64", "float32", "float64")} | {"builtins.int", "builtins.float"}


@dataclass(frozen=True)
class Tally:
    """What begins anew before the loop and is used behind it.

    `form` is list (a fixed number of numbers), dict (numbers by keys that are the same on all ranks), numpy, tensor, or
    entries (a list that grows by the values of the samples); `agg` is sum or mean.
    """

    target: str
    form: str
    agg: str
    tensor: bool = False


def tallies(facts: Facts, loop: LoopFacts) -> list[Tally]:
    """What a loop adds to item by item, or collects, where that can be put together from the ranks' shares."""
    inside = {id(n) for n in walk(loop.node.body)}
    puts: dict[str, list[Event]] = {}
    for e in loop.frame.events:
        root = _root(e) if id(e.node) in inside else None
        if root is not None:
            puts.setdefault(loop.source.code(root), []).append(e)
    found: list[Tally] = []
    alone: list[str] = []
    for text, events in puts.items():
        start = start_of(facts, loop, text) if read_after(loop, text, inside) else None
        form = _form(facts, start[1]) if start is not None else ""
        make = _entries if form == "entries" else _tally
        tally = make(facts, loop, text, events, form) if form else None
        found += [tally] if tally is not None else []
        alone += [text] if form == "entries" and tally is None else []
    # predictions of all ranks and labels of one are no pairs
    return [t for t in found if t.form != "entries" or not set(alone) - set(mean_lists(facts, loop))]


def _root(event: Event) -> cst.BaseExpression | None:
    """`conf` of `conf[t, p] += 1`, `conf += found`, `preds.extend(...)`, `preds = preds + found`"""
    node = event.node
    if event.kind == "bind" and adds_to_itself(event.stmt):
        return event.stmt.targets[0].target if isinstance(event.stmt, cst.Assign) else None
    holder = node.target if event.kind == "augment" and isinstance(node, cst.AugAssign) else holder_of(event)
    while isinstance(holder, cst.Subscript):
        holder = holder.value
    return holder if isinstance(holder, (cst.Name, cst.Attribute)) else None


def _form(facts: Facts, start: cst.BaseExpression) -> str:
    """What the value is that something starts from."""
    if zero_by_key(facts, start):
        return "dict"
    match start:
        case cst.DictComp(value=value, for_in=cst.CompFor(inner_for_in=None, ifs=[])):
            return "dict" if _is_literal(value) else ""
        case cst.Dict(elements=elements):
            pairs = [e for e in elements if isinstance(e, cst.DictElement)]
            return "dict" if len(pairs) == len(elements) and all(_is_literal(e.value) for e in pairs) else ""
        case cst.List(elements=[]):
            return "entries"
        case cst.List(elements=elements):
            return "list" if all(_is_literal(e.value) for e in elements) else ""
        case cst.BinaryOperation(left=cst.List(elements=[cst.Element(value=one)]), operator=cst.Multiply()):
            return "list" if _is_literal(one) else ""
        case cst.ListComp(elt=one):
            return "list" if _is_literal(one) else ""
        case cst.Call(func=func, args=args):
            made = names(facts, func)
            if made & {"builtins.list"}:
                inner = args[0].value if args else None
                number = isinstance(inner, cst.GeneratorExp) and _is_literal(inner.elt)
                return "list" if number else ("" if args else "entries")
            if "builtins.dict" in made and not args:
                return "dict"
            if "numpy.zeros" in made and _is_plain(facts, args):
                return "numpy"
            if isinstance(func, cst.Attribute) and func.attr.value in ("to", "cuda", "long", "double", "float"):
                return "tensor" if _form(facts, func.value) == "tensor" else ""
            return "tensor" if "torch.zeros" in made and not is_number(facts, start) else ""
    return ""


def _is_literal(node: cst.BaseExpression) -> bool:
    return isinstance(node, (cst.Integer, cst.Float))


def _is_plain(facts: Facts, args: Sequence[cst.Arg]) -> bool:
    """`np.zeros((3, 3), dtype=int)`: of a type that torch has, too."""
    types = [a.value for at, a in enumerate(args) if (a.keyword.value == "dtype" if a.keyword is not None else at == 1)]
    return all(names(facts, t) & _PLAIN_TYPES for t in types)


def _tally(facts: Facts, loop: LoopFacts, text: str, events: list[Event], form: str) -> Tally | None:
    adds = [e for e in events if e.kind == "augment"]
    nodes = [e.node for e in adds if isinstance(e.node, cst.AugAssign)]
    others = [e for e in events if e.kind != "augment" and not isinstance(e.stmt, cst.AugAssign)]
    if others or not all(isinstance(n.operator, cst.AddAssign) for n in nodes) or not adds:
        return None
    if all(fixed_item(facts, n.target) for n in nodes) or (
        form in ("list", "dict")
        and any(not isinstance(n.target, cst.Subscript) or isinstance(n.target.value, cst.Subscript) for n in nodes)
    ):
        return None  # numbers by name, as any others are; or lists in lists
    start = start_of(facts, loop, text)
    fixed = start is not None and _has_keys(start[1])
    if form == "dict" and not fixed and not all(_same_keys(facts, n.target) for n in nodes):
        return None
    aggs = {_agg(facts, loop, e) for e in adds}
    if len(aggs) != 1 or not aggs & {"sum", "mean"} or (form in ("numpy", "tensor") and aggs == {"mean"}):
        return None
    tensor = any(isinstance(o, Data) and o.form in ("tensor", "any") for e in adds for o in e.value)
    return Tally(text, form, aggs.pop(), tensor)


def _has_keys(start: cst.BaseExpression) -> bool:
    """`{"a": 0}`, `{name: 0 for name in names}`: `+=` adds no keys to it."""
    over = start.for_in.iter if isinstance(start, cst.DictComp) else None
    return isinstance(start, (cst.Dict, cst.DictComp)) and not isinstance(over, (cst.Set, cst.SetComp, cst.Call))


def _same_keys(facts: Facts, node: cst.BaseExpression) -> bool:
    """`totals[name]`, where `name` is one of the script's own texts."""
    index = node.slice[0].slice if isinstance(node, cst.Subscript) and len(node.slice) == 1 else None
    return isinstance(index, cst.Index) and bool(constants(facts.flow.values.get(index.value, ())))


def _agg(facts: Facts, loop: LoopFacts, event: Event) -> str:
    """How what is added relates to the samples: a sum over some of them, or a mean."""
    assert isinstance(event.node, cst.AugAssign)
    value = event.node.value
    if _adds_up_samples(facts, value):
        return "sum"
    known = data_of(event.value)
    if known is None:
        return ""
    agg = relation(facts, loop.loader, loop.frame, value, known.agg) if loop.training else known.agg
    if agg == "mean":
        return "mean"
    within = any(lp.node is not loop.node and _stands_in(loop, lp.node) for lp in event.loops)
    if agg in ("sum", "size") or (within and agg in ("sample", "const")):
        return "sum"
    by_sample = isinstance(event.node.target, cst.Subscript) and within
    return "sum" if by_sample and known.form in ("int", "bool") else ""


def _adds_up_samples(facts: Facts, node: cst.BaseExpression) -> bool:
    """`(out > 0).sum(0).cpu().numpy()`, `np.bincount(...).reshape(3, 3)`: a count for each class."""
    while isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and not names(facts, node.func) & _COUNTS:
        if node.func.attr.value == "sum":
            return True
        if node.func.attr.value not in _SAME:
            return False
        node = node.func.value
    return isinstance(node, cst.Call) and bool(names(facts, node.func) & _COUNTS)


def _stands_in(loop: LoopFacts, node: cst.CSTNode) -> bool:
    return node in set(walk(loop.node.body))


def _entries(facts: Facts, loop: LoopFacts, text: str, events: list[Event], form: str) -> Tally | None:
    """`preds.extend(out.argmax(1).tolist())`: values of samples, that may come over the network."""
    if "." in text or not all(_puts_samples(facts, e) for e in events):
        return None
    stmts = {id(e.stmt): e.stmt for e in events}.values()
    if len(uses_of(loop.node.body, text)) != sum(2 if isinstance(stmt, cst.Assign) else 1 for stmt in stmts):
        return None  # it is looked at in the loop, too
    return Tally(text, form, "sum")


def _puts_samples(facts: Facts, event: Event) -> bool:
    if isinstance(event.stmt, cst.AugAssign):
        return isinstance(event.stmt.target, cst.Name) and is_sendable(facts, event.stmt.value)
    if isinstance(event.stmt, cst.Assign):
        value = event.stmt.value
        return isinstance(value, cst.BinaryOperation) and is_sendable(facts, value.right)
    given = given_to(event)
    if event.kind != "method" or event.name not in ("append", "extend") or len(given) != 1:
        return False
    known = data_of(facts.flow.values.get(given[0], ()))
    each = event.name == "extend" or (known is not None and known.agg == "sample")
    return each and is_sendable(facts, given[0])


def is_sendable(facts: Facts, node: cst.BaseExpression) -> bool:
    """A list of numbers or text, or an array on the CPU."""
    match node:
        case cst.Call(func=cst.Attribute(attr=cst.Name(value="tolist" | "numpy"))):
            return True
        case cst.Call(func=func, args=[cst.Arg(value=inner)]) if "builtins.list" in names(facts, func):
            return is_sendable(facts, inner)
        case cst.ListComp(elt=inner) | cst.GeneratorExp(elt=inner):
            return is_sendable(facts, inner)
        case cst.Tuple(elements=elements) | cst.List(elements=elements) if elements:
            return all(is_sendable(facts, e.value) for e in elements)
    known = data_of(facts.flow.values.get(node, ()))
    return known is not None and (known.on_cpu or known.form in ("int", "float", "number", "bool", "str"))
