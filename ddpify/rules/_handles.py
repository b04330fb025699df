"""Calls that open a file in, edits for all that is done with it out: the other ranks have none, or os.devnull."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddpify.edits import AddImport, Edit, Surround
from ddpify.facts import Facts
from ddpify.facts.definitions import references
from ddpify.facts.outside import Outside, holding
from ddpify.facts.values import Ext
from ddpify.facts.writes import Write
from ddpify.rules._guards import Guards, Placed, guards
from ddpify.source import Source, walk


class Handles:
    """What becomes of each opened file, decided once for all rules."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.guards: Guards = guards(facts)
        #: opening calls that get os.devnull on the other ranks: what is written to them needs no guard
        self.null: set[int] = set()
        self.known: dict[int, list[Placed] | str] = {}

    def of(self, write: Write) -> list[Placed] | str:
        """The statements to edit, or the reason why it cannot be done."""
        key = id(write.call.node)
        if key not in self.known:
            self.known[key] = self.decide(write)
        return self.known[key]

    def decide(self, write: Write) -> list[Placed] | str:
        source, node = write.call.source, write.call.node
        if not self.facts.editable(source):
            return "it stands in a package's `__init__.py`, which gets no copy"
        stmt = holding(source, node)
        if isinstance(stmt, cst.With) and any(i.item is node for i in stmt.items):
            if self.guards.is_output(source, stmt):
                return [self.guards.guard(source, stmt, node)]
            why = "other work is done while it is open"
        elif isinstance(stmt, (cst.Assign, cst.AnnAssign)) and stmt.value is node:
            together = self.together(source, stmt, targets_of(stmt))
            if together is not None:
                return [self.guards.guard(source, s) for s in together]
            why = "what is done with it cannot be put under a guard"
        else:
            why = self.guards.obstacle(source, stmt, node)
            if stmt is not None and not why:
                return [self.guards.guard(source, stmt, node)]
        if write.can_be_null and stmt is not None:
            self.null.add(id(node))
            return [Placed(stmt, self.to_null(write))]
        return why

    def to_null(self, write: Write) -> tuple[Edit, ...]:
        """`open("log.txt" if is_main_process() else os.devnull, "w")`"""
        source, path = write.call.source, write.path
        assert path is not None
        names = self.facts.names_of(source)
        wrap = isinstance(path, (cst.IfExp, cst.Lambda, cst.NamedExpr)) and not path.lpar
        text = f" if {self.guards.is_main(source)} else {names['os']}.devnull"
        edit = Surround(source, path, "(" if wrap else "", (")" if wrap else "") + text)
        return edit, AddImport(source, "os"), self.guards.helper(source)

    # -- a name that holds the file ---------------------------------------------------------------------

    def together(
        self, source: Source, stmt: cst.CSTNode, targets: list[cst.BaseExpression], depth: int = 3
    ) -> list[cst.CSTNode] | None:
        """The opening statement and every statement that uses its name, None where one of them cannot be guarded."""
        if depth == 0 or not targets:
            return None
        found: list[cst.CSTNode] = [stmt]
        for target in targets:
            uses = self.uses(source, stmt, target)
            if uses is None:
                return None
            for use in uses:
                owner = holding(source, use)
                more = self.use(source, owner, use, depth) if owner is not None else None
                if more is None:
                    return None
                found.extend(s for s in more if s not in found)
        return found

    def use(self, source: Source, owner: cst.CSTNode, use: cst.CSTNode, depth: int) -> list[cst.CSTNode] | None:
        """The statements to guard because of one use; none where the use is a new file under the old name."""
        if isinstance(owner, cst.Assign) and any(t.target is use for t in owner.targets):
            again = isinstance(owner.value, cst.Call) or (
                isinstance(owner.value, cst.Name) and owner.value.value == "None"
            )
            return [] if again else None
        if isinstance(owner, cst.With) and any(i.item is use for i in owner.items):
            return [owner] if self.guards.is_output(source, owner) else None
        if isinstance(owner, (cst.Assign, cst.AnnAssign)) and isinstance(owner.value, cst.Call):
            outside = any(isinstance(o, Ext) for o in self.facts.flow.values.get(owner.value.func, ()))
            # table = csv.writer(log)
            if outside and any(a.value is use for a in owner.value.args) and not self.guards.work.inside(owner):
                return self.together(source, owner, targets_of(owner), depth - 1)
            return None
        if isinstance(owner, (cst.Global, cst.Nonlocal)):
            return []
        return [owner] if isinstance(owner, cst.Expr) and not self.guards.obstacle(source, owner) else None

    def uses(self, source: Source, stmt: cst.CSTNode, target: cst.BaseExpression) -> list[cst.CSTNode] | None:
        """Every other place where the variable or attribute stands, None where that cannot be known."""
        if isinstance(target, cst.Name):
            owner: cst.CSTNode = next(
                (a for a in source.ancestors(stmt) if isinstance(a, (cst.FunctionDef, cst.ClassDef))), source.module
            )
            shared = any(
                isinstance(n, (cst.Global, cst.Nonlocal)) and any(i.name.value == target.value for i in n.names)
                for n in walk(owner)
            )
            tree = source.module if shared else owner
            return [n for n in references(tree, target.value) if n is not target]
        if isinstance(target, cst.Attribute):
            return list(self.same_attribute(source, target))
        return None

    def same_attribute(self, source: Source, target: cst.Attribute) -> Iterator[cst.CSTNode]:
        values = self.facts.flow.values
        held = values.get(target.value, ())
        for node in source.of(cst.Attribute):
            if node is not target and node.attr.value == target.attr.value:
                base = values.get(node.value)
                if base is None or any(o in held for o in base):
                    yield node


def targets_of(stmt: cst.Assign | cst.AnnAssign) -> list[cst.BaseExpression]:
    return [t.target for t in stmt.targets] if isinstance(stmt, cst.Assign) else [stmt.target]


def handles(facts: Facts) -> Handles:
    """The files of a conversion, shared by the rules."""
    made = facts.cached("handles", Handles)
    return made


def opened_null(call: Outside, node: cst.BaseExpression, facts: Facts) -> bool:
    """Whether an expression holds a file that is os.devnull on the other ranks."""
    from ddpify.facts.writes import file_of

    return bool(file_of(node, call, facts) & handles(facts).null)
