"""DDP210: layers, frozen parameters and weights that change behind the wrap."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from ddpify.edits import AddHelper, AddImport, InsertAfter
from ddpify.facts import Facts
from ddpify.facts.beside import instead_of_training
from ddpify.facts.changes import Change, anchor, find_changes
from ddpify.facts.contents import modules
from ddpify.facts.definitions import definitions
from ddpify.facts.frames import Event, Frame, while_made
from ddpify.facts.freezing import may_be_frozen
from ddpify.facts.placing import following, steps
from ddpify.facts.roles import root
from ddpify.facts.trails import way_of_call
from ddpify.facts.unused import left_out
from ddpify.facts.values import Heap, Wrapped
from ddpify.facts.wraps import WrapPoint
from ddpify.rules._base import Bad, Converts, Finding, Good, Rule
from ddpify.rules._wrapping import device_ids, only_if_trained, sync_batchnorm
from ddpify.source import dotted

_LOST = "the wrapper averages the gradients of the parameters that it found when it was made"


@dataclass(frozen=True, eq=False)
class Rewrap:
    """A change of a model, the wrap that made its wrapper, and the statement behind which it is wrapped again."""

    change: Change
    point: WrapPoint
    frame: Frame
    stmt: cst.CSTNode


class ModuleChangedAfterWrap(Rule):
    """A wrapped model gets other layers, frees parameters or draws weights anew, and trains on.

    ## What it does
    Finds layers that are exchanged, parameters that are frozen or freed, and weights that are drawn anew behind the
    DDP wrap, where the model trains afterwards. Switching the gradients of a whole network off and on in each step, as
    a GAN does, is fine.

    ## Why is this bad?
    DDP hooks the parameters that are trainable when it is made. Those that are freed or added later keep local
    gradients, silently; frozen ones end the next step with "Expected to have finished reduction"; new weights differ
    from rank to rank.

    ## Fix
    Wrap the model again behind the change, or make the change before the wrap.

    ## Edit
    `model = DDP(model.module)` behind the change: a new wrapper broadcasts rank 0's weights and hooks what is trainable
    now. The optimizer keeps its parameters.
    """

    code = "DDP210"
    references = (
        "https://github.com/pytorch/pytorch/issues/22049",
        "https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html",
    )
    good = (
        Good("""
            ddp = DDP(model)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            for epoch in range(2):
                if epoch == 1:
                    ddp.module.bias.requires_grad_(False)
                    ddp = DDP(ddp.module)
                for x, y in DataLoader(dataset, sampler=DistributedSampler(dataset, shuffle=False)):
                    ddp(x).mean().backward()
                    optimizer.step()
            """),
    )
    bad = (
        Bad("""
            model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
            ddp = DDP(model)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            for epoch in range(2):
                if epoch == 1:
                    model[1].reset_parameters()
                for x, y in DataLoader(dataset, sampler=DistributedSampler(dataset, shuffle=False)):
                    ddp(x).mean().backward()
                    optimizer.step()
            """),
    )
    converts = (
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            class Net(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 1)
                def forward(self, x):
                    return self.head(self.body(x))
            loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
            net = Net()
            for p in net.body.parameters():
                p.requires_grad = False
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for epoch in range(4):
                if epoch == 2:
                    for p in net.body.parameters():
                        p.requires_grad = True
                for (x,) in loader:
                    net(x).mean().backward()
                    optimizer.step()
            """,
            gives=("            p.requires_grad = True\n        net = DDP(net.module)\n    for (x,)",),
        ),
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            class Beside(nn.Module):
                def __init__(self, layer):
                    super().__init__()
                    self.layer, self.more = layer, nn.Linear(4, 4)
                def forward(self, x):
                    return self.layer(x) + self.more(x)
            def inject(model):
                for name, child in model.named_children():
                    if isinstance(child, nn.Linear):
                        setattr(model, name, Beside(child))
                    else:
                        inject(child)
            def fit(model, lr):
                optimizer = torch.optim.SGD(model.parameters(), lr=lr)
                for (x,) in loader:
                    model(x).mean().backward()
                    optimizer.step()
            loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
            net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
            fit(net, 0.1)
            inject(net)
            net.to("cpu")
            fit(net, 0.01)
            """,
            gives=('inject(net.module)\nnet.to("cpu")\nnet = DDP(net.module)\nfit(net, 0.01)',),
        ),
    )

    def check(self, facts: Facts) -> Iterator[Finding]:
        changes = facts.cached("changes", find_changes)
        if not facts.converting:
            here = [c for c in changes if facts.editable(c.event.frame.source) and not while_made(c.event.frame)]
            mine = [
                c
                for c in here
                if not c.toggles and not (_of_copy(facts, c.event) or instead_of_training(facts, c.event))
            ]  # those are DDP213
            seen = {id(c.event.node): c for c in reversed(mine)}
            for change in reversed(seen.values()):
                e = change.event
                code = e.frame.source.code(e.node)
                yield self.finding(e.frame.source, e.node, f"`{code}` {change.what} behind the wrap: {_LOST}")
            return
        again: dict[int, Rewrap] = {}
        refused: set[int] = set()
        for change in changes:
            point = self.point(facts, change.wrapped)
            place = self.place(facts, change, point) if point is not None else None
            if point is not None and place is not None:
                again.setdefault(id(place[1]), Rewrap(change, point, *place))
            elif id(change.event.node) not in refused:
                refused.add(id(change.event.node))
                yield self.beyond(facts, change)
        for one in again.values():
            if not any(self.precedes(facts, one, other) for other in again.values()):
                yield self.rewrapped(facts, one)

    def beyond(self, facts: Facts, change: Change) -> Finding:
        e = change.event
        where = "in each step" if change.each_step else "where ddpify could not wrap it again"
        return self.finding(
            e.frame.source,
            e.node,
            f"`{e.frame.source.code(e.node)}` {change.what} behind the wrap, {where}: {_LOST}",
            refuse=way_of_call(facts.after, e),
            left="Do it before the training, or where the model is made and can be wrapped again behind it: "
            "model = DDP(model.module)",
        )

    def rewrapped(self, facts: Facts, one: Rewrap) -> Finding:
        e, point, source = one.change.event, one.point, one.frame.source
        loose = next((name for m in point.modules if (name := left_out(facts, m))), "")
        ids = device_ids(facts, point) + (", find_unused_parameters=True" if loose else "")
        names = facts.names_of(source)
        bare = f"{names['unwrap']}({point.target})" if point.may_be_frozen else f"{point.target}.module"
        shared = sync_batchnorm(facts, point, bare, in_place=True)
        made = f"{point.target} = {names['DDP']}({bare}{ids})"
        made = only_if_trained(made, bare, one.change.toggles and self.may_freeze(facts, one))
        return self.finding(
            source,
            one.stmt,
            f"`{point.target}` is wrapped again: `{e.frame.source.code(e.node)}` {one.change.what}",
            InsertAfter(source, one.stmt, (*(shared if "layer" in one.change.what else ()), made)),
            AddImport(source, "DDP"),
            *([AddHelper(source, "unwrap")] if point.may_be_frozen else []),
            reason=_LOST,
        )

    def may_freeze(self, facts: Facts, one: Rewrap) -> bool:
        """Whether the change may freeze the model as a whole."""
        mine = [x.seq for x in facts.after.log.of("set", "method") if any(s is one.stmt for _, s, _ in steps(x))]
        inside = {root(m) for m in modules((one.change.wrapped,))}
        last, source = max(mine), one.frame.source
        return any(may_be_frozen(facts.after, facts.after_roles, m, last, one.stmt, source) for m in inside)

    def precedes(self, facts: Facts, one: Rewrap, other: Rewrap) -> bool:
        """Another change follows in the same block before the model trains: one wrap serves both."""
        if one is other or one.point is not other.point:
            return False
        busy = self.busy(facts, one.change.wrapped, one.frame)
        for stmt in following(one.frame.source, one.stmt):
            if stmt is other.stmt:
                return True
            if stmt in busy:
                return False
        return False

    def point(self, facts: Facts, w: Wrapped) -> WrapPoint | None:
        """The wrap that made a wrapper, where a variable holds it by itself."""
        return next((p for p in facts.wrap_points if not p.shape and not p.is_before and p.after is w.site.node), None)

    def place(self, facts: Facts, change: Change, point: WrapPoint) -> tuple[Frame, cst.CSTNode] | None:
        """The statement behind which the model is wrapped again, in a frame that names the wrapper as the wrap does."""
        for frame, stmt, _ in steps(change.event):
            if not self.names_it(frame, point):
                continue
            busy = self.busy(facts, change.wrapped, frame)
            found = anchor(frame.source, stmt, busy)
            if found in busy or not facts.editable(frame.source):
                return None
            conditional = any(isinstance(a, cst.If) for a in frame.source.ancestors(found))
            if change.each_step and not conditional:
                return None
            return frame, self.moved(facts, change.wrapped, frame, found, busy)
        return None

    def moved(
        self, facts: Facts, wrapped: Wrapped, frame: Frame, stmt: cst.CSTNode, busy: set[cst.CSTNode]
    ) -> cst.CSTNode:
        """`model.to(device)` behind a new layer: DDP wants all parameters on one kind of device."""
        moves = [e for e in facts.after.log.of("method") if e.name in ("to", "cuda", "cpu") and e.obj is wrapped]
        for later in following(frame.source, stmt):
            if later in busy:
                break
            if any(e.stmt is later and e.frame.node is frame.node for e in moves):
                stmt = later
        return stmt

    def busy(self, facts: Facts, wrapped: Wrapped, frame: Frame) -> set[cst.CSTNode]:
        """The statements of a frame in which a wrapper trains, and what stands around them."""
        trains = [
            t
            for t in facts.after.log.of("forward")
            if t.obj is wrapped and t.grad is not False and t.node in facts.after_roles.training_forwards
        ]
        found = {s for t in trains for f, s, _ in steps(t) if f.node is frame.node}
        return found | {a for s in found for a in frame.source.ancestors(s)}

    def names_it(self, frame: Frame, point: WrapPoint) -> bool:
        """The frame of the wrap; of `self.model`, every method of the same object."""
        if frame.node is point.frame.node:
            return True
        bound = frame.func.bound if frame.func is not None else None
        mine = point.frame.func.bound if point.frame.func is not None else None
        if "." not in point.target or not isinstance(bound, Heap) or not isinstance(mine, Heap):
            return False
        return bound.site.node is mine.site.node


def _of_copy(facts: Facts, e: Event) -> bool:
    """`probe = deepcopy(model)` and `probe.model.fc = nn.Identity()`: the wrapper that trains keeps its layers."""
    base: cst.CSTNode = e.node.func if isinstance(e.node, cst.Call) else e.node
    while isinstance(base, (cst.Attribute, cst.Subscript)):
        base = base.value
    given = definitions(facts.flow).of(base, e.frame) if isinstance(base, cst.Name) else []
    return any(isinstance(d.node, cst.Call) and dotted(d.node.func).endswith("deepcopy") for d in given)
