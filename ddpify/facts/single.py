"""A flow in, the code that runs without other ranks out: the branch beside the one that sets up, wraps or shards."""

from __future__ import annotations

import functools
import re

import libcst as cst

from ddpify.facts.definitions import returns
from ddpify.facts.flow import Flow
from ddpify.facts.frames import Entry, Event, Frame
from ddpify.facts.values import Ext, Func, Sampler, Wrapped
from ddpify.source import dotted, walk

#: calls that a run of one process does not make
_JOINS = re.compile(
    r"torch\.distributed\.(\w+\.)*(init_process_group|get_rank|get_world_size|barrier|all_\w+|broadcast\w*)"
    r"|torch\.multiprocessing\.(spawn(\.spawn)?|start_processes)"
)
_WORDS = frozenset({"get_rank", "init_process_group", "DistributedDataParallel", "DistributedSampler"})


class Single:
    """Answers about one flow."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self._distributed: dict[int, bool] = {}
        self._alone: dict[int, bool] = {}

    def alone(self, node: cst.CSTNode, frame: Frame) -> bool:
        """`else:` of `if args.distributed: init_process_group(...)`: what runs in one process only."""
        path: list[int] = []
        below, answer = node, False
        for above in frame.source.ancestors(node):
            known = self._alone.get(id(below))
            if known is not None:
                answer = known
                break
            path.append(id(below))
            if type(above) is cst.FunctionDef:
                break
            if self.is_way(above, below, frame.node):
                answer = True
                break
            below = above
        self._alone.update(dict.fromkeys(path, answer))
        return answer

    def is_way(self, above: cst.CSTNode, below: cst.CSTNode, func: cst.CSTNode) -> bool:
        """Whether what is directly above leads one process only to what is below it."""
        if isinstance(above, cst.IndentedBlock):
            return any(_says_alone(s) or self.refuses_ranks(s) for s in above.body[: _place(above, below)])
        if not isinstance(above, (cst.If, cst.IfExp)) or below is above.test:
            return False
        if below is above.body and (_is_alone(above.test) or _is_several(above.test) in self.ones_with_ranks):
            return True
        negated = isinstance(above.test, cst.UnaryOperation) and isinstance(above.test.operator, cst.Not)
        asked = above.test.expression if isinstance(above.test, cst.UnaryOperation) else above.test
        holds = (below is above.body) != negated
        if dotted(asked) in (self.refused_with_ranks if holds else self.flags):
            return True
        if not holds and (id(func), dotted(asked)) in self.flag_parameters:
            return True
        other = above.orelse if below is above.body else above.body
        return other is not None and self.joins_in(other) and not self.joins_in(below)

    def refuses_ranks(self, stmt: cst.CSTNode) -> bool:
        """`if dist.is_initialized(): raise NotImplementedError`: what comes behind it is for one process."""
        if not isinstance(stmt, cst.If) or not isinstance(stmt.body, cst.IndentedBlock) or not stmt.body.body:
            return False
        last = stmt.body.body[-1]
        raises = isinstance(last, cst.SimpleStatementLine) and isinstance(last.body[-1], cst.Raise)
        return raises and self.says_many(stmt.test)

    @functools.cached_property
    def refused_with_ranks(self) -> set[str]:
        """`args.search` of `if distributed: assert not args.search; dist.init_process_group()`."""
        found: set[str] = set()
        for call in (e for e in self.flow.log.of("external") if e.name.endswith(".init_process_group")):
            above = call.frame.source.ancestors(call.node)
            for block in (a.body for a in above if isinstance(a, cst.IndentedBlock)):
                found.update(map(_refused, block))
        return found - {""}

    @functools.cached_property
    def joined_under(self) -> set[str]:
        """`args.distributed` of `if args.distributed: dist.init_process_group()`, where no other call joins."""
        found: set[str] = set()
        for call in (e for e in self.flow.log.of("external") if e.name.endswith(".init_process_group")):
            below: cst.CSTNode = call.node
            tests = set()
            for above in call.frame.source.ancestors(call.node):
                if isinstance(above, cst.If) and above.body is below:
                    tests.add(dotted(above.test))
                below = above
            found = tests if not found else found & tests
        return found - {""}

    @functools.cached_property
    def flags(self) -> set[str]:
        """`args.distributed`: what the group is joined under, or `int(os.environ["WORLD_SIZE"]) > 1`."""
        found = set(self.joined_under)
        for source in self.flow.modules:
            for stmt in source.of(cst.Assign) if "WORLD_SIZE" in source.text else ():
                if _asks_world(stmt.value):
                    found.update(dotted(t.target) for t in stmt.targets)
        return found - {""}

    @functools.cached_property
    def flag_parameters(self) -> set[tuple[int, str]]:
        """The parameters that get such a flag in each call: `make_loader(data, distributed=args.distributed)`."""
        found: set[tuple[int, str]] = set()
        given: dict[tuple[int, str], list[bool]] = {}
        for _ in range(2):  # handed on once more
            given.clear()
            for frame in self.flow.frames:
                for name, value in frame.arguments.items():
                    callers = {id(e.frame.node) for e in frame.entries}
                    own = any((c, dotted(value)) in found for c in callers)
                    is_flag = dotted(value) in self.flags or own
                    given.setdefault((id(frame.node), name), []).append(is_flag and name not in frame.assigned)
            found = {key for key, flags in given.items() if all(flags)}
        return found

    @functools.cached_property
    def ones_with_ranks(self) -> set[str]:
        """`args.num_gpu` of `if args.distributed and args.num_gpu > 1: args.num_gpu = 1`."""
        found: set[str] = set()
        for source in self.flow.modules:
            for stmt in source.of(cst.If):
                if any(dotted(p) in self.flags for p in _parts(stmt.test)):
                    found.update(name for line in stmt.body.body for name in _set_to_one(line))
        return found - {""}

    def says_many(self, test: cst.BaseExpression, depth: int = 2) -> bool:
        """`dist.is_initialized()`, `dist.get_world_size() > 1`, a function of the project that gives back such."""
        match test:
            case cst.Comparison(
                left=cst.Call() as left, comparisons=[cst.ComparisonTarget(operator=cst.GreaterThan())]
            ):
                return self.asks(left, "get_world_size", depth)
            case cst.Call():
                return self.asks(test, "is_initialized", depth)
            case cst.BooleanOperation(operator=cst.And(), left=left, right=right):
                return self.says_many(left, depth) or self.says_many(right, depth)
        return False

    def asks(self, call: cst.Call, what: str, depth: int) -> bool:
        """Whether a call is one of `torch.distributed`, or of a function that does no more than ask it."""
        for obj in self.flow.values.get(call.func, ()):
            if isinstance(obj, Ext) and re.fullmatch(rf"torch\.distributed\.(\w+\.)*{what}", obj.name):
                return True
            node = obj.node if isinstance(obj, Func) and depth else None
            given = [r.value for r in returns(node.body)] if isinstance(node, cst.FunctionDef) else []
            if any(v is not None and self.says_many(v, depth - 1) for v in given):
                return True
        return False

    def joins_in(self, branch: cst.CSTNode) -> bool:
        """The same of a branch that calls a function of the project to set up: `else: init_dist(args)`."""
        return self.is_distributed(branch) or any(id(n) in self.setups for n in walk(branch))

    def for_others(self, event: Event, chain: list[Entry]) -> bool:
        """In a function that nothing here calls, and that has nothing to do with ranks: its callers know where."""
        if not self.marks or not chain or not isinstance(chain[0].call, (cst.FunctionDef, cst.ClassDef)):
            return False
        root = chain[1].frame if len(chain) > 1 else event.frame
        owner = root.func.owner.node if root.func is not None and root.func.owner is not None else root.node
        return not self.is_distributed(owner)

    def is_distributed(self, branch: cst.CSTNode) -> bool:
        """Whether a branch sets up, wraps, shards or asks for the rank."""
        if id(branch) not in self._distributed:
            self._distributed[id(branch)] = any(id(n) in self.marks or _names_rank(n) for n in walk(branch))
        return self._distributed[id(branch)]

    @functools.cached_property
    def marks(self) -> set[int]:
        """The calls that only a distributed run makes."""
        events = self.flow.log.events
        return {
            id(e.node)
            for e in events
            if (e.kind == "external" and self.joins(e.name)) or (e.kind in ("new", "sampler") and _is_ours(e.obj))
        }

    @functools.cached_property
    def setups(self) -> set[int]:
        """The calls in the project that lead to one that sets up."""
        made = (e for e in self.flow.log.of("external") if e.name.endswith(".init_process_group"))
        return {id(entry.call) for e in made for chain in e.frame.chains(8) for entry in chain}

    def joins(self, name: str) -> bool:
        return _JOINS.fullmatch(name) is not None


def _names_rank(node: cst.CSTNode) -> bool:
    """`os.environ["LOCAL_RANK"]`, and `get_rank` in code that the flow did not reach."""
    if isinstance(node, cst.Name):
        return node.value in _WORDS
    return isinstance(node, cst.SimpleString) and node.evaluated_value in ("RANK", "LOCAL_RANK", "WORLD_SIZE")


def ends_job(stmt: cst.If) -> bool:
    """`if bad: raise ValueError`: torchrun ends all ranks then."""
    last = stmt.body.body[-1] if stmt.body.body else None
    small = last.body[-1] if isinstance(last, cst.SimpleStatementLine) else last
    return isinstance(small, (cst.Raise, cst.Expr))


def _is_ours(obj: object) -> bool:
    return isinstance(obj, Wrapped) or (isinstance(obj, Sampler) and "Distributed" in obj.name)


def _place(block: cst.IndentedBlock, stmt: cst.CSTNode) -> int:
    return next((at for at, s in enumerate(block.body) if s is stmt), 0)


def _parts(test: cst.BaseExpression) -> list[cst.BaseExpression]:
    """What all has to hold."""
    if isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.And):
        return [*_parts(test.left), *_parts(test.right)]
    return [test]


def _set_to_one(stmt: cst.CSTNode) -> list[str]:
    """`args.num_gpu` of `args.num_gpu = 1`"""
    match stmt:
        case cst.SimpleStatementLine(body=[cst.Assign(targets=targets, value=cst.Integer(value="1"))]):
            return [dotted(t.target) for t in targets]
    return []


def _is_several(test: cst.BaseExpression) -> str:
    """`args.num_gpu` of `args.num_gpu > 1`"""
    match test:
        case cst.Comparison(
            left=left, comparisons=[cst.ComparisonTarget(operator=cst.GreaterThan(), comparator=cst.Integer(value="1"))]
        ):
            return dotted(left) or "?"
    return "?"


def _asks_world(value: cst.BaseExpression) -> bool:
    """`int(os.environ["WORLD_SIZE"]) > 1`"""
    match value:
        case cst.Comparison(
            left=left, comparisons=[cst.ComparisonTarget(operator=cst.GreaterThan(), comparator=cst.Integer(value="1"))]
        ):
            return any(isinstance(n, cst.SimpleString) and n.evaluated_value == "WORLD_SIZE" for n in walk(left))
    return False


def _refused(stmt: cst.CSTNode) -> str:
    """`args.search` of `assert not args.search`"""
    match stmt:
        case cst.SimpleStatementLine(
            body=[cst.Assert(test=cst.UnaryOperation(operator=cst.Not(), expression=asked)), *_]
        ):
            return dotted(asked)
    return ""


def _says_alone(stmt: cst.CSTNode) -> bool:
    """`assert local_rank == -1`: what comes behind it is for one process."""
    small = stmt.body[0] if type(stmt) is cst.SimpleStatementLine else None
    return type(small) is cst.Assert and _is_alone(small.test)


def _is_alone(test: cst.BaseExpression) -> bool:
    """`local_rank == -1 and args.evaluate_during_training`"""
    match test:
        case cst.BooleanOperation(left=left, operator=cst.And(), right=right):
            return _is_alone(left) or _is_alone(right)
        case cst.Comparison(comparisons=[cst.ComparisonTarget(operator=cst.Equal())]):
            return asks_launch(test)
    return False


def asks_launch(node: cst.Comparison) -> bool:
    """`local_rank != -1`, `rank >= 0`, `rank is None`: whether there are ranks at all, which all of them know alike."""
    if len(node.comparisons) != 1:
        return False
    kind, right = type(node.comparisons[0].operator), node.comparisons[0].comparator
    match right:
        case cst.UnaryOperation(operator=cst.Minus(), expression=cst.Integer(value="1")):
            return kind in (cst.Equal, cst.NotEqual, cst.GreaterThan, cst.LessThanEqual)
        case cst.Integer(value="0"):
            return kind in (cst.GreaterThanEqual, cst.LessThan)
        case cst.Name(value="None"):
            return kind in (cst.Is, cst.IsNot, cst.Equal, cst.NotEqual)
    return False
