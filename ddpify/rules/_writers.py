"""A SummaryWriter in, edits for it and all its uses out: rank 0 has the writer, the other ranks have None."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddpify.edits import Surround
from ddpify.facts import Facts
from ddpify.facts.drawing import is_seeded
from ddpify.facts.externals import role_of
from ddpify.facts.outside import Outside, holding
from ddpify.facts.values import Class, Ext, Func, Thing
from ddpify.facts.work import work
from ddpify.rules._guards import Placed, guards
from ddpify.source import Source, walk

_HARMLESS = frozenset({"builtins.isinstance", "builtins.bool", "builtins.hasattr", "builtins.id"})


def writer_edits(facts: Facts, call: Outside) -> list[Placed] | str:
    """The creation and every statement that uses the writer, or the reason why it cannot be done."""
    source, node = call.source, call.node
    stmt = holding(source, node)
    made = {id(o) for o in facts.flow.values.get(node, ()) if isinstance(o, Thing) and o.site.node is node}
    above = source.parents.get(node)
    if not facts.editable(source):
        return "it is made in a package's `__init__.py`, which gets no copy"
    if stmt is None or isinstance(above, cst.WithItem):
        return "the block that it opens does other work"
    if isinstance(above, cst.Attribute):
        return guards(facts).obstacle(source, stmt, node) or [guards(facts).guard(source, stmt, node)]
    used: dict[int, tuple[Source, cst.CSTNode]] = {}
    for home, mention in _mentions(facts, made):
        if mention is node:
            continue
        owner = holding(home, mention)
        what = _use(facts, home, mention)
        if what == "fine":
            continue
        line = f"line {home.line(mention)}" if home is source else f"{home.path.name}:{home.line(mention)}"
        if what == "other" or owner is None or guards(facts).obstacle(home, owner):
            return f"its use at {line} cannot be put under a guard"
        used[id(owner)] = (home, owner)
    shared = guards(facts).hoists(source, stmt, node)
    if shared is None:
        return "a part of it has to run on every rank and cannot be taken out"
    taken = [e for n in shared if not _draws_freely(facts, n) for e in guards(facts).take_out(source, stmt, n)]
    plain = isinstance(above, (cst.Assign, cst.AnnAssign, cst.Arg, cst.Return))
    edit = Surround(
        source, node, "" if plain else "(", f" if {guards(facts).is_main(source)} else None" + ("" if plain else ")")
    )
    return [
        Placed(stmt, (*taken, edit, guards(facts).helper(source))),
        *(guards(facts).guard(*place) for place in used.values()),
    ]


def _draws_freely(facts: Facts, node: cst.CSTNode) -> bool:
    """`random.randint(0, 100)` that no seed comes before: the streams of the ranks differ anyway."""
    events = [e for n in walk(node) for e in work(facts.flow).events.get(id(n), ())]
    drawn = [e for e in events if e.kind == "external" and role_of(e.name) == "random"]
    return bool(drawn) and drawn == events and not any(is_seeded(facts, e.name.split(".")[0], e) for e in drawn)


def _mentions(facts: Facts, made: set[int]) -> Iterator[tuple[Source, cst.CSTNode]]:
    """Every expression of the project that may hold the writer."""
    for source in facts.project.files():
        for node in source.of(cst.Name, cst.Attribute):
            if any(id(o) in made for o in facts.flow.values.get(node, ())):
                yield source, node


def _use(facts: Facts, source: Source, node: cst.CSTNode) -> str:
    """What is done with the writer: "fine" where None does, "call" where the statement needs a guard, or "other"."""
    above = source.parents.get(node)
    match above:
        case (
            cst.Assign()
            | cst.AnnAssign()
            | cst.AssignTarget()
            | cst.Return()
            | cst.Param()
            | cst.Comparison()
            | cst.ComparisonTarget()
        ):
            return "fine"
        case (
            cst.If()
            | cst.UnaryOperation()
            | cst.BooleanOperation()
            | cst.Expr()
            | cst.IfExp()
            | cst.NamedExpr()
            | cst.NameItem()
            | cst.Del()
        ):
            return "fine"
        case cst.Element() if _is_passed_on(source, above):
            return "fine"
        case cst.Attribute(attr=attr):
            return "fine" if attr is node else "call"
        case cst.Arg(keyword=keyword):
            if keyword is node:
                return "fine"
            call = source.parents.get(above)
            callee = facts.flow.values.get(call.func, ()) if isinstance(call, cst.Call) else ()
            followed = bool(callee) and all(
                isinstance(o, (Func, Class)) or (isinstance(o, Ext) and o.name in _HARMLESS) for o in callee
            )
            return "fine" if followed else "call"
    return "other"


def _is_passed_on(source: Source, element: cst.Element) -> bool:
    """`return args, writer` and `args, writer = prepare()`"""
    items = source.parents.get(element)
    return isinstance(items, cst.Tuple) and isinstance(source.parents.get(items), (cst.Return, cst.AssignTarget))
