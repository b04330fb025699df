"""DDP105: checkpoints that every rank loads onto one GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from ddpify.edits import Edit, Replace, SetArgument
from ddpify.facts import Facts
from ddpify.facts.contents import constants
from ddpify.facts.definitions import Definitions, definitions
from ddpify.facts.frames import Event, Frame, Scope
from ddpify.facts.outside import Outside, made_by, outside_calls
from ddpify.facts.ranks import depends_on_rank, may_be_on_some_ranks, of_no_caller
from ddpify.facts.setup import SetUp, find_setup
from ddpify.facts.several_gpus import several_gpus
from ddpify.facts.values import Const, Device, Value
from ddpify.facts.workers import in_workers
from ddpify.rules._base import Bad, Converts, Finding, Good, Rule, Severity
from ddpify.rules._loads import from_cpu, is_schedule, maps_beside
from ddpify.rules._weights import loads_weights
from ddpify.source import walk

_DEVICE = re.compile(r"(cuda|cpu|mps|xpu)(:\d+)?")
_FIXED = re.compile(r"(cuda|xpu):\d+")
#: The state of a generator is a tensor of the CPU, also that of a GPU's generator.
_RESTORES = re.compile(r"torch\.(random\.|cuda\.|cuda\.random\.)?set_rng_state(_all)?")


class LoadWithoutMapLocation(Rule):
    """A checkpoint is loaded onto the GPU it was saved from, by every rank.

    ## What it does
    Finds `torch.load` without `map_location`, or with a fixed GPU in it, in a script that uses GPUs; in one that is
    distributed already, without `map_location` only where weights or the state of an optimizer are loaded.

    ## Why is this bad?
    Tensors come back on the device they were saved from: every rank puts them on GPU 0, which runs out of
    memory while the others wait.

    ## Fix
    Give it `map_location="cpu"`, or the rank's own device.

    ## Edit
    `map_location=device` with the name that holds this rank's device there, else `map_location="cpu"`; data for
    a dataset and states of random generators stay on the CPU.
    """

    code = "DDP105"
    severity = Severity.WARNING
    references = ("https://docs.pytorch.org/docs/stable/generated/torch.load.html",)
    good = (
        Good(
            'device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))\n'
            'state = torch.load("best.pt", map_location=device)\nmodel.load_state_dict(state)'
        ),
    )
    bad = (
        Bad('model.cuda()\nstate = torch.load("best.pt")\nmodel.load_state_dict(state)'),
        Bad('model.cuda()\nstate = torch.load("best.pt", map_location="cuda:0")'),
    )
    converts = (
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            device = "cuda" if torch.cuda.is_available() else "cpu"
            loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
            net = nn.Linear(4, 1).to(device)
            net.load_state_dict(torch.load("start.pt"))
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for (x,) in loader:
                net(x.to(device)).mean().backward()
                optimizer.step()
            """,
            gives=('net.load_state_dict(torch.load("start.pt", map_location=device))',),
        ),
    )

    def check(self, facts: Facts) -> Iterator[Finding]:
        if not self.uses_gpus(facts):
            return
        calls = facts.cached("outside", outside_calls)
        for call in calls:
            if call.name != "torch.load":
                continue
            given = call.argument(1, "map_location")
            if any(a.star for a in call.node.args) or not self.is_wrong(facts, call, given):
                continue
            path = call.source.code(call.node.args[0].value).split("\n")[0] if call.node.args else ""
            message = (
                f"`torch.load({path})` puts tensors on the GPU they were saved from"
                if given is None
                else f"every rank loads `{path}` onto one GPU"
            )
            if not facts.converting:
                if facts.editable(call.source) and not self.is_right(facts, call, given):
                    yield self.finding(call.source, call.node, message, self.given(call, given, '"cpu"'))
            elif not facts.editable(call.source):
                if call.events:
                    yield self.finding(
                        call.source,
                        call.node,
                        message + ", in another file of the project",
                        left='give it map_location="cpu"',
                    )
            else:
                edit = self.given(call, given, self.device(facts, call))
                yield self.finding(call.source, call.node, message, edit, reason="each rank loads onto its own device")

    def is_right(self, facts: Facts, call: Outside, given: cst.BaseExpression | None) -> bool:
        """A file of the rank's own or of the CPU, no weights, samples that workers load, what one process loads."""
        path = call.node.args[0].value if call.node.args else None
        home = facts.flow.modules.get(call.source)
        frames = [e.frame for e in call.events] or ([home] if home is not None else [])
        if path is not None and frames and all(depends_on_rank(path, frame, facts.flow) for frame in frames):
            return True
        if maps_beside(call) or is_schedule(facts, call) or (path is not None and from_cpu(facts, path, frames)):
            return True
        if given is None and not loads_weights(facts, call, path, frames):
            return True
        return bool(call.events) and all(
            in_workers(facts, e) or may_be_on_some_ranks(e, facts.flow) or of_no_caller(e, facts.flow)
            for e in call.events
        )

    def given(self, call: Outside, given: cst.BaseExpression | None, value: str) -> Edit:
        """`map_location=value`"""
        if given is None:
            return SetArgument(call.source, call.node, "map_location", value)
        return Replace(call.source, given, value)

    def uses_gpus(self, facts: Facts) -> bool:
        for source in facts.project.files():
            if "cuda" in source.text or "accelerator" in source.text:
                for node in source.of(cst.Attribute, cst.SimpleString):
                    if isinstance(node, cst.Attribute) and node.attr.value in ("cuda", "accelerator"):
                        return True
                    if isinstance(node, cst.SimpleString) and str(node.evaluated_value).startswith("cuda"):
                        return True
        return False

    def several(self, facts: Facts) -> bool:
        """Whether a process drives several GPUs, each of which the script names: DDP103 sees to those."""
        return facts.converting and facts.cached("several_gpus", several_gpus) is not None

    def is_wrong(self, facts: Facts, call: Outside, given: cst.BaseExpression | None) -> bool:
        if given is None or self.several(facts):
            return given is None
        if isinstance(given, cst.Dict):
            targets = [n for e in given.elements if isinstance(e, cst.DictElement) for n in walk(e.value)]
            return any(isinstance(n, cst.SimpleString) and _FIXED.fullmatch(str(n.evaluated_value)) for n in targets)
        if isinstance(given, (cst.Name, cst.Attribute)):
            return constants(facts.flow.values.get(given, ())) == [None]
        if isinstance(given, cst.Lambda):
            # lambda storage, loc: storage.cuda(0)
            match given.body:
                case cst.Call(func=cst.Attribute(attr=cst.Name(value="cuda")), args=[cst.Arg(value=cst.Integer())]):
                    return True
            return False
        literal = [str(n.evaluated_value) for n in walk(given) if isinstance(n, cst.SimpleString)]
        return isinstance(given, (cst.SimpleString, cst.Call, cst.IfExp)) and any(map(_FIXED.fullmatch, literal))

    # -- which device ---------------------------------------------------------------------------------------

    def device(self, facts: Facts, call: Outside) -> str:
        if self.several(facts):
            return '"cpu"'
        if call.events and not self.for_data(facts, call) and not self.for_generators(facts, call):
            names = [self.name_there(facts, e) for e in call.events]
            if names[0] is not None and len(set(names)) == 1:
                return names[0]
        return '"cpu"'

    def for_data(self, facts: Facts, call: Outside) -> bool:
        """What is loaded goes into a dataset: moved to the GPU it would break loader workers."""
        event = call.events[0]
        owner = event.frame.func.owner if event.frame.func is not None else None
        if owner is not None and owner.member("__getitem__"):
            return True
        known = definitions(facts.flow)
        for e in facts.flow.log.of("loader", "new"):
            if (
                isinstance(e.node, cst.Call)
                and (e.kind == "loader" or "Dataset" in e.name)
                and e.frame.source is call.source
            ):
                for node in walk(e.node):
                    if isinstance(node, (cst.Name, cst.Call)) and any(
                        n is call.node for n, _ in self.parts(known, node, e.frame)
                    ):
                        return True
        return False

    def for_generators(self, facts: Facts, call: Outside) -> bool:
        """`torch.set_rng_state(checkpoint["rng"])` takes what is loaded here."""
        known = definitions(facts.flow)
        given = [
            (e.node.args[0].value, e.frame)
            for e in facts.flow.log.of("external", "method")
            if isinstance(e.node, cst.Call) and e.node.args and (_RESTORES.fullmatch(e.name) or _sets_state(e))
        ]
        return any(any(n is call.node for n, _ in self.parts(known, node, frame)) for node, frame in given)

    def parts(
        self, known: Definitions, node: cst.CSTNode, frame: Frame, depth: int = 5
    ) -> Iterator[tuple[cst.CSTNode, Frame]]:
        """What an expression is made of, names and elements followed."""
        yield node, frame
        while isinstance(node, (cst.Subscript, cst.Attribute)) and not known.of(node, frame):
            node = node.value
        for d in known.of(node, frame) if depth else ():
            yield from self.parts(known, d.node, d.frame, depth - 1)

    def name_there(self, facts: Facts, event: Event) -> str | None:
        """A name that holds the device, or an attribute of the object at hand, given before the load."""
        setup = facts.cached("setup", find_setup) if facts.converting else None
        own = setup.device.target if isinstance(setup, SetUp) and setup.device is not None else ""
        scope: Scope | None = event.frame.scope
        while scope is not None:
            found = [n for n, v in scope.names.items() if _is_device(v) and self.bound_before(facts, event, n, scope)]
            if found:
                return own if own in found else found[0]
            scope = scope.parent
        func = event.frame.func
        if func is not None and func.bound is not None and func.node.params.params:
            for name, value in getattr(func.bound, "fields", {}).items():
                if _is_device(value) and _set_before(facts, event, name):
                    return f"{func.node.params.params[0].name.value}.{name}"
        return None

    def bound_before(self, facts: Facts, event: Event, name: str, scope: Scope) -> bool:
        holder = event.frame.scope.holder(name)
        if name in event.frame.arguments and name not in event.frame.assigned:
            return scope is event.frame.scope
        return holder is scope and any(e.seq < event.seq for e in definitions(facts.flow).bound(holder, name))


def _set_before(facts: Facts, event: Event, name: str) -> bool:
    """`self.device = device` stands before `super().__init__()`, say, in which the file is loaded."""
    bound = event.frame.func.bound if event.frame.func is not None else None
    sets = [e for e in facts.flow.log.of("set") if e.obj is bound and e.name == name]
    return not sets or sets[0].seq < event.seq


def _is_device(value: Value) -> bool:
    """Device objects and device strings, and nothing else; not the CPU by itself."""
    kinds = {o.kind if isinstance(o, Device) else str(o.value) if isinstance(o, Const) else "" for o in value}
    if not value or kinds == {"cpu"}:
        return False
    text = [isinstance(o, Const) and isinstance(o.value, str) and _DEVICE.fullmatch(o.value) is not None for o in value]
    return all(isinstance(o, Device) or t for o, t in zip(value, text, strict=True))


def _sets_state(event: Event) -> bool:
    """`generator.set_state(...)`, of a torch.Generator."""
    return event.kind == "method" and event.name == "set_state" and made_by(event.obj) == "torch.Generator"
