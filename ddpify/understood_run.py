"""Facts in, the rows about how a script runs out: its entry point, its devices, what it loads and what it saves."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddpify.facts import Facts
from ddpify.facts.contents import modules
from ddpify.facts.devices import device_uses
from ddpify.facts.externals import role_of
from ddpify.facts.frames import Event
from ddpify.facts.placing import is_guard
from ddpify.facts.roles import root
from ddpify.facts.trails import shown, way_back
from ddpify.facts.values import (
    Const,
    Data,
    Device,
    Dict,
    Heap,
    Module,
    Obj,
    Optimizer,
    Scheduler,
    StateDict,
    Thing,
    Wrapped,
)
from ddpify.rows import Row, at, event_line, line_of, made, way_of


def entry_point(facts: Facts) -> Iterator[Row]:
    """The call of the script's own code that gets to the training, and on which way."""
    if not facts.roles.backwards:
        return
    backward = facts.roles.backwards[0]
    chain = next(backward.frame.chains(), ())
    if backward.seq >= facts.flow.main_end:
        func = chain[0].frame.func or backward.frame.func if chain else backward.frame.func
        if func is not None:
            yield Row(func.source, func.node, f"trains ({event_line(backward, facts)}), but nothing calls it")
        return
    first, source = (chain[0].stmt, chain[0].frame.source) if chain else (backward.stmt, backward.frame.source)
    calls = [f"`{shown(e.frame.source, e.call)}` ({line_of(e.frame.source, e.call, facts)})" for e in chain]
    way = f"the way to .backward() at {event_line(backward, facts)}: {', '.join(calls)}" if calls else ""
    guard = next((a for a in source.ancestors(first) if is_guard(a)), None)
    behind = f"behind the main guard at {line_of(source, guard, facts)}" if guard is not None else "at the top level"
    yield Row(source, chain[0].call if chain else backward.node, "; ".join(filter(None, (f"trains, {behind}", way))))
    for event in facts.flow.log.of("parsed"):
        if event.seq < facts.flow.main_end:
            yield Row(event.frame.source, event.node, "parses the command line")


def devices(facts: Facts) -> Iterator[Row]:
    """Where the script says on which device it works."""
    for event in facts.flow.log.of("new"):
        if isinstance(event.obj, Device):
            index = f", index {event.obj.index}" if event.obj.index is not None else ""
            yield from made(event.obj, f"torch.device of kind {event.obj.kind}{index}")
    for node, value in facts.flow.values.items():
        source = facts.source_of(node) if isinstance(node, (cst.Call, cst.SimpleString)) else None
        if source is None or node not in source.parents:
            continue
        if isinstance(node, cst.Call):
            found = [o for o in value if isinstance(o, Device) and o.site.node is node]
            yield from (Row(source, node, f"a device of kind {o.kind}") for o in found)
        elif any(isinstance(o, Const) and str(o.value).split(":")[0] in ("cuda", "mps") for o in value):
            yield Row(source, node, "names a device")
    for event in facts.flow.log.of("method"):
        if event.name == "cuda" and isinstance(event.node, cst.Call):
            yield Row(event.frame.source, event.node, "moves to CUDA")
    for name, events in facts.identifiers.items():
        if name.startswith(("torch.cuda.set_device", "torch.set_default_device", "torch.set_default_tensor_type")):
            yield from (Row(e.frame.source, e.node, name) for e in events)
    yield from _by_number(facts)


def _by_number(facts: Facts) -> Iterator[Row]:
    """`.to(gpu)`: a device that is none by its value, with the way on which it came."""
    for event, value in device_uses(facts):
        call = event.node
        plain = not any(isinstance(o, Device) for o in value) and any(isinstance(o, (Data, Const)) for o in value)
        holds = isinstance(event.obj, (Module, Wrapped, Thing)) or event.kind == "external"
        if plain and holds and isinstance(call, cst.Call) and event.name != "torch.device":
            given = _device_argument(event, call)
            if isinstance(given, (cst.Name, cst.Attribute)):
                way = way_of(way_back(facts.flow, given, event.frame.source, event.frame))
                yield Row(event.frame.source, call, f"takes `{shown(event.frame.source, given)}` for a device: {way}")


def _device_argument(event: Event, call: cst.Call) -> cst.BaseExpression | None:
    """`gpu` of `.to(gpu)`, `torch.cuda.set_device(gpu)`, `torch.ones(3, device=gpu)`"""
    named = next((a.value for a in call.args if a.keyword is not None and a.keyword.value == "device"), None)
    first = event.kind == "method" or event.name.startswith("torch.cuda.")
    return named or (call.args[0].value if first and call.args else None)


def loads(facts: Facts) -> Iterator[Row]:
    """`torch.load`, and what the states go to; epochs that do not begin at 0."""
    for event in facts.flow.log.of("external"):
        if role_of(event.name) == "load":
            yield Row(event.frame.source, event.node, f"{event.name} reads a file")
    for event in facts.flow.log.of("method"):
        if event.name == "load_state_dict":
            when = "before" if event.seq < _first_forward(facts) else "behind"
            yield Row(event.frame.source, event.node, f"into {_kind(event.obj, facts)}, {when} the first training step")
    for epoch in facts.roles.epoch_loops:
        over = getattr(epoch.loop.node, "iter", None) if epoch.loop is not None else None
        if epoch.loop is None or not isinstance(over, cst.Call) or len(over.args) < 2:
            continue
        start, source = over.args[0].value, epoch.loop.frame.source
        if isinstance(start, (cst.Name, cst.Attribute, cst.BinaryOperation)):
            way = way_of(way_back(facts.flow, start, source, epoch.loop.frame))
            yield Row(source, start, f"the epochs begin at it: {way}")


def saves(facts: Facts) -> Iterator[Row]:
    """What is written, and of which object it is the state."""
    for event in facts.flow.log.of("external"):
        if role_of(event.name) == "save":
            given = next(iter(event.extra.values()), event.value)
            kinds = list(dict.fromkeys(_kind(o, facts) for v in (given, event.value) for o in _states(v)))
            yield Row(
                event.frame.source, event.node, f"writes the state of {' and '.join(kinds)}" if kinds else "writes"
            )


def _states(value: tuple[Obj, ...]) -> Iterator[Obj]:
    """The objects whose states a value has: of a checkpoint's dict, all of them."""
    for obj in value:
        if isinstance(obj, StateDict) and obj.of is not None:
            yield obj.of
        elif isinstance(obj, Dict):
            for held in obj.items.values():
                yield from (o for o in _states(held))
        elif isinstance(obj, (Module, Wrapped)):
            yield obj


def _kind(obj: Obj | None, facts: Facts) -> str:
    known = [root(m) for m in modules((obj,))] if obj is not None else []
    if known:
        return f"the module made at {at(known[0], facts)}"
    if not isinstance(obj, Heap):
        return "something that could not be followed"
    what = {Optimizer: "the optimizer", Scheduler: "the scheduler"}.get(type(obj), "what was")
    return f"{what} made at {at(obj, facts)}"


def _first_forward(facts: Facts) -> int:
    training = facts.roles.training_forwards
    return min((e.seq for e in facts.flow.log.of("forward") if e.node in training), default=facts.flow.main_end)
