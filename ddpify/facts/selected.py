"""A value in, an answer out: does how many there are in it depend on the values themselves?"""

from __future__ import annotations

from collections.abc import Callable

import libcst as cst

from ddpify.facts.flow import Flow
from ddpify.facts.frames import Frame
from ddpify.facts.values import Ext, Method

#: frame, name -> the expressions that the name is bound to
Bound = Callable[[Frame, str], list[cst.CSTNode]]

#: functions of one argument, and of more
_WHERE = frozenset({"numpy.where", "torch.where"})
_SELECTS = frozenset(
    f"{lib}.{name}"
    for lib in ("numpy", "torch")
    for name in ("nonzero", "argwhere", "flatnonzero", "extract", "compress", "masked_select", "unique")
) | {"builtins.set", "builtins.filter", "torch.unique_consecutive"}
_METHODS = frozenset({"nonzero", "argwhere", "masked_select", "unique", "unique_consecutive", "dropna"})
#: what has as many as what it is made of
_ALIKE = frozenset({"builtins.list", "builtins.tuple", "builtins.sorted", "numpy.array", "numpy.asarray"})


class Selected:
    """`np.where(mask)`, `x[x > 0]`, `[b for b in boxes if b.area]`: what a test of the values has let through."""

    def __init__(self, flow: Flow, bound: Bound) -> None:
        self.flow = flow
        self.bound = bound

    def holds(self, node: cst.CSTNode, frame: Frame, depth: int = 6) -> bool:
        if depth == 0:
            return False
        match node:
            case cst.Name(value=name):
                return any(self.holds(value, frame, depth - 1) for value in self.bound(frame, name))
            case cst.Subscript(value=value, slice=[cst.SubscriptElement(slice=cst.Index(value=index))]):
                return self.holds(value, frame, depth - 1) or self.is_mask(index, frame, depth - 1)
            case cst.Subscript(value=value) | cst.Attribute(value=value):
                return self.holds(value, frame, depth - 1)
            case cst.ListComp(for_in=loop) | cst.GeneratorExp(for_in=loop) | cst.DictComp(for_in=loop):
                return bool(loop.ifs) or self.holds(loop.iter, frame, depth - 1)
            case cst.SetComp():
                return True
            case cst.Call():
                return self.called(node, frame, depth)
        return False

    def called(self, node: cst.Call, frame: Frame, depth: int) -> bool:
        for o in self.flow.values.get(node.func, ()):
            if isinstance(o, Ext) and (o.name in _SELECTS or (o.name in _WHERE and len(node.args) == 1)):
                return True
            if isinstance(o, Ext) and o.name in _ALIKE and node.args:
                return self.holds(node.args[0].value, frame, depth - 1)
            if isinstance(o, Method) and isinstance(node.func, cst.Attribute):
                return o.name in _METHODS or self.holds(node.func.value, frame, depth - 1)
        return False

    def is_mask(self, node: cst.CSTNode, frame: Frame, depth: int) -> bool:
        """`x[x > 0]`, `x[keep]` of `keep = x > 0`, `x[np.where(x > 0)]`"""
        if depth == 0:
            return False
        match node:
            case cst.Comparison():
                return True
            case cst.UnaryOperation(operator=cst.BitInvert(), expression=inner):
                return self.is_mask(inner, frame, depth - 1)
            case cst.BinaryOperation(operator=cst.BitAnd() | cst.BitOr(), left=left, right=right):
                return self.is_mask(left, frame, depth - 1) or self.is_mask(right, frame, depth - 1)
            case cst.Name(value=name):
                values = self.bound(frame, name)
                return any(self.is_mask(v, frame, depth - 1) or self.holds(v, frame, depth - 1) for v in values)
            case cst.Call(func=cst.Attribute(value=inner)) if not self.holds(node, frame, depth - 1):
                return self.is_mask(inner, frame, depth - 1)  # (x > 0).cpu()
        return self.holds(node, frame, depth - 1)
