"""The flow after the wrap in, moves of a trained model out, with what is saved of it while it is on the CPU."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.changes import wrapped_again
from ddpify.facts.contents import constants
from ddpify.facts.frames import Event
from ddpify.facts.outside import holding
from ddpify.facts.placing import following
from ddpify.facts.values import Const, Data, Ext, Method, Module, Wrapped
from ddpify.source import Source, walk

if TYPE_CHECKING:
    from ddpify.facts import Facts

_MOVES = frozenset({"cpu", "half", "double", "float", "bfloat16"})
_TYPES = re.compile(r"torch\.(float|double|half|bfloat16|float16|float32|float64)")
#: What is done with a model between its way to the CPU and its way back, where it is only saved.
_SAVING = frozenset({"state_dict", "eval", "train", "to", "cuda", "module"})


@dataclass(frozen=True, eq=False)
class Move:
    """`model.cpu()` of a model that is trained on. `states` are the `state_dict()` calls that a copy serves as well.

    `gone` are the statements that then go as a whole: the move itself, and the way back.
    """

    event: Event
    call: cst.Call
    states: tuple[cst.Call, ...] = ()
    gone: tuple[cst.CSTNode, ...] = ()
    #: the statement that moves the model back, before it trains again
    back: cst.CSTNode | None = None

    @property
    def source(self) -> Source:
        return self.event.frame.source


def find_moves(facts: Facts) -> list[Move]:
    """The moves, each once."""
    log = facts.after.log
    training = facts.after_roles.training_forwards
    through = [e for e in log.of("forward") if isinstance(e.obj, Wrapped) and e.grad is not False]
    trains = [e for e in through if e.node in training]
    made = {id(e.obj): e.seq for e in log.of("new") if isinstance(e.obj, Wrapped)}
    found: dict[int, Move] = {}
    for e in log.of("method"):
        if id(e.node) in found or not isinstance(e.node, cst.Call) or not _moves(e):
            continue
        later = [t for t in trains if _is_of(e, t, made) and (t.seq > e.seq or _loops(t) & _loops(e))]
        held = next((t.obj for t in later if isinstance(t.obj, Wrapped)), None)
        if held is not None and not wrapped_again(facts, e, held, later):
            move = _with_states(facts, e, e.node)
            back = _between_trainings(e, later) or _way_back(facts, e, later)
            found[id(e.node)] = move if move.states else replace(move, back=back)
    return list(found.values())


def moves(facts: Facts) -> list[Move]:
    """The moves of a script, found once."""
    made = facts.cached("moves", find_moves)
    return made


def _moves(e: Event) -> bool:
    known = isinstance(e.obj, (Wrapped, Module))
    if e.name == "cpu" or (e.name == "to" and constants(e.value) == ["cpu"]):
        return known and any(w in e.frame.source.text for w in ("cuda", "accelerator"))  # else it was there
    typed = e.name == "to" and any(isinstance(o, Ext) and _TYPES.fullmatch(o.name) for o in e.value)
    return known and (typed or e.name in _MOVES)


def _is_of(move: Event, training: Event, made: dict[int, int]) -> bool:
    """The wrapper that is trained through, or the module in it, once it is wrapped."""
    trained = training.obj
    inner = isinstance(trained, Wrapped) and move.obj in trained.module and made.get(id(trained), 0) < move.seq
    return move.obj is trained or inner


def _loops(e: Event) -> set[int]:
    return {id(lp.node) for loops in e.all_loops() for lp in loops}


def _with_states(facts: Facts, e: Event, call: cst.Call) -> Move:
    source = e.frame.source
    above = source.parents.get(call)
    asked = source.parents.get(above) if isinstance(above, cst.Attribute) else None
    if e.name not in ("cpu", "to"):
        return Move(e, call)
    if isinstance(above, cst.Attribute) and above.attr.value == "state_dict" and isinstance(asked, cst.Call):
        return Move(e, call, (asked,))
    stmt = holding(source, call)
    if not isinstance(stmt, cst.Expr) or isinstance(above, cst.Arg):
        return Move(e, call)
    assert isinstance(call.func, cst.Attribute)
    gone: list[cst.CSTNode] = [stmt] if stmt.value is call and not isinstance(call.func.value, cst.Call) else []
    states: list[cst.Call] = []
    for later in following(source, stmt):
        inside = set(walk(later))
        done = [o for o in facts.after.log.events if o.node in inside and o.obj is not None and _kin(o, e)]
        done = [o for o in done if not _is_plain(facts, o)]
        names = {o.name if o.kind in ("attribute", "method") else o.kind for o in done}
        if not names <= _SAVING:
            return Move(e, call)
        states += [o.node for o in done if o.name == "state_dict" and isinstance(o.node, cst.Call)]
        if names & {"to", "cuda"}:
            back = later.value if isinstance(later, cst.Expr) else None
            if isinstance(back, cst.Call) and isinstance(back.func, cst.Attribute):
                gone += [later] if not isinstance(back.func.value, cst.Call) and back.func.attr.value in names else []
            break
    return Move(e, call, tuple(dict.fromkeys(states)), tuple(gone))


def _is_plain(facts: Facts, e: Event) -> bool:
    """`model.latent_dim`: what the script has set is no parameter and no buffer, and moves with no model."""
    held = facts.after.values.get(e.node, ()) if e.kind == "attribute" else ()
    held = tuple(o.obj if isinstance(o, Method) else o for o in held)
    return bool(held) and all(isinstance(o, (Const, Data)) for o in held)


def _between_trainings(e: Event, trains: list[Event]) -> cst.CSTNode | None:
    """`model.double()` behind one training and before another, in none of their loops: it is wrapped again there."""
    stmt = holding(e.frame.source, e.node) if isinstance(e.node, cst.Call) else None
    to_cpu = e.name == "cpu" or (e.name == "to" and constants(e.value) is not None)
    alone = not to_cpu and not any(_loops(e) & _loops(t) for t in trains)
    return stmt if alone and isinstance(stmt, (cst.Expr, cst.Assign)) else None


def _way_back(facts: Facts, e: Event, trains: list[Event]) -> cst.CSTNode | None:
    """`model.to(device)`, in the block of a move to the CPU and before the model trains there."""
    source = e.frame.source
    stmt = holding(source, e.node) if isinstance(e.node, cst.Call) else None
    for later in following(source, stmt) if e.name in ("cpu", "to") and stmt is not None else ():
        inside = set(walk(later))
        if any(t.node in inside for t in trains):
            return None
        done = [o for o in facts.after.log.of("method") if o.node in inside and o.obj is not None and _kin(o, e)]
        if any(o.name == "cuda" or (o.name == "to" and not _moves(o)) for o in done):
            return later if isinstance(later, (cst.Expr, cst.Assign)) else None
    return None


def _kin(one: Event, other: Event) -> bool:
    return bool(_held(one) & _held(other))


def _held(e: Event) -> set[int]:
    return {id(e.obj), *(id(m) for m in (e.obj.module if isinstance(e.obj, Wrapped) else ()))}
