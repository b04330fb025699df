"""A test in, an answer out: does it ask for no more of a batch than how many samples it has?"""

from __future__ import annotations

import libcst as cst


def by_size(test: cst.BaseExpression) -> bool:
    """`x.size(0) % world != 0`, `x.shape[0] < batch_size`: samplers give all ranks as many; a filter may leave none."""
    match test:
        case cst.BooleanOperation(left=left, right=right):
            return by_size(left) or by_size(right)
        case cst.Comparison(left=left, comparisons=[cst.ComparisonTarget(comparator=right)]):
            few = isinstance(right, cst.Integer) and right.value in ("0", "1")
            return (is_size(left) and not few) or is_size(right) or (_of_size(left) and not is_size(left))
    return False


def by_key(test: cst.BaseExpression) -> bool:
    """`"mask" in batch`: what a batch is made of is the same on all ranks."""
    match test:
        case cst.Comparison(left=cst.SimpleString(), comparisons=[cst.ComparisonTarget(operator=operator)]):
            return isinstance(operator, (cst.In, cst.NotIn))
        case cst.UnaryOperation(operator=cst.Not(), expression=inner):
            return by_key(inner)
    return False


def _of_size(node: cst.BaseExpression) -> bool:
    """`x.size(0) % world`"""
    if isinstance(node, cst.BinaryOperation):
        return _of_size(node.left) or _of_size(node.right)
    return is_size(node)


def is_size(node: cst.BaseExpression, at: int | None = None) -> bool:
    """`x.size(0)`, `x.shape[0]`, and the first of what `x.shape` gives."""
    match node:
        case cst.Call(func=cst.Attribute(attr=cst.Name(value="size")), args=[cst.Arg(value=cst.Integer(value="0"))]):
            return True
        case cst.Subscript(
            value=cst.Attribute(attr=cst.Name(value="shape")),
            slice=[cst.SubscriptElement(slice=cst.Index(value=cst.Integer(value="0")))],
        ):
            return True
        case cst.Attribute(attr=cst.Name(value="shape")) | cst.Call(func=cst.Attribute(attr=cst.Name(value="size"))):
            return at == 0
    return False
