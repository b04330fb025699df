"""Abstract values: what an expression of the script may hold, and where it was made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import libcst as cst

if TYPE_CHECKING:
    from ddpify.facts.frames import Frame, Scope
    from ddpify.source import Source


@dataclass(frozen=True, eq=False)
class Site:
    """The expression that made an object, in one calling context."""

    node: cst.CSTNode
    source: Source
    frame: Frame


# -- origins: what a number or tensor was computed from ----------------------------------------------


@dataclass(frozen=True)
class FromBatch:
    """A batch of this loader (or of something iterated that could not be followed)."""

    loader: Obj


@dataclass(frozen=True)
class FromForward:
    """The output of a forward of this module; `cut` where no gradient flows back into it (`.detach()`, no_grad)."""

    module: Module
    node: cst.CSTNode
    cut: bool = False


@dataclass(frozen=True)
class FromLength:
    """`len(loader)` or `len(dataset)`."""

    of: Obj


@dataclass(frozen=True)
class FromLoop:
    """The variable of a loop (an epoch, a batch index)."""

    loop: cst.CSTNode


@dataclass(frozen=True)
class FromWorld:
    """Differs from run to run and from rank to rank: `time`, `random`, `rank`, `uuid`, `tempfile`."""

    what: str


Origin = FromBatch | FromForward | FromLength | FromLoop | FromWorld


# -- plain values -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Const:
    """A literal. `node` is set for the literals that may turn out to be devices or flags."""

    value: object
    node: cst.CSTNode | None = None


@dataclass(frozen=True)
class Data:
    """A number, tensor or text that is computed.

    `form` is tensor, int, float, bool, str or any. `agg` says how it relates to the samples of a batch: `sample` (an
    entry each), `sum` (added up over the samples), `mean` (averaged over them), `size` (their number), or other.
    """

    form: str = "any"
    agg: str = "other"
    origins: frozenset[Origin] = frozenset()
    #: held on the CPU for certain (`.cpu()`, `.numpy()`)
    on_cpu: bool = False


@dataclass(frozen=True)
class Ext:
    """Something outside the project, by its qualified name: `torch.nn.Linear`."""

    name: str


@dataclass(frozen=True, eq=False)
class Mod:
    """A module of the project."""

    source: Source


# -- objects on the heap, equal only to themselves -------------------------------------------------------


@dataclass(eq=False)
class Func:
    node: cst.FunctionDef | cst.Lambda
    source: Source
    scope: Scope
    bound: Obj | None = None
    owner: Class | None = None
    decorators: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.node.name.value if isinstance(self.node, cst.FunctionDef) else "lambda"

    @property
    def is_property(self) -> bool:
        """It runs where its name is read."""
        return any(d.split(".")[-1] in ("property", "cached_property") for d in self.decorators)


@dataclass(eq=False)
class Class:
    node: cst.ClassDef
    source: Source
    scope: Scope
    bases: Value = ()
    members: dict[str, Value] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.node.name.value

    def lineage(self) -> list[Class]:
        """The class and its bases of the project, nearest first."""
        found: list[Class] = []
        todo: list[Obj] = [self]
        while todo:
            top = todo.pop(0)
            if isinstance(top, Class) and top not in found:
                found.append(top)
                todo.extend(top.bases)
        return found

    def outside(self) -> set[str]:
        """The qualified names of the bases outside the project."""
        return {b.name for c in self.lineage() for b in c.bases if isinstance(b, Ext)}

    def plain_names(self) -> list[str]:
        """The annotated names of a dataclass, which are its fields; none where an `__init__` says what is."""
        if self.member("__init__"):
            return []
        lines = (x for x in self.node.body.body if isinstance(x, cst.SimpleStatementLine))
        fields = (s.target for x in lines for s in x.body if isinstance(s, cst.AnnAssign))
        return [t.value for t in fields if isinstance(t, cst.Name)]

    def member(self, name: str) -> Value:
        for c in self.lineage():
            if name in c.members:
                return c.members[name]
        return ()


@dataclass(eq=False)
class Heap:
    """An object with fields."""

    site: Site
    fields: dict[str, Value] = field(default_factory=dict)


@dataclass(eq=False)
class Instance(Heap):
    """An object of a class of the project that is no nn.Module (a dataset class, a trainer)."""

    cls: Class | None = None
    #: what its `__iter__` goes over
    over: Value = ()


@dataclass(eq=False)
class Module(Heap):
    """An nn.Module: of a class of the project (`cls`), of a library (`name`), or known by use only."""

    cls: Class | None = None
    name: str = ""
    #: the module that this one is a part of, where it is one
    part_of: Module | None = None
    parts: list[Value] = field(default_factory=list)
    #: DataParallel(module), torch.compile(module), AveragedModel(module): the module inside
    inner: Module | None = None
    #: no parameter (a plain loss, an activation)
    has_parameters: bool = True
    frozen: bool = False
    #: nn.DataParallel stands around it
    parallel: bool = False
    #: its forward is called by the script itself
    called: bool = False
    #: it has a name of its own, by which the script calls it: `student(x)`, not `nets["student"](x)`
    named: bool = False
    #: how it was recognised, for reports
    evidence: str = ""


@dataclass(eq=False)
class Wrapped(Heap):
    """DistributedDataParallel(module)."""

    module: Value = ()


@dataclass(eq=False)
class Loader(Heap):
    """A torch DataLoader."""

    call: cst.Call | None = None
    dataset: Value = ()
    #: argument name -> value, positional and **kwargs ones included
    arguments: dict[str, Value] = field(default_factory=dict)
    #: arguments that came in by a `**dict`, with the dict
    splat: Dict | None = None
    unknown_splat: bool = False
    #: made by a class of the project that hands all its arguments on: its call is as good as one of DataLoader
    whole: bool = False


@dataclass(eq=False)
class Dataset(Heap):
    """A dataset of a library, a subset, or a split."""

    name: str = ""
    of: Value = ()


@dataclass(eq=False)
class Sampler(Heap):
    name: str = ""
    call: cst.Call | None = None
    dataset: Value = ()
    arguments: dict[str, Value] = field(default_factory=dict)


@dataclass(eq=False)
class Optimizer(Heap):
    name: str = ""
    modules: list[Module] = field(default_factory=list)
    #: parameters that belong to no module
    bare: list[Thing] = field(default_factory=list)
    #: parameters that could not be followed
    loose: bool = False


@dataclass(eq=False)
class Scheduler(Heap):
    name: str = ""


@dataclass(eq=False)
class Device(Heap):
    """A device: `kind` is cuda, cpu, mps, accelerator, or any (decided at run time)."""

    kind: str = "any"
    index: int | None = None


@dataclass(eq=False)
class Parameters(Heap):
    """`model.parameters()` and what is made of it."""

    modules: tuple[Module, ...] = ()
    #: those that belong to no module
    bare: tuple[Thing, ...] = ()
    loose: bool = False
    #: `list(model.children())[4:]`
    part: bool = False


@dataclass(eq=False)
class StateDict(Heap):
    """`x.state_dict()`: of a module, a wrapper, or an optimizer."""

    of: Obj | None = None


@dataclass(eq=False)
class Seq(Heap):
    """A list, tuple or set; `elements` where each is known, else `joined`."""

    elements: list[Value] | None = None
    joined: Value = ()


@dataclass(eq=False)
class Dict(Heap):
    """A dict by constant keys; `joined` holds what is stored under keys that are not known."""

    items: dict[object, Value] = field(default_factory=dict)
    joined: Value = ()
    #: keys that may be missing (added or dropped on some path only)
    maybe: set[object] = field(default_factory=set)
    #: False where other keys may be in it
    closed: bool = True


@dataclass(eq=False)
class Iteration(Heap):
    """What `for` takes its values from: iter(loader), enumerate(loader), tqdm(loader), zip(a, b), range(n)."""

    how: str = "iter"
    of: tuple[Value, ...] = ()


@dataclass(eq=False)
class Thing(Heap):
    """An object of a library that has a role by its class: SummaryWriter, GradScaler, ArgumentParser, Namespace."""

    name: str = ""
    origins: frozenset[Origin] = frozenset()
    #: the module that it turned out to be: its parameters went to an optimizer
    module: Module | None = None
    #: it was moved to a device, or put in train or eval mode
    moved: bool = False
    #: the module that it is an attribute of
    owner: Module | None = None


@dataclass(eq=False)
class Mode(Heap):
    """torch.no_grad() and its kin: what gradients are inside."""

    grad: bool | None = False


@dataclass(frozen=True, eq=False)
class Method:
    """A method of an object that no class of the project defines: `model.to`, `loader.sampler`."""

    obj: Obj
    name: str


Obj = (
    Const
    | Data
    | Ext
    | Mod
    | Func
    | Class
    | Instance
    | Module
    | Wrapped
    | Loader
    | Dataset
    | Sampler
    | Optimizer
    | Scheduler
    | Device
    | Parameters
    | StateDict
    | Seq
    | Dict
    | Iteration
    | Thing
    | Mode
    | Method
)
Value = tuple[Obj, ...]

UNKNOWN: Value = (Data(),)
NONE: Value = (Const(None),)
