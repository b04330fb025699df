"""What a checkpoint is made of in, whether its keys may be others than the wrapper's out."""

from __future__ import annotations

import libcst as cst

from ddpify.facts import Facts
from ddpify.facts.definitions import definitions, reaching
from ddpify.facts.frames import Event, Frame
from ddpify.facts.values import StateDict, Value, Wrapped
from ddpify.source import dotted, walk

_DEPTH = 6
_COMPREHENSIONS = (cst.DictComp, cst.ListComp, cst.GeneratorExp)
#: what keeps the keys of a dict
_KEEPS = frozenset({"dict", "OrderedDict", "collections.OrderedDict", "copy.copy", "copy.deepcopy", "deepcopy"})


def renames_keys(facts: Facts, save: Event) -> bool:
    """`state = {k[7:]: v for k, v in state.items()}`, `state[k[7:]] = state.pop(k)`, on some way to what is saved."""
    call = save.node
    given = call.args[0].value if isinstance(call, cst.Call) and call.args else None
    return given is not None and _renamed(facts, given, save.frame, _DEPTH)


def _renamed(facts: Facts, node: cst.CSTNode, frame: Frame, depth: int) -> bool:
    if not depth:
        return False
    match node:
        case cst.Name() | cst.Attribute():
            held = facts.flow.values.get(node, ())
            if _of_wrapper(held) and _is_stored_into(facts, held):
                return True
            found = reaching(definitions(facts.flow).of(node, frame), node, frame)
            return any(_renamed(facts, d.node, d.frame, depth - 1) for d in found)
        case cst.Dict(elements=elements):
            return any(_renamed(facts, e.value, frame, depth - 1) for e in elements)
        case cst.DictComp() | cst.ListComp() | cst.GeneratorExp():
            return True
        case cst.Call(func=func, args=args):
            kept = dotted(func) in _KEEPS
            plain = [a.value for a in args if not (kept and a.keyword is not None)]
            if kept:
                return any(_renamed(facts, a, frame, depth - 1) for a in plain)
            ran = definitions(facts.flow).of(node, frame)
            if ran:
                return any(_renamed(facts, d.node, d.frame, depth - 1) for d in ran)
            asks = isinstance(func, cst.Attribute) and func.attr.value == "state_dict"
            # strip_prefix(state), of a function that is not read
            return not asks and any(_of_wrapper(facts.flow.values.get(a, ())) for a in plain)
    return any(isinstance(n, _COMPREHENSIONS) for n in walk(node))


def _of_wrapper(value: Value) -> bool:
    return any(isinstance(o, StateDict) and isinstance(o.of, Wrapped) for o in value)


def _is_stored_into(facts: Facts, value: Value) -> bool:
    mine = [o for o in value if isinstance(o, StateDict)]
    return any(e.obj in mine for e in facts.flow.log.of("store"))
