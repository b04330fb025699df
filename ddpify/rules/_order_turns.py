"""A loop over things in some order in, what goes by it out: what it trains, numbers, registers or keeps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.dependencies import read_names
from ddpify.facts.values import Const, Data, Func, Value
from ddpify.rules._order_uses import Goes, Step, named
from ddpify.source import Source, dotted, walk

if TYPE_CHECKING:
    from ddpify.rules._order_goes import Order

#: what has parts in the order in which it got them
REGISTERS = frozenset({"add_module", "register_module", "register_buffer", "register_parameter"})
KEEPS = frozenset({"append", "appendleft", "extend", "insert"})


def turns(order: Order, source: Source, loop: cst.For, target: cst.CSTNode, kind: str) -> Iterator[Step]:
    """What a loop keeps, numbers or trains, turn by turn."""
    if kind == "holds" or kind.startswith("at "):  # for folder in (a, b): each is in that order
        for use in order.uses.inside(source, loop, named(target)):
            yield source, use, "row"
        return
    if id(loop) in order.trains:
        yield Goes(source, loop.iter)
    own, counter = named(target), counter_of(target, loop.iter)
    fresh = {t for n in walk(loop.body) if isinstance(n, cst.Assign) for t in _bound(n)}
    for n in walk(loop.body):
        if isinstance(n, cst.AugAssign) and isinstance(n.value, cst.Integer):
            counter |= {dotted(n.target)}
    fresh -= counter
    for n in walk(loop.body):
        match n:
            case cst.Yield():
                yield from order.handed_back(source, n, "row")
            case cst.Call(func=cst.Attribute(value=held, attr=cst.Name(value=name))) if name in REGISTERS:
                yield Goes(source, n)
            case cst.Call(func=cst.Attribute(value=held, attr=cst.Name(value=name))) if name in KEEPS:
                # rows[name].append(1): each has its own, and the rows are in the order of the names
                each = isinstance(held, cst.Subscript) and bool(read_names(held) & (own | fresh))
                while each and isinstance(held, cst.Subscript):
                    held = held.value
                if dotted(held) not in fresh | own:
                    for of, use in order.uses.behind(source, held, loop, of_loop=loop):
                        yield of, use, "dict" if each else "row"
            case cst.Call():
                yield from _kept_inside(order, n, own | fresh)
            case cst.AugAssign(operator=cst.AddAssign(), target=held, value=value):
                if (
                    _is_row(value)
                    and not _is_number(order.facts.flow.values.get(value, ()))
                    and dotted(held) not in fresh | own
                ):
                    for of, use in order.uses.behind(source, held, loop, of_loop=loop):
                        yield of, use, "row"
            case cst.Assign(targets=[cst.AssignTarget(target=cst.Subscript(value=held) as place)], value=value):
                if dotted(held) in fresh:
                    continue
                read = read_names(place) - read_names(held)
                numbers = counter & read_names(value) or _asks_length(source, value, held)
                if read & (own | fresh) - counter and numbers:
                    yield Goes(source, n)
                for of, use in order.uses.behind(source, held, loop, of_loop=loop):
                    yield of, use, "dict" if read & (own | fresh) - counter else "row"
            case cst.Assign(targets=[cst.AssignTarget(target=cst.Name(value=name))], value=value):
                if name in read_names(value) and _is_row(value):
                    for of, use in order.uses.behind(source, n.targets[0].target, loop, of_loop=loop):
                        yield of, use, "row"


def _kept_inside(order: Order, call: cst.Call, own: set[str]) -> Iterator[Step]:
    """`self.add(name)`, which appends to an attribute."""
    if not any(read_names(a.value) & own for a in call.args):
        return
    for function in order.facts.flow.values.get(call.func, ()):
        if isinstance(function, Func):
            for n in walk(function.node.body):
                match n:
                    case cst.Call(func=cst.Attribute(value=cst.Attribute() as held, attr=cst.Name(value=name))):
                        if name in KEEPS:
                            for of, use in order.uses.behind(function.source, held, n):
                                yield of, use, "row"


def counter_of(target: cst.CSTNode, over: cst.CSTNode) -> set[str]:
    """`i` of `for i, name in enumerate(names)`"""
    match target, over:
        case cst.Tuple(elements=[cst.Element(value=first), *_]), cst.Call(func=func):
            return named(first) if dotted(func) == "enumerate" else set()
    return set()


def _asks_length(source: Source, value: cst.CSTNode, held: cst.BaseExpression) -> bool:
    """`len(index)` of `index[word] = len(index)`"""
    calls = (n for n in walk(value) if isinstance(n, cst.Call) and dotted(n.func) == "len" and n.args)
    return any(source.code(n.args[0].value) == source.code(held) for n in calls)


def _bound(stmt: cst.Assign) -> set[str]:
    return {name for t in stmt.targets if isinstance(t.target, (cst.Name, cst.Tuple)) for name in named(t.target)}


def _is_number(value: Value) -> bool:
    """`total += count`: a sum is the same in any order."""
    computed = any(isinstance(o, Data) and o.form in ("int", "float", "bool", "tensor") for o in value)
    return computed or any(isinstance(o, Const) and isinstance(o.value, (int, float)) for o in value)


def _is_row(value: cst.CSTNode) -> bool:
    """`rows += [...]`, `rows += read(path)`, `table = torch.cat([table, row])`; no count."""
    if isinstance(value, cst.Call):
        return dotted(value.func).rpartition(".")[2] not in ("len", "int", "float", "sum", "item", "getsize")
    if isinstance(value, cst.BinaryOperation):
        return _is_row(value.left) or _is_row(value.right)
    return isinstance(value, (cst.List, cst.ListComp, cst.Tuple, cst.Name))
