"""An expression in, whether it differs from rank to rank because of the rank out."""

from __future__ import annotations

import dataclasses
import functools
import re
from abc import abstractmethod

import libcst as cst

from ddpify.facts.contents import constants
from ddpify.facts.definitions import Definition, Definitions, definitions, field_of, reaching, returns
from ddpify.facts.flow import Flow
from ddpify.facts.frames import Frame
from ddpify.facts.single import Single, asks_launch
from ddpify.facts.started import starts_ranks
from ddpify.facts.values import Const, Data, Ext, Instance, Thing
from ddpify.source import dotted, walk

#: Calls that give the rank of this process.
RANK_CALLS = re.compile(
    r"torch\.distributed\.(\w+\.)*(get_rank|get_node_local_rank|get_group_rank|get_global_rank|is_rank_zero)"
    r"|mpi4py\.MPI\.COMM_WORLD\.Get_rank|torch\.cuda\.current_device|torch\.accelerator\.current_device_index|horovod\.(\w+\.)*(rank|local_rank)"
    # of a module of the user's that is not there: utils.is_main_process()
    r"|(\w+\.)*(is_(local_|global_)?(main|master|primary|chief|logging|first)_?\w*|is_(global_)?(rank_?)?(0|zero)|"
    r"get_(local_|global_|world_)?rank|get_dist_info|(ddp|dist|distributed)_(setup|init)|"
    r"(setup|init|initialize|launch|start)_(dist|ddp|distributed)\w*)"
)
#: Calls whose result is the same on every rank.
_AGREES = re.compile(r"torch\.distributed\.(\w+\.)*(broadcast\w*|all_reduce|all_gather\w*)")
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
#: Methods of a text, a path or a number whose result tells the rank where the object or an argument does.
_OF_TEXT = frozenset(
    {
        *("format", "joinpath", "join", "with_suffix", "item", "split", "rsplit", "strip", "lstrip", "rstrip"),
        *("replace", "lower", "upper", "zfill", "rjust", "ljust"),
    }
)
#: Functions whose result tells the rank where an argument does.
_PLAIN = re.compile(
    r"builtins\.(int|str|bool|float|len|format|repr|any|all|min|max)|os\.path\.\w+|os\.fspath|pathlib\.\w+|pprint\.pformat"
)


class RankValues:
    """What the values of one flow have to do with the rank; where something runs is told by who extends it."""

    def __init__(self, flow: Flow, strict: bool = False) -> None:
        self.flow = flow
        self.strict = strict
        self.definitions: Definitions = definitions(flow)
        starts = starts_ranks(flow)
        calls = [e.node for e in starts]
        #: the functions that do so, and those that call them: a test, say, which starts ranks by a helper
        ways = [(e.frame, *(entry.frame for chain in e.frame.chains(8) for entry in chain)) for e in starts]
        self.starters = {id(f.node) for way in ways for f in way if f.func is not None}
        #: calls that spawn the ranks, and what they are given: the function among it
        self.spawns = {id(n) for c in calls if isinstance(c, cst.Call) for n in (c, *(a.value for a in c.args))}
        self._known: dict[tuple[int, int, int | None], bool] = {}
        #: names of attributes that hold the rank, in objects that cannot be followed
        self.kept_ranks: set[str] = set()
        self.single = Single(flow)

    @abstractmethod
    def limited(self, node: cst.CSTNode, frame: Frame) -> bool:
        """Whether a node runs on some ranks only, as far as its own function says."""

    @abstractmethod
    def tests_rank(self, test: cst.BaseExpression, frame: Frame) -> bool:
        """Whether a test tells ranks apart."""

    def differs(self, node: cst.CSTNode, frame: Frame, index: int | None = None) -> bool:
        key = (id(node), id(frame), index)
        if key not in self._known:
            self._known[key] = False  # of a name that is made of itself: `first, second = second, first`
            self._known[key] = self._differs(node, frame, index)
        return self._known[key]

    def _differs(self, node: cst.CSTNode, frame: Frame, index: int | None) -> bool:
        match node:
            case cst.Name():
                found = self.of_name(node, frame)
                if index is not None:  # `rank, size = pair`, and `pair = (rank, size)`
                    found = [d if d.index is not None else dataclasses.replace(d, index=index) for d in found]
                spawned = self.spawned_rank(node.value, frame) or self.of_own_share(node.value, frame)
                return spawned or any(map(self.defined_by_rank, found))
            case cst.Attribute():
                known = self.definitions.of(node, frame)
                by_name = not known and node.attr.value in self.kept_ranks
                return self.launched(node) or by_name or any(map(self.defined_by_rank, known))
            case cst.Call():
                return self.call(node, frame, index)
            case cst.Subscript(value=value):
                keys = [i.slice.value for i in node.slice if isinstance(i.slice, cst.Index)]
                if any(isinstance(o, Ext) and o.name == "os.environ" for o in self.flow.values.get(value, ())):
                    return any(self.variable(k) for k in keys)
                if any(self.variable(k) for k in keys) and self.from_environment(value, frame):
                    return True
                if any(self.of_arguments(k) for k in keys):
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
                return not self.strict and self.only_on_some(node, frame)
            case cst.Comparison(left=left, comparisons=comparisons):
                return self.differs(left, frame) or any(self.differs(c.comparator, frame) for c in comparisons)
            case cst.IfExp(test=test, body=body, orelse=orelse):
                return self.tests_rank(test, frame) or self.differs(body, frame) or self.differs(orelse, frame)
            case cst.Tuple(elements=elements) if index is not None and index < len(elements):
                return self.differs(elements[index].value, frame)
            case cst.Tuple(elements=elements) | cst.List(elements=elements):
                return any(self.differs(e.value, frame) for e in elements)
        return False

    def of_name(self, node: cst.Name, frame: Frame) -> list[Definition]:
        """What a name may be here: `path = ...` of all ranks behind one of rank 0 alone."""
        every = self.definitions.of(node, frame)
        if len(every) < 2:
            return every
        loops = [a for a in frame.source.ancestors(node) if isinstance(a, (cst.For, cst.While))]
        again = [d for d in every if d.event is not None and any(lp in frame.source.ancestors(d.node) for lp in loops)]
        left = reaching(every, node, frame)
        return [d for d in every if d in left or d in again]

    def only_on_some(self, node: cst.Comparison, frame: Frame) -> bool:
        """`saver is not None`, where `saver = None` and `if rank == 0: saver = Saver()`."""
        return dotted(node.comparisons[0].comparator) == "None" and self.given_on_some(node.left, frame)

    def given_on_some(self, node: cst.CSTNode, frame: Frame, depth: int = 4) -> bool:
        """Whether a variable, or the argument that it is, has a value on some ranks only."""
        if not isinstance(node, (cst.Name, cst.Attribute)) or depth == 0:
            return False
        found = [d for d in self.definitions.of(node, frame) if dotted(d.node) != "None"]
        return bool(found) and all(
            (d.event is not None and self.limited(d.event.node, d.frame))
            or self.given_on_some(d.node, d.frame, depth - 1)
            for d in found
        )

    def find_kept_ranks(self) -> None:
        """`LOCAL_RANK` of `config.LOCAL_RANK = args.local_rank`, in settings that a library keeps."""
        found: dict[str, list[bool | None]] = {}
        for source, home in self.flow.modules.items():
            for stmt in source.of(cst.Assign):
                for target in (t.target for t in stmt.targets):
                    if not isinstance(target, cst.Attribute) or self.definitions.attribute_events(target):
                        continue
                    owner = next((a for a in source.ancestors(stmt) if isinstance(a, cst.FunctionDef)), None)
                    frame = next(iter(self.definitions.frames.get(id(owner), ())), home)
                    found.setdefault(target.attr.value, []).append(self.kept(stmt.value, frame))
        for e in self.flow.log.of("new"):  # World(rank=rank, main=rank == 0), also where settings hold it
            cls = e.obj.cls if isinstance(e.obj, Instance) else None
            for name in cls.plain_names() if cls is not None else ():
                given = field_of(e.node, cls, name) if cls is not None else None
                if given is not None:
                    found.setdefault(name, []).append(self.kept(given, e.frame))
        self._known.clear()
        self.kept_ranks = {name for name, given in found.items() if True in given and False not in given}

    def of_arguments(self, key: cst.BaseExpression) -> bool:
        """`config["rank"]`, where `config.update(vars(args))` brought the arguments in."""
        name = str(key.evaluated_value) if isinstance(key, cst.SimpleString) else ""
        if not name or not self.merged:
            return False
        events = [e for o in self.merged for e in self.definitions.sets.get((id(o), name), ())]
        found = [d for e in events for d in self.definitions.bound_by(e)]
        return name in ("local_rank", "rank", "global_rank") or any(map(self.defined_by_rank, found))

    @functools.cached_property
    def merged(self) -> list[Thing]:
        """The command line's arguments that a dict of settings takes in: `config.update(vars(args))`."""
        found: list[Thing] = []
        for source in self.flow.modules:
            for call in source.of(cst.Call):
                match call:
                    case cst.Call(
                        func=cst.Attribute(attr=cst.Name(value="update")),
                        args=[cst.Arg(value=cst.Call(func=cst.Name(value="vars"), args=[given]))],
                    ):
                        held = self.flow.values.get(given.value, ())
                        found.extend(o for o in held if isinstance(o, Thing) and o.name == "namespace")
        return found

    def kept(self, value: cst.BaseExpression, frame: Frame) -> bool | None:
        """Whether what is kept differs; None where it is a number, or True of a run without ranks."""
        number = isinstance(value, (cst.Integer, cst.UnaryOperation)) or dotted(value) in ("True", "False", "None")
        return None if number else self.differs(value, frame)

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
        if certain and not self.definitions.callees(node, frame) and RANK_CALLS.fullmatch(dotted(node.func)):
            return True  # get_rank(), of a `from utils import *` that is not there
        for obj in self.flow.values.get(node.func, ()):
            if isinstance(obj, Ext):
                if RANK_CALLS.fullmatch(obj.name):
                    return certain or obj.name.startswith("torch.")
                if obj.name in _READS_ENVIRONMENT:
                    return bool(node.args) and self.variable(node.args[0].value)
                if self.strict and obj.name.startswith("os."):
                    return False  # os.path.isfile(f"memory_{rank}.pt"): there, or not, for all of them
                if _PLAIN.fullmatch(obj.name):
                    return any(self.differs(a.value, frame) for a in node.args)
        made = [o.cls for o in self.flow.values.get(node, ()) if isinstance(o, Instance) and o.cls is not None]
        if any(cls.plain_names() for cls in made):
            return any(self.differs(a.value, frame) for a in node.args)  # the text of a dataclass has its fields
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
