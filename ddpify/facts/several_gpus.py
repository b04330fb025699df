"""Flow in, the GPUs that one process of the script drives out: a model whose layers stand on more than one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.contents import constants
from ddpify.facts.devices import device_choices, device_uses
from ddpify.facts.frames import Event, Frame
from ddpify.facts.values import Const, Data, Device, Module, Parameters, Thing, Value
from ddpify.source import Source, walk

if TYPE_CHECKING:
    from ddpify.facts import Facts

_GPU = re.compile(r"cuda:(\d+)")
_TAKES_NUMBER = frozenset({"torch.device", "torch.cuda.set_device", "torch.cuda.device", "torch.cuda.synchronize"})


@dataclass(frozen=True, eq=False)
class Named:
    """A literal that names a GPU: `"cuda:1"`, the `1` of `.cuda(1)` and of `torch.device("cuda", 1)`."""

    node: cst.BaseExpression
    source: Source
    number: int
    #: a call that takes the number apart from the kind: `torch.device("cuda", 1)`
    whole: cst.Call | None = None


@dataclass(frozen=True, eq=False)
class SeveralGpus:
    """What names the GPUs of one process, or why they cannot be counted."""

    named: tuple[Named, ...]
    #: two places that ask for different GPUs
    first: Named
    second: Named
    unclear: tuple[Source, cst.CSTNode, str] | None = None

    @property
    def count(self) -> int:
        """How many GPUs a process drives: those between its numbers are its own, too."""
        return max(n.number for n in self.named) + 1


def several_gpus(facts: Facts) -> SeveralGpus | None:
    """Where one process asks for more than one GPU, whatever way the script takes."""
    named = [n for source in facts.project.files() for n in _named(facts, source)]
    asked = {n.number: n for n in reversed(named) if _is_argument(n)}
    for _, value in device_uses(facts):
        number = _certain(value)
        if number is not None and number not in asked:
            asked |= {n.number: n for n in named if n.number == number}
    if len(asked) > 1:
        first, second, *_ = sorted(asked.values(), key=lambda n: n.number)
        return SeveralGpus(tuple(named), first, second, _unclear(facts, named))
    told = _at_run_time(facts)
    if len(told) < 2:
        return None
    one, two, *_ = told
    return SeveralGpus(
        tuple(named), one, two, (two.source, two.node, "names another GPU, which is known at run time only")
    )


def handed_on(facts: Facts) -> list[Named]:
    """GPUs named away from where they are used: `def train(device="cuda:0")`, `cfg["device"] = "cuda:0"`."""
    used = {o.value for _, value in device_uses(facts) for o in value if isinstance(o, Const)}
    chosen = {n for c in facts.cached("device_choices", device_choices) for s in c.stmts for n in walk(s)}
    named = [n for source in facts.project.files() for n in _named(facts, source) if n.node not in chosen]
    return [
        n
        for n in named
        if isinstance(n.node, cst.SimpleString)
        and (n.node.evaluated_value in used or _is_kept(n))
        and not _is_argument(n)
        and _is_replaceable(n)
    ]


def _is_kept(named: Named) -> bool:
    """`cfg["device"] = "cuda:0" if torch.cuda.is_available() else "cpu"`, of a dict that was read from a file"""
    parent = named.source.parents.get(named.node)
    if isinstance(parent, cst.IfExp) and parent.test is not named.node:
        parent = named.source.parents.get(parent)
    return isinstance(parent, (cst.Assign, cst.AnnAssign))


def _at_run_time(facts: Facts) -> list[Named]:
    """`a.to(args.gpu0)`, `b.to(f"cuda:{gpus[1]}")`: the devices that models are moved to, and no literal names."""
    found: dict[str, Named] = {}
    for e, value in device_uses(facts):
        args = e.node.args if isinstance(e.node, cst.Call) else ()
        if not isinstance(e.obj, (Module, Thing)) or not args or not any(isinstance(o, Data) for o in value):
            continue
        node, source = _traced(facts, args[0].value, e.frame)
        held = facts.flow.values.get(node.value, ()) if isinstance(node, cst.Attribute) else ()
        option = any(isinstance(o, Thing) and o.name == "namespace" for o in held)
        if option or (isinstance(node, cst.FormattedString) and "cuda:" in source.code(node)):
            found.setdefault(source.code(node), Named(node, source, 0))
    return list(found.values())


def _traced(facts: Facts, node: cst.BaseExpression, frame: Frame, depth: int = 6) -> tuple[cst.BaseExpression, Source]:
    """What a name or an attribute of `self` was given."""
    if depth and isinstance(node, cst.Name):
        given = frame.arguments.get(node.value) if node.value not in frame.assigned else None
        if given is not None and frame.entries:
            return _traced(facts, given, frame.entries[0].frame, depth - 1)
        bound = [e for e in facts.flow.log.of("bind") if e.frame is frame and e.name == node.value]
    elif depth and isinstance(node, cst.Attribute):
        held = facts.flow.values.get(node.value, ())
        bound = [e for e in facts.flow.log.of("set") if e.obj in held and e.name == node.attr.value]
    else:
        bound = []
    stmt = bound[-1].stmt if bound else None
    if isinstance(stmt, cst.Assign) and len(stmt.targets) == 1 and not isinstance(stmt.targets[0].target, cst.Tuple):
        return _traced(facts, stmt.value, bound[-1].frame, depth - 1)
    return node, frame.source


def _named(facts: Facts, source: Source) -> list[Named]:
    found: list[Named] = []
    for node in source.nodes:
        if isinstance(node, cst.SimpleString):
            match = _GPU.fullmatch(str(node.evaluated_value))
            if match is not None:
                found.append(Named(node, source, int(match[1])))
        elif isinstance(node, cst.Call) and node.args and isinstance(node.args[-1].value, cst.Integer):
            number = node.args[-1]
            method = node.func.attr.value if isinstance(node.func, cst.Attribute) else ""
            called = {getattr(o, "name", "") for o in facts.flow.values.get(node.func, ())}
            if (method in ("cuda", "to") and len(node.args) == 1) or called & _TAKES_NUMBER:
                apart = node if len(node.args) == 2 else None
                assert isinstance(number.value, cst.Integer)
                found.append(Named(number.value, source, int(number.value.evaluated_value), apart))
    return found


def _is_argument(named: Named) -> bool:
    """`x.to("cuda:1")`, `x.cuda(1)`"""
    arg = named.source.parents.get(named.node)
    call = named.source.parents.get(arg) if isinstance(arg, cst.Arg) else None
    func = call.func if isinstance(call, cst.Call) else None
    return isinstance(func, cst.Attribute) and func.attr.value in ("to", "cuda")


def _certain(value: Value) -> int | None:
    """The GPU that a value names, where it is one alone."""
    if len(value) != 1:
        return None
    obj = value[0]
    if isinstance(obj, Device):
        return obj.index if obj.kind == "cuda" else None
    known = obj.value if isinstance(obj, Const) else None
    match = _GPU.fullmatch(known) if isinstance(known, str) else None
    return int(match[1]) if match is not None else None


def _unclear(facts: Facts, named: list[Named]) -> tuple[Source, cst.CSTNode, str] | None:
    """What leaves open which GPUs a process drives."""
    for n in named:
        if not facts.editable(n.source):
            return n.source, n.node, "stands in a file of which ddpify makes no changed copy"
        if not _is_replaceable(n):
            return n.source, n.node, "is no device here, but a text that something else reads"
    for source in facts.project.files():
        for node in source.nodes:
            if isinstance(node, cst.FormattedString) and "cuda:" in source.code(node):
                return source, node, "has another number than a literal"
    for e, value in device_uses(facts):
        if any(isinstance(o, Data) for o in value) and not _of_tensor(facts, e):
            return e.frame.source, e.node, "names a device that is known at run time only"
        if any(isinstance(k, int) and not isinstance(k, bool) for k in constants(value) or ()) and not any(
            n.node in set(walk(e.node)) for n in named
        ):
            return e.frame.source, e.node, "names a GPU by a number that stands elsewhere"
    for e in facts.flow.log.of("dataparallel"):
        return e.frame.source, e.node, "puts nn.DataParallel around a model, which takes the GPUs, too"
    return None


def _of_tensor(facts: Facts, e: Event) -> bool:
    """`y.to(out.device)`: where another tensor is."""
    args = e.node.args if isinstance(e.node, cst.Call) else ()
    asked = [a.value for a in args if isinstance(a.value, cst.Attribute) and a.value.attr.value == "device"]
    return any(isinstance(o, (Data, Parameters)) for a in asked for o in facts.flow.values.get(a.value, ()))


def _is_replaceable(named: Named) -> bool:
    """An argument, a value that gets a name, a default, an element: where a device object serves as well as a text."""
    source, node = named.source, named.node
    parent = source.parents.get(named.whole or node)
    if isinstance(parent, cst.IfExp) and parent.test is not node:
        parent = source.parents.get(parent)
    if isinstance(parent, cst.Arg):
        call = source.parents.get(parent)
        name = call.func.attr.value if isinstance(call, cst.Call) and isinstance(call.func, cst.Attribute) else ""
        return name not in ("add_argument", "option", "format", "startswith", "get", "print", "info")
    return isinstance(parent, (cst.Assign, cst.AnnAssign, cst.Param, cst.Element, cst.DictElement, cst.Return))
