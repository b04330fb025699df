"""The flow after the wrap in, places where the raw module is wanted out: as far up the calls as it is right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.contents import constants, modules
from ddpify.facts.definitions import argument_of
from ddpify.facts.externals import keeps
from ddpify.facts.frames import Event, Frame
from ddpify.facts.layers import BUFFERS, mentions
from ddpify.facts.phases import phase_test
from ddpify.facts.surface import SURFACE, given_back
from ddpify.facts.unreached import unreached
from ddpify.facts.values import Dict, Ext, Func, Instance, Module, Obj, Optimizer, Scheduler, Seq, Thing, Wrapped
from ddpify.source import Source

if TYPE_CHECKING:
    from ddpify.facts import Facts

#: Builtins that are as content with the wrapper.
_INDIFFERENT = frozenset(
    {
        "builtins.id",
        "builtins.next",
        "builtins.filter",
        "builtins.map",
        "builtins.super",
        "torch.nn.parallel.DistributedDataParallel",
        "torch.nn.utils.clip_grad_norm_",
    }
)


#: What writes the objects in a dict or list as they are.
_PICKLES = frozenset({"torch.save", "pickle.dump", "pickle.dumps", "joblib.dump", "dill.dump", "cloudpickle.dump"})


@dataclass(frozen=True, eq=False)
class Raw:
    """An expression that holds the wrapper where the module itself is wanted."""

    node: cst.BaseExpression
    source: Source
    why: str
    what: str
    #: the expression holds the wrapper in one call and the module in another
    both: bool = False
    #: the expression holds a partial of the model, which trains by it, too, or has buffers: what it was made of
    bound: cst.BaseExpression | None = None
    #: the test that is true while training, where the same expression trains and evaluates
    test: str = ""


def find_raw(facts: Facts) -> list[Raw]:
    """Attributes, methods, saves and evaluation forwards of wrapped models, each once."""
    flow = facts.after
    training = facts.after_roles.training_forwards
    trains = _Trains(training)
    found: dict[int, Raw] = {}
    trained_as = {o for n in training if isinstance(n, cst.Call) for o in flow.values.get(n.func, ())}

    def want(event: Event, node: cst.BaseExpression, why: str, what: str, frame: Frame | None = None) -> None:
        if _of_module(facts, node):
            return
        if isinstance(node, cst.IfExp):  # (net.module if use_cuda else net).state_dict()
            for part in _wrappers_in(facts, node):
                want(event, part, why, what, frame)
            return
        for place, source in climb(frame or event.frame, node, trains):
            values = flow.values.get(place, ())
            both = any(map(_is_bare, values))
            partials = [o for o in values if isinstance(o, Thing) and o.name == "partial"]
            if not partials:
                found.setdefault(id(place), Raw(place, source, why, what, both))
            for held in partials:  # denoise = partial(net, scale=2), and denoise(x): it has no `.module`
                given = held.site.node.args[0].value if isinstance(held.site.node, cst.Call) else node
                inner = [m for o in held.fields.get("0", ()) for m in modules((o,))]
                if held in trained_as or any(mentions(m, BUFFERS, written=True) for m in inner):
                    found.setdefault(id(place), Raw(place, source, why, what, bound=given))
                else:
                    want(event, given, why, what, held.site.frame)

    trained = {
        (id(e.node), id(e.frame)): e
        for e in flow.log.of("forward")
        if isinstance(e.obj, Wrapped) and e.grad is not False and e.node in training
    }
    graded = {node for node, _ in trained}
    for e in flow.log.events:
        if e.kind == "forward" and isinstance(e.obj, Wrapped) and isinstance(e.node, cst.Call):
            if (e.grad is not False and e.node in training) or e.node in flow.routed:
                continue
            func = _callee(e.node)
            trainer = trained.get((id(e.node), id(e.frame)))
            test = phase_test(facts, trainer, e) if trainer is not None else None
            if trainer is None and e.grad is False and e.node in training and id(e.node) in graded:
                # one method for both: rod.u(x) while training, and under no_grad()
                stays = any(place is func for place, _ in climb(e.frame, func, trains))
                told = _told(facts, e, [t for t in trained.values() if t.node is e.node])
                grad = f"{facts.names_of(e.frame.source)['torch']}.is_grad_enabled()"
                test = (told or grad) if stays else None
            if test is not None:
                both = any(map(_is_bare, flow.values.get(func, ())))
                found.setdefault(id(func), Raw(func, e.frame.source, "evaluation", "", both, test=test))
            else:
                want(e, func, "evaluation", "")
        elif (
            e.kind == "attribute"
            and isinstance(e.obj, Wrapped)
            and e.name not in SURFACE
            and isinstance(e.node, (cst.Attribute, cst.Subscript))
            and not _names_alike(e)
            and not given_back(e.frame.source, e.node)
        ):
            want(e, e.node.value, "state" if "state_dict" in e.name else "attribute", e.name)
        elif e.kind == "set" and isinstance(e.obj, Wrapped) and isinstance(e.node, cst.Attribute):
            want(e, e.node.value, "attribute", e.name)
        elif e.kind == "item" and isinstance(e.node, cst.Subscript):  # model[0] of an nn.Sequential
            want(e, e.node.value, "attribute", "__getitem__")
        elif e.kind == "loop" and e.name == "start" and any(isinstance(o, Wrapped) for o in e.value):
            over = getattr(getattr(e.node, "for_in", e.node), "iter", None)  # of a comprehension, or of a loop
            if over is not None:
                want(e, over, "attribute", "__iter__")
        elif (e.kind == "external" or (e.kind == "method" and not isinstance(e.obj, (Module, Wrapped)))) and (
            isinstance(e.node, cst.Call) and e.name not in _INDIFFERENT and e.name not in ("append", "add", "extend")
        ):
            if e.name in ("builtins.hasattr", "builtins.isinstance") and constants(flow.values.get(e.node, ())):
                continue  # model.module if hasattr(model, "module") else model: right for the wrapper as it stands
            if e.kind == "external" and keeps(e.name):
                continue
            if isinstance(e.obj, Instance) and any(isinstance(o, Func) for o in flow.values.get(e.node.func, ())):
                continue  # of several classes, one that does not have the method: those that do are followed
            if e.name == "builtins.isinstance" and not _asks_for_class(facts, e.node):
                continue
            for arg in e.node.args:
                for node in _wrappers_in(facts, arg.value):
                    want(e, node, "handed over", e.name)
                for node, frame in _collected(facts, arg.value) if e.name in _PICKLES else ():
                    want(e, node, "handed over", e.name, frame)
    for base, frame, what, both in unreached(facts, _PICKLES):
        why = "state" if "state_dict" in what else "attribute" if what else "handed over"
        for place, source in climb(frame, base, trains):
            found.setdefault(id(place), Raw(place, source, why, what, both and place is base))
    return list(found.values())


def _told(facts: Facts, evaluates: Event, training: list[Event]) -> str:
    """`train` of `def step(self, batch, train)`, where it tells each evaluation by this call from each training."""
    mine = [e for e in facts.after.log.of("forward") if e.node is evaluates.node and e.grad is False]
    tests = {phase_test(facts, t, e) for t in training for e in mine}
    return next(iter(tests)) or "" if len(tests) == 1 else ""


def _is_bare(obj: Obj) -> bool:
    """A module without a wrapper, what `torch.load(path)` gives to a name that held one, an optimizer beside it."""
    if isinstance(obj, Thing):
        return obj.name in ("loaded", "scaler")
    return isinstance(obj, (Module, Optimizer, Scheduler, Instance))


def _of_module(facts: Facts, node: cst.BaseExpression) -> bool:
    """`model.cpu()`: a method that the wrapper does not have is the module's, and gives the module back."""
    func = node.func if isinstance(node, cst.Call) else None
    if not isinstance(func, cst.Attribute) or func.attr.value in SURFACE:
        return False
    return any(isinstance(o, Wrapped) for o in facts.after.values.get(func.value, ()))


def _names_alike(e: Event) -> bool:
    """`model.named_parameters()` behind nn.DataParallel: its names began with `module.`, as the wrapper's do."""
    held = modules((e.obj,)) if e.obj is not None else []
    return e.name in ("named_parameters", "named_modules", "named_buffers") and all(m.parallel for m in held)


def _asks_for_class(facts: Facts, call: cst.Call) -> bool:
    """`isinstance(model, Net)`; of `list`, `nn.Module` or `DDP` the wrapper is asked as it stands."""
    of = call.args[1].value if len(call.args) == 2 else None
    if isinstance(of, (cst.Tuple, cst.List)):
        asked = [o for e in of.elements for o in facts.after.values.get(e.value, ())]
    else:
        asked = [*facts.after.values.get(of, ())] if of is not None else []
    names = [o.name for o in asked if isinstance(o, Ext)]
    return len(names) < len(asked) or any(
        not n.startswith("builtins.") and not n.endswith((".Module", "DataParallel", "DistributedDataParallel"))
        for n in names
    )


def _callee(call: cst.Call) -> cst.BaseExpression:
    """`model` of `model(x)` and of `model.forward(x)`"""
    by_name = isinstance(call.func, cst.Attribute) and call.func.attr.value == "forward"
    return call.func.value if by_name and isinstance(call.func, cst.Attribute) else call.func


def _wrappers_in(facts: Facts, node: cst.BaseExpression) -> list[cst.BaseExpression]:
    """The names in an argument (or in a dict or list that is the argument) that hold the wrapper itself."""
    found: list[cst.BaseExpression] = []
    values = facts.after.values
    todo: list[cst.CSTNode] = [node]
    while todo:
        top = todo.pop()
        if isinstance(top, (cst.Name, cst.Attribute, cst.Subscript)) and any(
            isinstance(o, Wrapped) for o in values.get(top, ())
        ):
            found.append(top)
        elif isinstance(top, (cst.Dict, cst.List, cst.Tuple)):
            todo.extend(e.value for e in top.elements)
        elif isinstance(top, cst.IfExp):
            todo.extend((top.body, top.orelse))
    return found


def _collected(facts: Facts, node: cst.BaseExpression) -> Iterator[tuple[cst.BaseExpression, Frame]]:
    """What put a wrapper into the dict or list that a name holds: `state = {"model": model}`, `state["net"] = net`."""
    values = facts.after.values
    if not isinstance(node, (cst.Name, cst.Attribute)):
        return
    for held in values.get(node, ()):
        if not isinstance(held, (Dict, Seq)):
            continue
        made = held.site.node
        parts: list[cst.BaseExpression] = []
        if isinstance(made, (cst.Dict, cst.List, cst.Tuple)):
            parts = [made]
        elif isinstance(made, cst.Call):
            parts = [a.value for a in made.args]
        for part in parts:
            yield from ((n, held.site.frame) for n in _wrappers_in(facts, part))
        for e in facts.after.log.of("store"):
            if e.obj is held and isinstance(e.stmt, cst.Assign):
                yield from ((n, e.frame) for n in _wrappers_in(facts, e.stmt.value))


class _Trains:
    """Whether a frame, or what it calls, runs a training forward of a wrapper."""

    def __init__(self, training: set[cst.CSTNode]) -> None:
        self.training = training
        self.known: dict[int, bool] = {}

    def __call__(self, frame: Frame) -> bool:
        if id(frame) not in self.known:
            self.known[id(frame)] = False
            self.known[id(frame)] = any(
                (e.kind == "forward" and isinstance(e.obj, Wrapped) and e.grad is not False and e.node in self.training)
                or (e.callee is not None and self(e.callee))
                for e in frame.events
            )
        return self.known[id(frame)]


def climb(
    frame: Frame, node: cst.BaseExpression, trains: Callable[[Frame], bool]
) -> list[tuple[cst.BaseExpression, Source]]:
    """From a use up to the argument of the outermost call that does not train, in every context."""
    if not (
        isinstance(node, cst.Name) and node.value in frame.arguments and node.value not in frame.assigned
    ) or trains(frame):
        return [(node, frame.source)]
    argument = frame.arguments[node.value]
    if argument is None or not frame.entries:
        return [(node, frame.source)]
    found: list[tuple[cst.BaseExpression, Source]] = []
    for entry in frame.entries:
        given = argument_of(entry.call, frame, node.value) or argument
        found.extend(climb(entry.frame, given, trains))
    return found
