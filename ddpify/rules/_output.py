"""Talk in, edits out that keep it to rank 0: by kind, a guard, an argument, or a writer that is None elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from ddpify.edits import AddHelper, Edit, Replace, SetArgument, Surround
from ddpify.facts import Facts
from ddpify.facts.contents import constants
from ddpify.facts.externals import role_of
from ddpify.facts.outside import Outside, holding
from ddpify.facts.talk import Talk
from ddpify.facts.values import Dict
from ddpify.facts.writes import Write
from ddpify.rules._guards import Placed, guards, joined_group
from ddpify.rules._handles import handles
from ddpify.rules._writers import writer_edits

_ONCE = "printed once"
#: what no guard around a call of the function that does it would mend
_IN_PLACE = frozenset(
    ["bar", "writer", "run-object", "live", "console", "run", "run-disabled", "shell", "code", "input"]
)


@dataclass(frozen=True)
class Silenced:
    """Edits for a statement; `whole` where they put all of it under a guard."""

    stmt: cst.CSTNode
    edits: tuple[Edit, ...]
    why: str
    whole: bool = True


def silence(facts: Facts, t: Talk) -> list[Silenced] | str:
    """The edits for one call, or the reason why there are none."""
    call = t.call
    stmt = holding(call.source, call.node)
    if not facts.editable(call.source):
        placed = guards(facts).at_the_call(call) if t.kind not in _IN_PLACE else None
        return "it stands in another file" if placed is None else _guarded(placed, _ONCE)
    match t.kind:
        case "bar":
            return _bar(facts, call)
        case "writer":
            return _placed(writer_edits(facts, call), "one process has the writer; the others have none")
        case "run-object":
            return _placed(writer_edits(facts, call), "one process starts the run; the others have none")
        case "live":
            return _placed(writer_edits(facts, call), "one process has the display; the others have none")
        case "console":
            return _argument(facts, call, "quiet", "not {}", " or not {}", "the consoles of the others are quiet")
        case "run":
            return _argument(
                facts,
                call,
                "mode",
                'None if {} else "disabled"',
                ' if {} else "disabled"',
                "one process starts the run",
            )
        case "run-disabled":
            return _argument(facts, call, "disabled", "not {}", " or not {}", "one process starts the run")
        case "log-file":
            return _placed(
                handles(facts).of(Write(call, call.argument(0, "filename"), opens=True)),
                "one process writes the log file",
            )
        case "input":
            return _input(facts, call, stmt)
        case "code":
            return "ddpify does not see what it runs"
        case "shell":
            return "ddpify does not know what the command does"
        case "summary" if _random_later(facts, call):
            return "it draws random numbers, and the split behind it has to be the same on every rank"
    holder = call.source.parents.get(call.node)
    if stmt is None and isinstance(holder, cst.Lambda) and not guards(facts).work.inside(call.node):
        # lambda text: bar.write(text)
        edit = Surround(call.source, call.node, "", f" if {guards(facts).is_main(call.source)} else None")
        return [Silenced(call.node, (edit, guards(facts).helper(call.source)), _ONCE, whole=False)]
    why = guards(facts).obstacle(call.source, stmt, call.node)
    if why or stmt is None:
        return why or "it stands in a lambda"
    return _guarded([guards(facts).guard(call.source, stmt, call.node)], _ONCE)


def _guarded(placed: list[Placed], why: str) -> list[Silenced]:
    return [Silenced(p.stmt, p.edits, why) for p in placed]


def _placed(found: list[Placed] | str, why: str) -> list[Silenced] | str:
    return found if isinstance(found, str) else _guarded(found, why)


def _bar(facts: Facts, call: Outside) -> list[Silenced] | str:
    """`tqdm(loader)` gets `disable=not is_main_process()`; what the script itself says there still holds."""
    return _argument(facts, call, "disable", "not {}", " or not {}", "one progress bar")


def _argument(facts: Facts, call: Outside, name: str, new: str, added: str, why: str) -> list[Silenced] | str:
    """Set an argument by rank, or add to the one that is there."""
    source = call.source
    is_main = guards(facts).is_main(source)
    given = call.argument(None, name)
    for arg in call.node.args:
        known = facts.flow.values.get(arg.value, ()) if arg.star == "**" else None
        if known is not None and not (
            known and all(isinstance(o, Dict) and o.closed and name not in o.items for o in known)
        ):
            return f"`{source.code(arg.value)}` may hold `{name}`"
    edit: Edit
    if given is None:
        edit = SetArgument(source, call.node, name, new.format(is_main))
    else:
        held = constants(facts.flow.values.get(given, ()))
        if name == "disable" and held == [True]:
            return []  # the script shows none
        if held in ([False], [None]) and isinstance(given, cst.Name) and (name != "disable" or held == [False]):
            edit = Replace(source, given, new.format(is_main))
        else:
            unset = (
                name == "disable"
                and (held is None or None in held)
                and not isinstance(given, (cst.UnaryOperation, cst.Comparison))
            )
            text = " if {} else True" if unset else added
            wrap = isinstance(given, (cst.IfExp, cst.Lambda, cst.NamedExpr)) and not given.lpar
            edit = Surround(source, given, "(" if wrap else "", (")" if wrap else "") + text.format(is_main))
    stmt = holding(source, call.node) or call.node
    return [Silenced(stmt, (edit, guards(facts).helper(source)), why, whole=False)]


def _input(facts: Facts, call: Outside, stmt: cst.CSTNode | None) -> list[Silenced] | str:
    """`name = input(...)`: rank 0 asks, the others get its answer."""
    if isinstance(stmt, cst.Expr) and stmt.value is call.node:
        return _guarded([guards(facts).guard(call.source, stmt, call.node)], "one process has the terminal")
    if not call.events or not all(joined_group(facts, e) for e in call.events):
        return "it is asked before the process group is set up"
    text = f" if {guards(facts).is_main(call.source)} else None)"
    edit = Surround(call.source, call.node, f"{facts.names_of(call.source)['broadcast_value']}(", text)
    helpers = (guards(facts).helper(call.source), AddHelper(call.source, "broadcast_value"))
    return [Silenced(stmt or call.node, (edit, *helpers), "rank 0 asks, the others get its answer", whole=False)]


def _random_later(facts: Facts, call: Outside) -> bool:
    """Whether a split or permutation without a generator of its own comes after."""
    first = min((e.seq for e in call.events), default=0)
    for e in facts.flow.log.of("external"):
        if (
            e.seq > first
            and (role_of(e.name) == "random-split" or e.name == "torch.randperm")
            and "generator" not in e.extra
            and "2" not in e.extra
        ):
            return True
    return False
