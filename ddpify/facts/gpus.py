"""A file in, batch sizes and numbers of workers that grow with the number of GPUs out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.contents import constants
from ddpify.facts.placing import statement_of
from ddpify.facts.values import Ext, Loader
from ddpify.source import Source

if TYPE_CHECKING:
    from ddpify.facts import Facts


#: argument of DataLoader -> its place
_PLACES = {"batch_size": 1, "num_workers": 5}


def multiplied(facts: Facts, source: Source, argument: str) -> Iterator[tuple[cst.CSTNode, cst.BaseExpression | None]]:
    """`8 * n_gpu` and its other factor, or `args.batch_size *= n_gpu` (no other factor), where a DataLoader gets it."""
    sizes = _given(facts, argument)
    texts = {s.code(n) for s, n in sizes}
    for node in source.of(cst.BinaryOperation, cst.AugAssign):
        if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Multiply):
            one, other = _counts(facts, source, node.left), _counts(facts, source, node.right)
            stmt = statement_of(source, node)
            named = isinstance(stmt, cst.Assign) and source.code(stmt.targets[0].target) in texts
            inside = any(node is n or n in source.ancestors(node) for s, n in sizes if s is source)
            if one != other and (inside or named):
                yield node, node.right if one else node.left
        elif (
            isinstance(node, cst.AugAssign)
            and isinstance(node.operator, cst.MultiplyAssign)
            and source.code(node.target) in texts
            and _counts(facts, source, node.value)
        ):
            yield node, None


def _given(facts: Facts, argument: str) -> list[tuple[Source, cst.BaseExpression]]:
    """The expressions that DataLoaders are given as an argument; `int(n)` stands for `n`, too."""
    found = []
    for e in facts.flow.log.of("loader"):
        call = e.obj.call if isinstance(e.obj, Loader) else None
        for at, arg in enumerate(call.args if call is not None else ()):
            if arg.keyword.value == argument if arg.keyword is not None else at == _PLACES[argument]:
                found.append((e.frame.source, arg.value))
                if isinstance(arg.value, cst.Call) and len(arg.value.args) == 1:
                    found.append((e.frame.source, arg.value.args[0].value))
    return found


def _counts(facts: Facts, source: Source, node: cst.BaseExpression, depth: int = 3) -> bool:
    """`torch.cuda.device_count()`, `max(1, n_gpu)`, `n_gpu`"""
    values = facts.flow.values
    if isinstance(node, cst.Call):
        names = {o.name for o in values.get(node.func, ()) if isinstance(o, Ext)}
        if names == {"builtins.max"}:
            rest = [a.value for a in node.args if constants(values.get(a.value, ())) != [1]]
            return len(rest) == 1 and _counts(facts, source, rest[0], depth)
        if names == {"builtins.len"} and len(node.args) == 1:
            return source.code(node.args[0].value) in _lists(facts, source)
        return names == {"torch.cuda.device_count"}
    if not depth or not isinstance(node, (cst.Name, cst.Attribute)):
        return False
    code = source.code(node)
    given = [
        e.stmt.value
        for e in facts.flow.log.of("bind", "set")
        if e.frame.source is source and isinstance(e.stmt, cst.Assign) and source.code(e.node) == code
    ]
    return bool(given) and all(_counts(facts, source, v, depth - 1) for v in given)


def _lists(facts: Facts, source: Source) -> set[str]:
    """`gpus` of `nn.DataParallel(model, device_ids=gpus)`: as long as there are GPUs for one process."""
    found: set[str] = set()
    for e in facts.flow.log.of("dataparallel"):
        for at, arg in enumerate(e.node.args if isinstance(e.node, cst.Call) and e.frame.source is source else ()):
            given = arg.keyword.value == "device_ids" if arg.keyword is not None else at == 1
            inner = arg.value
            if isinstance(inner, cst.Call) and len(inner.args) == 1 and source.code(inner.func) in ("list", "tuple"):
                inner = inner.args[0].value  # device_ids=list(config.GPUS)
            if given and not isinstance(inner, cst.List):
                found.add(source.code(inner))
    return found
