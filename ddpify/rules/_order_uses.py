"""A variable or an attribute in, where it is read behind a place out, until it is sorted or bound again."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from ddpify.facts import Facts
from ddpify.facts.contents import constants
from ddpify.facts.values import Class, Dataset, Instance, Loader, Module, Seq, Value
from ddpify.rules._no_order import is_said_to_be_one, only_one, sorts
from ddpify.source import Source, dotted, walk


@dataclass(frozen=True)
class Goes:
    """What goes by an order: the samples of a dataset, a split, a number of a class, a layer, the training."""

    source: Source
    node: cst.CSTNode


def by(source: Source, goes: Goes | None) -> str:
    """`, and `self.rows[at]` (line 12) goes by it`"""
    if goes is None:
        return ""
    code = goes.source.code(goes.node).split("\n")[0]
    where = "line" if goes.source is source else f"{goes.source.path.name}, line"
    return f", and `{code}` ({where} {goes.source.line(goes.node)}) goes by it"


#: the end of the way, or one step further: an expression, and in which way it has the order
Step = Goes | tuple[Source, cst.CSTNode, str]

_SAMPLES = frozenset({"__getitem__", "__getitems__", "__iter__", "__next__"})


def owner_of(source: Source, node: cst.CSTNode) -> cst.CSTNode:
    """The function that a node stands in, or the file."""
    return next((a for a in source.ancestors(node) if isinstance(a, cst.FunctionDef)), source.module)


def class_of(source: Source, node: cst.CSTNode) -> cst.ClassDef | None:
    return next((a for a in source.ancestors(node) if isinstance(a, cst.ClassDef)), None)


def named(target: cst.CSTNode) -> set[str]:
    """The names in the target of a loop or of `=`."""
    return {n.value for n in walk(target) if isinstance(n, cst.Name)}


class Uses:
    """Reads of variables and attributes in the files that a script runs."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts

    def behind(
        self, source: Source, target: cst.CSTNode, node: cst.CSTNode, of_loop: cst.CSTNode | None = None
    ) -> Iterator[tuple[Source, cst.CSTNode]]:
        """What reads the target behind a node; of a loop, behind the loop."""
        owner, begin = owner_of(source, node), source.span(of_loop or node).end
        if not isinstance(target, (cst.Name, cst.Attribute)):
            return
        cleared = list(self.cleared(source, owner, target, node))
        ends = any(not end for _, end in cleared)

        def has_order(at: int) -> bool:
            return at >= begin and not any(start <= at and (not end or at < end) for start, end in cleared)

        if isinstance(target, cst.Name):
            yield from ((source, n) for n in _reads(source, owner, target.value) if has_order(source.span(n).start))
            if isinstance(owner, cst.Module) and not ends:
                yield from self.elsewhere(source, target.value)
            return
        for of, n in self.attributes(source, target):
            here = of is source and owner_of(of, n) is owner
            if has_order(of.span(n).start) if here else not ends:
                yield of, n

    def cleared(
        self, source: Source, owner: cst.CSTNode, target: cst.Name | cst.Attribute, node: cst.CSTNode
    ) -> Iterator[tuple[int, int]]:
        """From where to where a variable is sorted or bound anew, so that it has the order no longer; 0: for good."""
        name, begin = source.code(target), source.span(node).end
        around = {id(a) for a in source.ancestors(node)}
        for n in walk(owner):
            if n not in source.parents or source.span(n).start < begin:
                continue
            start = -1
            match n:
                case cst.Expr(value=cst.Call() as call) if _sorted_here(source, call) == name:
                    start = source.span(n).start
                case cst.Assign(targets=[cst.AssignTarget(target=cst.Name() | cst.Attribute() as again)], value=value):
                    if source.code(again) == name:
                        start = source.span(value).end
            if start >= 0:
                block = source.parents.get(source.parents[n])
                yield start, 0 if block is None or id(block) in around else source.span(block).end

    def elsewhere(self, source: Source, name: str) -> Iterator[tuple[Source, cst.CSTNode]]:
        """A variable of a file, read in its functions and by who imports it."""
        for function in source.of(cst.FunctionDef):
            if name not in _own(function):
                yield from ((source, n) for n in _reads(source, function, name))
        for of in self.facts.flow.modules:
            for stmt in of.of(cst.ImportFrom) if of is not source and name in of.text else ():
                if isinstance(stmt.names, cst.ImportStar) or stmt.module is None:
                    continue
                if dotted(stmt.module).rpartition(".")[2] != source.path.stem:
                    continue
                for alias in stmt.names:
                    if dotted(alias.name) == name and alias.asname is None:
                        yield from ((of, n) for n in _reads(of, of.module, name))

    def in_function(self, source: Source, function: cst.CSTNode, param: str) -> Iterator[cst.CSTNode]:
        """What reads a parameter, until it is sorted or bound again."""
        end = len(source.text) + 1
        for stmt in function.body.body if isinstance(function, cst.FunctionDef) else ():
            for n in stmt.body if isinstance(stmt, cst.SimpleStatementLine) else ():
                match n:
                    case cst.Expr(value=cst.Call() as call) if _sorted_here(source, call) == param:
                        end = min(end, source.span(n).start)
                    case cst.Assign(targets=[cst.AssignTarget(target=cst.Name(value=again))]) if again == param:
                        end = min(end, source.span(n).end)
        yield from (n for n in _reads(source, function, param) if source.span(n).start < end)

    def inside(self, source: Source, loop: cst.For, names: set[str]) -> Iterator[cst.CSTNode]:
        for name in names:
            yield from _reads(source, loop.body, name)

    def attributes(self, source: Source, target: cst.Attribute) -> Iterator[tuple[Source, cst.CSTNode]]:
        """Where the attribute of such an object is read: by `self` in classes that are its kin, else by its value."""
        name, base = target.attr.value, target.value
        home = class_of(source, target) if dotted(base) == "self" else None
        kin = self.kin(home.name.value) if home is not None else self.kinds(base)
        for of in self.facts.flow.modules:
            if name not in of.text:
                continue
            for a in of.of(cst.Attribute):
                if a.attr.value != name or isinstance(of.parents.get(a), cst.AssignTarget):
                    continue
                if dotted(a.value) == "self":
                    inside = class_of(of, a)
                    if inside is not None and inside.name.value in kin:
                        yield of, a
                elif self.kinds(a.value) & kin:
                    yield of, a

    def kinds(self, node: cst.CSTNode) -> set[str]:
        """The names of the classes that an expression may be an object of."""
        held = self.facts.flow.values.get(node, ())
        classes = [o.cls if isinstance(o, (Instance, Module)) else o if isinstance(o, Class) else None for o in held]
        return {k.name for c in classes if c is not None for k in c.lineage()}

    @functools.cached_property
    def bases(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for of in self.facts.flow.modules:
            for c in of.of(cst.ClassDef):
                names = {dotted(b.value).rpartition(".")[2] for b in c.bases}
                found.setdefault(c.name.value, set()).update(names)
        return found

    def kin(self, name: str) -> set[str]:
        """A class of the project, those that it is made of, and those that are made of it."""
        up, todo = {name}, [name]
        while todo:
            for base in self.bases.get(todo.pop(), set()) & self.bases.keys() - up:
                up.add(base)
                todo.append(base)
        down = {name}
        while more := {c for c, bases in self.bases.items() if bases & down} - down:
            down |= more
        return up | down

    def gives_samples(self, source: Source, node: cst.CSTNode) -> bool:
        """Whether a place of a row is asked for in a class whose objects give samples by their number, or in turn."""
        home, function = class_of(source, node), owner_of(source, node)
        if home is None or not isinstance(function, cst.FunctionDef):
            return False
        if function.name.value == "__init__":
            return False
        kin = self.kin(home.name.value)
        for of in self.facts.flow.modules:
            for c in of.of(cst.ClassDef):
                methods = {s.name.value for s in c.body.body if isinstance(s, cst.FunctionDef)}
                if c.name.value in kin and methods & _SAMPLES:
                    return True
        return False

    def is_shared_out(self, source: Source, node: cst.CSTNode) -> bool:
        """Whether ranks go by the same places: not where all loaders of such a dataset are read by one rank alone.

        Without a sampler each rank draws for itself, from the whole set, and may have it in an order of its own.
        """
        home = class_of(source, node)
        kin = self.kin(home.name.value) if home is not None else set()
        loaders = [o for o, names in self.loaders if names & kin]
        return not loaders or any({"sampler", "batch_sampler"} & _given(o) for o in loaders)

    @functools.cached_property
    def loaders(self) -> list[tuple[Loader, set[str]]]:
        """The loaders of a script, each with the names of the classes that its dataset is made of."""
        made = {e.obj for e in self.facts.flow.log.of("loader") if isinstance(e.obj, Loader)}
        return [(o, {c.name for c in _classes(o.dataset or o.arguments.get("dataset", ()), 4)}) for o in made]

    def is_one(self, source: Source, node: cst.CSTNode) -> bool:
        """`if len(paths) == 1: open(paths[0])`"""
        names = [n for n in walk(node) if isinstance(n, cst.Name)]
        return any(only_one(source, n) for n in names) or is_said_to_be_one(
            owner_of(source, node), {n.value for n in names}
        )


def _given(loader: Loader) -> set[str]:
    """The arguments of a loader that are not None, and those of a dict that could not be followed."""
    some = {k for k, v in loader.arguments.items() if constants(v) != [None]}
    return some | ({"sampler"} if loader.unknown_splat else set())


def _classes(value: Value, depth: int) -> Iterator[Class]:
    """The classes of the project that a dataset is an object of, or is made of: `Subset(Images(), ids)`."""
    for o in value if depth else ():
        if isinstance(o, Instance) and o.cls is not None:
            yield from o.cls.lineage()
            for held in o.fields.values():
                yield from _classes(held, depth - 1)
        elif isinstance(o, Dataset):
            yield from _classes(o.of, depth - 1)
        elif isinstance(o, Seq):
            for part in o.elements if o.elements is not None else [o.joined]:
                yield from _classes(part, depth - 1)


def _sorted_here(source: Source, call: cst.Call) -> str:
    """`names` of `names.sort(key=os.path.getmtime)`"""
    match call.func:
        case cst.Attribute(value=held, attr=cst.Name(value="sort")):
            return source.code(held)
    return sorts(call)


def _own(function: cst.FunctionDef) -> set[str]:
    """The names that a function binds itself."""
    params = {n.name.value for n in walk(function.params) if isinstance(n, cst.Param)}
    targets = (n.target for n in walk(function.body) if isinstance(n, (cst.AssignTarget, cst.For, cst.CompFor)))
    return params | {name for t in targets for name in named(t)}


def _reads(source: Source, owner: cst.CSTNode, name: str) -> list[cst.CSTNode]:
    found: list[cst.CSTNode] = []
    for n in walk(owner):
        if isinstance(n, cst.Name) and n.value == name and n in source.parents:
            above = source.parents[n]
            if isinstance(above, (cst.AssignTarget, cst.Param, cst.FunctionDef, cst.ImportAlias)):
                continue
            if (isinstance(above, cst.Attribute) and above.attr is n) or (
                isinstance(above, cst.Arg) and above.keyword is n
            ):
                continue
            if isinstance(above, (cst.For, cst.CompFor)) and above.target is n:
                continue
            found.append(n)
    return found
