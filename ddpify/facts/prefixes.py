"""A file in, the places out where the keys of a checkpoint lose their `module.`, whatever they begin with."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddpify.source import Source, walk

_PREFIX = "module."


def cut_keys(source: Source) -> Iterator[tuple[cst.BaseExpression, str]]:
    """`k[7:]`, `k[len("module."):]`, `k.split(".", 1)[1]`, of the variable of a loop; with its name."""
    for node in source.of(cst.Subscript):
        if len(node.slice) != 1:
            continue
        name = _cut(node)
        if name is not None and _is_looped(source, node, name) and not _is_tested(source, node):
            yield node, name


def _cut(node: cst.Subscript) -> str | None:
    match node.value, node.slice[0].slice:
        case cst.Name(value=name), cst.Slice(lower=lower, upper=None, step=None) if _is_length(lower):
            return name
        case (
            cst.Call(func=cst.Attribute(value=cst.Name(value=name), attr=cst.Name(value="split")), args=[first, most]),
            cst.Index(value=cst.Integer(value="1")),
        ) if isinstance(first.value, cst.SimpleString) and first.value.evaluated_value in (".", _PREFIX):
            # of split(".", 2) the second part is in the middle of the key
            return name if isinstance(most.value, cst.Integer) and most.value.value == "1" else None
    return None


def _is_length(node: cst.BaseExpression | None) -> bool:
    match node:
        case cst.Integer(value="7"):
            return True
        case cst.Call(func=cst.Name(value="len"), args=[cst.Arg(value=cst.SimpleString() as text)]):
            return text.evaluated_value == _PREFIX
    return False


def _is_looped(source: Source, node: cst.CSTNode, name: str) -> bool:
    """Whether the name is the variable of a loop around: of `for k, v in state.items()`."""
    for above in source.ancestors(node):
        part = above if isinstance(above, cst.For) else getattr(above, "for_in", None)
        target = part.target if isinstance(part, (cst.For, cst.CompFor)) else None
        if target is not None and any(isinstance(n, cst.Name) and n.value == name for n in walk(target)):
            return part is not None and _goes_through_keys(above, part.iter, name)
    return False


def _goes_through_keys(loop: cst.CSTNode, over: cst.BaseExpression, name: str) -> bool:
    """`for k, v in state.items()`, `for k in list(state)` with `state[k]` in it; not `for name in os.listdir(d)`."""
    calls = [n.func for n in walk(over) if isinstance(n, cst.Call)]
    if any(isinstance(f, cst.Attribute) and f.attr.value in ("items", "keys") for f in calls):
        return True
    names = {n.value for n in walk(over) if isinstance(n, cst.Name)}
    for node in walk(loop):
        match node:
            case cst.Subscript(
                value=cst.Name(value=of),
                slice=[cst.SubscriptElement(slice=cst.Index(value=cst.Name(value=key)))],
            ) if of in names and key == name:
                return True
    return False


def _is_tested(source: Source, node: cst.CSTNode) -> bool:
    """`k[7:] if k.startswith("module.") else k`"""
    tests = [a.test for a in source.ancestors(node) if isinstance(a, (cst.If, cst.IfExp))]
    return any("module" in source.code(t) for t in tests)
