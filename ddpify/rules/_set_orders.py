"""The facts of a script in, the sets out whose order it goes by: it comes from the hash seed of each process.

    for word in words:
        index[word] = len(index)

Another process numbers the words otherwise, although it has the same words.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddpify.facts import Facts
from ddpify.facts.contents import made_as_set
from ddpify.facts.dependencies import read_names
from ddpify.facts.externals import role_of
from ddpify.facts.values import Ext
from ddpify.facts.work import names_bound
from ddpify.source import Source, walk

#: what keeps things in the order in which they come
_KEEPS = frozenset({"append", "appendleft", "extend", "insert", "put", "write", "writelines", "writerow"}) | {
    "add_module",
    "register_buffer",
    "register_module",
    "register_parameter",
}
#: `next(iter(words))`, `dict.fromkeys(words)`, `" ".join(words)`
_TAKES = frozenset({"builtins.iter", "builtins.zip", "builtins.map", "builtins.filter", "numpy.fromiter"})
_METHODS = frozenset({"join", "fromkeys", "extend", "writelines"})
#: keys of `sorted` that leave nothing open
_TOTAL = frozenset({"str", "int", "float", "repr", "None"})


def is_set(facts: Facts, node: cst.BaseExpression) -> bool:
    """`{1, 2}`, `set(words)`, `set(words) | {"x"}`, and names that stand for a set."""
    return isinstance(node, (cst.Set, cst.SetComp)) or any(map(made_as_set, facts.flow.values.get(node, ())))


def orders(facts: Facts, source: Source) -> Iterator[cst.BaseExpression]:
    """The sets of a file that something is numbered, listed, drawn or joined by."""
    for node in source.of(cst.For, cst.ListComp, cst.Call):
        match node:
            case cst.For(iter=given) if is_set(facts, given) and goes_by_order(facts, source, node):
                yield given
            case cst.ListComp(for_in=cst.CompFor(iter=given)) if is_set(facts, given) and not _loses_order(
                facts, source, node
            ):
                yield given
            case cst.Call():
                yield from _given_over(facts, source, node)


def goes_by_order(facts: Facts, source: Source, loop: cst.For) -> bool:
    """Whether the turns of a loop number, list or draw something, or only one of them counts."""
    changed = {name for n in walk(loop.body) for name in _changes(source, n)}
    own = {n.value for n in walk(loop.target) if isinstance(n, cst.Name)}
    for node in walk(loop.body):
        match node:
            case cst.Return(value=cst.BaseExpression()) | cst.Yield():
                return True
            case cst.Call(func=cst.Attribute(value=holder, attr=cst.Name(value=name))) if name in _KEEPS:
                if not (isinstance(holder, cst.Subscript) and own & read_names(holder)):
                    return True  # rows[name].append(1): each has its own
            case cst.Call() if _draws(facts, node):
                return True
            case cst.Assign(targets=[cst.AssignTarget(target=cst.Subscript() as place)], value=value):
                if read_names(value) & changed or not own & read_names(place):
                    return True
            case cst.AugAssign(operator=cst.AddAssign(), target=cst.Name(), value=value):
                if any(isinstance(o, (cst.List, cst.BaseString)) for o in walk(value)):
                    return True
    return False


def _changes(source: Source, node: cst.CSTNode) -> set[str]:
    """`index` of `index[word] = ...`, `n` of `n += 1`"""
    match node:
        case cst.Assign(targets=[cst.AssignTarget(target=cst.Subscript(value=held))]):
            return {source.code(held)}
        case cst.AugAssign(target=target):
            return {source.code(target)}
        case cst.Assign():
            bound: set[str] = names_bound(node)
            return bound & read_names(node.value)
    return set()


def _draws(facts: Facts, call: cst.Call) -> bool:
    """`np.random.rand(50)` for each word"""
    return any(isinstance(o, Ext) and role_of(o.name) == "random" for o in facts.flow.values.get(call.func, ()))


def _loses_order(facts: Facts, source: Source, node: cst.CSTNode) -> bool:
    """`sorted([w.lower() for w in words])`, `len([...])`"""
    arg = source.parents.get(node)
    call = source.parents.get(arg) if isinstance(arg, cst.Arg) else None
    func = call.func if isinstance(call, cst.Call) else None
    lost = ("sorted", "len", "set", "sum", "max", "min", "any", "all", "frozenset")
    return isinstance(func, cst.Name) and func.value in lost


def _given_over(facts: Facts, source: Source, call: cst.Call) -> Iterator[cst.BaseExpression]:
    """`sorted(kinds, key=len)` leaves kinds of one length as they come; `" ".join(words)` takes all as they come."""
    named = {o.name for o in facts.flow.values.get(call.func, ()) if isinstance(o, Ext)}
    key = next((a.value for a in call.args if a.keyword is not None and a.keyword.value == "key"), None)
    places = [a.value for a in call.args if a.keyword is None and not a.star]
    if "builtins.sorted" in named:
        loose = key is not None and source.code(key) not in _TOTAL
        if loose and places and (is_set(facts, places[0]) or lists_set(facts, places[0])):
            yield places[0]
    elif named & _TAKES or (isinstance(call.func, cst.Attribute) and call.func.attr.value in _METHODS):
        for given in places:
            if is_set(facts, given) and not (isinstance(call.func, cst.Attribute) and is_set(facts, call.func.value)):
                yield given


def lists_set(facts: Facts, node: cst.BaseExpression) -> bool:
    """`list(kinds)`"""
    match node:
        case cst.Call(func=cst.Name(value="list" | "tuple"), args=[cst.Arg(value=given)]):
            return is_set(facts, given)
    return False
