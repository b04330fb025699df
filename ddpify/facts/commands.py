"""Command lines in, the functions that they run out: registered by a decorator, or handed to `fire.Fire`."""

from __future__ import annotations

import libcst as cst

from ddpify.facts.contents import join
from ddpify.facts.externals import role_of
from ddpify.facts.frames import Frame
from ddpify.facts.instances import Instances
from ddpify.facts.state import Given
from ddpify.facts.values import UNKNOWN, Class, Data, Dict, Ext, Func, Instance, Method, Obj, Seq, Thing, Value

FIRE = frozenset({"fire.Fire", "fire.core.Fire"})
#: What a user may type.
_TYPED: Value = (Data("any", "const"),)
#: Methods of a group or an application that add what is handed over to it.
_ADDS = frozenset({"add_command", "add_typer"})


class Commands(Instances):
    """`@app.command()`, `@group.command()`: run where the application or the group is called."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        #: an application or a group -> the functions and groups that it runs
        self.commands: dict[int, list[Obj]] = {}

    def register(self, func: Func, frame: Frame) -> None:
        """`@app.command() def train(...)`: note the function with the object that decorates it."""
        if not isinstance(func.node, cst.FunctionDef):
            return
        for d in func.node.decorators:
            inner = d.decorator.func if isinstance(d.decorator, cst.Call) else d.decorator
            if isinstance(inner, cst.Attribute):
                for obj in self.expr(inner.value, frame):
                    self.add_command(obj, func)

    def add_command(self, to: Obj, command: Obj) -> None:
        if isinstance(to, Func) or (isinstance(to, Thing) and to.name == "commands"):
            held = self.commands.setdefault(_key(to), [])
            if all(_key(c) != _key(command) for c in held):
                held.append(command)

    def method(
        self, method: Method, node: cst.Call, given: list[Given], named: dict[str, Given], frame: Frame
    ) -> Value:
        if method.name in _ADDS and given:
            for obj in given[0][1]:
                self.add_command(method.obj, obj)
            return ()
        return super().method(method, node, given, named, frame)

    def call_object(
        self, obj: Obj, node: cst.Call, given: list[Given], named: dict[str, Given], splats: list[Value], frame: Frame
    ) -> Value:
        by_command_line = isinstance(obj, Func) and any(role_of(d) == "command" for d in obj.decorators)
        if isinstance(obj, Func) and by_command_line:
            result = self.run_command(obj, node.func, frame)
        else:
            result = super().call_object(obj, node, given, named, splats, frame)
        if self.commands.get(_key(obj)) and not self.quiet:
            self.run_commands(obj, node.func, frame, set())
        return result

    def run_commands(self, obj: Obj, node: cst.BaseExpression, frame: Frame, done: set[int]) -> None:
        """Each command of a group, the groups in it included."""
        for command in self.commands.get(_key(obj), ()):
            if _key(command) not in done:
                done.add(_key(command))
                if isinstance(command, Func):
                    self.run_command(command, node, frame)
                self.run_commands(command, node, frame, done)

    def outside(
        self, ext: Ext, node: cst.Call, given: list[Given], named: dict[str, Given], splats: list[Value], frame: Frame
    ) -> Value:
        if ext.name not in FIRE:
            return super().outside(ext, node, given, named, splats, frame)
        held = self.first(given, named, "component")
        if not given and not named:
            held = tuple(o for v in frame.scope.module.names.values() for o in v if isinstance(o, Func))
        self.event("external", node, frame, ext, ext.name, held)
        for obj in held if not self.quiet else ():
            self.offer(obj, node, node.func, frame)
        return UNKNOWN

    def offer(self, obj: Obj, call: cst.Call, node: cst.BaseExpression, frame: Frame) -> None:
        """What fire runs of an object: a function, the public methods of a class, the values of a dict."""
        match obj:
            case Func():
                self.run_command(obj, node, frame)
            case Class():
                for made in self.instantiate(obj, [], self.open_parameters(obj.member("__init__")), call, frame):
                    self.offer(made, call, node, frame)
            case Instance() if obj.cls is not None:
                for name in dict.fromkeys(n for c in reversed(obj.cls.lineage()) for n in c.members):
                    for m in obj.cls.member(name) if not name.startswith("_") else ():
                        if isinstance(m, Func) and not any(d.endswith("property") for d in m.decorators):
                            self.run_command(self.bound(m, obj, node), node, frame)
            case Dict():
                for value in obj.items.values():
                    for inner in value:
                        self.offer(inner, call, node, frame)

    def callbacks(self, given: list[Given], named: dict[str, Given], node: cst.CSTNode, frame: Frame) -> None:
        """Functions of the project that are handed to something outside are taken to be called."""
        for place, value in (*given, *named.values()):
            for obj in value:
                partial = isinstance(obj, Thing) and obj.name == "partial"
                called, before, beside = self.held(obj) if isinstance(obj, Thing) and partial else ((obj,), [], {})
                for func in called:
                    if isinstance(func, Func) and not self.quiet:
                        free = list(self.open_parameters((func,), UNKNOWN).items())[len(before) :]
                        free = self.with_functions(free, named, place)
                        self.call_function(func, before, {**dict(free), **beside}, place or node, frame)

    def with_functions(
        self, free: list[tuple[str, Given]], named: dict[str, Given], place: cst.CSTNode | None
    ) -> list[tuple[str, Given]]:
        """The functions among `Process(target=start, args=(rank, size, run))`, which `start` calls."""
        process = place is not None and "target" in named and named["target"][0] is place
        shift = 0 if process else 1  # mp.spawn(start, args=(size, run)): the rank comes first
        handed = [o for o in named.get("args", (None, ()))[1] if isinstance(o, Seq) and o.elements]
        given = dict(free)
        for at, (name, _) in enumerate(free):
            held = [e for o in handed for e in (o.elements or ())[at - shift : at - shift + 1]] if at >= shift else []
            if any(isinstance(f, Func) for v in held for f in v):
                given[name] = (None, join(*held))
        return list(given.items())

    def open_parameters(self, functions: Value, given: Value = _TYPED) -> dict[str, Given]:
        """What the parameters of a function may be where it is not known what is given: not their defaults alone."""
        found: dict[str, Given] = {}
        for func in functions:
            if isinstance(func, Func):
                p = func.node.params
                names = [x.name.value for x in (*p.posonly_params, *p.params)]
                own = func.bound is not None or (func.owner is not None and not _is_static(func))
                defaults = self.defaults.get(func.node, {})
                for name in (*names[own:], *(x.name.value for x in p.kwonly_params)):
                    found[name] = (None, join(defaults.get(name, ()), given))
        return found

    def run_command(self, func: Func, node: cst.BaseExpression, frame: Frame) -> Value:
        """Run a function with what a user may type."""
        parameters = self.open_parameters((func,))
        if "hydra.main" in func.decorators:
            site = self.site(func.node, frame)
            config = self.made(func.node, frame, Thing(site, name="namespace"))
            parameters = dict.fromkeys(parameters, (None, config))
        return self.call_function(func, [], parameters, node, frame)


def _is_static(func: Func) -> bool:
    return "builtins.staticmethod" in func.decorators


def _key(obj: Obj) -> int:
    return id(obj.node) if isinstance(obj, Func) else id(obj)
