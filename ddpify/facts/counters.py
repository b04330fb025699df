"""A class in, whether one of its methods only adds to arrays and numbers of the object out: a confusion matrix, say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.dependencies import read_names
from ddpify.facts.starts import names
from ddpify.facts.values import Class
from ddpify.source import walk

if TYPE_CHECKING:
    from ddpify.facts import Facts

_PLAIN_TYPES = {f"numpy.{n}" for n in ("int32", "int64", "float32", "float64")} | {"builtins.int", "builtins.float"}
#: methods that change what they are called on
_FILLS = frozenset(
    {"append", "extend", "insert", "add", "update", "setdefault", "pop", "clear", "remove", "sort", "fill"}
)
#: what is the same however much has been added
_FORM = frozenset({"shape", "dtype", "device", "ndim", "size"})
_STILL = (cst.Assert, cst.Return, cst.Pass, cst.Continue, cst.Break, cst.Raise, cst.AnnAssign)


@dataclass
class Counter:
    """What a method adds to: `fields`, by what each is (number, list, numpy or tensor)."""

    fields: dict[str, str] = field(default_factory=dict)
    #: what is added to those that are numbers
    added: list[cst.BaseExpression] = field(default_factory=list)


def counter(facts: Facts, cls: Class, update: cst.FunctionDef, me: str) -> Counter | None:
    """`def update(self, truth, guess): self.matrix += histogram(truth, guess)`, and nothing else of the object.

    None where it does anything besides: what is added goes by the sums themselves, a list grows, something is shown.
    """
    adds: list[tuple[cst.BaseExpression, cst.BaseExpression, bool]] = []
    if not _only_adds(cls, update.body, me, adds, set()):
        return None
    fields = {_field(target, me) for target, _, _ in adds}
    found = Counter()
    for name in sorted(fields):
        kinds = {_kind(facts, value) for value in set_to(cls, name, update)}
        if len(kinds) != 1 or "" in kinds:
            return None
        found.fields[name] = kinds.pop()
    forms = {id(n.value) for n in walk(update.body) if isinstance(n, cst.Attribute) and n.attr.value in _FORM}
    for node in walk(update.body):  # nothing goes by what has been added so far
        read = isinstance(node, cst.Attribute) and _field(node, me) in fields and id(node) not in forms
        if read and not any(node is part for target, _, _ in adds for part in (target, *walk(target))):
            return None
    for target, value, again in adds:
        kind = found.fields[_field(target, me)]
        if kind == "number" and isinstance(target, cst.Subscript):
            return None
        if again and kind == "list":
            return None
        found.added += [value] if kind == "number" else []
    return found if fields else None


def _only_adds(
    cls: Class,
    body: cst.CSTNode,
    me: str,
    adds: list[tuple[cst.BaseExpression, cst.BaseExpression, bool]],
    seen: set[str],
) -> bool:
    """Whether all statements add to fields of the object, or set names of their own."""
    lines = getattr(body, "body", ())
    stmts = [s for line in lines for s in (line.body if isinstance(line, cst.SimpleStatementLine) else [line])]
    for stmt in stmts:
        match stmt:
            case cst.AugAssign(target=target, operator=cst.AddAssign(), value=value) if _field(target, me):
                adds.append((target, value, False))
                parts: list[cst.CSTNode] = [value, *_indices(target)]
            case cst.Assign(
                targets=[cst.AssignTarget(target=target)],
                value=cst.BinaryOperation(left=left, operator=cst.Add(), right=value),
            ) if _field(target, me) and target.deep_equals(left):
                adds += [(target, value, True), (left, value, True)]
                parts = [value, *_indices(target)]
            case cst.Assign(targets=targets, value=value):
                if any(me in read_names(t.target) for t in targets):
                    return False
                parts = [value]
            case cst.AugAssign(target=target, value=value):
                if me in read_names(target):
                    return False
                parts = [value]
            case cst.Expr(value=value):
                parts = [value]
            case cst.For(iter=over, body=inner):
                parts = [over]
                if not _only_adds(cls, inner, me, adds, seen):
                    return False
            case cst.If(test=test, body=inner, orelse=other):
                parts = [test]
                if not _only_adds(cls, inner, me, adds, seen):
                    return False
                if other is not None and not _only_adds(cls, _else(other), me, adds, seen):
                    return False
            case cst.With(items=items, body=inner):
                parts = [i.item for i in items]
                if not _only_adds(cls, inner, me, adds, seen):
                    return False
            case _ if isinstance(stmt, _STILL):
                parts = [stmt]
            case _:
                return False
        if not all(_is_still(cls, part, me, seen) for part in parts):
            return False
    return True


def _else(node: cst.If | cst.Else) -> cst.CSTNode:
    """What an `elif` or `else` does, as a body."""
    if isinstance(node, cst.Else):
        return node.body
    return cst.IndentedBlock([node])


def _indices(target: cst.BaseExpression) -> list[cst.CSTNode]:
    found: list[cst.CSTNode] = []
    while isinstance(target, cst.Subscript):
        found += list(target.slice)
        target = target.value
    return found


def _is_still(cls: Class, node: cst.CSTNode, me: str, seen: set[str]) -> bool:
    """Whether computing something changes nothing that stays: the object's own methods are looked at, too."""
    for call in (n for n in (node, *walk(node)) if isinstance(n, cst.Call)):
        if isinstance(call.func, cst.Name) and call.func.value in ("print", "open", "setattr", "next", "input"):
            return False
        if not isinstance(call.func, cst.Attribute):
            if any(isinstance(n, cst.Name) and n.value == me for a in call.args for n in (a.value,)):
                return False
            continue
        name, owner = call.func.attr.value, call.func.value
        if isinstance(owner, cst.Name) and owner.value == me:
            if name in seen:
                continue
            method = next((m for c in cls.lineage() for m in _methods(c) if m.name.value == name), None)
            if method is None or not method.params.params:
                return False
            mine = "" if _is_static(method) else method.params.params[0].name.value
            own: list[tuple[cst.BaseExpression, cst.BaseExpression, bool]] = []
            if not _only_adds(cls, method.body, mine or "\0", own, seen | {name}) or own:
                return False
        elif (name in _FILLS or (name.endswith("_") and not name.endswith("__"))) and _lasts(owner, me):
            return False
    return True


def _lasts(owner: cst.BaseExpression, me: str) -> bool:
    """`self.names` in `self.names.append(x)`"""
    return me in read_names(owner)


def _methods(cls: Class) -> Iterator[cst.FunctionDef]:
    body = cls.node.body
    for stmt in body.body if isinstance(body, cst.IndentedBlock) else ():
        if isinstance(stmt, cst.FunctionDef):
            yield stmt


def _is_static(method: cst.FunctionDef) -> bool:
    return any(isinstance(d.decorator, cst.Name) and d.decorator.value == "staticmethod" for d in method.decorators)


def _field(node: cst.BaseExpression, me: str) -> str:
    """`matrix` of `self.matrix` and `self.matrix[t, p]`."""
    while isinstance(node, cst.Subscript):
        node = node.value
    match node:
        case cst.Attribute(value=cst.Name(value=base), attr=cst.Name(value=name)) if base == me:
            return name
    return ""


def set_to(cls: Class, name: str, but: cst.FunctionDef) -> Iterator[cst.BaseExpression]:
    """`np.zeros(n)` of `self.matrix = np.zeros(n)` in a class, one of its methods left out."""
    for method in (m for c in cls.lineage() for m in _methods(c) if m is not but):
        for n in walk(method):
            match n:
                case cst.Assign(targets=targets, value=value):
                    for t in targets:
                        yield from _given(t.target, value, name)


def _given(target: cst.BaseExpression, value: cst.BaseExpression, name: str) -> Iterator[cst.BaseExpression]:
    if isinstance(target, cst.Tuple) and isinstance(value, cst.Tuple) and len(target.elements) == len(value.elements):
        for t, v in zip(target.elements, value.elements, strict=True):
            yield from _given(t.value, v.value, name)
    elif isinstance(target, cst.Attribute) and target.attr.value == name:
        yield value


def _kind(facts: Facts, start: cst.BaseExpression) -> str:
    """What a field begins as: number, list, numpy or tensor."""
    match start:
        case cst.Integer() | cst.Float():
            return "number"
        case cst.BinaryOperation(
            left=cst.List(elements=[cst.Element(value=cst.Integer() | cst.Float())]), operator=cst.Multiply()
        ):
            return "list"
        case cst.ListComp(elt=cst.Integer() | cst.Float()):
            return "list"
        case cst.Call(func=func, args=args):
            made = names(facts, func)
            types = [a.value for at, a in enumerate(args) if (a.keyword.value == "dtype" if a.keyword else at == 1)]
            if "numpy.zeros" in made:
                return "numpy" if all(names(facts, t) & _PLAIN_TYPES for t in types) else ""
            if "torch.zeros" in made:
                return "tensor"
            if isinstance(func, cst.Attribute) and func.attr.value in ("to", "cuda", "long", "double", "float"):
                return "tensor" if _kind(facts, func.value) == "tensor" else ""
    return ""
