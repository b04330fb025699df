"""Wrap points in, the text of a wrap out: what the rules that wrap a model, once or again, share."""

from __future__ import annotations

import libcst as cst

from ddpify.facts import Facts
from ddpify.facts.frames import Frame
from ddpify.facts.late import late_move
from ddpify.facts.layers import mentions
from ddpify.facts.setup import SetUp, find_setup
from ddpify.facts.values import Const, Device
from ddpify.facts.wraps import WrapPoint


def device_ids(facts: Facts, w: WrapPoint) -> str:
    """`device_ids=` by what the scope knows: the device, an index, or nothing on the CPU."""
    setup = facts.cached("setup", find_setup)
    if not isinstance(setup, SetUp) or not setup.cuda or setup.either:
        return ""  # a module on one device, whichever that is, needs none
    if setup.device is None:
        return ""  # a module on one device needs none
    torch = facts.names_of(w.source)["torch"]
    name = name_in_scope(facts, setup, w.frame)
    if setup.device.form == "other" and setup.device.frame is not w.frame:
        name = None
    if name is None:
        return ""
    if setup.device.form == "index":
        return f", device_ids=[{name}] if {torch}.cuda.is_available() else None"
    return f', device_ids=[{name}.index] if {name}.type != "cpu" else None'


def own_name(facts: Facts, w: WrapPoint) -> str:
    """The name of the wrapper of a module that trains itself, chosen once."""
    return facts.cached(f"wrapper-{id(w)}", lambda f: f.names_of(w.source).fresh(w.target))


def sync_batchnorm(facts: Facts, w: WrapPoint, name: str, in_place: bool = False) -> tuple[str, ...]:
    """`if device.type == "cuda": model = nn.SyncBatchNorm.convert_sync_batchnorm(model)`, before a wrap.

    On the CPU SyncBatchNorm cannot train.
    """
    setup = facts.cached("setup", find_setup)
    if not facts.sync_bn or not any(mentions(m, ("BatchNorm",)) for m in w.modules):
        return ()
    if not isinstance(setup, SetUp) or not setup.cuda or w.made is not None:
        return ()
    known = name_in_scope(facts, setup, w.frame) if setup.device is not None and not setup.either else None
    is_device = setup.device is not None and setup.device.form not in ("index", "other")
    of = f"{torch_of(facts, w)}.nn.SyncBatchNorm.convert_sync_batchnorm"
    each = name if not w.shape else w.each[-1]
    test = f'{known}.type == "cuda"' if known and is_device else f"next({each}.parameters()).is_cuda"
    if not w.shape:
        return (f"if {test}:\n    {of}({name})" if w.uses or in_place else f"if {test}:\n    {name} = {of}({name})",)
    return (_each(w, f"{of}({each}) if {test} else {each}"),)


def torch_of(facts: Facts, w: WrapPoint) -> str:
    return facts.names_of(w.source)["torch"]


def moved(facts: Facts, w: WrapPoint) -> str | None:
    """`.to(device)`, of a model that the script moves only behind its wrap; None where the device has no name yet."""
    setup, move = facts.cached("setup", find_setup), late_move(facts, w)
    if move is None or not isinstance(setup, SetUp) or not (setup.cuda or setup.accelerator):
        return ""
    tests = (a for a in move.frame.source.ancestors(move.stmt) if isinstance(a, cst.If))
    if move.name == "cuda" and isinstance(move.node, cst.Call) and not move.node.args and next(tests, None) is None:
        return ".cuda()"
    if setup.device is None or setup.either or setup.device.form in ("index", "other"):
        return None
    name = name_in_scope(facts, setup, w.frame)
    return f".to({name})" if name is not None else None


def wrap_statement(w: WrapPoint, ddp: str, ids: str, torch: str = "torch") -> str:
    """`model = DDP(model)`; of a list, tuple or dict of models, a new one. `ids` is what follows the model there."""
    if not w.shape:
        made = f"{w.target} = {ddp}({w.target}{ids})"
        if w.there:
            return f"if {w.there}:\n    {made}"
        if w.may_be_plain:
            return f"if isinstance({w.target}, {torch}.nn.Module) and {_trains(w.target)}:\n    {made}"
        return only_if_trained(made, w.target, w.may_be_frozen)
    name = w.each[-1]
    made = f"{ddp}({name}{ids})"
    return _each(w, f"{made} if {_trains(name)} else {name}" if w.may_be_frozen else made)


def _each(w: WrapPoint, made: str) -> str:
    """`nets = [... for net in nets]`, `nets = {key: ... for key, net in nets.items()}`"""
    name = w.each[-1]
    if w.shape == "dict":
        key = w.each[0] if len(w.each) > 1 else "name" if name != "name" else "key"
        return f"{w.target} = {{{key}: {made} for {key}, {name} in {w.target}.items()}}"
    every = f"{made} for {name} in {w.target}"
    return f"{w.target} = [{every}]" if w.shape == "list" else f"{w.target} = tuple({every})"


def only_if_trained(made: str, name: str, may_be_frozen: bool) -> str:
    """`if any(p.requires_grad for p in encoder.parameters()):` before a wrap that DDP would refuse otherwise."""
    return f"if {_trains(name)}:\n    {made}" if may_be_frozen else made


def _trains(name: str) -> str:
    parameter = "p" if name != "p" else "param"
    return f"any({parameter}.requires_grad for {parameter} in {name}.parameters())"


def name_in_scope(facts: Facts, setup: SetUp, frame: Frame) -> str | None:
    """The name by which a frame knows the device that the set-up gives."""
    assert setup.device is not None
    held = facts.flow.values
    chosen = [s.value for s in setup.device.stmts if isinstance(s, (cst.Assign, cst.AnnAssign)) and s.value is not None]
    wanted = {id(o) for v in chosen for o in _values(held.get(v))}
    nodes = {id(v) for v in chosen}
    if frame is setup.frame:
        return setup.device.target
    func = frame.func
    for name, value in frame.scope.names.items():
        if any(
            id(o) in wanted or (isinstance(o, Const) and id(o.node) in nodes)
            for o in value
            if isinstance(o, (Device, Const))
        ):
            fields = getattr(getattr(func, "bound", None), "fields", {})
            field = next((f for f, other in fields.items() if other == value), None)
            return f"{func.node.params.params[0].name.value}.{field}" if field and func is not None else name
    return setup.device.target if frame.scope.holder(setup.device.target) is setup.frame.scope else None


def _values(value: object) -> tuple[object, ...]:
    return value if isinstance(value, tuple) else ()
