"""Operands in, results out: arithmetic, `and`, `or`, `not`, comparisons."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from ddpify.facts.contents import all_parameters, constants, data_of, is_of_batches, join, made_as_set, origins
from ddpify.facts.externals import is_iterable_dataset
from ddpify.facts.frames import Frame
from ddpify.facts.state import State
from ddpify.facts.values import (
    Const,
    Data,
    Dataset,
    Instance,
    Iteration,
    Loader,
    Module,
    Obj,
    Optimizer,
    Origin,
    Parameters,
    Seq,
    Value,
)

#: What is made once where it is made: `dataset is train_set` compares the objects.
_MADE_ONCE = (Dataset, Loader, Module, Optimizer)
_OF_SETS = frozenset({"BitOr", "BitAnd", "BitXor", "Subtract"})


def _joined(one: Value, two: Value) -> str:
    """`train_set + extra_set`: what torch makes of two datasets, "" where they are none."""
    bases: list[set[str]] = []
    for obj in (*one, *two):
        own = isinstance(obj, Instance) and obj.cls is not None and not obj.cls.member("__add__")
        if not own and not isinstance(obj, Dataset):
            return ""
        bases.append(obj.cls.outside() if isinstance(obj, Instance) and obj.cls is not None else {_name_of(obj)})
    if not (one and two) or not all(any("ataset" in b for b in names) for names in bases):
        return ""
    return f"torch.utils.data.{'Chain' if all(is_iterable_dataset(b) for b in bases) else 'Concat'}Dataset"


def _name_of(obj: Obj) -> str:
    return obj.name if isinstance(obj, Dataset) else ""


class Operators(State):
    """What operators give, and how the result relates to the samples of a batch."""

    def arithmetic(self, operator: str, one: Value, two: Value, node: cst.CSTNode, frame: Frame) -> Value:
        operator = operator.removesuffix("Assign")
        sequences = [o for o in (*one, *two) if isinstance(o, (Seq, Parameters))]
        if sequences and operator == "Add":
            return self.concatenated(sequences, node, frame)
        if operator in _OF_SETS and any(map(made_as_set, (*one, *two))):
            return self.made(node, frame, Iteration(self.site(node, frame), how="set", of=(join(one, two),)))
        if operator == "Add" and (kind := _joined(one, two)):
            return self.made(node, frame, Dataset(self.site(node, frame), name=kind, of=(*one, *two)))
        left, right = constants(one), constants(two)
        if left and right and len(left) == len(right) == 1:
            folded = fold(operator, left[0], right[0])
            if folded is not None:
                return (Const(folded),)
        a, b = (data_of(v if operator not in ("Add", "Subtract") else without_start(v)) for v in (one, two))
        known: frozenset[Origin] = origins(one) | origins(two)
        if a is None or b is None:
            other = a or b
            of_batch = origins(one if a is None else two)
            if other is not None and operator == "Multiply" and other.agg == "mean" and of_batch:
                # float(loss) * data.num_graphs: a batch mean times something of the batch is a sum over its samples
                return (Data(other.form, "sum", known),)
            form = other.form if other is not None else "any"
            return (Data("tensor" if form == "tensor" else "any", other.agg if other else "other", known),)
        tensor = "tensor" in (a.form, b.form)
        form = (
            "tensor"
            if tensor
            else "str"
            if "str" in (a.form, b.form)
            else a.form
            if a.form == b.form
            else ("float" if {a.form, b.form} <= {"int", "float"} else "any")
        )
        if operator == "Divide" and form == "int":
            form = "float"
        agg = combined(operator, a.agg, b.agg)
        if operator == "Divide" and agg in ("sum", "size") and b.agg == "other" and is_of_batches(two):
            agg = "mean"  # hits / n_words: a number of the batch itself
        elif operator in ("Add", "Subtract") and 0 in (left or right or ()):
            agg = a.agg if right else b.agg  # loss = 0; loss = loss + out.sum()
        return (Data(form, agg, known, tensor and a.on_cpu and b.on_cpu),)

    def concatenated(self, parts: Sequence[Obj], node: cst.CSTNode, frame: Frame) -> Value:
        if any(isinstance(p, Parameters) for p in parts):
            return self.made(node, frame, all_parameters(self.site(node, frame), tuple(parts)))
        known = [p for p in parts if isinstance(p, Seq)]
        elements = [e for p in known for e in p.elements or ()] if all(p.elements is not None for p in known) else None
        joined = join(*(p.joined for p in known), *(e for p in known for e in p.elements or ()))
        return self.made(node, frame, Seq(self.site(node, frame), elements=elements, joined=joined))

    def boolean(self, operator: cst.BaseBooleanOp, one: Value, two: Value) -> Value:
        known = self.truth(one)
        if isinstance(operator, cst.And):
            if known is False:
                return one
            return (
                two
                if known is True
                else join((Const(False),) if self.truth(two) is False else two, (Data("bool", "const"),))
            )
        if known is True:
            return one
        return two if known is False else join(one, two)

    def unary(self, operator: cst.BaseUnaryOp, value: Value) -> Value:
        known = self.truth(value)
        if isinstance(operator, cst.Not):
            return (Const(not known),) if known is not None else (Data("bool", "const", origins(value)),)
        consts = constants(value)
        if consts and len(consts) == 1 and isinstance(operator, cst.Minus) and isinstance(consts[0], (int, float)):
            return (Const(-consts[0]),)
        return value

    def comparison(self, node: cst.Comparison, frame: Frame) -> Value:
        left = self.expr(node.left, frame)
        rights = [(type(c.operator).__name__, self.expr(c.comparator, frame)) for c in node.comparisons]
        if len(rights) == 1:
            operator, right = rights[0]
            a, b = constants(left), constants(right)
            if a and b and len(a) == len(b) == 1 and operator in ("Equal", "NotEqual", "Is", "IsNot"):
                same = a[0] == b[0]
                return (Const(same if operator in ("Equal", "Is") else not same),)
            if (
                b == [None]
                and operator in ("Is", "IsNot")
                and left
                and not any(isinstance(o, (Const, Data)) for o in left)
            ):
                return (Const(operator == "IsNot"),)
            if operator in ("Is", "IsNot") and all(len(v) == 1 and isinstance(v[0], _MADE_ONCE) for v in (left, right)):
                return (Const((left[0] is right[0]) == (operator == "Is")),)  # dataset is train_set
        values = [left, *(r for _, r in rights)]
        parts = [d for d in map(data_of, values) if d is not None]
        sample = any(p.agg == "sample" for p in parts)
        form = "tensor" if any(p.form == "tensor" for p in parts) else "bool"
        return (Data(form, "sample" if sample else "other", frozenset().union(*map(origins, values))),)


def fold(operator: str, a: object, b: object) -> object | None:
    """Arithmetic on literals."""
    if isinstance(a, str) and isinstance(b, str) and operator == "Add":
        return a + b
    if not isinstance(a, (int, float)) or not isinstance(b, (int, float)):
        return None
    try:
        match operator:
            case "Add":
                return a + b
            case "Subtract":
                return a - b
            case "Multiply":
                return a * b
            case "Divide":
                return a / b
            case "FloorDivide":
                return a // b
    except (ZeroDivisionError, OverflowError):
        return None
    return None


def without_start(value: Value) -> Value:
    """`seen` of `seen += len(x)`, which may also be the 0 that it starts from: a size."""
    return tuple(o for o in value if not (isinstance(o, Const) and o.value == 0)) or value


def combined(operator: str, a: str, b: str) -> str:
    """How the result of an operation relates to the samples of a batch.

    A sum over the samples stays one under what is linear only; a mean becomes another number per batch.
    """
    pair = {a, b}
    if "sample" in pair and not (operator == "Divide" and b in ("const", "other", "length")):
        return "sample"
    match operator:
        case "Multiply":
            if pair == {"mean", "size"}:
                return "sum"  # loss.item() * images.size(0)
            return (
                next((k for k in ("sum", "size", "mean", "const") if pair <= {k, "const"}), "other")
                if a != b
                else (a if a == "const" else "other")
            )
        case "Divide":
            if a in ("sum", "size") and b in ("sum", "size"):
                return "mean" if a == "sum" or b == "sum" else "other"
            return a if b in ("const", "other", "length") or a == b == "mean" else "other"
        case "Add" | "Subtract":
            if pair == {"sum", "size"}:
                return "sum"
            return a if a == b else "mean" if pair == {"mean", "const"} else "other"
    if pair <= {"mean", "const"}:
        return "mean" if "mean" in pair else "const"
    return "other"
