"""The flow after the wrap in, what changes a wrapped model before it trains again out: layers, freezing, weights."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.contents import constants, join, modules, start_of_chain
from ddpify.facts.frames import Event
from ddpify.facts.placing import steps
from ddpify.facts.replay import replay
from ddpify.facts.roles import root
from ddpify.facts.values import Module, Obj, Parameters, Thing, Wrapped
from ddpify.source import Source

if TYPE_CHECKING:
    from ddpify.facts import Facts
    from ddpify.facts.flow import Flow

_PUTS = frozenset({"add_module", "append", "extend", "insert", "register_module", "register_parameter"})
_PUTS |= {"__setattr__", "__setitem__"}
_LAYERS = frozenset({"reset_classifier", "resize_token_embeddings"})
_DRAWS = frozenset({"reset_parameters", "init_weights"})


#: what gives the weights the same values on every rank
_FILLS = re.compile(r"torch\.nn\.init\.(constant|zeros|ones|eye|dirac)_")


@dataclass(frozen=True, eq=False)
class Change:
    """An event behind the wrap that leaves the wrapper with the parameters of before."""

    event: Event
    wrapped: Wrapped
    what: str
    #: it happens in the loop over the batches, at every turn
    each_step: bool = False
    #: parameters are frozen or freed
    toggles: bool = False


def find_changes(facts: Facts) -> list[Change]:
    """Changes of wrapped models that are trained through the same wrapper afterwards."""
    flow, training = facts.after, facts.after_roles.training_forwards
    trains: dict[int, list[Event]] = {}
    for e in flow.log.of("forward"):
        if isinstance(e.obj, Wrapped) and e.grad is not False and e.node in training:
            trains.setdefault(id(e.obj), []).append(e)
    steps_taken = {id(loops[-1].node) for b in facts.after_roles.backwards for loops in b.all_loops() if loops}
    found: list[Change] = []
    for w in facts.after_roles.wrapped:
        mine = {root(m) for m in modules((w,))}
        made = min((e.seq for e in flow.log.of("new") if e.obj is w), default=0)
        happened = list(replay(flow, "set", "store", "method", "external", "forward"))
        last = {id(e): at for at, e in enumerate(happened)}  # a function that is called again does it again
        for at, e in enumerate(happened):
            what = _what(flow, e, mine) if e.kind != "forward" else ""
            if not what or e.seq < made:
                continue
            around = _loops(e)
            later = [t for t in trains.get(id(w), ()) if last.get(id(t), 0) > at or _loops(t) & around]
            if later and not wrapped_again(facts, e, w, later):
                found.append(Change(e, w, what, bool(around & steps_taken), "requires_grad" in e.name))
    return found


def _what(flow: Flow, e: Event, mine: set[Module]) -> str:
    """What an event does to the model, in words; nothing where it leaves its parameters alone."""
    if e.kind in ("set", "method") and e.name in ("requires_grad", "requires_grad_"):
        return "freezes or frees parameters of the model" if _toggles(e, mine) else ""
    if not mine & {root(m) for m in _touched(flow, e)}:
        return ""
    if e.kind in ("set", "store") or e.name in _PUTS:
        given = join(e.value, *e.extra.values()) if e.kind == "method" else e.value
        held = [m for m in modules(given) if m.has_parameters and m not in mine]
        fresh = held or any(isinstance(o, Thing) and o.name == "parameter" for o in given)
        return "exchanges a layer of the model" if fresh and e.name != "grad" else ""
    if e.kind == "method" and e.name in _LAYERS:
        return "exchanges a layer of the model"
    draws = (
        (e.kind == "external" and not _FILLS.fullmatch(e.name))
        or e.name in _DRAWS
        or (e.name == "apply" and _draws(flow, e))
    )
    return "draws weights of the model anew" if draws else ""


def _toggles(e: Event, mine: set[Module]) -> bool:
    """A part of the model is frozen or freed; the whole of it may be frozen, as a GAN does with its discriminator."""
    held = e.obj.modules if isinstance(e.obj, Parameters) else modules((e.obj,)) if e.obj is not None else ()
    if not mine & {root(m) for m in held}:
        return False
    told = constants(e.value) if e.value else [True]
    part = isinstance(e.obj, Parameters) and e.obj.part
    whole = not part and all(m in mine for m in held) and not _picks(e)
    return not whole or (told != [False] and not _in_step(e))


def _in_step(e: Event) -> bool:
    """Whether the gradients of the whole model are switched in each step: the loop over its parameters is inside."""
    return any(len(loops) > (2 if isinstance(e.obj, Parameters) else 1) for loops in e.all_loops())


def _picks(e: Event) -> bool:
    """`for name, p in model.named_parameters(): if "fc" in name: ...`"""
    for above in e.frame.source.ancestors(e.stmt):
        if isinstance(above, cst.If):
            return True
        if isinstance(above, (cst.For, cst.While, cst.FunctionDef)):
            return False
    return False


def _touched(flow: Flow, e: Event) -> list[Module]:
    """The modules that an event changes: of `model.fc = ...`, `model.layers[0].fc = ...`, `nn.init.zeros_(model.w)`."""
    if e.kind == "external":
        if not e.name.startswith("torch.nn.init."):
            return []
        return [m for o in e.value for m in (o.modules if isinstance(o, Parameters) else modules(_owner(o)))]
    held = _owner(e.obj)
    node: cst.CSTNode = e.node
    while not held and isinstance(node, (cst.Attribute, cst.Subscript, cst.Call)):
        node = node.func if isinstance(node, cst.Call) else node.value
        held = tuple(o for v in flow.values.get(node, ()) for o in _owner(v))
    return modules(held)


def _owner(obj: Obj | None) -> tuple[Module | Wrapped, ...]:
    start = start_of_chain(obj)
    return (start,) if isinstance(start, (Module, Wrapped)) else ()


def _draws(flow: Flow, e: Event) -> bool:
    """`model.apply(init)` where `init` draws; clipping the weights does not."""
    inits = (x for x in flow.log.of("external") if x.name.startswith("torch.nn.init.") and "constant" not in x.name)
    return any(entry.call is e.node for x in inits for chain in x.frame.chains(4) for entry in chain)


def _loops(e: Event) -> set[int]:
    return {id(lp.node) for loops in e.all_loops() for lp in loops}


def wrapped_again(facts: Facts, e: Event, w: Wrapped, later: list[Event]) -> bool:
    """`model = DDP(model.module)` behind the change, before the model trains again."""
    mine = {root(m) for m in modules((w,))}
    again = [
        n
        for n in facts.after.log.of("new")
        if isinstance(n.obj, Wrapped) and mine & {root(m) for m in modules((n.obj,))}
    ]
    ahead = [t.seq for t in later if t.seq > e.seq]
    return any(n.seq > e.seq and (not ahead or n.seq < min(ahead)) and _follows(e, n) for n in again)


def _follows(e: Event, n: Event) -> bool:
    """Whether the wrap stands behind the change, in its block or in one around it."""
    for frame, stmt, _ in steps(e):
        if frame is n.frame:
            blocks = [a for a in frame.source.ancestors(n.stmt) if isinstance(a, (cst.IndentedBlock, cst.Module))]
            return bool(blocks) and blocks[0] in list(frame.source.ancestors(stmt))
    return False


def anchor(source: Source, stmt: cst.CSTNode, busy: set[cst.CSTNode]) -> cst.CSTNode:
    """The statement behind which a change is complete: the loops over parameters, but none that trains."""
    found = stmt
    for above in _outwards(source, stmt):
        if isinstance(above, (cst.For, cst.While)) and above not in busy:
            found = above
        elif isinstance(above, (cst.For, cst.While, cst.FunctionDef)):
            break
    return found


def _outwards(source: Source, stmt: cst.CSTNode) -> Iterator[cst.CSTNode]:
    yield from source.ancestors(stmt)
