"""An event and a model in, an answer out: does it make the raw model ready, so that the wrap has to come behind it?"""

from __future__ import annotations

import libcst as cst

from ddpify.facts.contents import looked_up_in, modules
from ddpify.facts.externals import keeps, role_of
from ddpify.facts.flow import Flow
from ddpify.facts.frames import Event, Frame
from ddpify.facts.methods import EXCHANGES, PREPARES
from ddpify.facts.roles import root, roots
from ddpify.facts.values import Class, Const, Data, Dict, Method, Module, Obj, Parameters, Seq, Thing, Wrapped
from ddpify.source import dotted

#: Methods that give the module back.
_SAME = frozenset({"to", "cuda", "train", "eval"})


def prepares(flow: Flow, event: Event, module: Module) -> bool:
    """`.to(...)`, `load_state_dict`, freezing, a layer exchanged, or a look at the raw module (`summary(model)`)."""
    held = looked_up_in(event.obj) or looked_up_in(_start(flow, event.node))
    held = held if isinstance(held, Module) else None
    if event.kind in ("set", "store") and held is not None:
        # model.fc = nn.Linear(512, 10); the wrapper knows the parameters that it found when it was made
        mine = module in (held, held.part_of, root(held))
        return mine and not all(isinstance(o, Const) for o in event.value)
    if event.kind == "method" and event.name in EXCHANGES and held is not None:
        return module in (held, held.part_of, root(held))
    if event.kind in ("method", "set") and isinstance(event.obj, Parameters):
        return event.name in ("requires_grad", "requires_grad_", "data") and module in map(root, event.obj.modules)
    if event.kind == "external" and event.name.startswith("torch.nn.init."):
        drawn = [m for o in event.value for m in (o.modules if isinstance(o, Parameters) else (looked_up_in(o),))]
        return module in [root(m) for m in drawn if isinstance(m, Module)]  # nn.init.zeros_(model.fc.bias)
    if event.kind == "method" and event.name in PREPARES and event.obj is not None:
        meant = modules((event.obj,)) or ([held] if held is not None else [])  # net.layer1.requires_grad_(False)
        return any(module in roots(m) for m in meant) and not isinstance(event.obj, Wrapped)
    if event.kind == "external" or (
        event.kind == "method" and isinstance(event.obj, Thing) and event.obj.module is None
    ):
        if event.kind == "external" and _copies(event.name):
            return False  # EMA(model): the copy is made of what every rank holds alike once the model is wrapped
        given = [*event.extra.values()]
        if keeps(event.name):
            return False  # it is kept there, not looked into
        return any(o is module for value in given for o in value) and not isinstance(event.obj, Class)
    return False


def _copies(name: str) -> bool:
    return role_of(name) in ("copy", "copy-module") and not name.startswith("torch.jit.")


def _start(flow: Flow, node: cst.CSTNode) -> Obj | None:
    """What the first name in a chain holds: `model` of `model.layers[0].fc`."""
    if not isinstance(node, (cst.Attribute, cst.Subscript, cst.Call)):
        return None
    while isinstance(node, (cst.Attribute, cst.Subscript, cst.Call)):
        node = node.func if isinstance(node, cst.Call) else node.value
    return next((o for o in flow.values.get(node, ()) if isinstance(o, (Module, Method))), None)


def only_notes(event: Event) -> bool:
    """`self.epoch = epoch`, `self.losses.append(loss)`: a number is kept, no layer exchanged."""
    if event.kind in ("set", "store"):
        return all(isinstance(o, (Data, Const)) for o in event.value)
    return event.kind == "method" and isinstance(event.obj, (Seq, Dict))


def comes_again(event: Event, first: Event) -> bool:
    """`net = net.train()` in the loop that trains, `self.net = self.net.to(device)` in each epoch: the same module."""
    if event.kind not in ("bind", "set"):
        return False
    outer = {id(lp.node) for lp in first.loops}
    if event.frame is first.frame:
        return any(id(lp.node) not in outer for lp in event.loops)
    match event.stmt:
        case cst.Assign(
            targets=[cst.AssignTarget(target=target)], value=cst.Call(func=cst.Attribute(value=held) as func)
        ):
            same = dotted(target) != "" and dotted(target) == dotted(held) and func.attr.value in _SAME
            outer |= {id(lp.node) for loops in first.all_loops() for lp in loops}
            return same and any(id(lp.node) not in outer for loops in event.all_loops() for lp in loops)
    return False


def runs_again(flow: Flow, frame: Frame, module: Module) -> bool:
    """Whether a loop that the model was made before leads to a function: `train_epoch(model)` for each epoch."""
    made = [e for e in flow.log.of("new") if e.obj is module]
    own = {id(lp.node) for e in made for loops in e.all_loops() for lp in loops}
    around = {id(lp.node) for chain in frame.chains() for entry in chain for lp in entry.loops}
    return bool(made) and not around <= own
