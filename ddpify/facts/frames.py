"""What was running when something happened: scopes, calls in their contexts, loops, and the events themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import libcst as cst

from ddpify.facts.values import Func, Obj, Value
from ddpify.source import Source


class Scope:
    """The names of a module, function or class, flow-sensitive while it runs."""

    def __init__(self, source: Source, parent: Scope | None, node: cst.CSTNode) -> None:
        self.source = source
        self.parent = parent
        self.node = node
        self.names: dict[str, Value] = {}
        self.outer: dict[str, Scope] = {}  # `global` and `nonlocal` names
        #: the statement that last bound a name
        self.bound_at: dict[str, cst.CSTNode] = {}
        #: name -> the flag by which it became the wrapper or stayed the model, what it holds behind, and on either side
        self.choices: dict[str, tuple[str, Value, Value, Value]] = {}

    @property
    def fields(self) -> dict[str, Value]:
        """The names, as what a function sets from outside them: `global model`."""
        return self.names

    @property
    def module(self) -> Scope:
        scope = self
        while scope.parent is not None:
            scope = scope.parent
        return scope

    def holder(self, name: str) -> Scope | None:
        """The scope in which a name is read, or None for builtins."""
        if name in self.outer:
            return self.outer[name]
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names and (scope is self or not isinstance(scope.node, cst.ClassDef)):
                return scope
            scope = scope.parent
        return None


@dataclass(frozen=True, eq=False)
class Loop:
    """A loop that is running: `for` over values, `while`, or a comprehension."""

    node: cst.CSTNode
    frame: Frame
    iterates: Value = ()
    #: the value of the loop variable where the loop is over literals (`for phase in ['train', 'val']`)
    element: Value | None = None


@dataclass(frozen=True, eq=False)
class Entry:
    """One way into a frame: the call, where it stands and what was running there."""

    frame: Frame
    call: cst.CSTNode
    stmt: cst.CSTNode
    loops: tuple[Loop, ...]
    grad: bool | None


class Frame:
    """A function that runs in one context (or a module's own code)."""

    def __init__(self, source: Source, scope: Scope, func: Func | None, grad: bool | None) -> None:
        self.source = source
        self.scope = scope
        self.func = func
        self.grad = grad
        #: it belongs to the trial pass of a loop, which only settles values
        self.trial = False
        #: how many frames were there before it
        self.number = 0
        #: the function that a comprehension stands in; for a function, itself
        self.home: Frame = self
        self.entries: list[Entry] = []
        self.events: list[Event] = []
        #: parameter -> the argument expression at the call, where there is one
        self.arguments: dict[str, cst.BaseExpression | None] = {}
        self.assigned: frozenset[str] = frozenset()

    @property
    def node(self) -> cst.CSTNode:
        return self.func.node if self.func is not None else self.source.module

    def chains(self, most: int = 24, below: frozenset[int] = frozenset()) -> Iterator[tuple[Entry, ...]]:
        """The ways from the script's own code to this frame, outermost call first."""
        if not self.entries:
            yield ()
            return
        given = 0
        for entry in self.entries:
            if id(entry.frame) in below or entry.frame is self:
                continue
            for chain in entry.frame.chains(most - given, below | {id(self)}):
                yield (*chain, entry)
                given += 1
                if given >= most:
                    return

    def reached_through(self, test: Callable[[Entry], bool]) -> bool:
        """Whether every way that leads here passes a call that the test accepts."""
        chains = list(self.chains())
        return bool(chains) and all(any(test(entry) for entry in chain) for chain in chains)

    def loops_around(self) -> Iterator[tuple[Loop, ...]]:
        """The callers' loops that are running when it runs, once per way that leads here."""
        for chain in self.chains():
            yield tuple(loop for entry in chain for loop in entry.loops)


@dataclass(eq=False)
class Event:
    """Something that happened at a node, in a frame, with gradients on or off, inside loops."""

    kind: str
    node: cst.CSTNode
    stmt: cst.CSTNode
    frame: Frame
    grad: bool | None
    loops: tuple[Loop, ...]
    seq: int
    obj: Obj | None = None
    name: str = ""
    value: Value = ()
    callee: Frame | None = None
    under: tuple[cst.CSTNode, ...] = ()
    extra: dict[str, Value] = field(default_factory=dict)

    def all_loops(self) -> Iterator[tuple[Loop, ...]]:
        """The loops around the event, callers' included, once per way that leads here."""
        for around in self.frame.loops_around():
            yield (*around, *self.loops)


@dataclass
class Log:
    """Everything that happened, in the order of time."""

    events: list[Event] = field(default_factory=list)
    by_kind: dict[str, list[Event]] = field(default_factory=dict)

    def add(self, event: Event) -> None:
        self.events.append(event)
        self.by_kind.setdefault(event.kind, []).append(event)

    def of(self, *kinds: str) -> list[Event]:
        found = [e for kind in kinds for e in self.by_kind.get(kind, ())]
        return sorted(found, key=lambda e: e.seq) if len(kinds) > 1 else found


def while_made(frame: Frame) -> bool:
    """Whether a frame runs only while some object is made: in an `__init__`, or called from there."""
    if frame.func is not None and frame.func.name == "__init__":
        return True
    chains = list(frame.chains(8))
    return bool(chains) and all(
        any(e.frame.func is not None and e.frame.func.name == "__init__" for e in chain) for chain in chains
    )
