"""Statements in, guards out: `if is_main_process():`, with what every rank has to do taken out before it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.edits import AddHelper, Edit, Guard, Hoist
from ddpify.facts.definitions import references
from ddpify.facts.frames import Event, Frame
from ddpify.facts.moves import moves
from ddpify.facts.outside import Outside, holding
from ddpify.facts.setup import SetUp, find_setup, moves_up
from ddpify.facts.work import Work, changes_places, leaves, names_bound, work
from ddpify.source import Source, walk

if TYPE_CHECKING:
    from ddpify.facts import Facts


@dataclass(frozen=True)
class Placed:
    """A statement and the edits that make it run on rank 0 only."""

    stmt: cst.CSTNode
    edits: tuple[Edit, ...]


class Guards:
    """Guards for the statements of one conversion; each statement is taken apart once."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.work: Work = work(facts.flow)
        self.done: set[int] = set()
        #: calls of what rank 0 alone has, a run of a tracker or a display: no other rank needs them
        self.of_one: set[int] = set()

    def is_main(self, source: Source) -> str:
        return f"{self.facts.names_of(source)['is_main_process']}()"

    def helper(self, source: Source) -> Edit:
        return AddHelper(source, "is_main_process")

    # -- one statement ------------------------------------------------------------------------------------

    def obstacle(self, source: Source, stmt: cst.CSTNode | None, effect: cst.CSTNode | None = None) -> str:
        """Why a statement cannot be put under a guard, "" where it can."""
        if not self.facts.editable(source):
            return "it stands in a package's `__init__.py`, which gets no copy"
        if stmt is None:
            return "it stands in a lambda"
        if isinstance(stmt, cst.Assign):
            if not self.is_unused(source, stmt):
                return "its value is used"
        elif not isinstance(stmt, cst.Expr):
            return "it is a part of a statement that does more"
        if any(isinstance(n, (cst.NamedExpr, cst.Yield, cst.Await)) for n in walk(stmt)):
            return "it is a part of a statement that does more"
        return (
            ""
            if self.hoists(source, stmt, effect) is not None
            else "a part of it has to run on every rank and cannot be taken out"
        )

    def guard(self, source: Source, stmt: cst.CSTNode, effect: cst.CSTNode | None = None) -> Placed:
        """The edits for a statement that has no obstacle."""
        edits: list[Edit] = []
        if id(stmt) not in self.done and effect is not stmt:
            for node in self.hoists(source, stmt, effect) or []:
                edits.extend(self.take_out(source, stmt, node))
        self.done.add(id(stmt))
        return Placed(stmt, (*edits, Guard(source, stmt, f"if {self.is_main(source)}"), self.helper(source)))

    def whole(self, source: Source, stmt: cst.CSTNode) -> Placed:
        """A statement of which no rank but 0 needs any part."""
        return self.guard(source, stmt, stmt)

    def take_out(self, source: Source, stmt: cst.CSTNode, node: cst.CSTNode) -> tuple[Edit, ...]:
        """`print(evaluate(...))`: every rank evaluates, before the guard."""
        name = self.facts.names_of(source).fresh("result")
        return (Hoist(source, node, name, stmt),)

    def hoists(self, source: Source, stmt: cst.CSTNode, effect: cst.CSTNode | None) -> list[cst.CSTNode] | None:
        """The expressions that every rank has to evaluate, None where one of them cannot be taken out."""
        found: list[cst.CSTNode] = []
        value = stmt.value if isinstance(stmt, (cst.Assign, cst.AnnAssign)) and stmt.value is not None else stmt
        moved = {id(m.call) for m in moves(self.facts) if m.states} if self.facts.converting else set()
        for node in self.work.inside(value):
            if id(node) in self.of_one:
                continue
            if id(node) in moved:
                continue  # torch.save(model.cpu().state_dict(), path): the model stays where it is
            place = self.movable(source, stmt, node)
            holds = place is not None and any(n is effect for n in walk(place))
            if (
                place is None
                or holds
                or any(
                    isinstance(n, (cst.SimpleString, cst.FormattedString)) and source.newline in source.code(n)
                    for n in walk(place)
                )
            ):
                return None
            if place not in found:
                found.append(place)
        return [n for n in found if not any(n is not o and n in set(walk(o)) for o in found)]

    def movable(self, source: Source, stmt: cst.CSTNode, node: cst.CSTNode) -> cst.CSTNode | None:
        """The expression to take out: the node itself, or what decides whether and how often it runs."""
        place: cst.CSTNode | None = node if isinstance(node, cst.BaseExpression) else None
        below = node
        for above in source.ancestors(node):
            if above is stmt:
                break
            match above:
                case cst.Lambda():
                    return None
                case cst.GeneratorExp():
                    call = next((a for a in source.ancestors(above) if isinstance(a, cst.Call)), None)
                    place = call if call is not None and call is not getattr(stmt, "value", None) else None
                    if place is None:
                        return None
                case cst.ListComp() | cst.SetComp() | cst.DictComp():
                    place = above
                case cst.IfExp(test=test) if below is not test:
                    place = above
                case cst.BooleanOperation(right=right) if below is right:
                    place = above
                case cst.FormattedStringExpression() if above.equal is not None:
                    return None
            below = above
        if isinstance(place, cst.GeneratorExp):
            return (
                self.movable(source, stmt, source.parents[source.parents[place]])
                if isinstance(source.parents.get(place), cst.Arg)
                else None
            )
        return place if place is not getattr(stmt, "value", None) else None

    def is_unused(self, source: Source, stmt: cst.Assign) -> bool:
        """`_ = plt.show()`: a name that stands nowhere else."""
        targets = [t.target for t in stmt.targets]
        return all(isinstance(t, cst.Name) and len(list(references(source.module, t.value))) == 1 for t in targets)

    # -- blocks --------------------------------------------------------------------------------------------

    def is_output(self, source: Source, block: cst.With) -> bool:
        """Whether nothing in a `with` block matters to other ranks: no shared work, nothing kept, no way out."""
        if self.work.inside(block) or changes_places(block) or leaves(source, block):
            return False
        owner = next((a for a in source.ancestors(block) if isinstance(a, cst.FunctionDef)), source.module)
        inner = set(walk(block))
        bound = names_bound(block)
        outer = [(name, ref) for name in bound for ref in references(owner, name) if ref not in inner]
        return all(
            _opens_anew(source, ref, name) or _is_before(source, ref, block) or is_of_other_loop(source, ref, name)
            for name, ref in outer
        )

    # -- other files -----------------------------------------------------------------------------------------

    def at_the_call(self, call: Outside) -> list[Placed] | None:
        """Guards around the entry's statements that lead to an effect in a file that stays, None where one cannot."""
        found: dict[int, tuple[cst.CSTNode, cst.CSTNode]] = {}
        for event in call.events:
            for chain in event.frame.chains():
                entry = next((e for e in reversed(chain) if self.facts.editable(e.frame.source)), None)
                if entry is None or not isinstance(entry.call, cst.Call):
                    return None
                stmt = holding(self.facts.source, entry.call)
                if stmt is None or self.obstacle(self.facts.source, stmt, entry.call):
                    return None
                found[id(stmt)] = (stmt, entry.call)
        return [self.guard(self.facts.source, stmt, node) for stmt, node in found.values()] or None


def _opens_anew(source: Source, ref: cst.CSTNode, name: str) -> bool:
    """`with open(other) as file: file.write(...)`: a name that another block binds before it reads it."""
    for above in source.ancestors(ref):
        if isinstance(above, (cst.FunctionDef, cst.ClassDef, cst.Lambda)):
            return False
        items = above.items if isinstance(above, cst.With) else ()
        names = [i.asname.name for i in items if i.asname is not None]
        if any(isinstance(n, cst.Name) and n.value == name for n in names):
            return not any(ref in set(walk(i.item)) for i in items)
    return False


def is_of_other_loop(source: Source, ref: cst.CSTNode, name: str) -> bool:
    """`for i in range(m): draw(i)`: a name that another loop gives its values."""
    for above in source.ancestors(ref):
        if isinstance(above, (cst.FunctionDef, cst.ClassDef)):
            return False
        names = [n.value for n in walk(above.target) if isinstance(n, cst.Name)] if isinstance(above, cst.For) else []
        if isinstance(above, cst.For) and name in names and ref not in set(walk(above.iter)):
            return True
    return False


def _is_before(source: Source, ref: cst.CSTNode, block: cst.CSTNode) -> bool:
    """A read above a block, with no loop that leads back to it."""
    loops = [a for a in source.ancestors(block) if isinstance(a, (cst.For, cst.While))]
    around = set(source.ancestors(ref))
    return source.span(ref).start < source.span(block).start and not any(lp in around for lp in loops)


def guards(facts: Facts) -> Guards:
    """The guards of a conversion, shared by the rules."""
    made = facts.cached("guards", Guards)
    return made


def joined_group(facts: Facts, event: Event, stmt: cst.CSTNode | None = None) -> bool:
    """Whether the process group is set up, on every way that leads to a statement."""
    setup = facts.cached("setup", find_setup)
    if not isinstance(setup, SetUp):
        return False
    anchor, behind = _anchor(facts, setup)
    limit = setup.source.span(anchor).start

    def after(frame: Frame, at: cst.CSTNode) -> bool:
        start = frame.source.span(at).start
        return (
            frame.node is setup.frame.node
            and frame.source is setup.source
            and (start > limit if behind else start >= limit)
        )

    here = stmt if stmt is not None else event.stmt
    # a function that nothing calls is run by its definition: whoever imports it has set the group up
    chains = [
        c for c in event.frame.chains() if not any(isinstance(e.call, (cst.FunctionDef, cst.ClassDef)) for e in c)
    ]
    return all(after(event.frame, here) or any(after(e.frame, e.stmt) for e in chain) for chain in chains)


def _anchor(facts: Facts, setup: SetUp) -> tuple[cst.CSTNode, bool]:
    """The statement by which the set-up stands, and whether it stands behind (or in the place of) it."""
    choice = setup.device
    if setup.parsed is not None:
        parsed = setup.parsed[1]
        return (parsed, True) if parsed is not None else (setup.first, False)
    if choice is None:
        return setup.first, False
    if choice.form == "other" or choice.owner is setup.first or not moves_up(facts, setup):
        return choice.owner, True
    return setup.first, False


def same_on_all_ranks(source: Source, stmt: cst.CSTNode, asks: Callable[[cst.BaseExpression], bool]) -> cst.CSTNode:
    """A statement, or the outermost `if` or `try` around it that ranks may take differently (`if os.path.exists`)."""
    found, below, handled = stmt, stmt, False
    for above in source.ancestors(stmt):
        if isinstance(above, (cst.FunctionDef, cst.ClassDef, cst.Lambda)):
            break
        handled = handled or isinstance(below, (cst.ExceptHandler, cst.ExceptStarHandler))
        if (isinstance(above, (cst.If, cst.While)) and asks(above.test)) or (
            handled and isinstance(above, (cst.Try, cst.TryStar))
        ):
            found, handled = above, False
        below = above
    while isinstance(found, cst.If) and isinstance(source.parents.get(found), cst.If):
        found = source.parents[found]  # an `elif` is no statement of its own
    return _or_its_try(source, found)


def _or_its_try(source: Source, stmt: cst.CSTNode) -> cst.CSTNode:
    """`try: state = torch.load(path)`: where a `try` begins with the statement, the place before it is the `try`'s."""
    line = source.parents.get(stmt)
    line = line if isinstance(line, cst.SimpleStatementLine) and line.body[0] is stmt else stmt
    block = source.parents.get(line)
    above = source.parents.get(block) if block is not None else None
    begins = isinstance(block, cst.IndentedBlock) and block.body[0] is line
    if begins and isinstance(above, (cst.Try, cst.TryStar)) and above.body is block:
        return _or_its_try(source, above)
    return stmt
