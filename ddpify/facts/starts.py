"""A loop and what it adds to in, the value that this starts from, right before the loop and in each pass anew, out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.contents import constants
from ddpify.facts.frames import Event, Frame
from ddpify.facts.loops import LoopFacts, uses_of
from ddpify.facts.values import Dict, Ext, Instance, Module, Seq
from ddpify.source import Source, walk

if TYPE_CHECKING:
    from ddpify.facts import Facts

_Start = tuple[Source, cst.BaseExpression]
_Pair = tuple[cst.BaseExpression, cst.BaseExpression]


def base_of(target: str) -> str:
    """`meters` of `meters["loss"]`"""
    return target.partition("[")[0]


def fixed_item(facts: Facts, node: cst.BaseExpression) -> bool:
    """`meters["loss"]`, `sums[0]` of a list or dict: one number, whatever the batch."""
    if not isinstance(node, cst.Subscript) or len(node.slice) != 1 or not isinstance(node.slice[0].slice, cst.Index):
        return False
    if not isinstance(node.slice[0].slice.value, (cst.SimpleString, cst.Integer)):
        return False
    base = node.value
    held = facts.flow.values.get(base, ())
    plain = all(isinstance(o, (Dict, Seq)) for o in held) or _counts_from_zero(facts, held)
    return bool(held) and plain and isinstance(base, (cst.Name, cst.Attribute))


def _counts_from_zero(facts: Facts, held: tuple[object, ...]) -> bool:
    """`defaultdict(float)`, `Counter()`"""
    sites = [getattr(o, "site", None) for o in held]
    return bool(sites) and all(s is not None and zero_by_key(facts, s.node) for s in sites)


def zero_by_key(facts: Facts, node: cst.CSTNode) -> bool:
    if not isinstance(node, cst.Call):
        return False
    made = names(facts, node.func)
    if "collections.Counter" in made:
        return not node.args
    given = names(facts, node.args[0].value) if len(node.args) == 1 else set()
    return "collections.defaultdict" in made and bool(given & {"builtins.float", "builtins.int"})


def names(facts: Facts, node: cst.BaseExpression) -> set[str]:
    return {o.name for o in facts.flow.values.get(node, ()) if isinstance(o, Ext)}


def is_fresh(facts: Facts, known: LoopFacts, target: str) -> bool:
    """`total = 0` stands before the loop, with no other loop around only one of them, and not inside it."""
    start = start_of(facts, known, target)
    return start is not None and is_number(facts, start[1])


def before_epochs(facts: Facts, known: LoopFacts, target: str) -> cst.For | cst.While | None:
    """The loop over the epochs behind which a number is whole: `total = 0` stands before it.

    Between that loop and the one over the batches it is not used.
    """
    source = known.source
    inside = {id(n) for n in walk(known.node.body)}
    for outer in source.ancestors(known.node):
        if isinstance(outer, (cst.FunctionDef, cst.ClassDef)):
            return None
        if not isinstance(outer, (cst.For, cst.While)):
            continue
        start = start_of(facts, known, target, outer)
        if start is not None and is_number(facts, start[1]):
            return outer if all(id(n) in inside for n in uses_of(outer, target)) else None
    return None


def start_of(
    facts: Facts, known: LoopFacts, target: str, outer: cst.CSTNode | None = None, *, rebound: bool = False
) -> _Start | None:
    """`0` of `total = 0`, in a statement before the loop or in a method that is called there: `self.reset()`.

    `outer`: a loop around it, before which that stands. `rebound`: also where a pass sets it otherwise than by a sum.
    """
    source, frame, loop = known.source, known.frame, outer or known.node
    start = source.span(loop).start
    loops = [a for a in source.ancestors(loop) if isinstance(a, (cst.For, cst.While))]
    best: _Start | None = None
    for node, value in sorted(_assigned(facts, source, frame.node, target), key=lambda a: source.span(a[0]).start):
        if any(a is loop for a in source.ancestors(node)):
            if not rebound and not adds_to_itself(node):
                return None  # reset inside the loop: a running value
        elif source.span(node).start < start:
            around = [a for a in source.ancestors(node) if isinstance(a, (cst.For, cst.While))]
            inner = any(isinstance(a, (cst.FunctionDef, cst.ClassDef)) for a in _between(source, node, known))
            best = (source, value) if value is not None and around == loops and not inner else None
    return best or (start_by_method(known, target) if outer is None else None)


def _assigned(
    facts: Facts, source: Source, scope: cst.CSTNode, target: str
) -> Iterator[tuple[cst.CSTNode, cst.BaseExpression | None]]:
    """The statements that give a name, or an item, a value; None where which one is not known."""
    for node in walk(scope):
        if isinstance(node, cst.Assign):
            given = [pair for t in node.targets for pair in pairs(t.target, node.value)]
        elif isinstance(node, cst.AnnAssign) and node.value is not None:
            given = [(node.target, node.value)]
        else:
            continue
        for bound, value in given:
            text = source.code(bound)
            if text == target:
                yield node, value
            elif text == base_of(target):
                yield node, _item(facts, value, target)


def pairs(target: cst.BaseExpression, value: cst.BaseExpression) -> list[_Pair]:
    """`a = 0`, `a, b = 0, []`"""
    if not isinstance(target, (cst.Tuple, cst.List)):
        return [(target, value)]
    if isinstance(value, (cst.Tuple, cst.List)) and len(value.elements) == len(target.elements):
        return [(t.value, v.value) for t, v in zip(target.elements, value.elements, strict=True)]
    return [(t.value, value) for t in target.elements]


def _item(facts: Facts, value: cst.BaseExpression, target: str) -> cst.BaseExpression | None:
    """`0.0` of `{"loss": 0.0}`, for `meters["loss"]`."""
    if zero_by_key(facts, value):
        return cst.Integer("0")
    if isinstance(value, cst.Call) and "collections.defaultdict" in names(facts, value.func):
        return cst.List([]) if [a for a in value.args if "builtins.list" in names(facts, a.value)] else None
    key = _literal(cst.parse_expression(target.partition("[")[2][:-1]))
    match value:
        case cst.Dict(elements=elements):
            return {_literal(e.key): e.value for e in elements if isinstance(e, cst.DictElement)}.get(key)
        case cst.Call(func=func, args=args) if "builtins.dict" in names(facts, func):
            return {a.keyword.value: a.value for a in args if a.keyword is not None}.get(str(key))
        case cst.List(elements=elements) if isinstance(key, int) and key < len(elements):
            return elements[key].value
        case cst.BinaryOperation(left=cst.List(elements=[cst.Element(value=one)]), operator=cst.Multiply()):
            return one  # [0] * 3
    return None


def _literal(node: cst.BaseExpression) -> object:
    return node.evaluated_value if isinstance(node, (cst.SimpleString, cst.Integer)) else None


def start_by_method(known: LoopFacts, target: str) -> _Start | None:
    """`self.reset()` before the loop, in a class whose `reset` says `self.total = 0`."""
    source = known.source
    me, _, field = target.rpartition(".")
    loops = [a for a in source.ancestors(known.node) if isinstance(a, (cst.For, cst.While))]
    if not me or "[" in target:
        return None
    best: _Start | None = None
    for e in known.frame.events:
        if e.kind != "call" or e.callee is None or source.span(e.stmt).start >= source.span(known.node).start:
            continue
        around = [a for a in source.ancestors(e.stmt) if isinstance(a, (cst.For, cst.While))]
        inner = any(isinstance(a, cst.If) for a in _between(source, e.stmt, known))
        if around == loops and not inner and _on(e, me, source):
            best = reset(e.callee, field) or best
    return best


def _on(event: Event, name: str, source: Source) -> bool:
    """Whether a call is of a method of what a name holds."""
    func = event.node.func if isinstance(event.node, cst.Call) else None
    return isinstance(func, cst.Attribute) and source.code(func.value) == name


def reset(callee: Frame, field: str) -> _Start | None:
    """The value that a method gives an attribute of its object, whatever the way through it."""
    node, source = callee.node, callee.source
    if not isinstance(node, cst.FunctionDef) or not node.params.params or not isinstance(node.body, cst.IndentedBlock):
        return None
    text = f"{node.params.params[0].name.value}.{field}"
    for line in node.body.body:
        for stmt in line.body if isinstance(line, cst.SimpleStatementLine) else ():
            given = (
                [p for t in stmt.targets for p in pairs(t.target, stmt.value)] if isinstance(stmt, cst.Assign) else []
            )
            for bound, value in given:
                if source.code(bound) == text:
                    return source, value
    for e in callee.events:  # reset(self): self.clear()
        if e.kind == "call" and e.callee is not None and _on(e, text.partition(".")[0], source):
            stands = source.parents.get(source.parents.get(e.stmt) or e.stmt)
            if stands is node.body and (found := reset(e.callee, field)):
                return found
    return None


def same_object(one: Frame, event: Event) -> bool:
    """Whether a method is called on the object whose method calls it: `self.step(batch)`."""
    mine = one.func.bound if one.func is not None else None
    bound = getattr(event.obj, "bound", None)
    return mine is not None and mine is bound and isinstance(mine, (Instance, Module))


def adds_to_itself(stmt: cst.CSTNode) -> bool:
    """`total = total + x`"""
    if not isinstance(stmt, cst.Assign):
        return False
    target = stmt.targets[0].target
    value = stmt.value
    return (
        isinstance(target, cst.Name)
        and isinstance(value, cst.BinaryOperation)
        and isinstance(value.operator, cst.Add)
        and isinstance(value.left, cst.Name)
        and value.left.value == target.value
    )


def is_number(facts: Facts, value: cst.BaseExpression) -> bool:
    """`0.0`, `torch.tensor(0)`, `torch.zeros(1)`: not a list, an array or a vector, which have a number per class."""
    held = facts.flow.values.get(value, ())
    if any(isinstance(o, (Seq, Dict)) for o in held) or isinstance(value, (cst.List, cst.Dict, cst.ListComp)):
        return False
    if not isinstance(value, cst.Call):
        return True
    makers = {name.rsplit(".")[-1] for name in names(facts, value.func)}
    shapes = [facts.flow.values.get(a.value, ()) for a in value.args if a.keyword is None]
    first = shapes[0] if shapes else ()
    if makers & {"zeros", "ones", "full", "empty"}:
        shape = value.args[0].value if value.args else None
        scalar = isinstance(shape, (cst.Tuple, cst.List)) and not shape.elements
        return len(shapes) == 1 and (scalar or constants(first) == [1])
    return not makers & {"tensor", "array", "zeros_like", "as_tensor"} or constants(first) is not None


def _between(source: Source, node: cst.CSTNode, known: LoopFacts) -> list[cst.CSTNode]:
    found = []
    for above in source.ancestors(node):
        if above is known.frame.node:
            break
        found.append(above)
    return found
