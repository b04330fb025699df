"""Flow in, device choices out: where the script decides on which device it works, and where one is hard-coded."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.contents import constants
from ddpify.facts.frames import Event, Frame
from ddpify.facts.placing import statement_of
from ddpify.facts.values import Const, Data, Device, Method, Module, Obj, Thing, Value, Wrapped
from ddpify.source import Source, walk

if TYPE_CHECKING:
    from ddpify.facts import Facts

_CURRENT = "torch.cuda.current_device"
DEVICE = re.compile(r"(cuda|cpu|mps|xpu|hpu)(:\d+)?")


@dataclass(frozen=True, eq=False)
class DeviceChoice:
    """`device = ...`: the statements that choose, and how.

    `form` is ifexp (`"cuda" if T else "cpu"`), if (an if statement that assigns in each branch), cuda (a fixed GPU),
    index (an integer), cpu, accelerator (torch.accelerator without a test) or other.
    """

    target: str
    source: Source
    frame: Frame
    stmts: tuple[cst.CSTNode, ...]
    owner: cst.CSTNode
    form: str
    test: cst.BaseExpression | None = None
    mps: bool = False
    accelerator: bool = False


@dataclass(frozen=True, eq=False)
class FixedDevice:
    """A place that names one GPU: `.to("cuda:0")`, `.cuda(0)`, `torch.cuda.set_device(0)`, `torch.cuda.device(0)`."""

    node: cst.CSTNode
    source: Source
    how: str
    argument: cst.BaseExpression | None = None
    event: Event | None = None


def device_uses(facts: Facts) -> list[tuple[Event, Value]]:
    """What is handed over where a device is expected."""
    found: list[tuple[Event, Value]] = []
    for e in facts.flow.log.events:
        if e.kind == "method" and e.name in ("to", "cuda") and isinstance(e.obj, (Module, Wrapped, Data, Thing)):
            value = e.extra.get("device", e.value)
            if value:
                found.append((e, value))
        elif e.kind == "external" and "device" in e.extra:
            found.append((e, e.extra["device"]))
        elif e.kind == "external" and e.name in ("torch.device", "torch.cuda.set_device", "torch.cuda.device"):
            found.append((e, e.value))
    return found


def unread_devices(facts: Facts) -> list[Event]:
    """`model.to(config.device)`, where what made `config` could not be read: it may be a GPU, or the CPU."""
    return [
        e
        for e, value in device_uses(facts)
        if e.name == "to" and isinstance(e.obj, (Module, Wrapped, Thing)) and any(map(_is_unread, value))
    ]


def _is_unread(obj: Obj) -> bool:
    return isinstance(obj, Method) and isinstance(obj.obj, Thing) and obj.name != "dtype"


def is_device(value: Value, used: set[int]) -> bool:
    """Device objects, device strings, or literals that are used as one."""
    if not value:
        return False
    for obj in value:
        text = isinstance(obj, Const) and isinstance(obj.value, str) and DEVICE.fullmatch(obj.value)
        number = isinstance(obj, Const) and obj.node is not None and id(obj.node) in used
        if not (isinstance(obj, Device) or text or number):
            return False
    return True


def device_choices(facts: Facts) -> list[DeviceChoice]:
    """The statements that give a name to a device, those for one name together."""
    used = {id(o.node) for _, v in device_uses(facts) for o in v if isinstance(o, Const) and o.node is not None}
    groups: dict[tuple[int, str], list[Event]] = {}
    for e in facts.flow.log.of("bind", "set"):
        if (
            e.seq >= facts.flow.main_end
            or not is_device(e.value, used)
            or not isinstance(e.stmt, (cst.Assign, cst.AnnAssign))
        ):
            continue
        value = e.stmt.value
        if value is None or not _chooses(facts, value):
            continue
        groups.setdefault((id(e.frame), e.frame.source.code(e.node)), []).append(e)
    return [_choice(facts, events, target) for (_, target), events in groups.items()]


def _chooses(facts: Facts, value: cst.BaseExpression) -> bool:
    """A literal, a call of torch.device or the like, or a choice between them; not a mere copy of another name."""
    if isinstance(value, (cst.SimpleString, cst.Integer, cst.IfExp, cst.BooleanOperation)):
        return True
    if isinstance(value, cst.Call):
        names = [getattr(o, "name", "") for o in facts.flow.values.get(value.func, ())]
        return any(n in ("torch.device", "torch.accelerator.current_accelerator", _CURRENT) for n in names)
    return False


def _choice(facts: Facts, events: list[Event], target: str) -> DeviceChoice:
    first = events[0]
    source, frame = first.frame.source, first.frame
    stmts = tuple(dict.fromkeys(e.stmt for e in events))
    texts = [str(n.evaluated_value) for s in stmts for n in walk(s) if isinstance(n, cst.SimpleString)]
    mps = any(t.startswith("mps") for t in texts)
    accelerator = any(isinstance(o, Device) and o.kind == "accelerator" for e in events for o in e.value)
    owner, form, test = _form(facts, source, stmts, events)
    return DeviceChoice(target, source, frame, stmts, owner, form, test, mps, accelerator)


def _form(
    facts: Facts, source: Source, stmts: tuple[cst.CSTNode, ...], events: list[Event]
) -> tuple[cst.CSTNode, str, cst.BaseExpression | None]:
    if len(stmts) == 1:
        stmt = stmts[0]
        value = getattr(stmt, "value", None)
        assert isinstance(value, cst.BaseExpression)
        form, test = _value_form(facts, value, events[0].value)
        return stmt, form, test
    parents = [next((a for a in source.ancestors(s) if isinstance(a, cst.If)), None) for s in stmts]
    first = parents[0]
    top = first
    while top is not None and isinstance(up := source.parents.get(top), cst.If) and up.orelse is top:
        top = up
    if top is not None and _only(top, stmts) and len(stmts) == 2 and isinstance(top.orelse, cst.Else):
        kinds = [_kinds(e.value) for e in events]
        if kinds[-1] == {"cpu"} and "cpu" not in kinds[0]:
            return top, "if", top.test
    return (top if top is not None and _only(top, stmts) else stmts[-1]), "other", None


def _only(top: cst.If, stmts: tuple[cst.CSTNode, ...]) -> bool:
    """Whether the branches of an if statement hold these assignments and nothing else."""
    lines = [n for n in walk(top) if isinstance(n, cst.BaseSmallStatement)]
    return set(lines) == set(stmts)


def _kinds(value: Value) -> set[str]:
    found: set[str] = set()
    for obj in value:
        if isinstance(obj, Device):
            found.add(obj.kind)
        elif isinstance(obj, Const):
            found.add(str(obj.value).split(":")[0] if isinstance(obj.value, str) else "cuda")
    return found


def _value_form(facts: Facts, value: cst.BaseExpression, held: Value) -> tuple[str, cst.BaseExpression | None]:
    inner = value
    if isinstance(value, cst.Call) and len(value.args) == 1:
        inner = value.args[0].value
    if isinstance(inner, cst.IfExp):
        one, other = facts.flow.values.get(inner.body, ()), facts.flow.values.get(inner.orelse, ())
        if (
            _kinds(one)
            and _kinds(one) <= {"cuda", "accelerator"}
            and "cpu" in _kinds(other) | _nested(facts, inner.orelse)
        ):
            return "ifexp", inner.test
        return "other", None
    if isinstance(value, cst.Integer) or (isinstance(held[0], Const) and isinstance(held[0].value, int)):
        return "index", None
    kinds = _kinds(held)
    if kinds == {"cpu"}:
        return "cpu", None
    if kinds == {"cuda"}:
        return "cuda", None
    return ("accelerator" if kinds == {"accelerator"} else "other"), None


def _nested(facts: Facts, node: cst.BaseExpression) -> set[str]:
    return {str(n.evaluated_value).split(":")[0] for n in walk(node) if isinstance(n, cst.SimpleString)}


def only_availability(facts: Facts, test: cst.BaseExpression | None) -> bool:
    """`torch.cuda.is_available()` (or torch.accelerator's) and nothing else."""
    if test is None:
        return True
    if not isinstance(test, cst.Call):
        return False
    names = {getattr(o, "name", "") for o in facts.flow.values.get(test.func, ())}
    return names <= {"torch.cuda.is_available", "torch.accelerator.is_available"} and bool(names)


def fixed_devices(facts: Facts) -> list[FixedDevice]:
    """GPUs that are named where they are used, and calls of set_device."""
    found: list[FixedDevice] = []
    for e in facts.flow.log.events:
        if not isinstance(e.node, cst.Call):
            continue
        source = e.frame.source
        if e.kind == "external" and e.name == "torch.cuda.set_device":
            found.append(
                FixedDevice(
                    statement_of(source, e.node), source, "set_device", e.node.args[0].value if e.node.args else None, e
                )
            )
            continue
        if e.kind == "external" and e.name == "torch.cuda.device" and e.node.args:
            given = facts.flow.values.get(e.node.args[0].value, ())
            if not any(isinstance(o, Device) for o in given) and constants(given) not in ([None], ["cuda"]):
                found.append(FixedDevice(e.node, source, "context", e.node.args[0].value))
            continue
        for arg in e.node.args:
            if e.kind not in ("method", "external") or arg.star:
                continue
            known = constants(facts.flow.values.get(arg.value, ())) or []
            fixed = isinstance(arg.value, cst.SimpleString) and any(
                isinstance(k, str) and re.fullmatch(r"cuda:\d+", k) for k in known
            )
            number = (
                isinstance(arg.value, cst.Integer)
                and e.kind == "method"
                and e.name in ("cuda", "to")
                and arg.keyword is None
            )
            if number and isinstance(e.obj, (Module, Data, Wrapped, Thing)):
                found.append(FixedDevice(e.node, source, "index", arg.value, e))
            elif fixed and (e.name in ("to", "cuda") or (arg.keyword is not None and arg.keyword.value == "device")):
                found.append(FixedDevice(e.node, source, "literal", arg.value, e))
    return list({id(f.argument or f.node): f for f in found}.values())


def given_devices(facts: Facts) -> list[FixedDevice]:
    """`.cuda(args.gpu)` and `model.to(cfg["device"])`: what comes from outside may name the same GPU for all ranks."""
    found: dict[int, FixedDevice] = {}
    for e in facts.flow.log.of("method"):
        known = isinstance(e.obj, Module) or (e.name == "cuda" and isinstance(e.obj, (Data, Thing)))
        args = e.node.args if isinstance(e.node, cst.Call) else ()
        first = args[0] if args and args[0].keyword is None and not args[0].star else None
        if e.name not in ("to", "cuda") or not known or first is None:
            continue
        if any(_is_open(o) for o in facts.flow.values.get(first.value, ())):
            how = "index" if e.name == "cuda" else "given"
            found.setdefault(id(e.node), FixedDevice(e.node, e.frame.source, how, first.value, e))
    return list(found.values())


def _is_open(obj: Obj) -> bool:
    """A value of which nothing is known."""
    return isinstance(obj, Data) and obj.form == "any" and not obj.origins


def uses_cuda(facts: Facts) -> bool:
    """Whether the script ever asks for a GPU (or another accelerator)."""
    choices = facts.cached("device_choices", device_choices)
    if any(c.form not in ("cpu",) for c in choices):
        return True
    for e, value in device_uses(facts):
        if e.name == "cuda" or any(isinstance(o, Device) and o.kind != "cpu" for o in value):
            return True
        if any(str(k).startswith(("cuda", "xpu")) or isinstance(k, int) for k in constants(value) or ()):
            return True
        if value and any(isinstance(o, Data) for o in value):
            return True  # a device that comes from an argument
    if unread_devices(facts):
        return True
    return any(e.name == "cuda" for e in facts.flow.log.of("method")) or bool(facts.external("torch.cuda.set_device"))
