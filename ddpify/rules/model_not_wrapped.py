"""DDP201: the wrap."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from ddpify.edits import AddImport, Edit, Hoist, InsertAfter, InsertBefore, Replace
from ddpify.errors import Way
from ddpify.facts import Facts
from ddpify.facts.contents import origins
from ddpify.facts.ranks import ranks
from ddpify.facts.roles import root, roots
from ddpify.facts.trails import shown, way_back, way_of_call
from ddpify.facts.untrained import is_frozen, is_stepped
from ddpify.facts.unused import has_weights, left_out
from ddpify.facts.values import FromForward, Module, Wrapped
from ddpify.facts.wraps import NoWrapPoint, WrapPoint
from ddpify.rules._base import Bad, Converts, Finding, Good, Rule
from ddpify.rules._frozen import frozen_models
from ddpify.rules._unread import unread
from ddpify.rules._wrapping import device_ids, moved, own_name, sync_batchnorm, wrap_statement
from ddpify.source import walk

_COLLECTIVE = re.compile(r"\b(all_gather|all_reduce|all_to_all|reduce_scatter|world_size)\w*")
_MOVE = "Move it there right after it is made"


class ModelNotWrapped(Rule):
    """A model is trained without DistributedDataParallel around it.

    ## What it does
    Finds modules whose parameters are optimised and whose training forward goes through no DDP wrapper.

    ## Why is this bad?
    Nothing averages their gradients: every rank trains a model of its own, and only rank 0's is saved.

    ## Fix
    Wrap the model before it is trained, `model = DDP(model, device_ids=[local_rank])`, and call the wrapper.

    ## Edit
    `model = DDP(model, ...)` stands after the last `.to()`, `.cuda()`, `load_state_dict()` or `apply()` that runs
    before the first training forward. The optimizer keeps the parameters that it has: the wrapper shares them.
    Models in a list or dict are wrapped there: `nets = [DDP(net) for net in nets]`, `nets["gen"] = DDP(nets["gen"])`.
    An average of the weights (`copy.deepcopy`, AveragedModel) is made behind the wrap, of `model.module`: then all
    ranks begin with the same one.
    `find_unused_parameters=True` comes with it only where a layer is called under a random or data-dependent test, for
    an argument that is None at times, or not at all, and where a loss leaves out the output that it makes.
    A model that a flag or a method may have frozen as a whole is wrapped under
    `if any(p.requires_grad for p in model.parameters()):`.

    ## When not
    Frozen networks and losses without parameters are left alone: DDP refuses a module that has nothing to train.
    """

    code = "DDP201"
    references = ("https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html",)
    good = (
        Good("""
            ddp = DDP(model)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            for x, y in DataLoader(dataset, sampler=DistributedSampler(dataset, shuffle=False)):
                ddp(x).mean().backward()
                optimizer.step()
            """),
    )
    bad = (
        Bad("""
            head = nn.Linear(1, 1)
            ddp = DDP(model)
            optimizer = torch.optim.SGD([*ddp.parameters(), *head.parameters()], lr=0.1)
            for x, y in DataLoader(dataset, sampler=DistributedSampler(dataset, shuffle=False)):
                head(ddp(x)).mean().backward()
                optimizer.step()
            """),
    )
    converts = (
        Converts(
            """
            import os
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
            def make(path):
                if os.path.exists(path):
                    saved = torch.load(path, map_location="cpu")
                    net = nn.Linear(4, saved["classes"])
                    net.load_state_dict(saved["net"])
                    return net, saved["epoch"]
                return nn.Linear(4, 1), 0
            net, start = make("last.pt")
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for epoch in range(start, 3):
                for (x,) in loader:
                    net(x).mean().backward()
                    optimizer.step()
            """,
            gives=('net, start = make("last.pt")\nnet = DDP(net)',),
        ),
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
            net = nn.Linear(4, 1)
            net.load_state_dict(torch.load("start.pt"))
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for (x,) in loader:
                net(x).mean().backward()
                optimizer.step()
            """,
            gives=("net = DDP(net)",),
        ),
        Converts(
            """
            import random
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            class Deep(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
                def forward(self, x):
                    x = self.first(x)
                    for _ in range(random.randint(0, 3)):
                        x = self.second(x)
                    return x
            loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
            net = Deep()
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for (x,) in loader:
                net(x).mean().backward()
                optimizer.step()
            """,
            gives=("net = DDP(net, find_unused_parameters=True)",),
        ),
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            class Heads(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.body, self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 1), nn.Linear(4, 2)
                def forward(self, x):
                    h = self.body(x)
                    return self.one(h), self.two(h)
            loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
            net = Heads()
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for (x,) in loader:
                score, _ = net(x)
                score.mean().backward()
                optimizer.step()
            """,
            gives=("net = DDP(net, find_unused_parameters=True)",),
        ),
        Converts(
            """
            import copy
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
            nets = (nn.Linear(4, 1), nn.Linear(4, 2))
            mean = copy.deepcopy(nets[0])
            steps = [torch.optim.SGD(net.parameters(), lr=0.1) for net in nets]
            for (x,) in loader:
                for step, net in zip(steps, nets):
                    net(x).mean().backward()
                    step.step()
            """,
            gives=("nets = tuple(DDP(net) for net in nets)", "mean = copy.deepcopy(nets[0].module)"),
        ),
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
            nets = {"one": nn.Linear(4, 1), "two": nn.Linear(4, 2)}
            for net in nets.values():
                nn.init.zeros_(net.weight)
            steps = {key: torch.optim.SGD(net.parameters(), lr=0.1) for key, net in nets.items()}
            for (x,) in loader:
                for key, net in nets.items():
                    net(x).mean().backward()
                    steps[key].step()
            """,
            gives=("nn.init.zeros_(net.weight)", "nets = {key: DDP(net) for key, net in nets.items()}"),
        ),
    )

    def check(self, facts: Facts) -> Iterator[Finding]:
        if not facts.converting:
            if facts.roles.wrapped:
                for point in facts.wrap_points:
                    source, node = point.source, point.module.site.node
                    known = talks(point.module) or wraps_inside(point.module) or trained_by_parent(facts, point.module)
                    known = known or is_frozen(facts.flow, point.module) or not has_weights(point.module)
                    if facts.editable(source) and node in source.parents and not known:
                        yield self.finding(source, node, f"`{self.name_of(point)}` is trained without a DDP wrapper")
            return
        for w in facts.wraps:
            if isinstance(w, NoWrapPoint):
                message = f"the model `{w.about.value}` could not be wrapped: {w.reason}"
                yield self.finding(w.source, w.node, message, refuse=w.about)
            elif not facts.editable(w.source):
                message = (
                    f"`{w.target}` would have to be wrapped in {w.source.path.name}, "
                    "and ddpify makes no changed copy of that file"
                )
                yield self.finding(w.source, w.after, message, refuse=self.way_of(facts, w))
            elif moved(facts, w) is None:
                message = f"`{w.target}` gets to its device only behind the place where it is wrapped"
                yield self.finding(w.source, w.after, message, refuse=self.way_of(facts, w), left=_MOVE)
            else:
                loose = next((name for m in w.modules if (name := left_out(facts, m))), "")
                yield self.finding(
                    w.source,
                    w.after,
                    f"`{w.target}` is wrapped" if not w.shape else f"every model in `{w.target}` is wrapped",
                    *self.edit(facts, w, loose),
                    AddImport(w.source, "DDP"),
                    reason="gradients of all ranks are averaged in backward"
                    + (f"; some steps leave `{loose}` out, which DDP has to look for" if loose else "")
                    + ("; BatchNorm takes its statistics of all" if sync_batchnorm(facts, w, w.target) else "")
                    + (f"; DDP refuses `{w.target}` where nothing of it is trained" if w.may_be_frozen else ""),
                )
        yield from unread(self, facts)
        yield from frozen_models(self, facts)
        if not facts.wraps and not facts.roles.bare:
            yield self.untraced(facts)
        else:
            yield from self.outside(facts)

    def edit(self, facts: Facts, w: WrapPoint, loose: str) -> list[Edit]:
        """`model = DDP(model)` behind a statement; before it, where the model has no name yet."""
        names, shared = facts.names_of(w.source), sync_batchnorm(facts, w, w.target)
        more = [AddImport(w.source, "torch")] if shared or w.may_be_plain else []
        ids = (moved(facts, w) or "") + device_ids(facts, w) + (", find_unused_parameters=True" if loose else "")
        if w.made is not None:
            name = w.target if self.is_free(w) else names.fresh(w.target)
            return [Hoist(w.source, w.made, name, w.after, (f"{names['DDP']}(", f"{ids})"))]
        if w.uses:
            # the module stands as it is, also for evaluation and checkpoints; its own training calls the wrapper
            name, routed = own_name(facts, w), {r.base for r in w.routes}
            me = w.source.code(w.uses[0])
            lines = (*sync_batchnorm(facts, w, me), f"{name} = {names['DDP']}({me}{ids})")
            plain = [use for use in w.uses if use not in routed]
            return [*more, InsertBefore(w.source, w.after, lines), *(Replace(w.source, use, name) for use in plain)]
        return [*more, InsertAfter(w.source, w.after, (*shared, wrap_statement(w, names["DDP"], ids, names["torch"])))]

    def is_free(self, w: WrapPoint) -> bool:
        """`model = train(Net(), loader)`: the name is given anew by the statement, and not read in it."""
        if not isinstance(w.after, cst.Assign):
            return False
        targets = [t.target.value for t in w.after.targets if isinstance(t.target, cst.Name)]
        return w.target in targets and not any(
            isinstance(n, cst.Name) and n.value == w.target for n in walk(w.after.value)
        )

    def outside(self, facts: Facts) -> Iterator[Finding]:
        """Parameters that an optimizer has and no wrapper: every rank would train its own."""
        inside = {root(m) for w in facts.wraps for m in (w.modules if isinstance(w, WrapPoint) else (w.module,))}
        for optimizer in facts.roles.optimizers:
            source, node = optimizer.site.source, optimizer.site.node
            alone = next((m for m in optimizer.modules if certain(m) and not roots(m) <= inside), None)
            loose = optimizer.loose or (alone is not None and is_stepped(facts.flow, optimizer))
            if node not in source.parents or not loose:
                continue
            what = (
                f"a model that no training forward calls ({alone.evidence})"
                if alone is not None
                else "parameters that belong to no model"
            )
            about = way_back(facts.flow, parameters_of(node), source, optimizer.site.frame, value=shown(source, node))
            yield self.finding(
                source,
                node,
                f"`{about.value}` trains {what}: DDP would not average their gradients",
                refuse=about,
                left="Make them part of the model (an attribute of its class), so that its forward uses them",
            )

    def untraced(self, facts: Facts) -> Finding:
        """What is trained belongs to no model that could be found: the backward is the place to look at."""
        event = facts.roles.backwards[0]
        source = event.frame.source
        called = sorted(
            {
                o.module.evidence or o.module.name
                for b in facts.roles.backwards
                for o in origins(b.value)
                if isinstance(o, FromForward)
            }
        )
        seen = f"it comes through {', '.join(called[:3])}" if called else "no call of a model was seen on the way to it"
        about = way_of_call(facts.flow, event)
        return self.finding(
            source,
            event.node,
            f"the loss of `{about.value}` could not be traced to a model whose parameters an optimizer has ({seen})",
            refuse=about,
            left="DDP needs a forward of the model itself between the batch and the loss",
        )

    def way_of(self, facts: Facts, w: WrapPoint) -> Way:
        """How the model got to the statement behind which it would be wrapped."""
        made = w.module.site
        return way_back(facts.flow, made.node, made.source, made.frame, value=w.target)

    def name_of(self, w: WrapPoint | NoWrapPoint) -> str:
        return w.target if isinstance(w, WrapPoint) else w.source.code(w.node)


def parameters_of(call: cst.CSTNode) -> cst.CSTNode:
    """`params` of `SGD(params, lr=0.1)`"""
    return call.args[0].value if isinstance(call, cst.Call) and call.args else call


def certain(module: Module) -> bool:
    """A model with parameters for certain, and not what is only known by use."""
    return module.has_parameters and (module.cls is not None or bool(module.name))


def trained_by_parent(facts: Facts, module: Module) -> bool:
    """`train(reference)` and then `mp.spawn(train, ...)`: what the ranks' results are compared with."""
    mine = [
        b
        for b in facts.roles.backwards
        if any(isinstance(o, FromForward) and root(o.module) is root(module) for o in origins(b.value))
    ]
    return bool(mine) and all(map(ranks(facts.flow).by_parent, mine))


def wraps_inside(module: Module) -> bool:
    """`self.net = DDP(self.net)`: what the module trains is a part of it, which is wrapped."""
    return any(isinstance(o, Wrapped) for value in module.fields.values() for o in value)


def talks(module: Module) -> bool:
    """A part of a model that lives on this rank alone (model parallel) makes its own collectives."""
    lineage = module.cls.lineage() if module.cls is not None else []
    return any(_COLLECTIVE.search(c.source.code(c.node)) for c in lineage)
