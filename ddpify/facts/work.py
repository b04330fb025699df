"""A statement in, what every rank has to do of it out: forwards, steps, passes over data, changes of state."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

import libcst as cst

from ddpify.facts.externals import role_of
from ddpify.facts.flow import Flow
from ddpify.facts.frames import Event, Frame
from ddpify.facts.methods import PREPARES
from ddpify.facts.outside import made_by
from ddpify.facts.roles import loaders_in
from ddpify.facts.values import Heap, Loader, Module, Optimizer, Scheduler, Thing, Value, Wrapped
from ddpify.source import Source, walk

#: Calls that change what other ranks' next steps depend on, or that wait for them.
_SHARED = re.compile(
    r"torch\.distributed\..*|builtins\.(setattr|delattr|exec|input)|torch\.set_\w+|os\.environ\.(update|setdefault|pop)"
    r"|torch\.backends\.(?!.*\b(is_available|is_built|version)$).*"
    r"|torch\.jit\.trace|.*\.clip_grad_\w+|torch\.autograd\.grad"
)
#: objects that ask the other ranks by themselves, where a process group is set up
_METERS = re.compile(r"torchmetrics\..+")
_SHARED_ROLES = frozenset({"seed", "random", "random-split", "split", "load", "dataset", "module"})
#: Methods of containers that change them.
_MUTATORS = frozenset(
    {
        "append",
        "extend",
        "insert",
        "pop",
        "popleft",
        "popitem",
        "remove",
        "clear",
        "update",
        "setdefault",
        "sort",
        "reverse",
        "add",
        "appendleft",
        "discard",
    }
)
#: Methods of a module that change nothing and run nothing.
_LOOKS = frozenset(
    {
        "state_dict",
        "parameters",
        "named_parameters",
        "children",
        "modules",
        "named_children",
        "named_modules",
        "buffers",
        "named_buffers",
        "extra_repr",
        "num_parameters",
        "get_parameter",
        "get_submodule",
        "save_pretrained",
        "push_to_hub",
        "__repr__",
        "__str__",
        "get_input_embeddings",
        "save",
        "trainable_parameters",
    }
)


class Work:
    """Answers about one flow."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.events: dict[int, list[Event]] = {}
        for e in flow.log.events:
            self.events.setdefault(id(e.node), []).append(e)
        self._frames: dict[int, bool] = {}

    def inside(self, tree: cst.CSTNode) -> list[cst.CSTNode]:
        """The outermost nodes below a statement at which something happens that every rank has to do."""
        found: list[cst.CSTNode] = []
        covered: set[int] = set()
        for node in walk(tree):
            if id(node) in covered or not self.at(node):
                continue
            found.append(node)
            covered.update(id(n) for n in walk(node))
        return found

    def at(self, node: cst.CSTNode) -> bool:
        if isinstance(node, (cst.Yield, cst.Await)):
            return True
        if isinstance(node, cst.Call) and _runs_module(self.flow.values.get(node.func, ())):
            return True
        return any(self.event(e, here=True) for e in self.events.get(id(node), ()))

    def event(self, e: Event, here: bool = False) -> bool:
        """Whether one event is such work, what it calls included; `here` means that it is the statement's own."""
        if e.callee is not None:
            return self.frame(e.callee)
        match e.kind:
            case "forward" | "backward":
                return e.kind == "backward" or _runs_module((e.obj,) if e.obj is not None else ())
            case "loop":
                return any(isinstance(o, Loader) for o in loaders_in(e.value))
            case "external":
                return self.external(e)
            case "method":
                return self.method(e, here)
            case "set" | "store":
                return here or not self.is_local(e)
        return False

    def frame(self, frame: Frame) -> bool:
        """Whether a function that runs does such work anywhere in it."""
        if id(frame) not in self._frames:
            self._frames[id(frame)] = False
            outer = set(frame.scope.outer)
            self._frames[id(frame)] = any((e.kind == "bind" and e.name in outer) or self.event(e) for e in frame.events)
        return self._frames[id(frame)]

    def only_shows(self, frame: Frame, depth: int = 4) -> bool:
        """A function that does no such work, and whose result nobody uses: `save_images(images, folder)`.

        Also one that hands its result to such a function alone.
        """
        if not depth or not isinstance(frame.node, cst.FunctionDef) or not frame.entries or self.frame(frame):
            return False
        return all(
            isinstance(e.frame.source.parents.get(e.call), cst.Expr) or self.only_shows(e.frame, depth - 1)
            for e in frame.entries
        )

    def meets(self, tree: cst.CSTNode) -> bool:
        """Whether something below a node waits for other ranks: training, a pass over a loader, a collective."""
        return self._finds(tree, _waits)

    def exchanges(self, tree: cst.CSTNode) -> bool:
        """Whether gradients or values go from rank to rank below a node; a forward of an evaluation sends none."""
        return self._finds(tree, _sends)

    def _finds(self, tree: cst.CSTNode, wanted: Callable[[Event], bool]) -> bool:
        seen: set[int] = set()
        return any(_reaches(e, wanted, seen) for node in walk(tree) for e in self.events.get(id(node), ()))

    def external(self, e: Event) -> bool:
        if e.name in ("builtins.next", "builtins.iter"):
            return any(isinstance(o, Loader) for o in loaders_in(e.value))
        if "download" in e.extra:
            return True
        return role_of(e.name) in _SHARED_ROLES or _SHARED.fullmatch(e.name) is not None

    def method(self, e: Event, here: bool) -> bool:
        if isinstance(e.obj, Optimizer):
            return e.name not in ("state_dict",)
        if isinstance(e.obj, Scheduler) or (isinstance(e.obj, Thing) and e.obj.name == "scaler"):
            return e.name in ("step", "update", "scale", "unscale_", "load_state_dict")
        if isinstance(e.obj, (Module, Wrapped)):
            return e.name in PREPARES or e.name not in _LOOKS
        if _asks_others(e):
            return True
        changes = e.name in _MUTATORS or (e.name.endswith("_") and not e.name.startswith("_"))
        return changes and (here or not self.is_local(e))

    def is_local(self, e: Event) -> bool:
        """Whether what is changed was made by the function that changes it, so that nobody else sees it."""
        func = e.frame.func
        if func is None:
            return False
        if func.name == "__init__" and e.obj is func.bound:
            return True
        if isinstance(e.obj, Heap):
            return e.obj.site.frame is e.frame
        node = e.node.func if isinstance(e.node, cst.Call) else e.node
        while isinstance(node, (cst.Attribute, cst.Subscript, cst.Call)):
            node = node.func if isinstance(node, cst.Call) else node.value
        return isinstance(node, cst.Name) and node.value in e.frame.assigned and node.value not in e.frame.scope.outer


@functools.lru_cache(maxsize=4)
def work(flow: Flow) -> Work:
    """The answers for a flow, kept."""
    return Work(flow)


def _runs_module(callee: Value) -> bool:
    """A call of a model: a loss or an activation by itself has no parameters and is no forward of a model."""
    for obj in callee:
        if isinstance(obj, Wrapped):
            return True
        if (
            isinstance(obj, Module)
            and (obj.has_parameters or obj.inner is not None)
            and role_of(obj.name) != "loss-module"
        ):
            return True
    return False


def names_bound(block: cst.CSTNode) -> set[str]:
    """The plain names that a block gives values to."""
    found: set[str] = set()
    for node in walk(block):
        target: cst.CSTNode | None = None
        match node:
            case cst.AssignTarget(target=target) | cst.AnnAssign(target=target) | cst.AugAssign(target=target):
                pass
            case cst.For(target=target) | cst.NamedExpr(target=target) | cst.AsName(name=target):
                pass
            case cst.FunctionDef(name=target) | cst.ClassDef(name=target):
                pass
        if isinstance(target, (cst.Name, cst.Tuple, cst.List)):
            found |= {n.value for n in walk(target) if isinstance(n, cst.Name)}
    return found


def changes_places(block: cst.CSTNode) -> bool:
    """Whether a block stores into attributes or containers: what other code may see."""
    targets = [n.target for n in walk(block) if isinstance(n, (cst.AssignTarget, cst.AnnAssign, cst.AugAssign))]
    return any(isinstance(part, (cst.Attribute, cst.Subscript)) for t in targets for part in walk(t))


def leaves(source: Source, block: cst.CSTNode) -> bool:
    """Whether a block can be left from inside: return, raise, yield, or a break of a loop outside it."""
    for node in walk(block):
        if isinstance(node, (cst.Return, cst.Raise, cst.Yield, cst.Await, cst.Global)):
            return True
        if isinstance(node, (cst.Break, cst.Continue)):
            for above in source.ancestors(node):
                if isinstance(above, (cst.For, cst.While)):
                    break
                if above is block:
                    return True
    return False


def _reaches(e: Event, wanted: Callable[[Event], bool], seen: set[int]) -> bool:
    """Whether an event, or one in the function that it calls, is wanted; each function is looked at once."""
    if e.callee is None:
        return wanted(e)
    if id(e.callee) in seen:
        return False
    seen.add(id(e.callee))
    return any(_reaches(inner, wanted, seen) for inner in e.callee.events)


def _asks_others(e: Event) -> bool:
    """`metric.compute()` of torchmetrics: it gathers what the ranks have."""
    return e.kind == "method" and e.name in ("compute", "sync") and _METERS.fullmatch(made_by(e.obj)) is not None


def _sends(e: Event) -> bool:
    if _asks_others(e):
        return True
    if e.kind == "external":
        return e.name.startswith("torch.distributed.") and not e.name.endswith(
            ("get_rank", "get_world_size", "is_initialized", "is_available")
        )
    return e.kind == "backward" or (e.kind == "forward" and e.grad is not False)


def _waits(e: Event) -> bool:
    loader = e.kind == "loop" and any(isinstance(o, Loader) for o in loaders_in(e.value))
    return loader or e.kind == "forward" or _sends(e)
