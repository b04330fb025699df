"""Guards of a plan in, fewer guards out: around a whole `if` or `for`, where rank 0 alone does all that is in it."""

from __future__ import annotations

import re
from dataclasses import replace

import libcst as cst

from ddpify.edits import Delete, Guard, Hoist, InsertAfter, InsertBefore
from ddpify.facts import Facts
from ddpify.facts.definitions import references
from ddpify.facts.outside import unread
from ddpify.facts.placing import is_guard
from ddpify.facts.values import Dict, Ext, Method, Seq
from ddpify.facts.work import names_bound
from ddpify.rules import Finding
from ddpify.rules._guards import is_of_other_loop
from ddpify.source import Source, walk

#: Calls that only look: whether rank 0 alone makes them changes nothing.
_LOOKS = re.compile(
    r"builtins\.(vars|len|isinstance|hasattr|range|enumerate|zip|sorted|reversed|abs|min|max|int|float|str|bool|any|all|round)"
    r"|os\.path\.\w+|math\.\w+"
)
_VIEWS = frozenset({"items", "keys", "values", "parameters", "named_parameters", "startswith", "endswith"})


def lift_guards(findings: list[Finding], facts: Facts) -> list[Finding]:
    """The findings, with the guards around small statements moved to the statement that holds nothing else."""
    lift = _Lift(findings, facts)
    lift.run()
    if not lift.moved:
        return findings
    return [replace(f, edits=tuple(lift.edit(e) if isinstance(e, Guard) else e for e in f.edits)) for f in findings]


class _Lift:
    def __init__(self, findings: list[Finding], facts: Facts) -> None:
        self.facts = facts
        edits = [e for f in findings for e in f.edits]
        self.guards: dict[cst.CSTNode, Guard] = {e.node: e for e in edits if isinstance(e, Guard)}
        #: where lines are put or taken out: what stands there keeps its place
        self.fixed: set[cst.CSTNode] = {e.before for e in edits if isinstance(e, Hoist)}
        self.deleted: set[cst.CSTNode] = {e.node for e in edits if isinstance(e, Delete)}
        self.fixed |= self.deleted | {e.node for e in edits if isinstance(e, (InsertBefore, InsertAfter))}
        self.moved: dict[cst.CSTNode, cst.CSTNode] = {}

    def run(self) -> None:
        todo = list(self.guards.values())
        while todo:
            guard = todo.pop()
            outer = self.outer(guard)
            if outer is not None and self.guards.get(guard.node) is guard:
                new = Guard(guard.source, outer, guard.header)
                for stmt in self.statements(guard.source, outer):
                    self.moved[stmt] = outer
                    del self.guards[stmt]
                self.guards[outer] = new
                todo.append(new)
                todo.extend(g for n in self.beside(guard.source, outer) if (g := self.guards.get(n)) is not None)

    def edit(self, guard: Guard) -> Guard:
        node = guard.node
        while node in self.moved:
            node = self.moved[node]
        return Guard(guard.source, node, guard.header)

    def outer(self, guard: Guard) -> cst.If | cst.For | None:
        """The `if` or `for` around a guarded statement, where all of it can stand under the guard."""
        source = guard.source
        owner = source.parents.get(guard.node)
        line = owner if isinstance(owner, cst.SimpleStatementLine) else guard.node
        block = source.parents.get(line)
        outer = source.parents.get(block) if isinstance(block, cst.IndentedBlock) else None
        outer = source.parents.get(outer) if isinstance(outer, cst.Else) else outer
        while isinstance(outer, cst.If) and isinstance(source.parents.get(outer), cst.If):
            outer = source.parents.get(outer)
        if not isinstance(outer, (cst.If, cst.For)) or outer in self.guards or is_guard(outer):
            return None
        inside = self.statements(source, outer)
        if not inside or any(s not in self.guards or self.guards[s].header != guard.header for s in inside):
            return None
        if (
            any(n in self.fixed for n in walk(outer) if n is not outer)
            or outer in self.deleted
            or not self.is_plain(source, outer)
        ):
            return None
        return outer if self.pays(source, outer, guard.header) else None

    def statements(self, source: Source, outer: cst.If | cst.For) -> list[cst.CSTNode]:
        """What stands in it, branch by branch; nothing where a branch has no block of its own."""
        branches: list[cst.CSTNode] = [outer.body]
        rest = outer.orelse
        while rest is not None:
            branches.append(rest.body)
            rest = rest.orelse if isinstance(rest, cst.If) else None
        if not all(isinstance(b, cst.IndentedBlock) for b in branches):
            return []
        lines = [line for b in branches if isinstance(b, cst.IndentedBlock) for line in b.body]
        return [s for line in lines for s in (line.body if isinstance(line, cst.SimpleStatementLine) else (line,))]

    def is_plain(self, source: Source, outer: cst.If | cst.For) -> bool:
        """Whether the test, or what the loop goes over, only looks, and nothing behind it reads the loop's names."""
        if isinstance(outer, cst.If):
            tests = [outer.test]
            rest = outer.orelse
            while isinstance(rest, cst.If):
                tests.append(rest.test)
                rest = rest.orelse
            return all(self.looks(source, t) for t in tests)
        if outer.orelse is not None or not self.looks(source, outer.iter) or not self.is_collection(outer.iter):
            return False
        owner = next((a for a in source.ancestors(outer) if isinstance(a, cst.FunctionDef)), source.module)
        inner = set(walk(outer))
        outside = [(name, ref) for name in names_bound(outer) for ref in references(owner, name) if ref not in inner]
        return all(is_of_other_loop(source, ref, name) for name, ref in outside)

    def looks(self, source: Source, node: cst.CSTNode) -> bool:
        for part in walk(node):
            if isinstance(part, (cst.NamedExpr, cst.Await, cst.Yield)):
                return False
            if isinstance(part, cst.Call) and not self.is_look(source, part):
                return False
        return True

    def is_look(self, source: Source, call: cst.Call) -> bool:
        callee = self.facts.flow.values.get(call.func, ())
        names = [o.name for o in callee if isinstance(o, (Ext, Method))]
        if not callee and (name := unread(call.func, source, self.facts.flow)):
            return _LOOKS.fullmatch(name) is not None
        known = len(names) == len(callee) > 0 and all(_LOOKS.fullmatch(n) or n in _VIEWS for n in names)
        text = isinstance(call.func, cst.Attribute) and call.func.attr.value in _VIEWS
        return known or (text and not any(not isinstance(o, (Ext, Method)) for o in callee))

    def is_collection(self, node: cst.BaseExpression) -> bool:
        """`range(n)`, `losses.items()`, a list: what no rank uses up."""
        if isinstance(node, cst.Call):
            made = isinstance(node.func, cst.Name) and node.func.value != "range"
            named = isinstance(node.func, cst.Name) and node.func.value == "vars"
            return named or not made or all(self.is_collection(a.value) for a in node.args if a.keyword is None)
        held = self.facts.flow.values.get(node, ())
        return bool(held) and all(isinstance(o, (Seq, Dict)) for o in held)

    def pays(self, source: Source, outer: cst.If | cst.For, header: str) -> bool:
        """Out of a loop, one guard for several branches, or one that the neighbour has already."""
        if isinstance(outer, cst.For) or outer.orelse is not None:
            return True
        beside = self.beside(source, outer)
        return any(n in self.guards and self.guards[n].header == header for n in beside)

    def beside(self, source: Source, stmt: cst.CSTNode) -> list[cst.CSTNode]:
        """The small statements, or the compound one, before and behind a compound statement."""
        body = list(getattr(source.parents.get(stmt), "body", ()))
        at = body.index(stmt) if stmt in body else -1
        near = [body[i] for i in (at - 1, at + 1) if at >= 0 and 0 <= i < len(body)]
        return [s for line in near for s in (line.body if isinstance(line, cst.SimpleStatementLine) else (line,))]
