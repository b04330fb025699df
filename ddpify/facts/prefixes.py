"""The `module.` in the keys of checkpoints: where it is cut off, whatever they begin with, and whether it is there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.contents import modules, with_parts
from ddpify.facts.definitions import definitions
from ddpify.facts.frames import Event
from ddpify.source import Source, dotted, walk

if TYPE_CHECKING:
    from ddpify.facts import Facts

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


def saves_bare(facts: Facts) -> bool:
    """Whether the script itself leaves `module.` out of what it saves: `model.module.state_dict()`, in every place."""
    calls = [
        e
        for e in facts.flow.log.of("method")
        if e.name in ("state_dict", "save_pretrained")
        and isinstance(e.node, cst.Call)
        and e.obj is not None
        and any(part.parallel for m in modules((e.obj,)) for part in with_parts(m))
    ]
    return bool(calls) and all(_is_of_module(facts, e) for e in calls)


def _is_of_module(facts: Facts, e: Event) -> bool:
    """`model.module.state_dict()`, `bare = model.module if ... else model`; no wrapper has a save_pretrained."""
    base = e.node.func.value if isinstance(e.node, cst.Call) and isinstance(e.node.func, cst.Attribute) else None
    if base is None or e.name == "save_pretrained":
        return base is not None
    if dotted(base).endswith(".module"):
        return True
    bound = definitions(facts.flow).of(base, e.frame) if isinstance(base, cst.Name) else []
    return bool(bound) and all(".module" in d.frame.source.code(d.node) for d in bound)
