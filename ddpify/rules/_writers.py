"""A SummaryWriter, a run or a display in, edits for it and all its uses out: the other ranks have None."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddpify.edits import AddHelper, AddImport, Edit, Surround
from ddpify.facts import Facts
from ddpify.facts.drawing import is_seeded
from ddpify.facts.externals import role_of
from ddpify.facts.outside import Outside, holding
from ddpify.facts.values import Class, Ext, Func, Thing
from ddpify.facts.work import work
from ddpify.rules._guards import Placed, guards, joined_group
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
    if stmt is None:
        return "it stands in a lambda"
    if isinstance(above, (cst.Attribute, cst.Expr)):
        return guards(facts).obstacle(source, stmt, node) or [guards(facts).guard(source, stmt, node)]
    used: dict[int, tuple[Source, cst.CSTNode]] = {}
    asked: list[Placed] = []
    mentions = list(_mentions(facts, made))
    guards(facts).of_one |= {id(c) for home, mention in mentions for c in _calls_of(home, mention)}
    for home, mention in mentions:
        if mention is node:
            continue
        owner = holding(home, mention)
        what = _use(facts, home, mention)
        if what == "fine":
            continue
        told = _told(facts, home, owner, mention, made)
        if told is not None:
            asked.append(told)
            continue
        line = f"line {home.line(mention)}" if home is source else f"{home.path.name}:{home.line(mention)}"
        if what == "other" or owner is None or (what != "store" and guards(facts).obstacle(home, owner)):
            return f"its use at {line} cannot be put under a guard"
        used[id(owner)] = (home, owner)
    alone = isinstance(above, cst.WithItem)
    shared = guards(facts).hoists(source, stmt, node) if not alone else None if guards(facts).work.inside(node) else []
    if shared is None:
        return "a part of it has to run on every rank and cannot be taken out"
    taken = [e for n in shared if not _draws_freely(facts, n) for e in guards(facts).take_out(source, stmt, n)]
    edits: list[Edit] = [guards(facts).helper(source)]
    otherwise = "None"
    if alone:
        otherwise = f"{facts.names_of(source)['nullcontext']}()"
        edits.append(AddImport(source, "nullcontext"))
    plain = isinstance(above, (cst.Assign, cst.AnnAssign, cst.Arg, cst.Return, cst.WithItem))
    text = f" if {guards(facts).is_main(source)} else {otherwise}"
    edit = Surround(source, node, "" if plain else "(", text + ("" if plain else ")"))
    return [
        Placed(stmt, (*taken, edit, *edits)),
        *asked,
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
        for node in source.of(cst.Name, cst.Attribute, cst.Subscript):
            if any(id(o) in made for o in facts.flow.values.get(node, ())):
                yield source, node


def _told(facts: Facts, source: Source, owner: cst.CSTNode | None, node: cst.CSTNode, made: set[int]) -> Placed | None:
    """`run_id = run.info.run_id`, which every rank goes on with: rank 0 has the run, and tells the others.

    Also `path = os.path.join(writer.log_dir, "best.pt")`. What only the writer is asked with needs no telling:
    `window = vis.line(ys)`, for `vis.line(more, win=window)`.
    """
    if not isinstance(owner, cst.Assign) or owner.value is node or guards(facts).is_unused(source, owner):
        return None
    mention = node
    for above in source.ancestors(node):
        asks = isinstance(above, cst.Call) and above.func is node and not above.args  # writer.get_logdir()
        if not (asks or (isinstance(above, cst.Attribute) and above.value is node)):
            break
        node = above
    called = source.parents.get(node)
    if isinstance(called, cst.Call) and called.func is node:
        if guards(facts).work.inside(called):
            return None
        node = called
    binds = [e for e in facts.flow.log.of("bind", "set") if e.stmt is owner]
    if node is mention or not binds or not all(joined_group(facts, e) for e in binds):
        return None
    text = f" if {guards(facts).is_main(source)} else None)"
    if owner.value is node and all(e.kind == "bind" and _for_writer(facts, source, e.name, made) for e in binds):
        return Placed(owner, (Surround(source, node, "", text[:-1]), guards(facts).helper(source)))
    edit = Surround(source, node, f"{facts.names_of(source)['broadcast_value']}(", text)
    return Placed(owner, (edit, AddHelper(source, "broadcast_value"), guards(facts).helper(source)))


def _for_writer(facts: Facts, source: Source, name: str, made: set[int]) -> bool:
    """Whether a name stands only in statements that use the writer, and so under its guard."""
    stored = {id(n) for target in source.of(cst.AssignTarget) for n in walk(target)}
    reads = [n for n in source.of(cst.Name) if n.value == name and facts.flow.values.get(n) is not None]
    stmts = [
        holding(source, n) for n in reads if id(n) not in stored and not isinstance(source.parents.get(n), cst.NameItem)
    ]
    return bool(stmts) and all(
        s is not None
        and not guards(facts).work.inside(s)
        and any(id(o) in made for n in walk(s) for o in facts.flow.values.get(n, ()))
        for s in stmts
    )


def _calls_of(source: Source, node: cst.CSTNode) -> Iterator[cst.Call]:
    """`run["loss"].append(x)`: the calls that begin with the writer."""
    for above in source.ancestors(node):
        if isinstance(above, cst.Call) and above.func is node:
            yield above
        elif not (isinstance(above, (cst.Attribute, cst.Subscript)) and above.value is node):
            return
        node = above


def _use(facts: Facts, source: Source, node: cst.CSTNode) -> str:
    """What is done with the writer: "fine" where None does, "call" where the statement needs a guard, or "other".

    "store" is `run["lr"] = 0.1`, which nothing else reads.
    """
    above = source.parents.get(node)
    match above:
        case cst.Subscript(value=value) if value is node:
            target = source.parents.get(above)
            stmt = source.parents.get(target) if target is not None else None
            stored = isinstance(target, cst.AssignTarget) and isinstance(stmt, cst.Assign) and len(stmt.targets) == 1
            return "store" if stored else "call"
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
            | cst.AsName()
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
