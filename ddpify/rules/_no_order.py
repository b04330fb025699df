"""A listing in, an answer out: does anything go by its order? A maximum, a test or a sorted list does not."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from ddpify.facts import Facts
from ddpify.source import Source, dotted, walk

#: what is kept in the order in which it came
KEEPS = re.compile(r"register_(buffer|parameter|module)|add_module|append")
_GREATER = (cst.GreaterThan, cst.GreaterThanEqual, cst.LessThan, cst.LessThanEqual)


def method(node: cst.CSTNode) -> str:
    return node.func.attr.value if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) else ""


def sorts(call: cst.Call) -> str:
    """`names` of `sorted(names)`, `np.sort(names)`, `sorted(n for n in names)` and `names.sort()`; an attribute, too"""
    if isinstance(call.func, cst.Attribute) and call.func.attr.value == "sort" and not call.args:
        return dotted(call.func.value)
    if dotted(call.func).rpartition(".")[2] not in ("sorted", "sort", "natsorted") or not call.args:
        return ""
    given = call.args[0].value
    if isinstance(given, (cst.GeneratorExp, cst.ListComp)):
        given = given.for_in.iter
    return dotted(given)


def is_list_of(source: Source, node: cst.CSTNode) -> bool:
    """`list(glob.glob(...))`: the step from a listing to its argument, and from that to the call."""
    above = source.parents.get(node)
    call = source.parents.get(above) if isinstance(above, cst.Arg) else above
    makes = isinstance(call, cst.Call) and isinstance(call.func, cst.Name) and call.func.value in ("list", "tuple")
    return makes and isinstance(call, cst.Call) and len(call.args) == 1 and node is not call.func


def seeks_greatest(loop: cst.For) -> bool:
    """`for name in os.listdir(path): if int(name) > last: last = int(name)`, and nothing else is kept."""
    body = list(walk(loop.body))
    kept = [n for n in body if isinstance(n, (cst.Return, cst.Yield, cst.Break)) or KEEPS.search(method(n))]
    stored = [n for n in body if isinstance(n, cst.AssignTarget) and not isinstance(n.target, cst.Name)]
    for stmt in body:
        if isinstance(stmt, cst.If) and not (kept or stored):
            asked = [c for c in walk(stmt.test) if isinstance(c, cst.Comparison)]
            names = {dotted(t.comparator) for c in asked for t in c.comparisons if isinstance(t.operator, _GREATER)}
            if any(isinstance(n, cst.AssignTarget) and dotted(n.target) in names - {""} for n in walk(stmt.body)):
                return True
    return False


def is_said_to_be_one(owner: cst.CSTNode, names: set[str]) -> bool:
    """`assert len(paths) == 1`: there is no order."""
    for stmt in walk(owner):
        match stmt:
            case cst.Assert(
                test=cst.Comparison(
                    left=cst.Call(func=cst.Name(value="len"), args=[cst.Arg(value=cst.Name(value=name))]),
                    comparisons=[cst.ComparisonTarget(operator=cst.Equal(), comparator=cst.Integer(value="1"))],
                )
            ) if name in names:
                return True
    return False


def only_one(source: Source, node: cst.Name) -> bool:
    """`if len(paths) == 1: path = paths[0]`"""
    for above in source.ancestors(node):
        match above:
            case cst.If(
                test=cst.Comparison(
                    left=cst.Call(func=cst.Name(value="len"), args=[cst.Arg(value=cst.Name(value=name))]),
                    comparisons=[cst.ComparisonTarget(operator=cst.Equal(), comparator=cst.Integer(value="1"))],
                ),
                body=body,
            ) if name == node.value:
                return node in set(walk(body))
            case cst.FunctionDef():
                return False
    return False


def is_looked_up(facts: Facts, source: Source, made: cst.DictComp) -> bool:
    """`rates = {name: rate(name) for name in names}`, only asked `rates[name]`, `name in rates`."""
    parent = source.parents.get(made)
    target = parent.targets[0].target if isinstance(parent, cst.Assign) and len(parent.targets) == 1 else None
    uses = list(uses_of(facts, source, target)) if target is not None else []
    return bool(uses) and all(_asks_for_one(of, node) for of, node in uses)


def _asks_for_one(source: Source, node: cst.CSTNode) -> bool:
    above = source.parents.get(node)
    if isinstance(above, cst.Subscript):
        return above.value is node
    asks = isinstance(above, cst.Attribute) and above.attr.value in ("get", "pop", "setdefault")
    return asks or isinstance(above, cst.ComparisonTarget)


def uses_of(facts: Facts, source: Source, target: cst.CSTNode) -> Iterator[tuple[Source, cst.CSTNode]]:
    """Where a variable, or an attribute in any file of the project, is read."""
    if isinstance(target, cst.Name):
        owner = next((a for a in source.ancestors(target) if isinstance(a, cst.FunctionDef)), source.module)
        for n in walk(owner):
            if isinstance(n, cst.Name) and n.value == target.value and n is not target:
                above = source.parents.get(n)
                if not isinstance(above, (cst.AssignTarget, cst.Param)):
                    yield source, n
    elif isinstance(target, cst.Attribute):
        for of in facts.project.files():
            if target.attr.value in of.text:
                for a in of.of(cst.Attribute):
                    named = a.attr.value == target.attr.value
                    if named and not isinstance(of.parents.get(a), cst.AssignTarget):
                        yield of, a


def is_sorted_in(source: Source, loop: cst.For) -> bool:
    """`for path in listing: rows.append(path)`, and `sorted(rows)` behind it, of all that the loop keeps."""
    owner = next((a for a in source.ancestors(loop) if isinstance(a, cst.FunctionDef)), source.module)
    kept: set[str] = set()
    for n in walk(loop.body):
        if isinstance(n, (cst.Return, cst.Yield, cst.Break)):
            return False
        if isinstance(n, cst.AssignTarget) and not isinstance(n.target, cst.Name):
            return False
        if KEEPS.search(method(n)):
            kept.add(dotted(n.func.value) if isinstance(n, cst.Call) and isinstance(n.func, cst.Attribute) else "")
    end = source.span(loop).end
    later = [n for n in walk(owner) if isinstance(n, cst.Call) and n in source.parents and source.span(n).start >= end]
    return bool(kept) and kept <= {sorts(n) for n in later} - {""}
