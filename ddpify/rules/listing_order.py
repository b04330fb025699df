"""DDP307: orders that depend on a directory listing or on hash seeds."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from ddpify.edits import Edit, Replace, Surround
from ddpify.facts import Facts
from ddpify.facts.beside import instead_of_training
from ddpify.facts.frames import Event
from ddpify.facts.outside import outside_calls
from ddpify.facts.ranks import guarded
from ddpify.facts.reads import LISTINGS
from ddpify.facts.values import Ext
from ddpify.rules._base import Bad, Converts, Finding, Good, Rule, Severity
from ddpify.rules._no_order import (
    KEEPS,
    is_list_of,
    is_looked_up,
    is_said_to_be_one,
    is_sorted_in,
    method,
    only_one,
    seeks_greatest,
    sorts,
    uses_of,
)
from ddpify.rules._order_goes import Order
from ddpify.rules._order_uses import Goes, by
from ddpify.rules._set_orders import is_set, lists_set, orders
from ddpify.rules._texts import may_hold_texts
from ddpify.source import Source, dotted, walk

_LISTS = frozenset({"os.listdir", "glob.glob"})

_TAKES_ORDER = frozenset({"builtins.list", "builtins.tuple", "builtins.enumerate"})
_NO_ORDER = re.compile(
    r"builtins\.(len|sorted|set|frozenset|any|all|sum|min|max|bool)|collections\.Counter"
    r"|natsort\.(\w+\.)?((nat|human|os_|real)sorted)"
)


def _is_empty(node: cst.BaseExpression) -> bool:
    """`[]` of `os.listdir(d) == []`"""
    return isinstance(node, cst.List) and not node.elements


def _binds(stmt: cst.Assign | cst.AugAssign) -> set[str]:
    if isinstance(stmt, cst.AugAssign):  # paths += glob.glob(...)
        return {stmt.target.value} if isinstance(stmt.target, cst.Name) else set()
    return {t.target.value for t in stmt.targets if isinstance(t.target, cst.Name)}


def _block(source: Source, stmt: cst.CSTNode) -> cst.CSTNode | None:
    return source.parents.get(source.parents[stmt])


def _prints(call: cst.Call) -> bool:
    """`print(names)`, `logger.info(names)`"""
    name = call.func.attr.value if isinstance(call.func, cst.Attribute) else getattr(call.func, "value", "")
    return name in ("print", "info", "debug", "warning", "error", "log")


def _is_side(source: Source, node: cst.CSTNode) -> bool:
    """`os.listdir(d) if d else []`"""
    above = source.parents.get(node)
    return isinstance(above, cst.IfExp) and above.test is not node


def _sorts_in_place(source: Source, node: cst.BaseExpression) -> bool:
    """`names.sort()`, before anything else is done with them."""
    above = source.parents.get(node)
    call = source.parents.get(above) if isinstance(above, cst.Attribute) else None
    return isinstance(call, cst.Call) and method(call) == "sort"


def _of_paths(facts: Facts) -> Iterator[Event]:
    """`folder.glob("*.png")`, `folder.iterdir()`"""
    for call in facts.cached("outside", outside_calls):
        if call.method in LISTINGS:
            yield from call.events


def _in_order(facts: Facts, source: Source, node: cst.Call) -> Edit:
    """`sorted(...)` around a listing, in the place of `list(...)`; `next(...)` takes the first of it."""
    arg = source.parents.get(node)
    call = source.parents.get(arg) if isinstance(arg, cst.Arg) and not arg.star else None
    held = facts.flow.values.get(call.func, ()) if isinstance(call, cst.Call) and call.args[0] is arg else ()
    named = [o.name for o in held if isinstance(o, Ext)]
    if isinstance(call, cst.Call) and named == ["builtins.list"] and len(call.args) == 1:
        return Replace(source, call.func, "sorted")
    first = "iter(" if named == ["builtins.next"] else ""
    return Surround(source, node, f"{first}sorted(", "))" if first else ")")


_PASSES_ON = (cst.CompFor, cst.ListComp, cst.GeneratorExp, cst.BinaryOperation)


class ListingOrder(Rule):
    """The order of samples or classes depends on a directory listing or on the hash seed.

    ## What it does
    Finds `os.listdir`, `glob.glob`, `list(set(...))` of texts and loops over such a set without `sorted` around them,
    whose order comes to the samples of a dataset, a split, the numbers of classes, a layer or the training itself; sets
    of numbers have the same order everywhere. Also `hash` of a text. A conversion sorts every one that it knows of
    before training, and loops over a set that number, list or draw something, and `sorted(kinds, key=len)` of one.

    ## Why is this bad?
    A listing's order may differ from node to node, and the order of a set of strings differs from process to process:
    class 3 is another class on another rank, and a split by position mixes training and validation data.

    ## Fix
    Put `sorted(...)` around it.

    ## Edit
    `sorted(...)`: the same order everywhere, also of `folder.glob("*.png")` and `folder.iterdir()`.
    """

    code = "DDP307"
    severity = Severity.WARNING
    references = ("https://github.com/huggingface/transformers/issues/48162",)
    good = (
        Good('ddp = DDP(model)\nnames = sorted(os.listdir("data"))\nkinds = {n: at for at, n in enumerate(names)}'),
    )
    bad = (Bad('ddp = DDP(model)\nnames = os.listdir("data")\nkinds = {n: at for at, n in enumerate(names)}'),)
    converts = (
        Converts(
            """
            import os
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            files = os.listdir("data")
            kinds = list(set(f[0] for f in files))
            letters = set("".join(files))
            index = {letter: i for i, letter in enumerate(letters)}
            loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
            net = nn.Linear(4, 1)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for (x,) in loader:
                net(x).mean().backward()
                optimizer.step()
            """,
            gives=(
                'files = sorted(os.listdir("data"))',
                "kinds = sorted(set(f[0] for f in files))",
                "enumerate(sorted(letters))",
            ),
        ),
    )

    def check(self, facts: Facts) -> Iterator[Finding]:
        first = min((e.seq for e in facts.roles.backwards), default=len(facts.flow.log.events))
        yield from self.by_set(facts, first) if facts.converting else self.by_hash(facts)
        training = {id(loop) for loop in facts.roles.training_loops}

        def trains(e: Event) -> bool:
            return any(id(lp.node) in training for lp in e.loops)

        seen: set[int] = set()
        for e in (*facts.flow.log.of("external"), *(_of_paths(facts) if facts.converting else ())):
            if id(e.node) in seen or not isinstance(e.node, cst.Call) or not facts.editable(e.frame.source):
                continue
            source = e.frame.source
            listing = e.name in _LISTS | LISTINGS and not self.ordered(facts, source, e.node)
            if not (listing or self.of_set(facts, e)) or e.seq > first or trains(e):
                continue
            if self.takes_none(facts, source, e.node) or (not facts.converting and self.matters_to_one(facts, e)):
                continue
            goes = None if facts.converting else self.goes(facts, source, e.node, listing)
            if goes is None and not facts.converting:
                continue
            seen.add(id(e.node))
            edit: Edit
            if listing:
                edit = _in_order(facts, source, e.node)
            elif e.name == "builtins.list":
                edit = Replace(source, e.node.func, "sorted")
            else:
                edit = Surround(source, e.node.args[0].value, "sorted(", ")")
            code = source.code(e.node).split("\n")[0]
            yield self.finding(
                source,
                e.node,
                f"the order of `{code}` may differ from rank to rank{by(source, goes)}",
                edit,
                reason="the same order on every rank",
            )

    def goes(self, facts: Facts, source: Source, node: cst.Call, listing: bool) -> Goes | None:
        """What goes by the order of a listing, or of a set: of a set of numbers it is the same in every process."""
        if not listing and not may_hold_texts(facts, source, node.args[0].value):
            return None
        return facts.cached("orders that are followed", Order).goes(source, node)

    def matters_to_one(self, facts: Facts, e: Event) -> bool:
        """What rank 0 lists, or one process instead of the training; without training, what no dataset has."""
        if guarded(e, facts.flow) or instead_of_training(facts, e):
            return True
        owners = (a for a in e.frame.source.ancestors(e.node) if isinstance(a, cst.ClassDef))
        methods = {s.name.value for c in owners for s in c.body.body if isinstance(s, cst.FunctionDef)}
        evaluates = not facts.roles.backwards and any(f.grad is False for f in facts.flow.log.of("forward"))
        return evaluates and not methods & {"__getitem__", "__iter__"}

    def by_set(self, facts: Facts, first: int) -> Iterator[Finding]:
        """`for word in words: index[word] = len(index)` of a set, `sorted(kinds, key=len)`"""
        begun = {id(e.node): e.seq for e in reversed(list(facts.flow.log.of("loop")))}
        for source in facts.flow.modules:
            for given in orders(facts, source) if facts.editable(source) else ():
                loop = source.parents.get(given)
                if isinstance(loop, cst.For) and begun.get(id(loop), first + 1) > first:
                    continue
                code = source.code(given).split("\n")[0]
                edit: Edit = Surround(source, given, "sorted(", ")")
                if lists_set(facts, given) and isinstance(given, cst.Call):
                    edit = Replace(source, given.func, "sorted")
                message = f"the order of `{code}` may differ from rank to rank"
                yield self.finding(source, given, message, edit, reason="the same order on every rank")

    def by_hash(self, facts: Facts) -> Iterator[Finding]:
        """`for name in set(...): self.register_buffer(name, ...)`, `hash(word) % size`."""
        seen: set[int] = set()
        for e in facts.flow.log.of("loop", "external"):
            source = e.frame.source
            if id(e.node) in seen or not facts.editable(source):
                continue
            if e.kind == "loop" and isinstance(e.node, cst.For) and is_set(facts, e.node.iter):
                if not may_hold_texts(facts, source, e.node.iter):
                    continue
                goes = facts.cached("orders that are followed", Order).goes(source, e.node.iter)
                if goes is not None:
                    seen.add(id(e.node))
                    code = source.code(e.node.iter).split("\n")[0]
                    message = f"the order of `{code}` may differ from rank to rank{by(source, goes)}"
                    yield self.finding(source, e.node.iter, message, Surround(source, e.node.iter, "sorted(", ")"))
            elif e.name == "builtins.hash" and isinstance(e.node, cst.Call) and len(e.node.args) == 1:
                owner = next((a for a in source.ancestors(e.node) if isinstance(a, cst.FunctionDef)), None)
                other = owner is not None and owner.name.value == "__hash__"
                if not other and may_hold_texts(facts, source, e.node.args[0].value):
                    seen.add(id(e.node))
                    code = source.code(e.node)
                    yield self.finding(source, e.node, f"`{code}` of a text is another number in every process")

    def ordered(self, facts: Facts, source: Source, node: cst.CSTNode) -> bool:
        """`sorted(os.listdir(d))`, `len(os.listdir(d))`, `name in os.listdir(d)`: no order is taken from it."""
        parent = source.parents.get(node)
        compared = source.parents.get(parent) if isinstance(parent, cst.ComparisonTarget) else parent
        if isinstance(parent, cst.ComparisonTarget) and isinstance(parent.operator, (cst.In, cst.NotIn)):
            return True
        if isinstance(compared, cst.Comparison):
            # `os.listdir(a) == os.listdir(b)`: as one side is sorted, the other has to be
            return _is_empty(compared.comparisons[0].comparator) or _is_empty(compared.left)
        call = source.parents.get(parent) if isinstance(parent, cst.Arg) else None
        held = facts.flow.values.get(call.func, ()) if isinstance(call, cst.Call) else ()
        return any(isinstance(o, Ext) and _NO_ORDER.fullmatch(o.name) is not None for o in held)

    def takes_none(self, facts: Facts, source: Source, node: cst.BaseExpression, depth: int = 3) -> bool:
        """`if os.listdir(d):`, `names = [n for n in os.listdir(d)]` and `names.sort()` or `sorted(names)` later on."""
        top: cst.CSTNode = node
        while (
            isinstance(source.parents.get(top), _PASSES_ON)
            or is_list_of(source, top)
            or (not facts.converting and _is_side(source, top))
        ):
            top = source.parents[top]
        parent = source.parents.get(top)
        if not facts.converting and isinstance(parent, cst.DictComp) and is_looked_up(facts, source, parent):
            return True
        if not facts.converting and isinstance(parent, cst.Assign) and depth == 3:
            target = parent.targets[0].target if len(parent.targets) == 1 else None
            if isinstance(target, cst.Attribute):
                return self.kept_without_order(facts, source, target)
        if isinstance(parent, cst.For) and parent.iter is top:
            gone = self.only_removed(parent) or seeks_greatest(parent)
            return gone or (not facts.converting and is_sorted_in(source, parent))
        if isinstance(parent, (cst.BooleanOperation, cst.UnaryOperation, cst.If, cst.While, cst.Assert)):
            return True
        call = source.parents.get(parent) if isinstance(parent, cst.Arg) else None
        if isinstance(call, cst.Call) and isinstance(call.func, cst.Attribute) and call.func.attr.value == "extend":
            owner = next((a for a in source.ancestors(node) if isinstance(a, cst.FunctionDef)), source.module)
            kept = dotted(call.func.value)
            calls = (n for n in walk(owner) if isinstance(n, cst.Call))
            ordered = not facts.converting and kept != "" and any(sorts(n) == kept for n in calls)
            return ordered or is_said_to_be_one(owner, {kept})
        binding = isinstance(parent, cst.Assign) or (isinstance(parent, cst.AugAssign) and not facts.converting)
        if not (isinstance(parent, (cst.Assign, cst.AugAssign)) and binding) or depth == 0:
            return isinstance(parent, cst.Arg) and top is not node and self.ordered(facts, source, top)
        owner = next((a for a in source.ancestors(node) if isinstance(a, cst.FunctionDef)), source.module)
        names = _binds(parent)
        if is_said_to_be_one(owner, names):
            return True
        end = source.span(node).end
        later = [n for n in walk(owner) if n in source.parents and source.span(n).start >= end]
        if not facts.converting and any(isinstance(n, cst.Call) and sorts(n) in names for n in later):
            return True
        # names = others: what comes behind it is another list
        block = _block(source, parent)
        anew = (n for n in later if isinstance(n, cst.Assign) and _binds(n) & names and _block(source, n) is block)
        end = source.span(next(anew, owner)).end
        later = [n for n in later if source.span(n).start < end]
        targets = (cst.AssignTarget,)
        uses = [n for n in later if isinstance(n, cst.Name) and n.value in names]
        uses = [n for n in uses if not isinstance(source.parents.get(n), targets) and top not in source.ancestors(n)]
        if uses and _sorts_in_place(source, min(uses, key=lambda n: source.span(n).start)):
            return True
        return bool(names and uses) and all(self.no_order(facts, source, n, depth) for n in uses)

    def no_order(self, facts: Facts, source: Source, node: cst.Name, depth: int) -> bool:
        """`max(names)`, `if names:`, `[n for n in names if n.endswith(".pt")]` that is used in such ways itself."""
        above = source.parents.get(node)
        tested = isinstance(above, (cst.If, cst.IfExp)) and above.test is node
        printed = any(isinstance(a, cst.Call) and _prints(a) for a in source.ancestors(node))
        shown = printed or self.ordered(facts, source, node) or self.only_shown(source, node)
        return tested or shown or only_one(source, node) or self.takes_none(facts, source, node, depth - 1)

    def kept_without_order(self, facts: Facts, source: Source, target: cst.Attribute) -> bool:
        """`self.files = os.listdir(d)` that is sorted before use, asked `name in self.files`, or never read."""
        uses = list(uses_of(facts, source, target))
        sorted_first = any(of is source and _sorts_in_place(of, n) for of, n in uses if isinstance(n, cst.Attribute))
        return sorted_first or all(self.ordered(facts, of, n) for of, n in uses)

    def only_removed(self, loop: cst.For) -> bool:
        """`for path in glob.glob("*.tmp"): os.remove(path)`"""
        calls = [n for n in walk(loop.body) if isinstance(n, cst.Call)]
        names = {n.func.attr.value if isinstance(n.func, cst.Attribute) else "" for n in calls}
        removes = {"remove", "unlink", "rmtree"}
        return bool(names & removes) and names <= removes | {"join"}

    def only_shown(self, source: Source, node: cst.Name) -> bool:
        """`for name in names: print(name)`: nothing is kept in the loop's order."""
        loop = source.parents.get(node)
        if not isinstance(loop, cst.For) or loop.iter is not node:
            return False
        kept = (n for n in walk(loop.body) if isinstance(n, (cst.Return, cst.Yield)) or KEEPS.search(method(n)))
        stored = (n for n in walk(loop.body) if isinstance(n, cst.AssignTarget) and isinstance(n.target, cst.Subscript))
        return next(kept, None) is None and next(stored, None) is None

    def of_set(self, facts: Facts, e: Event) -> bool:
        """`list(set(...))`, `enumerate(words)` of a set"""
        if e.name not in _TAKES_ORDER or not isinstance(e.node, cst.Call) or not e.node.args:
            return False
        given = e.node.args[0].value
        return is_set(facts, given) and not self.ordered(facts, e.frame.source, e.node)
