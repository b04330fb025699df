"""Attributes of objects in, what they may hold behind ways that part out: the names of a frame are paths.py's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ddpify.facts.contents import join
from ddpify.facts.frames import Scope
from ddpify.facts.state import State
from ddpify.facts.values import (
    UNKNOWN,
    Const,
    Data,
    Dict,
    Instance,
    Loader,
    Module,
    Obj,
    Optimizer,
    Thing,
    Value,
)

Holder = Instance | Loader | Module | Thing | Optimizer | Scope
#: (object, name) -> the object, and what it held under the name before; None where it had no such attribute
Written = dict[tuple[int, str], tuple[Holder, Value | None]]


class Fields(State):
    """`self.loss = a`, then `self.loss = b`: the second takes the first's place, also where neither may happen."""

    def set_attribute(self, obj: Holder, name: str, value: Value) -> None:
        if self.written:
            self.written[-1].setdefault((id(obj), name), (obj, obj.fields.get(name)))
        obj.fields[name] = value

    def loosen(self, settings: Obj, depth: int = 0) -> None:
        """Defaults that a file of settings may replace: `config.merge_from_file(path)`, `config[key] = value`.

        `depth`: how far the settings in the settings are replaced, too.
        """
        if isinstance(settings, Dict):
            for key, value in settings.items.items():
                settings.items[key] = self.loosened(value, depth)
        elif isinstance(settings, Thing):
            for name, value in [(n, v) for n, v in settings.fields.items() if n != "__name__"]:
                loose = self.loosened(value, depth)
                if loose is not value:
                    self.set_attribute(settings, name, loose)

    def loosened(self, value: Value, depth: int) -> Value:
        for obj in value if depth else ():
            self.loosen(obj, depth - 1)
        constant = bool(value) and all(isinstance(o, Const) for o in value)
        return join(value, (Data("any", "const"),)) if constant else value

    @contextmanager
    def may_happen(self) -> Iterator[Written]:
        """What is set inside may be set or not: behind it, an attribute holds the one or the other."""
        self.unsure += 1
        with self.writing() as written:
            yield written
        self.unsure -= 1
        self.rejoin(written)

    @contextmanager
    def writing(self) -> Iterator[Written]:
        """Take down which attributes are set."""
        written: Written = {}
        self.written.append(written)
        yield written
        self.written.pop()
        if self.written:
            for key, was in written.items():
                self.written[-1].setdefault(key, was)

    def rejoin(self, written: Written) -> None:
        """Each attribute holds what it held before, too."""
        for (_, name), (obj, before) in written.items():
            obj.fields[name] = join(before or (), obj.fields.get(name, ()))

    def one_or_other(self, one: Callable[[], bool], other: Callable[[], bool]) -> tuple[bool, bool]:
        """Two ways from the same start; behind them, an attribute holds what the one or the other set."""
        self.unsure += 1
        with self.writing() as written:
            ended_one = one()
            after_one = {key: obj.fields.get(key[1], ()) for key, (obj, _) in written.items()}
            for (_, name), (obj, before) in written.items():
                if before is not None:
                    obj.fields[name] = before
                else:
                    obj.fields.pop(name, None)
            ended_other = other()
        self.unsure -= 1
        for key, (obj, before) in written.items():
            # args.gpu of the command line has a value where neither way gave it one
            none = UNKNOWN if isinstance(obj, Thing) else ()
            one_side = after_one.get(key, before or ()) or none
            obj.fields[key[1]] = join(one_side, obj.fields.get(key[1], none))
        return ended_one, ended_other
