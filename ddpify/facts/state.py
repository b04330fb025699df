"""A project in, the state of a run out: frames, loops, objects by where they are made, the log of events."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import libcst as cst

from ddpify.facts.contents import join
from ddpify.facts.frames import Event, Frame, Log, Loop
from ddpify.facts.values import Class, Func, Iteration, Loader, Module, Obj, Site, Value, Wrapped
from ddpify.project import Project
from ddpify.source import Source

#: An argument: the expression, where the call has one for it, and its value.
Given = tuple[cst.BaseExpression | None, Value]


class State:
    """What the evaluator keeps while it runs a script; the classes that extend it each evaluate one kind of thing."""

    #: statements of the script -> the variables that the plan will wrap behind them
    inserted: Mapping[cst.CSTNode, list[cst.BaseExpression]] = {}
    #: expressions that the plan will wrap where they stand
    around: Collection[cst.CSTNode] = ()
    #: calls of methods of a model -> the expression that holds it; the plan makes forwards of the wrapper of them
    routed: Mapping[cst.CSTNode, cst.BaseExpression] = {}
    #: what stands between such a call and the model: `model.compute_loss`
    reached: Collection[cst.CSTNode] = ()

    def __init__(self, project: Project, *, uncalled: bool = True, budget: int = 600_000) -> None:
        self.project = project
        self.uncalled = uncalled
        self.budget = budget
        self.log = Log()
        self.modules: dict[Source, Frame] = {}
        self.frames: list[Frame] = []
        self.values: dict[cst.CSTNode, Value] = {}
        #: expressions whose values the training script has settled, whatever the functions do that nothing calls
        self.settled: frozenset[cst.CSTNode] = frozenset()
        self.defaults: dict[cst.CSTNode, dict[str, Value]] = {}
        self.star_imports: dict[Source, list[str]] = {}
        self.followed: set[cst.CSTNode] = set()
        self.sites: dict[tuple[object, ...], Obj] = {}
        self.stmt: cst.CSTNode = project.entry.module
        self.loops: list[Loop] = []
        self.under: list[cst.CSTNode] = []
        #: the loops of generator functions, whose turns happen in the loops of those who call them
        self.handed: list[Loop] = []
        self.grad: bool | None = True
        self.quiet = 0
        #: objects whose `__init__` has been written down
        self.told: set[int] = set()
        #: how many loops are in their trial pass, which only settles values
        self.trial = 0
        self.iterating: set[int] = set()
        self.inner_frames: dict[tuple[int, int, str], Frame] = {}
        self.unsure = 0
        #: both ways of a setting are read (`DATASET = "small"`): a conversion has to hold for either
        self.both_ways = False
        #: attributes that were set, by the ways that parted around them (fields.py)
        self.written: list[dict[tuple[int, str], tuple[Any, Value | None]]] = []
        self.returned: list[Value] = [()]
        #: the functions that are running, the results of those that ran, the names that each assigns
        self.stack: list[cst.CSTNode] = []
        self.memo: dict[object, tuple[Value, Frame, tuple[cst.CSTNode, Frame], list[tuple[Any, str, Value]]]] = {}
        self.assigned: dict[cst.CSTNode, frozenset[str]] = {}

    @property
    def planned(self) -> bool:
        """Whether this is the script as it will be once the plan is carried out."""
        return bool(self.inserted or self.around)

    def spend(self) -> None:
        self.budget -= 1

    def event(
        self,
        kind: str,
        node: cst.CSTNode,
        frame: Frame,
        obj: Obj | None = None,
        name: str = "",
        value: Value = (),
        callee: Frame | None = None,
        extra: dict[str, Value] | None = None,
    ) -> None:
        """Write down what happens, unless this is a trial pass of a loop."""
        if self.quiet:
            return
        frame = frame.home
        new = Event(
            kind,
            node,
            self.stmt,
            frame,
            self.grad,
            tuple(self.loops),
            len(self.log.events),
            obj,
            name,
            value,
            callee,
            tuple(self.under),
            extra or {},
        )
        self.log.add(new)
        frame.events.append(new)

    def note(self, node: cst.CSTNode, value: Value) -> None:
        """Write down what an expression holds, in any context; what a trial pass made is no value of the script."""
        if not self.trial:
            known = self.values.get(node)
            if node in self.settled:
                return
            if known is None:
                self.values[node] = value
            elif known is not value and known != value:
                self.values[node] = join(known, value)

    def site(self, node: cst.CSTNode, frame: Frame) -> Site:
        return Site(node, frame.source, frame)

    def made(self, node: cst.CSTNode, frame: Frame, make: Obj, tag: str = "") -> Value:
        """The object that an expression makes: the same one each time it runs in the same frame.

        In a loop over literals each turn has its own loader, and iterates over something else:
        `for batch in tqdm(loaders[phase])`.
        """
        turn = self.elements(frame) if isinstance(make, (Iteration, Loader)) else ()
        key = (id(node), id(frame), tag or type(make).__name__, turn)
        return (self.sites.setdefault(key, make),)

    def elements(self, frame: Frame) -> tuple[Value, ...]:
        """What the loops over literals that run in a frame are at."""
        return tuple(lp.element for lp in self.loops if lp.element is not None and lp.frame.home is frame.home)

    # -- given by the classes that extend this one ------------------------------------------------------------

    def expr(self, node: cst.CSTNode, frame: Frame) -> Value:
        raise NotImplementedError

    def call(self, node: cst.Call, frame: Frame) -> Value:
        raise NotImplementedError

    def call_function(
        self, func: Func, given: list[Given], named: dict[str, Given], node: cst.CSTNode, frame: Frame
    ) -> Value:
        raise NotImplementedError

    def instantiate(
        self,
        cls: Class,
        given: list[Given],
        named: dict[str, Given],
        node: cst.CSTNode,
        frame: Frame,
        splats: list[Value] | None = None,
    ) -> Value:
        raise NotImplementedError

    def import_module(self, source: Source, frame: Frame, stmt: cst.CSTNode) -> Frame:
        raise NotImplementedError

    def callbacks(self, given: list[Given], named: dict[str, Given], node: cst.CSTNode, frame: Frame) -> None:
        raise NotImplementedError

    def forward(self, obj: Module | Wrapped, node: cst.Call, given: list[Given], frame: Frame) -> Value:
        raise NotImplementedError

    def block(self, body: Sequence[cst.CSTNode], frame: Frame) -> bool:
        raise NotImplementedError

    def statement(self, stmt: cst.CSTNode, frame: Frame) -> bool:
        raise NotImplementedError

    def truth(self, test: Value) -> bool | None:
        raise NotImplementedError

    def literals(self, over: Value) -> list[Value] | None:
        raise NotImplementedError
