"""Flow in, answers out: whether something runs on some ranks only, and whether a value differs from rank to rank."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterator

import libcst as cst

from ddpify.facts.contents import constants
from ddpify.facts.definitions import Definition, Definitions, argument_of, definitions, returns
from ddpify.facts.externals import LEAVES
from ddpify.facts.flow import Flow
from ddpify.facts.frames import Entry, Event, Frame
from ddpify.facts.placing import is_guard
from ddpify.facts.single import Single, asks_launch, ends_job
from ddpify.facts.values import Const, Data, Ext, Func, Thing
from ddpify.source import dotted, walk

#: Calls whose result is the same on every rank.
_AGREES = re.compile(r"torch\.distributed\.(\w+\.)*(broadcast\w*|all_reduce|all_gather\w*)")
#: Calls that give the rank of this process.
_RANK_CALLS = re.compile(
    r"torch\.distributed\.(\w+\.)*(get_rank|get_node_local_rank|get_group_rank|get_global_rank|is_rank_zero)"
    r"|mpi4py\.MPI\.COMM_WORLD\.Get_rank|torch\.cuda\.current_device|torch\.accelerator\.current_device_index|horovod\.(\w+\.)*(rank|local_rank)"
    # of a module of the user's that is not there: utils.is_main_process()
    r"|(\w+\.)*(is_(local_|global_)?(main|master|primary|chief|logging|first)_?\w*|is_(global_)?(rank_?)?(0|zero)|"
    r"get_(local_|global_|world_)?rank|get_dist_info|(ddp|dist|distributed)_(setup|init)|"
    r"(setup|init|initialize|launch|start)_(dist|ddp|distributed)\w*)"
)
_VARIABLES = frozenset(
    {
        "RANK",
        "LOCAL_RANK",
        "GROUP_RANK",
        "SLURM_PROCID",
        "SLURM_LOCALID",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "PMI_RANK",
    }
)
_READS_ENVIRONMENT = frozenset(
    {"os.environ.get", "os.getenv", "os.environ.__getitem__", "os.environ.setdefault", "os.environ.pop"}
)
#: Functions whose result tells the rank where an argument does.
_PLAIN = re.compile(
    r"builtins\.(int|str|bool|float|len|format|repr|any|all|min|max)|os\.path\.\w+|os\.fspath|pathlib\.\w+|pprint\.pformat"
)
#: Methods of a text, a path or a number whose result tells the rank where the object or an argument does.
_OF_TEXT = frozenset(
    {
        *("format", "joinpath", "join", "with_suffix", "item", "split", "rsplit", "strip", "lstrip", "rstrip"),
        *("replace", "lower", "upper", "zfill", "rjust", "ljust"),
    }
)
_RANK_DECORATOR = re.compile(r".*rank_zero\w*|.*on_main_process|.*only_on_master")
_SPAWNS = re.compile(
    r"torch\.multiprocessing\.(spawn(\.spawn)?|start_processes)|(torch\.)?multiprocessing\.(\w+\.)*Process"
    # of a module of the user's that is not there
    r"|(?!torch|gevent|eventlet|asyncio|pexpect|os\.)(\w+\.)+spawn"
)
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


class Ranks:
    """Answers about one flow."""

    def __init__(self, flow: Flow, strict: bool = False) -> None:
        self.flow = flow
        self.strict = strict
        self.definitions: Definitions = definitions(flow)
        calls = [e.node for e in flow.log.of("external") if _SPAWNS.fullmatch(e.name)]
        #: calls that spawn the ranks, and what they are given: the function among it
        self.spawns = {id(n) for c in calls if isinstance(c, cst.Call) for n in (c, *(a.value for a in c.args))}
        self._known: dict[tuple[int, int], bool] = {}
        self._limited: dict[tuple[int, int], bool] = {}
        self.single = Single(flow)

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

    def once(self, event: Event, chain: list[Entry]) -> bool:
        """In a script that spawns its ranks: what the parent process does by itself."""
        if not self.spawns:
            return False
        calls = [e.call for e in chain]
        outermost = calls[0] if calls else event.node
        source = chain[0].frame.source if chain else event.frame.source
        main = any(is_guard(a) for a in source.ancestors(outermost))
        return main and not any(id(c) in self.spawns for c in calls)

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
        return any(type(n) is cst.Call and _RANK_CALLS.fullmatch(dotted(n.func)) for f in unrun for n in walk(f.node))

    def tests_rank(self, test: cst.BaseExpression, frame: Frame) -> bool:
        return self.differs(test, frame) or self.opaque_test(test, frame)

    # -- what a value depends on --------------------------------------------------------------------------

    def differs(self, node: cst.CSTNode, frame: Frame, index: int | None = None) -> bool:
        key = (id(node), id(frame))
        if index is not None:
            return self._differs(node, frame, index)
        if key not in self._known:
            self._known[key] = False
            self._known[key] = self._differs(node, frame, None)
        return self._known[key]

    def _differs(self, node: cst.CSTNode, frame: Frame, index: int | None) -> bool:
        match node:
            case cst.Name():
                found = self.definitions.of(node, frame)
                if index is not None:  # `rank, size = pair`, and `pair = (rank, size)`
                    found = [d if d.index is not None else dataclasses.replace(d, index=index) for d in found]
                spawned = self.spawned_rank(node.value, frame) or self.of_own_share(node.value, frame)
                return spawned or any(map(self.defined_by_rank, found))
            case cst.Attribute():
                return self.launched(node) or any(map(self.defined_by_rank, self.definitions.of(node, frame)))
            case cst.Call():
                return self.call(node, frame, index)
            case cst.Subscript(value=value):
                keys = [i.slice.value for i in node.slice if isinstance(i.slice, cst.Index)]
                if any(isinstance(o, Ext) and o.name == "os.environ" for o in self.flow.values.get(value, ())):
                    return any(self.variable(k) for k in keys)
                if any(self.variable(k) for k in keys) and self.from_environment(value, frame):
                    return True
                return any(self.differs(k, frame) for k in keys) or self.differs(value, frame) or self.stored(node)
            case cst.FormattedString(parts=parts):
                return any(
                    self.differs(p.expression, frame) for p in parts if isinstance(p, cst.FormattedStringExpression)
                )
            case (
                cst.BinaryOperation(left=one, right=two)
                | cst.BooleanOperation(left=one, right=two)
                | cst.ConcatenatedString(left=one, right=two)
            ):
                return self.differs(one, frame) or self.differs(two, frame)
            case cst.UnaryOperation(expression=inner) | cst.NamedExpr(value=inner):
                return self.differs(inner, frame)
            case cst.Comparison() if asks_launch(node):
                return False
            case cst.Comparison(left=left, comparisons=comparisons):
                return self.differs(left, frame) or any(self.differs(c.comparator, frame) for c in comparisons)
            case cst.IfExp(test=test, body=body, orelse=orelse):
                return self.tests_rank(test, frame) or self.differs(body, frame) or self.differs(orelse, frame)
            case cst.Tuple(elements=elements) if index is not None and index < len(elements):
                return self.differs(elements[index].value, frame)
            case cst.Tuple(elements=elements) | cst.List(elements=elements):
                return any(self.differs(e.value, frame) for e in elements)
        return False

    def stored(self, node: cst.Subscript) -> bool:
        """`flags["writer"]` of a dict whose values were set by the rank: `flags[key] = flag and is_main`."""
        held = [s for o in self.flow.values.get(node.value, ()) for s in self.definitions.stored.get(id(o), ())]
        key = self.key(node)
        found = [d for at, d in held if key is None or self.key(at) in (None, key)]
        return any(self.differs(d.node, d.frame, d.index) for d in found)

    def key(self, node: cst.BaseExpression) -> object:
        """The literal key of `flags["writer"]`, None where it is computed."""
        index = node.slice[0].slice if isinstance(node, cst.Subscript) and len(node.slice) == 1 else None
        known = constants(self.flow.values.get(index.value, ())) if isinstance(index, cst.Index) else None
        return known[0] if known is not None and len(known) == 1 else None

    def defined_by_rank(self, d: Definition) -> bool:
        """A value made from the rank, or given under a test of it: `writer = None` and `if rank == 0: writer = ...`."""
        if self.differs(d.node, d.frame, d.index):
            return True
        if self.strict:
            return False
        return d.event is not None and self.limited(d.event.node, d.frame)

    def call(self, node: cst.Call, frame: Frame, index: int | None) -> bool:
        # `world, rank = init_distributed()`: which of the two it is, nobody knows
        certain = index is None or not self.strict
        if certain and not self.definitions.callees(node, frame) and _RANK_CALLS.fullmatch(dotted(node.func)):
            return True  # get_rank(), of a `from utils import *` that is not there
        for obj in self.flow.values.get(node.func, ()):
            if isinstance(obj, Ext):
                if _RANK_CALLS.fullmatch(obj.name):
                    return certain or obj.name.startswith("torch.")
                if obj.name in _READS_ENVIRONMENT:
                    return bool(node.args) and self.variable(node.args[0].value)
                if self.strict and obj.name.startswith("os."):
                    return False  # os.path.isfile(f"memory_{rank}.pt"): there, or not, for all of them
                if _PLAIN.fullmatch(obj.name):
                    return any(self.differs(a.value, frame) for a in node.args)
        if isinstance(node.func, cst.Attribute) and node.func.attr.value in _OF_TEXT:
            return self.differs(node.func.value, frame) or any(self.differs(a.value, frame) for a in node.args)
        for func in self.definitions.callees(node, frame):
            if id(func.node) in self.agreeing or self.asks_for_another(node):
                continue  # what was broadcast or reduced is the same on every rank
            if any(map(self.defined_by_rank, self.definitions.returned(func, index))):
                return True
            home = next(iter(self.definitions.frames.get(id(func.node), ())), None)
            if (
                home is not None
                and isinstance(func.node, cst.FunctionDef)
                and any(self.limited(r, home) for r in returns(func.node.body))
            ):
                return True
        return False

    @functools.cached_property
    def agreeing(self) -> set[int]:
        """The functions of the project that broadcast, reduce or gather what they give back."""
        calls = [e for e in self.flow.log.of("external") if _AGREES.fullmatch(e.name)]
        return {id(e.frame.func.node) for e in calls if e.frame.func is not None}

    def from_environment(self, node: cst.BaseExpression, frame: Frame) -> bool:
        """`{key: os.environ[key] for key in ("RANK", "LOCAL_RANK")}`"""
        parts = (n for d in self.definitions.of(node, frame) for n in walk(d.node))
        return any(isinstance(o, Ext) and o.name == "os.environ" for n in parts for o in self.flow.values.get(n, ()))

    def asks_for_another(self, node: cst.Call) -> bool:
        """`env2int(["PMI_SIZE", "WORLD_SIZE"], 1)`: a reader of the environment, asked for the number of ranks."""
        texts = {str(n.evaluated_value) for a in node.args for n in walk(a.value) if isinstance(n, cst.SimpleString)}
        return "WORLD_SIZE" in texts and not texts & _VARIABLES

    def variable(self, node: cst.BaseExpression) -> bool:
        """The name of an environment variable that tells the rank."""
        return any(isinstance(o, Const) and o.value in _VARIABLES for o in self.flow.values.get(node, ()))

    def spawned_rank(self, name: str, frame: Frame) -> bool:
        """The first parameter of a function that is spawned is its rank."""
        alike = self.definitions.frames.get(id(frame.node), [frame])  # other calls of the function set the same fields
        if frame.func is None or not any(id(e.call) in self.spawns for f in alike for e in f.entries):
            return False
        params = [*frame.func.node.params.posonly_params, *frame.func.node.params.params]
        first = params[1:] if frame.func.bound is not None else params
        return bool(first) and first[0].name.value == name and name not in frame.assigned

    def of_own_share(self, name: str, frame: Frame) -> bool:
        """`for day in range(rank, days, world)`, `for path in paths[rank::world]`: each rank has other ones."""
        holder = frame.scope if name in frame.assigned else frame.scope.holder(name)
        loops = (e.stmt for e in self.definitions.bound(holder, name))
        return any(isinstance(lp, cst.For) and self.own_share(lp.iter, frame) for lp in loops)

    def own_share(self, node: cst.BaseExpression, frame: Frame) -> bool:
        match node:
            case cst.Call(func=cst.Name(value="range"), args=[first, _, _]):
                return self.differs(first.value, frame)
            case cst.Subscript(slice=[cst.SubscriptElement(slice=cst.Slice(lower=lower))]):
                return lower is not None and self.differs(lower, frame)
            case cst.Call(args=[first, *_]):
                return self.own_share(first.value, frame)  # enumerate(...), tqdm(...)
        return False

    def launched(self, node: cst.Attribute) -> bool:
        """`args.local_rank`: what torch.distributed.launch gives by this name, or a set-up that is not there."""
        held = self.flow.values.get(node.value, ())
        known = any(isinstance(o, Thing) and o.name == "namespace" for o in held)
        known = known or any(isinstance(o, Ext) and o.name == "absl.flags.FLAGS" for o in held)
        unknown = bool(held and self.single.marks) and all(isinstance(o, Data) and not o.origins for o in held)
        return node.attr.value in ("local_rank", "rank", "global_rank") and (known or unknown)

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
                return not self.strict and self.opaque(test, frame)
        return False

    def opaque(self, node: cst.CSTNode, frame: Frame, depth: int = 4) -> bool:
        """A parameter of a function that nothing in the project calls, or what was kept of one."""
        base = node
        while isinstance(base, cst.Attribute) and not self.definitions.attribute_events(base):
            base = base.value
        if isinstance(base, cst.Name) and frame.func is not None:
            params = {p.name.value for p in walk(frame.func.node.params) if isinstance(p, cst.Param)}
            nobody = bool(frame.entries) and all(
                isinstance(e.call, (cst.FunctionDef, cst.ClassDef)) or id(e.call) in self.spawns for e in frame.entries
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
        return depth > 0 and any(self.opaque(d.node, d.frame, depth - 1) for d in self.definitions.of(base, frame))
