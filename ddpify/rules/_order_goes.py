"""A listing or the list of a set in, what goes by its order out: the samples of a dataset, classes, layers, training.

    files = os.listdir("images")
    rows = [(f, 0) for f in files]      # a list in the same order
    loader = DataLoader(Images(rows))   # whose __getitem__ says self.rows[at]

The order is followed forward, through names, attributes, calls and returns. Where it comes to nothing of that kind, a
rank may have another order and train as the others do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from ddpify.facts import Facts
from ddpify.facts.dependencies import read_names
from ddpify.facts.values import Const, Ext, Func
from ddpify.rules._order_turns import KEEPS, REGISTERS, counter_of, turns
from ddpify.rules._order_uses import Goes, Step, Uses, named, owner_of
from ddpify.source import Source, dotted, walk

#: what makes samples, splits or batches of what it is given
_TAKES = re.compile(
    r"torch\.utils\.data\..*|torchvision\.datasets\..*|datasets\.\w+|webdataset\..*"
    r"|sklearn\.model_selection\..*|torch(_geometric)?\.(loader|data)\..*Loader"
)
#: what has parts in the order in which it got them
_LAYERS = frozenset({"Sequential", "ModuleList", "ModuleDict", "ParameterList", "ParameterDict"})
#: what has no order, or another one, whatever it is given
_NO_ORDER = (
    frozenset({"sorted", "natsorted", "humansorted", "os_sorted", "len", "set", "frozenset", "any", "all"})
    | {"sum", "min", "max", "bool", "Counter", "isinstance", "print", "info", "debug", "warning"}
    | {"error", "log", "choice", "choices", "remove", "unlink", "rmtree", "exists", "isfile"}
    | {"isdir", "makedirs", "sort", "index_select", "unique", "sort_values", "sort_index"}
    | {"argsort", "count", "random_choice", "hash", "type", "range", "mean", "median", "std"}
    | {"write", "writelines"}
)
_READS = re.compile(r"(open|load|imread|parse|from_pretrained|restore|import)\w*|read\w*|load_\w+|\w+_load")


class Order:
    """Follows an order forward. What is followed is of a kind: `row` for what is in that order, `dict` for what is only
    asked by keys, `holds` for what has such a row in it (`at 1` for a tuple), `one` for a file picked by its place."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.uses = Uses(facts)
        self.trains = {id(lp.node) for e in facts.roles.backwards for around in e.all_loops() for lp in around}
        self.arguments: dict[int, list[tuple[Source, cst.CSTNode, str]]] = {}
        for frame in facts.flow.frames:
            for name, given in frame.arguments.items():
                if given is not None:
                    self.arguments.setdefault(id(given), []).append((frame.source, frame.node, name))

    def goes(self, source: Source, node: cst.CSTNode) -> Goes | None:
        """The first that goes by the order of an expression."""
        todo: list[tuple[Source, cst.CSTNode, str]] = [(source, node, "row")]
        seen: set[tuple[int, str]] = set()
        while todo and len(seen) < 600:
            of, at, kind = todo.pop(0)
            if (id(at), kind) in seen or at not in of.parents:
                continue
            seen.add((id(at), kind))
            for step in self.steps(of, at, kind):
                if isinstance(step, Goes):
                    return step
                todo.append(step)
        return None

    def steps(self, source: Source, node: cst.CSTNode, kind: str) -> Iterator[Step]:
        above = source.parents[node]
        match above:
            case cst.Arg():
                call = source.parents[above]
                if isinstance(call, cst.Call):
                    yield from self.given(source, call, node, kind)
            case cst.Element() | cst.StarredElement():
                row = source.parents[above]
                if isinstance(row, cst.Tuple) and isinstance(above, cst.Element) and kind == "row":
                    yield source, row, f"at {next(i for i, e in enumerate(row.elements) if e is above)}"
                elif not isinstance(row, cst.Set):
                    yield source, row, "holds" if isinstance(above, cst.Element) else kind
            case cst.DictElement(value=value) if value is node:
                yield source, source.parents[above], "holds"
            case cst.Subscript(value=value) if value is node:
                yield from self.picked(source, above, kind)
            case cst.For(iter=over) if over is node:
                yield from turns(self, source, above, above.target, kind)
            case cst.CompFor(iter=over) if over is node:
                yield from self.comprehends(source, above, node, kind)
            case cst.Assign(value=value) if value is node:
                for target in above.targets:
                    yield from self.bound(source, target.target, node, kind)
            case cst.AnnAssign(value=value, target=target) | cst.NamedExpr(value=value, target=target) if value is node:
                yield from self.bound(source, target, node, kind)
                if isinstance(above, cst.NamedExpr):
                    yield source, above, kind
            case cst.AugAssign(value=value, target=target) if value is node and kind != "one":
                yield from self.bound(source, target, node, kind)
            case cst.Return() | cst.Yield() | cst.From():
                yield from self.handed_back(source, node, kind)
            case cst.BinaryOperation(operator=cst.Add() | cst.Multiply()):
                yield source, above, kind
            case cst.BooleanOperation():
                yield source, above, kind
            case cst.IfExp(test=test) if test is not node:
                yield source, above, kind
            case cst.Attribute():
                yield from self.asked(source, above, kind)
            case cst.Await() | cst.Lambda():
                yield source, above, kind

    def asked(self, source: Source, node: cst.Attribute, kind: str) -> Iterator[Step]:
        """`names.index(x)` numbers; `table.values()`, `names.copy()` are in the same order."""
        call = source.parents.get(node)
        name = node.attr.value
        if name in _NO_ORDER or name in KEEPS or name in ("shape", "size", "get", "add", "update"):
            return
        if isinstance(call, cst.Call) and call.func is node:
            if name == "index" and kind == "row":
                yield Goes(source, call)
            yield source, call, "row" if name in ("keys", "values", "items") and kind == "dict" else kind
        elif kind != "dict":
            yield source, node, kind

    def picked(self, source: Source, node: cst.Subscript, kind: str) -> Iterator[Step]:
        index = node.slice[0].slice if node.slice else None
        if kind in ("dict", "one") or source.parents.get(node) is None:
            return
        if kind == "holds":
            yield source, node, "row"
        elif kind.startswith("at "):
            if source.code(node.slice[0]) == kind[3:]:
                yield source, node, "row"
        elif isinstance(index, cst.Slice):
            if index.step is not None and self.own(source, index):  # files[rank::world]
                yield Goes(source, node)
            yield source, node, kind
        elif isinstance(index, cst.Index):
            names = read_names(index.value)
            turn = next((a for a in source.ancestors(node) if self.counts(a, names)), None)
            if not names:
                yield source, node, "one"
            elif isinstance(turn, cst.For):
                yield from turns(self, source, turn, turn.target, "row")
            elif isinstance(turn, cst.CompFor):
                yield from self.comprehends(source, turn, node, "row")
            elif self.uses.gives_samples(source, node) and self.uses.is_shared_out(source, node):
                yield Goes(source, node)

    def counts(self, loop: cst.CSTNode, names: frozenset[str]) -> bool:
        """`for i in range(len(files))`, of `files[i]`"""
        if not isinstance(loop, (cst.For, cst.CompFor)):
            return False
        return bool(named(loop.target) & names)

    def own(self, source: Source, index: cst.Slice) -> bool:
        held = [o for n in walk(index) for o in self.facts.flow.values.get(n, ())]
        return not any(isinstance(o, Const) for o in held) and bool(held)

    def bound(
        self, source: Source, target: cst.CSTNode, node: cst.CSTNode, kind: str
    ) -> Iterator[tuple[Source, cst.CSTNode, str]]:
        """What reads a variable or an attribute behind the place where it got the order."""
        if isinstance(target, cst.Subscript):
            target, kind = target.value, "holds" if kind == "row" else kind
        if isinstance(target, (cst.Tuple, cst.List)):
            for i, e in enumerate(target.elements):
                if not kind.startswith("at ") or kind == f"at {i}":
                    yield from self.bound(source, e.value, node, "row" if kind.startswith("at ") else kind)
            return
        for of, use in self.uses.behind(source, target, node):
            yield of, use, kind

    def handed_back(self, source: Source, node: cst.CSTNode, kind: str) -> Iterator[Step]:
        function = owner_of(source, node)
        if not isinstance(function, cst.FunctionDef):
            return
        if function.name.value in ("__iter__", "__next__"):
            yield Goes(source, node)
            return
        for frame in self.facts.flow.frames:
            if frame.node is function:
                for entry in frame.entries:
                    if isinstance(entry.call, (cst.Call, cst.Attribute)) and kind != "one":
                        yield entry.frame.source, entry.call, kind

    def given(self, source: Source, call: cst.Call, node: cst.CSTNode, kind: str) -> Iterator[Step]:
        held = self.facts.flow.values.get(call.func, ())
        outside = [o.name for o in held if isinstance(o, Ext)]
        name = call.func.attr.value if isinstance(call.func, cst.Attribute) else dotted(call.func)
        if name in _NO_ORDER:
            return
        if kind == "one":
            if _READS.fullmatch(name) and not self.uses.is_one(source, node):
                yield Goes(source, call)
            elif name in ("join", "Path", "str"):
                yield source, call, kind
            return
        if any(_TAKES.fullmatch(n) for n in outside) or (name in _LAYERS and kind == "row"):
            yield Goes(source, call)
        if name in REGISTERS and kind == "row":
            return
        if isinstance(call.func, cst.Attribute) and name in (*KEEPS, "update", "add"):
            if name != "add":
                how = "holds" if name in ("append", "insert") else "dict" if kind == "dict" else kind
                for of, use in self.uses.behind(source, call.func.value, node):
                    yield of, use, how
            return
        if name == "dict" and kind == "row":
            counts = any(isinstance(n, cst.Call) and dotted(n.func) in ("range", "count") for n in walk(call))
            if counts:
                yield Goes(source, call)
            yield source, call, "dict"
            return
        inside = self.arguments.get(id(node), ())
        for of, function, param in inside:
            for use in self.uses.in_function(of, function, param):
                yield of, use, kind
        if not inside and not any(isinstance(o, Func) for o in held) and not name.startswith(("is", "has")):
            yield source, call, kind if kind != "dict" or name not in ("list", "tuple", "enumerate", "iter") else "row"

    def comprehends(self, source: Source, part: cst.CompFor, node: cst.CSTNode, kind: str) -> Iterator[Step]:
        whole = next(
            a
            for a in source.ancestors(part)
            if isinstance(a, (cst.BaseComp, cst.DictComp)) and not isinstance(a, cst.CompFor)
        )
        if isinstance(whole, cst.DictComp):
            if counter_of(part.target, part.iter) & read_names(whole.value):
                yield Goes(source, whole)
            yield source, whole, "row" if counter_of(part.target, part.iter) & read_names(whole.key) else "dict"
        elif not isinstance(whole, cst.SetComp):
            yield source, whole, "row" if kind == "dict" else kind
