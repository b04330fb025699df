"""A class of modules in, whether its buffers change once it is made: a mask or a table of positions does not."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddpify.facts.values import Class
from ddpify.source import Source, dotted, walk

#: Ways to the buffers without their names.
_ALL = frozenset({"buffers", "named_buffers", "_buffers", "__dict__", "vars", "setattr", "state_dict"})


def changes_buffers(cls: Class) -> bool:
    """Whether a method other than `__init__` writes an attribute that may be a buffer of the class."""
    source = cls.source
    inits = [f for f in source.of(cst.FunctionDef) if f.name.value == "__init__" and cls.node in source.ancestors(f)]
    inside = [n for n in walk(cls.node) if not any(n is i or i in source.ancestors(n) for i in inits)]
    names = set(_registered(cls))
    if any(isinstance(n, cst.Name) and n.value in _ALL for n in inside):
        return True
    held = [n for n in inside if isinstance(n, cst.Attribute) and dotted(n).count(".") == 1]
    held = [n for n in held if dotted(n).startswith("self.") and (None in names or n.attr.value in names)]
    return any(_is_written(source, n) or (None not in names and _is_handed_on(source, n)) for n in held)


def _registered(cls: Class) -> Iterator[str | None]:
    """The names of its buffers, None for one that is computed."""
    for call in walk(cls.node):
        if isinstance(call, cst.Call) and dotted(call.func).endswith(".register_buffer"):
            first = call.args[0].value if call.args else None
            yield str(first.evaluated_value) if isinstance(first, cst.SimpleString) else None


def _is_written(source: Source, node: cst.Attribute) -> bool:
    """`self.count += 1`, `self.queue[:, at:] = keys`, `self.mean.mul_(0.9)`, `self.mean.data = ...`"""
    inner: cst.CSTNode = node
    for above in source.ancestors(node):
        if isinstance(above, cst.Attribute) and above.value is inner:
            if above.attr.value.endswith("_") and not above.attr.value.startswith("_"):
                return True
        elif isinstance(above, cst.AugAssign):
            return above.target is inner
        elif isinstance(above, cst.Subscript):
            if above.value is not inner:
                return False
        elif not isinstance(above, (cst.Element, cst.Tuple, cst.List)):
            return isinstance(above, cst.AssignTarget)
        inner = above
    return False


def _is_handed_on(source: Source, node: cst.Attribute) -> bool:
    """`mean = self.mean`, `update(self.mean, x)`, `F.batch_norm(x, self.mean, ...)`: what becomes of it is not seen."""
    above = source.parents.get(node)
    if isinstance(above, cst.Assign):
        return True
    call = source.parents.get(above) if isinstance(above, cst.Arg) else None
    if not isinstance(call, cst.Call):
        return False
    name = dotted(call.func)
    return name.endswith("batch_norm") or not name.startswith(("torch.", "F.", "nn."))
