"""Flow in, answers out: whether something runs on some ranks only, and whether a value differs from rank to rank."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator

import libcst as cst

from ddpify.facts.contents import constants
from ddpify.facts.definitions import argument_of
from ddpify.facts.externals import LEAVES
from ddpify.facts.flow import Flow
from ddpify.facts.frames import Entry, Event, Frame
from ddpify.facts.placing import is_guard
from ddpify.facts.rank_values import RANK_CALLS, RankValues
from ddpify.facts.single import ends_job
from ddpify.facts.values import Ext, Func
from ddpify.source import dotted, walk

_RANK_DECORATOR = re.compile(r".*rank_zero\w*|.*on_main_process|.*only_on_master")
#: What may stand between a node and some of the ranks.
_LIMITING = frozenset(
    {
        *(cst.If, cst.IfExp, cst.While, cst.BooleanOperation),
        *(cst.IndentedBlock, cst.Module, cst.FunctionDef, cst.Lambda),
    }
)
#: What a parameter that nobody gives is compared with, where it is a rank.
_FIRST = ({0}, {0, -1})


def guarded(event: Event, flow: Flow) -> bool:
    """Whether an event runs on some ranks only, on every way that leads to it."""
    return ranks(flow).guarded(event)


def on_some_ranks(event: Event, flow: Flow) -> bool:
    """Whether a test that is one of the rank for certain stands around an event, on every way that leads to it."""
    known = ranks(flow, strict=True)
    ways = [[e for e in chain if known.limited(e.call, e.frame)] for chain in event.frame.chains()]
    return known.limited(event.node, event.frame) or (bool(ways) and all(ways))


def may_be_on_some_ranks(event: Event, flow: Flow) -> bool:
    """The same, also where the test is one of a number that a caller elsewhere gives: `if rank == 0:`."""
    known, source = ranks(flow, strict=True), event.frame.source
    tests = (a.test for a in source.ancestors(event.node) if isinstance(a, cst.If))
    return on_some_ranks(event, flow) or any(known.opaque_test(test, event.frame) for test in tests)


def by_one_process(event: Event, flow: Flow) -> bool:
    """Whether some way to an event is one of a run without ranks: `if local_rank == -1: evaluate(model)`."""
    alone = ranks(flow).single.alone
    chains = event.frame.chains(8)
    return alone(event.node, event.frame) or any(alone(e.call, e.frame) for chain in chains for e in chain)


def never_with_others(event: Event, flow: Flow) -> bool:
    """Whether every way to an event is one of a run without ranks: behind `if dist.is_initialized(): raise`."""
    alone = ranks(flow).single.alone
    ways = [[alone(e.call, e.frame) for e in chain] for chain in event.frame.chains(8)]
    return alone(event.node, event.frame) or (bool(ways) and all(map(any, ways)))


def of_no_caller(event: Event, flow: Flow) -> bool:
    """In a function that nothing of the program calls, and that has nothing to do with ranks: another script's."""
    chains = [list(chain) for chain in event.frame.chains()]
    return bool(chains) and all(ranks(flow).single.for_others(event, chain) for chain in chains)


def depends_on_rank(node: cst.CSTNode, frame: Frame, flow: Flow) -> bool:
    """Whether an expression differs from rank to rank because of the rank: `f"log_{rank}.txt"`, `rank == 0`."""
    return ranks(flow).differs(node, frame)


@functools.lru_cache(maxsize=4)
def ranks(flow: Flow, strict: bool = False) -> Ranks:
    """The answers for a flow, kept; `strict`: `if flag:` of an unknown caller is no test of the rank."""
    return Ranks(flow, strict)


class Ranks(RankValues):
    """Answers about one flow."""

    def __init__(self, flow: Flow, strict: bool = False) -> None:
        super().__init__(flow, strict)
        self._limited: dict[tuple[int, int], bool] = {}
        self.find_kept_ranks()
        self._limited.clear()  # answers from before they were known

    # -- where something runs ---------------------------------------------------------------------------

    def guarded(self, event: Event) -> bool:
        chains = list(event.frame.chains())
        if not chains or self.limited(event.node, event.frame) or self.single.alone(event.node, event.frame):
            return bool(chains)
        return all(
            self.once(event, chain)
            or self.single.for_others(event, chain)
            or any(self.limited(e.call, e.frame) or self.single.alone(e.call, e.frame) for e in chain)
            for chain in map(list, chains)
        )

    def by_parent(self, event: Event) -> bool:
        """Whether only the process that spawns the ranks does something."""
        chains = list(map(list, event.frame.chains()))
        return bool(chains) and all(self.once(event, chain) for chain in chains)

    def once(self, event: Event, chain: list[Entry]) -> bool:
        """In a script that spawns its ranks: what the parent process does by itself."""
        if not self.spawns:
            return False
        calls = [e.call for e in chain]
        if any(id(c) in self.spawns for c in calls):
            return False
        around = {id(f.node) for f in (*(e.frame for e in chain), event.frame) if f.func is not None}
        if around & self.starters:
            return True  # the function that starts the ranks, or what it calls besides
        outermost = calls[0] if calls else event.node
        source = chain[0].frame.source if chain else event.frame.source
        main = any(is_guard(a) for a in source.ancestors(outermost))
        return main

    def limited(self, node: cst.CSTNode, frame: Frame) -> bool:
        """Whether a node runs on some ranks only, as far as its own function says."""
        key = (id(node), id(frame))
        if key not in self._limited:
            self._limited[key] = False
            self._limited[key] = self._is_limited(node, frame)
        return self._limited[key]

    def _is_limited(self, node: cst.CSTNode, frame: Frame) -> bool:
        return next(self.limits(node, frame), None) is not None

    def limits(self, node: cst.CSTNode, frame: Frame) -> Iterator[tuple[cst.CSTNode, bool]]:
        """What lets some ranks only come to a node, innermost first, and whether they are those that pass the test."""
        source = frame.source
        below = node
        for above in source.ancestors(node):
            if type(above) not in _LIMITING:
                below = above
                continue
            match above:
                case cst.If(test=test) | cst.IfExp(test=test) | cst.While(test=test):
                    if below is not test and self.tests_rank(test, frame):
                        yield above, below is above.body
                case cst.BooleanOperation(left=left, right=right):
                    if below is right and self.tests_rank(left, frame):
                        yield above, True
                case cst.IndentedBlock(body=body) | cst.Module(body=body):
                    before = body[: next((i for i, s in enumerate(body) if s is below), len(body))]
                    ifs = (s for s in before if type(s) is cst.If and self.leaves(s))
                    yield from ((s, False) for s in ifs if not self.ends(s) and self.tests_rank(s.test, frame))
                case cst.FunctionDef():
                    for d in above.decorators:
                        if self.rank_decorator(d.decorator, frame):
                            yield d, True
                    return
                case cst.Lambda():
                    return
            below = above

    def ends(self, stmt: cst.If) -> bool:
        return self.strict and ends_job(stmt)

    def leaves(self, stmt: cst.If) -> bool:
        """`if rank != 0: return`"""
        body = stmt.body.body
        last = body[-1] if body else None
        small = last.body[-1] if isinstance(last, cst.SimpleStatementLine) else last
        if isinstance(small, cst.Expr) and isinstance(small.value, cst.Call):
            return any(isinstance(o, Ext) and o.name in LEAVES for o in self.flow.values.get(small.value.func, ()))
        return isinstance(small, (cst.Return, cst.Raise, cst.Continue, cst.Break))

    def rank_decorator(self, node: cst.BaseExpression, frame: Frame) -> bool:
        """`@rank_zero_only`, or a decorator of the project with a test of the rank in it."""
        inner = node.func if isinstance(node, cst.Call) else node
        for obj in self.flow.values.get(inner, ()):
            if isinstance(obj, Ext) and _RANK_DECORATOR.fullmatch(obj.name):
                return True
            home = self.flow.modules.get(obj.source) if isinstance(obj, Func) else None
            if isinstance(obj, Func) and home is not None:
                ifs = [n for n in walk(obj.node) if type(n) is cst.If]
                return any(self.tests_rank(n.test, home) or self.unrun(n.test, obj.node, home) for n in ifs)
        return False

    def unrun(self, test: cst.BaseExpression, tree: cst.CSTNode, home: Frame) -> bool:
        """`rank, _ = get_dist_info()` and `if rank == 0: return func(...)`, in a wrapper that the flow does not run."""
        names = {n.value for n in walk(test) if isinstance(n, cst.Name)}
        if any(type(n) is cst.Call and self.told(n, home, None) for n in walk(test)):
            return True  # `if get_rank() == 0:`
        for node in walk(tree):
            targets = [t.target for t in node.targets] if isinstance(node, cst.Assign) else []
            for target in targets:
                parts = list(enumerate(target.elements)) if isinstance(target, cst.Tuple) else []
                places: list[int | None] = [None] if isinstance(target, cst.Name) and target.value in names else []
                places += [at for at, e in parts if isinstance(e.value, cst.Name) and e.value.value in names]
                if isinstance(node, cst.Assign) and any(self.told(node.value, home, at) for at in places):
                    return True
        return False

    def told(self, node: cst.BaseExpression, home: Frame, at: int | None) -> bool:
        """The same, also where the flow has not run the function that asks for the rank."""
        if self.differs(node, home, at) or not isinstance(node, cst.Call):
            return self.differs(node, home, at)
        unrun = (f for f in self.definitions.callees(node, home) if id(f.node) not in self.definitions.frames)
        return any(type(n) is cst.Call and RANK_CALLS.fullmatch(dotted(n.func)) for f in unrun for n in walk(f.node))

    def tests_rank(self, test: cst.BaseExpression, frame: Frame) -> bool:
        return self.differs(test, frame) or (not self.strict and self.opaque_test(test, frame))

    # -- functions that nothing calls ---------------------------------------------------------------------------

    def opaque_test(self, test: cst.BaseExpression, frame: Frame) -> bool:
        """`if rank == 0:` or `if is_main:` where the value comes from a caller that is in another file."""
        match test:
            case cst.Comparison(left=left, comparisons=[cst.ComparisonTarget(comparator=right)]):
                known = constants(self.flow.values.get(right, ()))
                if known is None and isinstance(right, (cst.List, cst.Tuple)):
                    known = [k for e in right.elements for k in constants(self.flow.values.get(e.value, ())) or [None]]
                if isinstance(right, cst.UnaryOperation) and isinstance(right.expression, cst.Integer):
                    known = [-right.expression.evaluated_value]
                return known is not None and set(known) in _FIRST and self.opaque(left, frame)
            case cst.UnaryOperation(expression=inner):
                return self.opaque_test(inner, frame)
            case cst.BooleanOperation(left=left, right=right):
                return self.opaque_test(left, frame) or self.opaque_test(right, frame)
            case cst.Name() | cst.Attribute():
                return not self.strict and self.opaque(test, frame, spawned=False)
        return False

    def opaque(self, node: cst.CSTNode, frame: Frame, depth: int = 4, spawned: bool = True) -> bool:
        """A parameter of a function that nothing in the project calls, or what was kept of one.

        Not `spawned`: nor that spawns the ranks, all of which get the same settings: `if args.tensorboard:`
        """
        base = node
        while isinstance(base, cst.Attribute) and not self.definitions.attribute_events(base):
            base = base.value
        if isinstance(base, cst.Name) and frame.func is not None:
            params = {p.name.value for p in walk(frame.func.node.params) if isinstance(p, cst.Param)}
            nobody = bool(frame.entries) and all(
                isinstance(e.call, (cst.FunctionDef, cst.ClassDef)) or (spawned and id(e.call) in self.spawns)
                for e in frame.entries
            )
            if (
                nobody
                and base.value in params
                and base.value not in frame.assigned
                and argument_of(frame.node, frame, base.value) is None
            ):
                bound = (
                    frame.func.bound is not None
                    and frame.func.node.params.params[:1]
                    and frame.func.node.params.params[0].name.value == base.value
                )
                return not bound
        return depth > 0 and any(
            self.opaque(d.node, d.frame, depth - 1, spawned) for d in self.definitions.of(base, frame)
        )
