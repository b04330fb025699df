"""DDP206: buffers before an evaluation."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddpify.edits import AddHelper, Edit, InsertBefore
from ddpify.facts import Facts
from ddpify.facts.contents import may_hold, modules
from ddpify.facts.dependencies import bound_names
from ddpify.facts.externals import role_of
from ddpify.facts.frames import Entry, Event, Frame, Loop
from ddpify.facts.layers import BUFFERS, mentions
from ddpify.facts.moving import find_moving, put_in_eval
from ddpify.facts.placing import following, leading
from ddpify.facts.roles import expression_for, loaders_in
from ddpify.facts.routes import in_step, on_the_way
from ddpify.facts.unwrapping import Raw, climb, find_raw
from ddpify.facts.values import Loader, Module, Wrapped
from ddpify.facts.work import names_bound, work
from ddpify.rules._base import Converts, Finding, Rule
from ddpify.source import Source, walk


class BuffersDifferAtEvaluation(Rule):
    """Ranks evaluate with different BatchNorm statistics.

    ## What it does
    Puts `sync_buffers(model.module)` before the evaluation of a model that has buffers which a training forward
    changes. Copies and averages of such a model (EMA, AveragedModel, a mean teacher) get them too, and so do frozen
    networks that run in train mode: BatchNorm takes in what it sees, trained or not.

    ## Why is this bad?
    Each rank's BatchNorm has seen its own batches, and DDP broadcasts rank 0's buffers only at the next training
    forward: between them the same sample gets different outputs on different ranks. Rank 0's are those that are saved.

    ## Fix
    Broadcast the buffers from rank 0 before the evaluation: `for b in model.buffers(): dist.broadcast(b, src=0)`.

    ## Edit
    One broadcast before the evaluation, on every rank.
    """

    code = "DDP206"
    references = ("https://github.com/pytorch/pytorch/issues/30718",)
    converts = (
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            def check(model):
                model.eval()
                with torch.no_grad():
                    return model(torch.ones(1, 4)).item()
            loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
            net = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 1))
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for (x,) in loader:
                net(x).mean().backward()
                optimizer.step()
            value = check(net)
            """,
            gives=("sync_buffers(net.module)\nvalue = check(net.module)",),
        ),
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            class Net(nn.Module):
                def __init__(self, norm):
                    super().__init__()
                    self.norm = norm
                    self.bn, self.out = nn.BatchNorm1d(4), nn.Linear(4, 1)
                def forward(self, x):
                    if self.norm:
                        x = self.bn(x)
                    return self.out(x)
            loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
            nets = [Net(norm=False), Net(norm=True)]
            optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in nets]
            for (x,) in loader:
                for net, optimizer in zip(nets, optimizers):
                    net(x).mean().backward()
                    optimizer.step()
            for net in nets:
                net.eval()
            with torch.no_grad():
                guesses = [one(torch.ones(3, 4)) for one in nets]
            """,
            gives=(
                "nets = [DDP(net, find_unused_parameters=True) for net in nets]",
                "    for one in nets:\n        sync_buffers(one.module)\n    guesses = [one.module(",
            ),
        ),
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
            body, still = nn.Sequential(nn.BatchNorm1d(4)), nn.Sequential(nn.BatchNorm1d(4))
            body.requires_grad_(False)
            still.requires_grad_(False).eval()
            head = nn.Linear(4, 1)
            optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
            for epoch in range(2):
                body.train()
                for (x,) in loader:
                    head(body(x) + still(x)).mean().backward()
                    optimizer.step()
                body.eval()
                print(head(body(torch.ones(1, 4)) + still(torch.ones(1, 4))).item())
            """,
            gives=("    body.eval()\n    sync_buffers(body)\n    result =",),
        ),
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
            net = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 1))
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for step, (x,) in enumerate(loader):
                net.train()
                net(x).mean().backward()
                optimizer.step()
                if step % 2 == 0:
                    net.eval()
                    with torch.no_grad():
                        print(net(torch.ones(1, 4)).item())
            """,
            gives=("        with torch.no_grad():\n            sync_buffers(net.module)\n",),
        ),
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            def fit(net, optimizer, teacher=None):
                net.train()
                if teacher is not None:
                    teacher.eval()
                for (x,) in loader:
                    loss = net(x).mean()
                    if teacher is not None:
                        with torch.no_grad():
                            aim = teacher(x)
                        loss = loss + (net(x) - aim).square().mean()
                    loss.backward()
                    optimizer.step()
            loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
            large = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
            small = nn.Linear(4, 1)
            fit(large, torch.optim.SGD(large.parameters(), lr=0.1))
            fit(small, torch.optim.SGD(small.parameters(), lr=0.1), large)
            """,
            gives=("    if teacher is not None:\n        sync_buffers(teacher.module)\n    for (x,)",),
        ),
    )

    def check(self, facts: Facts) -> Iterator[Finding]:
        if not facts.converting:
            return
        done: set[tuple[int, str]] = set()
        raws = [r for r in facts.cached("raw", find_raw) if r.why == "evaluation"]
        followers = _followers(facts)
        alike: dict[int, Event] = {}
        switched = put_in_eval(facts.after)
        for e in facts.after.log.of("forward"):
            if e.seq >= facts.after.main_end or not _looks_on(facts, e, followers):
                continue
            if id(e.obj) in alike and self.is_still_alike(facts, alike[id(e.obj)], e):
                continue
            if not any(_reads(m, switched) for m in modules((e.obj,) if e.obj is not None else ())):
                continue
            held = facts.after.values
            named = raws if isinstance(e.obj, Wrapped) else list(_named(e))
            places = {id(r.node): r for r in named if e.obj is not None and may_hold(held.get(r.node, ()), e.obj)}
            for stmt, raw, frame in self.place(facts, e, places):
                names, name = facts.names_of(frame.source), frame.source.code(raw.node)
                inside = stmt in frame.source.ancestors(raw.node)
                known = None if inside or e.obj is None else expression_for(e.obj, frame, facts.after)
                name = known or name
                if (id(stmt), name) in done or not facts.editable(frame.source):
                    continue
                done.add((id(stmt), name))
                alike[id(e.obj)] = e
                bare = f"{names['unwrap']}({name})" if raw.both else f"{name}.module"
                line = f"{names['sync_buffers']}({name if isinstance(e.obj, Module) else bare})"
                tests = _asked(frame.source, raw.node, stmt) if inside else []
                if raw.test and inside and not isinstance(stmt, (cst.For, cst.While)):
                    tests = [f"not {raw.test}" if raw.test.isidentifier() else f"not ({raw.test})"]
                if tests:
                    line = f"if {' and '.join(tests)}:\n    {line}"
                over = _comprehension(frame.source, raw.node, stmt) if known is None else None
                if over is not None:
                    target, held_in = frame.source.code(over.target), frame.source.code(over.iter)
                    line = f"for {target} in {held_in}:\n    {line}"
                edits: list[Edit] = [InsertBefore(frame.source, stmt, (line,))]
                edits += [AddHelper(frame.source, "unwrap")] if raw.both else []
                yield self.finding(
                    frame.source,
                    stmt,
                    f"rank 0's buffers of `{name}` are given to every rank before the evaluation",
                    *edits,
                    AddHelper(frame.source, "sync_buffers"),
                    reason="BatchNorm statistics differ between ranks after training",
                )

    def is_still_alike(self, facts: Facts, before: Event, e: Event) -> bool:
        """An evaluation behind another one, with no training between them: by now the model may be on the CPU."""
        ways = [[*((x.frame, x.stmt) for x in chain), (e.frame, e.stmt)] for chain in e.frame.chains()]
        stmts = [next((stmt for frame, stmt in way if frame is before.frame), None) for way in ways]
        return all(stmt is not None and self.is_behind(facts, before, stmt) for stmt in stmts)

    def is_behind(self, facts: Facts, before: Event, stmt: cst.CSTNode) -> bool:
        """Whether a statement comes behind an evaluation in its own function, with no training between them."""
        source, flow = before.frame.source, work(facts.flow)
        places = {stmt, *source.ancestors(stmt)}
        for node in (before.stmt, *source.ancestors(before.stmt)):
            if isinstance(node, (cst.If, cst.Try, cst.While, cst.FunctionDef)):
                return False
            later = following(source, node) if isinstance(node, (cst.BaseSmallStatement, cst.For, cst.With)) else []
            here = next((at for at, s in enumerate(later) if s in places), None)
            if here is not None:
                # for epoch in range(9): train(); evaluate()
                loops = [a for a in source.ancestors(stmt) if a in places and isinstance(a, (cst.For, cst.While))]
                inner = [a for a in loops if later[here] in (a, *source.ancestors(a))]
                first = [*later[:here], *leading(source, later[here], stmt)]
                return not (any(map(flow.meets, first)) or any(map(flow.exchanges, inner)))
        return False

    def place(self, facts: Facts, e: Event, raws: dict[int, Raw]) -> Iterator[tuple[cst.CSTNode, Raw, Frame]]:
        """The statement that starts the evaluation, in the frame where the wrapper still has a name."""
        training = self.training(facts, e)
        for chain in e.frame.chains():
            frames = [(entry.frame, entry.stmt, entry.loops) for entry in chain] + [(e.frame, e.stmt, e.loops)]
            for frame, stmt, loops in frames:
                inside = self.raw_in(facts, stmt, raws, frame)
                caller = self.caller(facts, e, chain, training) if inside is not None and inside.test else None
                if inside is not None and caller is not None:
                    yield caller.stmt, inside, caller.frame
                    break
                if inside is not None:
                    around = loops if frame is e.frame else ()
                    loop = next((lo.node for lo in around if self.is_before(facts, e, lo, inside)), None)
                    yield (loop if loop is not None else stmt), inside, frame
                    break

    def caller(self, facts: Facts, e: Event, chain: tuple[Entry, ...], training: set[int]) -> Entry | None:
        """Where the text that evaluates also trains: the call that only evaluates, where the wrapper has a name."""
        apart = (x for x in chain if id(x.stmt) not in training)
        return next((x for x in apart if e.obj is not None and expression_for(e.obj, x.frame, facts.after)), None)

    def training(self, facts: Facts, e: Event) -> set[int]:
        """The statements on the way to the training forwards of the same wrapper."""
        found: set[int] = set()
        for other in facts.after.log.of("forward"):
            if other.obj is e.obj and other.grad is not False and other.node in facts.after_roles.training_forwards:
                found |= {id(other.stmt), *(id(x.stmt) for chain in other.frame.chains() for x in chain)}
        return found

    def is_before(self, facts: Facts, e: Event, loop: Loop, inside: Raw) -> bool:
        """Whether once before a loop is enough: it reads a loader and does not train the model, or no turn differs."""
        if not isinstance(loop.node, (cst.For, cst.While)):
            return False
        if any(isinstance(o, Loader) for o in loaders_in(loop.iterates)):
            return bool(inside.test) or not self.trains(facts, e, loop)
        anew = {n.value for n in walk(inside.node) if isinstance(n, cst.Name)} & names_bound(loop.node)
        return not anew and not work(facts.flow).exchanges(loop.node)

    def trains(self, facts: Facts, e: Event, loop: Loop) -> bool:
        """Whether a loop, as it runs there, trains the model that is evaluated in it."""
        return any(
            lo.node is loop.node and lo.frame is loop.frame
            for t in facts.after.log.of("forward")
            if t.obj is e.obj and t.grad is not False and t.node in facts.after_roles.training_forwards
            for loops in t.all_loops()
            for lo in loops
        )

    def raw_in(self, facts: Facts, stmt: cst.CSTNode, raws: dict[int, Raw], frame: Frame) -> Raw | None:
        for node in walk(stmt):
            if id(node) in raws:
                return raws[id(node)]
        return None


def _asked(source: Source, node: cst.CSTNode, stmt: cst.CSTNode) -> list[str]:
    """`for x in loader: if teacher is not None: t = teacher(x)`: what is asked of the model's name, before the loop."""
    names = {n.value for n in walk(node) if isinstance(n, cst.Name)}
    found: list[str] = []
    inner: cst.CSTNode = node
    for above in source.ancestors(node):
        if above is stmt:
            return found
        if isinstance(above, (cst.If, cst.IfExp)) and inner is not above.test:
            asked = {n.value for n in walk(above.test) if isinstance(n, cst.Name)} - {"None"}
            if asked and asked <= names and not any(isinstance(n, cst.Call) for n in walk(above.test)):
                code = source.code(above.test)
                found.insert(0, code if inner is above.body else f"not ({code})")
        inner = above
    return []


def _comprehension(source: Source, node: cst.CSTNode, stmt: cst.CSTNode) -> cst.CompFor | None:
    """`outputs = [net(x) for net in nets]`, whose `net` has no name outside."""
    names = {n.value for n in walk(node) if isinstance(n, cst.Name)}
    for above in source.ancestors(node):
        if above is stmt:
            return None
        if isinstance(above, cst.BaseComp) and names & bound_names(above.for_in.target):
            return above.for_in
    return None


def _followers(facts: Facts) -> set[Module]:
    """Copies and averages of trained models, others of their class, frozen ones in train mode: in no wrapper."""
    inner = {part for w in facts.after_roles.wrapped for m in modules((w,)) for part in (m, m.inner or m)}
    classes = {m.cls for m in inner if m.cls is not None}
    seen = {e.obj for e in facts.after.log.of("forward") if isinstance(e.obj, Module) and e.obj not in inner}
    alike = {m for m in seen if m.cls in classes} - _apart(facts, inner)
    copies = alike | {m for m in seen if m.evidence == "a copy" or role_of(m.name) == "copy-module"}
    return copies | {*find_moving(facts.after, facts.after_roles)}


def _apart(facts: Facts, trained: set[Module]) -> set[Module]:
    """Models that run where nothing knows a trained one: `def generate(path): net = Net(); net.load(path)`."""

    def knows(frame: Frame) -> bool:
        held = [*frame.scope.names.values(), *frame.scope.module.names.values()]
        bound = frame.func.bound if frame.func is not None else None
        held += [*getattr(bound, "fields", {}).values()]
        return any(isinstance(o, Wrapped) or o in trained for value in held for o in value)

    met: set[Module] = set()
    seen: set[Module] = set()
    for e in facts.after.log.of("forward"):
        if isinstance(e.obj, Module):
            seen.add(e.obj)
            ways = [[e.frame, *(entry.frame for entry in chain)] for chain in e.frame.chains()]
            if any(knows(frame) for way in ways for frame in way):
                met.add(e.obj)
    return seen - met


def _looks_on(facts: Facts, e: Event, followers: set[Module]) -> bool:
    """Whether a forward belongs to an evaluation: of a wrapper, or of a follower outside the steps."""
    if isinstance(e.obj, Wrapped):
        return e.grad is False or not (
            e.node in facts.after_roles.training_forwards or on_the_way(facts.after_roles, e)
        )
    graded = e.grad is not False and e.node in facts.after_roles.training_forwards
    return e.obj in followers and not graded and not in_step(facts.after_roles, e)


def _reads(module: Module, switched: set[Module]) -> bool:
    """Whether buffers make an output: BatchNorm in train mode goes by its batch, whatever it has counted before."""
    words = BUFFERS if module in switched else tuple(w for w in BUFFERS if w != "BatchNorm")
    return mentions(module, words, written=True)


def _named(e: Event) -> Iterator[Raw]:
    """The expressions that name a model on the way to its forward, from the callee up the arguments."""
    node = e.node.func if isinstance(e.node, cst.Call) else None
    if node is None:
        return
    for place, source in climb(e.frame, node, lambda frame: False):
        yield Raw(place, source, "evaluation", "")
