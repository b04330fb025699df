"""Value flow in, roles out: what trains, on what, in which loops; nothing is decided here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

import libcst as cst

from ddpify.facts.contents import modules, origins
from ddpify.facts.flow import Flow
from ddpify.facts.frames import Event, Frame, Loop
from ddpify.facts.values import (
    Const,
    Dict,
    FromBatch,
    FromForward,
    FromLoop,
    Instance,
    Iteration,
    Loader,
    Module,
    Obj,
    Optimizer,
    Seq,
    Thing,
    Value,
    Wrapped,
)
from ddpify.source import Source, walk


@dataclass(frozen=True, eq=False)
class EpochLoop:
    """The loop around a loader's passes, and the way from it down to the pass."""

    loader: Loader
    loop: Loop | None
    batch_loop: Loop
    #: frames from the epoch loop's own down to the batch loop's, with the statement that leads on in each
    way: tuple[tuple[Frame, cst.CSTNode], ...]
    #: the loops around that one
    outer: tuple[Loop, ...] = ()


@dataclass(frozen=True, eq=False)
class Pass:
    """A loop over a loader, in one frame: training or evaluation."""

    loader: Obj
    loop: Loop
    start: Event
    training: bool


@dataclass
class Roles:
    """Who plays which part in a script."""

    backwards: list[Event] = field(default_factory=list)
    training_loaders: list[Loader] = field(default_factory=list)
    #: training batches that come from something other than a DataLoader
    other_data: list[tuple[Obj, Event]] = field(default_factory=list)
    trained: list[Module] = field(default_factory=list)
    training_forwards: set[cst.CSTNode] = field(default_factory=set)
    epoch_loops: list[EpochLoop] = field(default_factory=list)
    passes: list[Pass] = field(default_factory=list)
    optimizers: list[Optimizer] = field(default_factory=list)
    #: parameters that an optimizer has and no module
    bare: list[Thing] = field(default_factory=list)
    wrapped: list[Wrapped] = field(default_factory=list)

    @property
    def training_loops(self) -> set[cst.CSTNode]:
        """The loops that run around a backward, those of the callers included."""
        return {lp.node for b in self.backwards for loops in b.all_loops() for lp in loops}

    @property
    def evaluation_loaders(self) -> list[Loader]:
        """Loaders that are only ever read without training."""
        found = [
            p.loader for p in self.passes if isinstance(p.loader, Loader) and p.loader not in self.training_loaders
        ]
        return list(dict.fromkeys(found))

    def loop_over(self, loader: Loader) -> Loop | None:
        """The loop that reads a loader, the training one first."""
        read = (e.batch_loop for e in self.epoch_loops if e.loader is loader)
        return next(read, None) or next((p.loop for p in self.passes if p.loader is loader), None)


def find_roles(flow: Flow) -> Roles:
    """Read the roles off what happened."""
    roles = Roles()
    log = flow.log
    backwards = [e for e in log.of("backward") if e.grad is not False]
    # what runs when the script is run counts; only where nothing trains then (a library) do functions that nothing
    # calls
    runs = any(e.seq < flow.main_end for e in backwards)
    roles.backwards = [e for e in backwards if not runs or e.seq < flow.main_end]
    made = [e for e in log.of("new") if not runs or e.seq < flow.main_end]
    roles.optimizers = list(dict.fromkeys(e.obj for e in made if isinstance(e.obj, Optimizer)))
    roles.wrapped = list(dict.fromkeys(e.obj for e in log.of("new") if isinstance(e.obj, Wrapped)))
    optimised = {r for o in roles.optimizers for m in o.modules for r in roots(m)}
    roles.bare = list(dict.fromkeys(p for o in roles.optimizers for p in o.bare if p.owner is None))
    for event in roles.backwards:
        for origin in sorted_origins(event.value):
            if isinstance(origin, FromBatch):
                if isinstance(origin.loader, Loader):
                    roles.training_loaders.append(origin.loader)
                else:
                    roles.other_data.append((origin.loader, event))
            elif isinstance(origin, FromForward):
                roles.training_forwards.add(origin.node)
                core = root(origin.module)
                if core in optimised or not (optimised or roles.bare):
                    roles.trained.append(core)
    roles.training_loaders = list(dict.fromkeys(roles.training_loaders))
    roles.trained = list(dict.fromkeys(roles.trained))
    roles.epoch_loops = list(_epoch_loops(flow, roles))
    roles.passes = list(_passes(flow, roles))
    return roles


def sorted_origins(value: Value) -> list[object]:
    """Origins in a stable order (they are kept in sets): by the place that they name."""

    def key(origin: object) -> tuple[str, int, int]:
        site = getattr(getattr(origin, "loader", None) or getattr(origin, "module", None), "site", None)
        if site is None:
            return type(origin).__name__, 0, 0
        known = site.node in site.source.parents
        return type(origin).__name__, site.source.span(site.node).start if known else 0, site.frame.number

    return sorted(origins(value), key=key)


def root(module: Module) -> Module:
    """The module that a part belongs to, the outermost; not a list of models that nothing can call."""
    seen = {module}
    module = module.inner or module
    found = module
    while (
        module.part_of is not None
        and module.part_of not in seen
        and (
            module.part_of.cls is not None
            or module.part_of.called
            or module.part_of.name.endswith((".ModuleDict", ".ModuleList"))  # nothing can call these
            or _is_whole(module.part_of)
        )
    ):
        module = module.part_of
        seen.add(module)
        found = found if is_collection(module) and found.named else module
    return found


def is_collection(module: Module) -> bool:
    """`nn.ModuleList([student, embed])`, which gathers models for an optimizer, say."""
    return module.cls is None and module.name.endswith((".ModuleDict", ".ModuleList"))


def roots(module: Module) -> set[Module]:
    """The models to which the parameters of a module belong: those in it, of a collection of models with names."""
    whole = root(module)
    held = [m for value in (*whole.fields.values(), *whole.parts) for m in modules(value)]
    if not is_collection(whole) or not any(m.named for m in held):
        return {whole}
    return {m for m in held if m.has_parameters and not m.frozen}


def _is_whole(module: Module) -> bool:
    """A model of a library, whose own forward calls a part that was exchanged: `self.net.fc = nn.Linear(n, 2)`."""
    return bool(module.name) and not module.name.startswith("torch.nn.")


def loaders_in(value: Value) -> list[Obj]:
    """What is read when a value is iterated: enumerate(tqdm(loader)) reads loader."""
    found: list[Obj] = []
    todo, seen = list(value), set[int]()
    while todo:
        obj = todo.pop(0)
        if isinstance(obj, Iteration):
            if id(obj) not in seen:
                seen.add(id(obj))
                todo.extend(o for part in (*obj.of, obj.fields.get("over", ())) for o in part if o not in todo)
        elif not isinstance(obj, Const):
            found.append(obj)
    return found


def read_by(value: Value) -> list[Obj]:
    """What is read, also by an object of the script's own whose `__iter__` reads a loader."""
    return [o for obj in loaders_in(value) for o in (loaders_in(obj.over) if isinstance(obj, Instance) else [obj])]


def hands_out(flow: Flow, loop: cst.CSTNode, loader: Obj | None = None) -> list[str]:
    """`for loader in loaders:`: the names of the loop that hold loaders (this one)."""
    names = [n for n in walk(loop.target) if isinstance(n, cst.Name)] if isinstance(loop, cst.For) else []
    held = {n.value: [o for o in flow.values.get(n, ()) if isinstance(o, Loader)] for n in names}
    return [name for name, loaders in held.items() if loaders and (loader is None or loader in loaders)]


def _epoch_loops(flow: Flow, roles: Roles) -> Iterator[EpochLoop]:
    seen: set[tuple[int, int, int]] = set()
    for event in roles.backwards:
        for chain in event.frame.chains():
            steps: list[tuple[Frame, cst.CSTNode, tuple[Loop, ...]]] = [(e.frame, e.stmt, e.loops) for e in chain]
            steps.append((event.frame, event.stmt, event.loops))
            flat = [(loop, at) for at, (_, _, loops) in enumerate(steps) for loop in loops]
            for loader in roles.training_loaders:
                passing = [not hands_out(flow, loop.node) for loop, _ in flat]
                found = [i for i, (lp, _) in enumerate(flat) if passing[i] and loader in loaders_in(lp.iterates)]
                if not found:
                    continue
                inner = found[0]
                outer = inner - 1
                while outer >= 0 and (flat[outer][0].element is not None or not passing[outer]):
                    outer -= 1  # `for phase in ['train', 'val']` and `for loader in loaders` are no epoch loops
                key = (id(loader), id(flat[inner][0].node), id(flat[outer][0].node) if outer >= 0 else 0)
                if key in seen:
                    continue
                seen.add(key)
                first = flat[outer][1] if outer >= 0 else 0
                way = tuple((steps[i][0], steps[i][1]) for i in range(first, flat[inner][1] + 1))
                way = (*way[:-1], (steps[flat[inner][1]][0], flat[inner][0].node))
                around = tuple(loop for loop, _ in flat[: max(outer, 0)])
                yield EpochLoop(loader, flat[outer][0] if outer >= 0 else None, flat[inner][0], way, around)


def _passes(flow: Flow, roles: Roles) -> Iterator[Pass]:
    training = {(id(loop.node), id(loop.frame)) for e in roles.backwards for loops in e.all_loops() for loop in loops}
    handed = {(id(loop.node), id(loop.frame.home)) for loop in flow.handed}
    # a function that nothing calls trains, too: what it reads is not evaluated
    uncalled = {(id(lp.node), id(lp.frame)) for e in flow.log.of("backward") for ls in e.all_loops() for lp in ls}
    for event in flow.log.of("loop"):
        if event.name != "start" or (id(event.node), id(event.frame)) in handed:
            continue
        if event.seq >= flow.main_end and (id(event.node), id(event.frame)) in uncalled - training:
            continue
        trains, loop = (id(event.node), id(event.frame)) in training, Loop(event.node, event.frame, event.value)
        for obj in loaders_in(event.value):
            if isinstance(obj, Loader):
                yield Pass(obj, loop, event, trains and obj in roles.training_loaders)
            elif isinstance(obj, Instance) and any(node == id(event.node) for node, _ in training):
                inner = [o for o in read_by((obj,)) if isinstance(o, Loader)]  # for batch in DeviceLoader(loader)
                yield from (Pass(o, loop, event, trains and o in roles.training_loaders) for o in inner)


def expression_for(
    obj: Obj, frame: Frame, flow: Flow, within: cst.CSTNode | None = None, alike: Collection[Obj] = ()
) -> str | None:
    """How a frame's own code names an object: `train_loader`, `self.train_data`.

    The name may hold one of `alike` instead: the loaders of other branches.
    """
    source = frame.source

    def only(value: Value) -> bool:
        return obj in value and all(o is obj or o in alike for o in value)

    for node in walk(within if within is not None else frame.node):
        if isinstance(node, cst.Name) and not _is_part(source, node) and _holds(node, obj, only, frame, flow):
            if frame.scope.holder(node.value) is not None:
                return node.value
        elif (
            isinstance(node, cst.Attribute)
            and only(_held(flow, node))
            and _is_plain(node)
            and frame.scope.holder(source.code(node).split(".")[0]) is not None
        ):
            return source.code(node)
    held = _in_dict(obj, frame, flow, within if within is not None else frame.node)
    if held is not None:
        return held
    func = frame.func
    if func is not None and func.bound is not None and func.node.params.params:
        me = func.node.params.params[0].name.value
        fields = getattr(func.bound, "fields", {}).items()
        for name, value in fields:
            if only(value):
                return f"{me}.{name}"
        for name, value in fields:
            for key in [k for held in value if isinstance(held, Dict) for k, v in held.items.items() if v == (obj,)]:
                if isinstance(key, str):
                    return f"{me}.{name}[{_quoted(source, key)}]"
    for name, value in frame.scope.module.names.items() if within is None else ():
        if only(value) and frame.scope.holder(name) is frame.scope.module:
            return name  # a global that another function reads
    return None


def _held(flow: Flow, node: cst.CSTNode) -> Value:
    """What an expression holds, loaders left out that only the trial pass of a loop made."""
    value = flow.values.get(node, ())
    if len(value) < 2 or not any(isinstance(o, Loader) for o in value):
        return value
    made = {id(e.obj) for e in flow.log.of("loader")}
    return tuple(o for o in value if not isinstance(o, Loader) or id(o) in made)


def _holds(node: cst.Name, obj: Obj, only: Callable[[Value], bool], frame: Frame, flow: Flow) -> bool:
    """Whether a name is the object: in all calls of the function, or in the one that this frame is."""
    held = _held(flow, node)
    return only(held) or (obj in held and only(frame.scope.names.get(node.value, ())))


def _in_dict(obj: Obj, frame: Frame, flow: Flow, within: cst.CSTNode) -> str | None:
    """`dataloaders['train']`, `loaders[0]`: an object that a dict with constant keys holds, or a list."""
    source = frame.source
    for node in walk(within):
        if not isinstance(node, (cst.Name, cst.Attribute)) or not _is_plain(node):
            continue
        start = source.code(node).split(".")[0]
        if (isinstance(node, cst.Name) and _is_part(source, node)) or frame.scope.holder(start) is None:
            continue
        for held in flow.values.get(node, ()):
            parts: list[tuple[object, Value]] = []
            if isinstance(held, Dict):
                parts = [(k, v) for k, v in held.items.items() if isinstance(k, str)]
            elif isinstance(held, Seq) and held.elements is not None and not held.joined:
                parts = list(enumerate(held.elements))
            key = next((k for k, v in parts if v == (obj,)), None)
            if key is not None:
                return f"{source.code(node)}[{_quoted(source, key)}]"
    return None


def _quoted(source: Source, key: object) -> str:
    """A key, in the quotes that the file has for it."""
    quote = "" if isinstance(key, int) else "'" if f"'{key}'" in source.text else '"'
    return f"{quote}{key}{quote}"


def is_label(source: Source, node: cst.CSTNode) -> bool:
    """The name of an attribute or of a keyword: no variable."""
    parent = source.parents.get(node)
    return (isinstance(parent, cst.Attribute) and parent.attr is node) or (
        isinstance(parent, cst.Arg) and parent.keyword is node
    )


def _is_part(source: Source, node: cst.Name) -> bool:
    return is_label(source, node) or isinstance(source.parents.get(node), (cst.Param, cst.FunctionDef, cst.ClassDef))


def _is_plain(node: cst.BaseExpression) -> bool:
    """`a.b.c`: no call and no subscript in it."""
    while isinstance(node, cst.Attribute):
        node = node.value
    return isinstance(node, cst.Name)


def loop_name(epoch: EpochLoop, frame: Frame, flow: Flow) -> str | None:
    """The name in a frame that holds the epoch loop's variable."""
    if epoch.loop is None:
        return None
    if frame is epoch.loop.frame:
        target = getattr(epoch.loop.node, "target", None)
        return target.value if isinstance(target, cst.Name) else None
    for name, value in frame.scope.names.items():
        if (
            any(isinstance(o, FromLoop) and o.loop is epoch.loop.node for o in origins(value))
            and name in frame.arguments
        ):
            return name
    return None
