"""A stream (IterableDataset) in, why the ranks cannot share its items out, "" where they can, out."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddpify.facts.cells import members
from ddpify.facts.contents import join
from ddpify.facts.dependencies import bindings, read_names
from ddpify.facts.externals import role_of
from ddpify.facts.frames import Scope
from ddpify.facts.values import Class, Dataset, Ext, Func, Instance, Loader, Obj
from ddpify.source import dotted, walk

#: orders, in which each rank would have its own
_ORDERS = frozenset({"shuffle", "permutation", "permuted", "randperm", "sample"})
#: generators that are the script's own: alike on every rank where they are given a seed
_GENERATORS = frozenset({"random.Random", "numpy.random.default_rng", "numpy.random.RandomState"})
_WAYS_OUT = (cst.Break, cst.Return, cst.Raise)
_LEAVES = (cst.Yield, cst.Continue, cst.Break, cst.Return)


def stream_problem(obj: Obj, loader: Loader) -> str:
    """Every rank reads the whole stream and keeps its own items: for that it has to be the same one on all ranks."""
    if isinstance(obj, Dataset):
        if "unseeded" in obj.fields:
            return "its `.shuffle()` has no seed, so that every rank would have another stream; give it one (`seed=0`)"
        held = [o for p in obj.of for o in (join(*(v for _, v in members(p))) or (p,))]  # ChainDataset([first, rest])
        parts = [o for o in held if isinstance(o, (Dataset, Instance))]
        return next((why for p in parts if (why := stream_problem(p, loader))), "")
    if not isinstance(obj, Instance) or obj.cls is None:
        return ""
    for set_up in loader.arguments.get("worker_init_fn", ()):
        if isinstance(set_up, Func) and _touches_dataset(set_up):
            return (
                f"`{set_up.name}` gives each worker its part of {obj.cls.name} through `.dataset`; "
                "let its __iter__ ask get_worker_info() instead"
            )
    if not obj.cls.member("__iter__"):
        return f"{obj.cls.name} has no __iter__ of its own that could be followed"
    found = [_draws(func) for func in reached(obj.cls)]
    found += [_unseeded(m) for m in obj.cls.member("__init__") if isinstance(m, Func)]
    for why in found:
        if why:
            return (
                f"{why} in {obj.cls.name}, so that every rank would have another stream; "
                "draw from a generator of its own with a seed (`random.Random(seed)`)"
            )
    return ""


def _touches_dataset(func: Func) -> bool:
    return any(isinstance(n, cst.Attribute) and n.attr.value == "dataset" for n in walk(func.node))


def reached(cls: Class) -> list[Func]:
    """`__iter__`, and what it calls of the class and of the project."""
    found: list[Func] = []
    todo = [m for name in ("__iter__", "__next__") for m in cls.member(name)]
    while todo:
        func = todo.pop(0)
        if not isinstance(func, Func) or any(func.node is f.node for f in found):
            continue
        found.append(func)
        for node in walk(func.node):
            if not isinstance(node, cst.Call):
                continue
            match node.func:
                case cst.Attribute(value=cst.Name(value="self"), attr=cst.Name(value=name)):
                    todo.extend(cls.member(name))
                case cst.Name(value=name):
                    holder = func.scope.holder(name)
                    todo.extend(holder.names[name] if holder is not None else ())
    return found


def never_ends(cls: Class) -> bool:
    """`while True:` or `for i in itertools.count():` that nothing leaves, in what gives out the items."""
    for func in reached(cls):
        for node in walk(func.node.body):
            if not isinstance(node, (cst.While, cst.For)) or any(isinstance(n, _WAYS_OUT) for n in walk(node.body)):
                continue
            if isinstance(node, cst.While):
                endless = isinstance(node.test, (cst.Name, cst.Integer)) and node.test.value in ("True", "1")
            else:
                called = node.iter.func if isinstance(node.iter, cst.Call) else node.iter
                endless = _qualified(called, func.scope) in ("itertools.count", "itertools.cycle", "itertools.repeat")
            if endless:
                return True
    return False


def _draws(func: Func) -> str:
    """`random.shuffle(files)` and `if random.random() < p: continue`: from generators that differ from rank to rank."""
    calls = list(_random_calls(func))
    for call, name in calls:
        if name.rsplit(".", 1)[-1] in _ORDERS:
            return f"`{_code(func, call)}` draws another order on each rank"
    if unseeded := _unseeded(func):
        return unseeded
    tainted: frozenset[str] = frozenset()
    drawn = [call for call, name in calls if name not in _GENERATORS]
    found = list(bindings(func.node.body))
    for _ in range(3):
        tainted |= frozenset().union(*(b.targets for b in found if b.reads & tainted or _holds(_value(b.node), drawn)))
    for node in walk(func.node):
        if isinstance(node, (cst.If, cst.While)):
            by_chance = read_names(node.test) & tainted or _holds(node.test, drawn)
            if by_chance and any(isinstance(n, _LEAVES) for n in walk(node)):
                return f"`{_code(func, node.test)}` leaves other items out on each rank"
    return ""


def _unseeded(func: Func) -> str:
    """`self.rng = random.Random()`: another stream of numbers on each rank."""
    for call, name in _random_calls(func):
        if name in _GENERATORS and not call.args:
            return f"`{_code(func, call)}` has no seed"
    return ""


def _value(node: cst.CSTNode) -> cst.CSTNode:
    return node.iter if isinstance(node, (cst.For, cst.CompFor)) else node


def _holds(node: cst.CSTNode, calls: list[cst.Call]) -> bool:
    return any(n is c for n in walk(node) for c in calls)


def _random_calls(func: Func) -> Iterator[tuple[cst.Call, str]]:
    """Calls of global generators, by their qualified names; a `generator=` of the script's own is none."""
    for node in walk(func.node):
        if isinstance(node, cst.Call) and not any(a.keyword and a.keyword.value == "generator" for a in node.args):
            name = _qualified(node.func, func.scope)
            if name and role_of(name) == "random":
                yield node, name


def _qualified(node: cst.BaseExpression, scope: Scope) -> str:
    """`random.shuffle` for `r.shuffle` after `import random as r`."""
    text = dotted(node)
    if not text:
        return ""
    first, _, rest = text.partition(".")
    holder = scope.holder(first)
    for obj in holder.names[first] if holder is not None else ():
        if isinstance(obj, Ext):
            return f"{obj.name}.{rest}" if rest else obj.name
    return ""


def _code(func: Func, node: cst.CSTNode) -> str:
    return func.source.code(node).split("\n")[0]
