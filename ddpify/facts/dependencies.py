"""An expression and the code around it in, the names that its value is computed from out."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import libcst as cst

from ddpify.source import Source, children, dotted, walk

#: methods that put their arguments into the object
_FILLS = frozenset({"append", "appendleft", "extend", "insert", "add", "update", "push", "copy_"})
_OWN = (cst.FunctionDef, cst.Lambda, cst.ClassDef)


@dataclass(frozen=True, eq=False)
class Binding:
    """A statement that gives names a value: `a, b = f(c)`, `n += k`, `for x in xs`, `xs.append(x)`."""

    node: cst.CSTNode
    targets: frozenset[str]
    reads: frozenset[str]
    #: what the names held before takes part: `n += k`, `xs.append(x)`
    keeps: bool = False


def read_names(node: cst.CSTNode) -> frozenset[str]:
    """The names that an expression reads; of `self.net.rnn` also `self.net` and `self`."""
    found: set[str] = set()
    todo = [node]
    while todo:
        part = todo.pop()
        if isinstance(part, cst.Name):
            found.add(part.value)
        elif isinstance(part, cst.Attribute):
            if named(part):
                found.add(dotted(part))
            todo.append(part.value)
        elif isinstance(part, cst.Arg):
            todo.append(part.value)
        elif isinstance(part, cst.Lambda):
            todo.append(part.body)
        else:
            todo.extend(children(part))
    return frozenset(found)


def bound_names(target: cst.CSTNode) -> frozenset[str]:
    """The names that a target gives values to: `a`, `self.b` and `c` of `a, self.b, c[0] = ...`."""
    if isinstance(target, (cst.Tuple, cst.List)):
        return frozenset().union(*(bound_names(e.value) for e in target.elements))
    while isinstance(target, cst.Subscript):
        target = target.value
    return frozenset({dotted(target)} if named(target) else ())


def named(node: cst.CSTNode) -> bool:
    """`a` and `a.b.c`: a chain of names."""
    while isinstance(node, cst.Attribute):
        node = node.value
    return isinstance(node, cst.Name)


@functools.lru_cache(maxsize=32)  # of the code that is asked about now; more would keep its tree
def bindings(body: cst.CSTNode) -> tuple[Binding, ...]:
    """The bindings in a piece of code, in the order of the text; those of inner functions are left out."""
    return tuple(_bindings(body))


def _bindings(body: cst.CSTNode) -> Iterator[Binding]:
    for node in own_nodes(body):
        match node:
            case cst.Assign(targets=targets, value=value):
                names = frozenset().union(*(bound_names(t.target) for t in targets))
                item = any(isinstance(t.target, cst.Subscript) for t in targets)
                yield Binding(node, names, read_names(value), keeps=item)
            case cst.AnnAssign(target=target, value=cst.BaseExpression() as value):
                yield Binding(node, bound_names(target), read_names(value))
            case cst.AugAssign(target=target, value=value):
                yield Binding(node, bound_names(target), read_names(value), keeps=True)
            case cst.NamedExpr(target=target, value=value):
                yield Binding(node, bound_names(target), read_names(value))
            case cst.For(target=target, iter=over) | cst.CompFor(target=target, iter=over):
                yield Binding(node, bound_names(target), read_names(over))
            case cst.WithItem(item=item, asname=cst.AsName(name=name)):
                yield Binding(node, bound_names(name), read_names(item))
            case cst.Expr(value=cst.Call(func=cst.Attribute(value=owner, attr=cst.Name(value=method)), args=args)) if (
                method in _FILLS
            ):
                given = frozenset().union(*(read_names(a.value) for a in args))
                yield Binding(node, bound_names(owner), given, keeps=True)


def own_nodes(body: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """All nodes of a piece of code but those of the functions and classes in it, in the order of the text."""
    todo = [body]
    while todo:
        node = todo.pop()
        if node is not body:
            yield node
        todo.extend(n for n in reversed(children(node)) if type(n) not in _OWN)


def closure(names: Iterable[str], found: Iterable[Binding]) -> frozenset[str]:
    """The names and all that they are computed from in these bindings."""
    known, rest = set(names), list(found)
    changed = True
    while changed:
        changed = False
        for binding in list(rest):
            if binding.targets & known:
                rest.remove(binding)
                changed = True
                known |= binding.reads
    return frozenset(known)


def carried(names: frozenset[str], loop: cst.For | cst.While, source: Source) -> list[tuple[str, cst.CSTNode]]:
    """Names that a pass of a loop reads as the pass before left them, with the binding that leaves them."""
    body = loop.body
    own = list(bindings(body))
    found: list[tuple[str, cst.CSTNode]] = []
    for name in sorted(names - (bound_names(loop.target) if isinstance(loop, cst.For) else frozenset())):
        mine = [b for b in own if name in b.targets]
        if not mine:
            continue
        first = mine[0]
        if first.keeps or (name in first.reads and not isinstance(first.node, (cst.For, cst.CompFor))):
            found.append((name, first.node))
            continue
        start = source.span(first.node).start
        places = [n for n in walk(body) if named(n) and dotted(n) == name]
        if any(source.span(n).start < start for n in places) and not isinstance(first.node, cst.CompFor):
            found.append((name, first.node))
    return found
