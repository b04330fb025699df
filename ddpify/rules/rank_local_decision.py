"""DDP503: decisions on numbers of a replicated evaluation."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddpify.edits import AddHelper, Edit, InsertAfter, Surround
from ddpify.facts import Facts
from ddpify.facts.evaluation import evaluations
from ddpify.facts.frames import Frame
from ddpify.facts.handmade import made_alike
from ddpify.facts.locality import locality
from ddpify.facts.main_only import main_only
from ddpify.facts.own import own_soon
from ddpify.facts.unloaded import asked, asks_what_it_is, decides_training
from ddpify.facts.values import Optimizer, Scheduler, Value
from ddpify.facts.work import changes_places, leaves, names_bound, work
from ddpify.rules._base import Converts, Finding, Rule
from ddpify.rules._evaluated import Origins, Spot, agreed
from ddpify.rules._guards import guards
from ddpify.source import Source, walk


class RankLocalDecision(Rule):
    """Ranks decide on numbers that may differ.

    ## What it does
    Finds `if`, `while` and `scheduler.step(metric)` that depend on an evaluation which every rank does by itself, and
    gives all of them rank 0's number, once. Also calls of a function that gives the other ranks None, where all go on
    with the result.

    ## Why is this bad?
    Two GPUs may differ in the last bits: one rank stops, lowers its learning rate or reloads weights, and the others do
    not.

    ## Fix
    Decide on a number that is the same on all ranks: reduce it, or take rank 0's with `dist.broadcast`.

    ## Edit
    `accuracy = broadcast_value(accuracy)` behind the statement that computes it.
    """

    code = "DDP503"
    references = ("https://github.com/huggingface/transformers/issues/28516",)
    converts = (
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            data = TensorDataset(torch.ones(8, 4))
            loader, held_out = DataLoader(data, batch_size=2), DataLoader(data, batch_size=4)
            net = nn.Linear(4, 1)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
            def score():
                values = [0.0]
                with torch.no_grad():
                    for (x,) in held_out:
                        values.append(net(x).max().item())
                return max(values)
            for epoch in range(2):
                for (x,) in loader:
                    net(x).mean().backward()
                    optimizer.step()
                value = score()
                plateau.step(value)
            """,
            gives=("    value = score()\n    value = broadcast_value(value)\n    plateau.step(value)",),
        ),
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            class Best:
                def __init__(self):
                    self.top = 0.0
                def update(self, value):
                    self.top = max(self.top, value)
            data = TensorDataset(torch.ones(8, 4))
            loader, held_out = DataLoader(data, batch_size=2), DataLoader(data, batch_size=4)
            net = nn.Linear(4, 1)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            kept = 0.0
            for epoch in range(2):
                for (x,) in loader:
                    net(x).mean().backward()
                    optimizer.step()
                meter = Best()
                for (x,) in held_out:
                    meter.update(net(x).max().item())
                if meter.top > kept:
                    kept = meter.top
            """,
            gives=("    meter.top = broadcast_value(meter.top)\n    if meter.top > kept:",),
        ),
        Converts(
            """
            import os
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            def evaluate(net, loader):
                for (x,) in loader:
                    found = net(x).mean().item()
                curves.setdefault("sizes", []).append(len(x))
                for key, value in {"last": found, "twice": 2 * found}.items():
                    if curves.get(key) is None:
                        curves[key] = []
                    curves[key].append(value)
                if os.environ.get("RANK", "0") == "0":
                    best = max(curves["last"])
                else:
                    best = None
                return best
            data = TensorDataset(torch.ones(8, 4))
            net, curves = nn.Linear(4, 1), {}
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for epoch in range(2):
                for (x,) in DataLoader(data, batch_size=2):
                    net(x).mean().backward()
                    optimizer.step()
                with torch.no_grad():
                    best = evaluate(net, DataLoader(data, batch_size=2))
                print(best + 1)
            """,
            gives=("best = broadcast_value(evaluate(net.module,", "        if curves.get(key) is None:\n"),
        ),
    )

    def check(self, facts: Facts) -> Iterator[Finding]:
        if not facts.converting:
            return
        replicated = {id(e.loader) for e in facts.cached("evaluations", evaluations) if e.mode == "all"}
        origin = Origins(facts, replicated)
        done: set[tuple[int, str]] = set()
        alike = made_alike(facts)
        for frame, node, deciding in self.decisions(facts, origin):
            if origin.evaluates(frame) or origin.trains_in(frame) or any(id(d) in alike for d in deciding):
                continue
            if work(facts.flow).only_shows(frame):
                continue  # what rank 0 alone prints or writes in the end
            if origin.is_alone(Spot(node, frame.source, "", False), guards(facts).done):
                continue
            spots = [s for d in deciding for s in origin.within(d, frame) if not self.is_own_in_training(origin, s)]
            unknown = not spots and reaches(facts, frame.source, node) and origin.unknown(deciding, frame)
            if unknown and not exchanges(facts, node) and any(origin.is_mixed(v) for v in read_by(facts, deciding)):
                continue  # a curve over the shard of each rank, in the training: the ranks may take different ways
            if (unknown or not all(facts.editable(s.source) for s in spots)) and (id(node), "") not in done:
                done.add((id(node), ""))
                yield self.whole(facts, origin, frame, node, deciding[0])
            for spot in spots:
                key = (id(spot.node), spot.name)
                if key not in done and facts.editable(spot.source):
                    done.add(key)
                    if origin.is_alone(spot, guards(facts).done):
                        continue
                    apart = origin.trains(spot.node) and origin.goes_apart(spot)
                    yield self.open(frame, deciding[0]) if apart else self.broadcast(facts, spot)

        yield from self.of_rank_zero(facts, origin)

    def is_own_in_training(self, origin: Origins, spot: Spot) -> bool:
        """Answers of a phase, in a list: those of the training are this rank's own, and stay with their labels."""
        value = getattr(spot.node, "value", spot.node) if spot.name else spot.node
        if spot.number or not origin.is_mixed(origin.facts.flow.values.get(value, ())):
            return False
        known = locality(origin.facts)
        return any(known.is_local(value, frame) for frame, node in origin.ways(spot) if node is spot.node)

    def of_rank_zero(self, facts: Facts, origin: Origins) -> Iterator[Finding]:
        """`stats = evaluate(model, loader)` of a helper that gives the other ranks None."""
        done: set[int] = set()
        for _, entry in main_only(facts):
            spot = Spot(entry.call, entry.frame.source, "", False)
            if id(entry.call) in done or not facts.editable(spot.source) or origin.is_alone(spot, guards(facts).done):
                continue
            done.add(id(entry.call))
            yield self.broadcast(facts, spot, "the other ranks have None, and go on with it")

    def whole(self, facts: Facts, origin: Origins, frame: Frame, node: cst.CSTNode, deciding: cst.CSTNode) -> Finding:
        """Rank 0's answer, where the numbers that it goes by were not found one by one."""
        place = Spot(node, frame.source, "", False)
        if not facts.editable(frame.source) or origin.goes_apart(place):
            return self.open(frame, deciding)
        agreed(facts).add(id(deciding))
        return self.broadcast(facts, Spot(deciding, frame.source, "", False))

    def open(self, frame: Frame, node: cst.CSTNode) -> Finding:
        code = frame.source.code(node).split("\n")[0]
        return self.finding(
            frame.source,
            node,
            f"ranks go by `{code}`, which each computes for itself",
            left="take rank 0's value on all ranks (torch.distributed.broadcast_object_list)",
        )

    def broadcast(
        self, facts: Facts, spot: Spot, why: str = "it decides, and every rank computes it for itself"
    ) -> Finding:
        source = spot.source
        if spot.name:
            own_soon(facts).agreed.add((id(source), spot.name))
        helper = AddHelper(source, "broadcast_value", frozenset() if spot.number else frozenset({"tensor"}))
        call = facts.names_of(source)["broadcast_value"]
        edit: Edit = (
            InsertAfter(source, spot.node, (f"{spot.name} = {call}({spot.name})",))
            if spot.name
            else Surround(source, spot.node, f"{call}(", ")")
        )
        what = spot.name or source.code(spot.node).split("\n")[0]
        return self.finding(
            source,
            spot.node,
            f"all ranks go by rank 0's `{what}`",
            edit,
            helper,
            reason=why,
        )

    def decisions(self, facts: Facts, origin: Origins) -> Iterator[tuple[Frame, cst.CSTNode, list[cst.CSTNode]]]:
        """Tests of `if` and `while` that lead to more than output, and arguments of scheduler.step."""
        seen: set[tuple[int, int]] = set()
        for e in facts.flow.log.events:
            if e.seq >= facts.flow.main_end:
                break
            for node in (*e.under, *([e.node] if e.kind == "loop" else [])):
                key = (id(node), id(e.frame))
                if isinstance(node, (cst.If, cst.While)) and key not in seen:
                    seen.add(key)
                    around = set(e.frame.source.ancestors(node))
                    within = origin.over(loop for loop in e.loops if loop.node in around)
                    read = any(origin.is_read(facts.flow.values.get(n, ())) for n in asked(facts, node.test))
                    if not matters(facts, e.frame.source, node, within):
                        continue
                    if read or (decides_training(facts, e.frame, node, e) and not asks_what_it_is(facts, node.test)):
                        yield e.frame, node, [node.test]
            if (
                e.kind == "method"
                and e.name == "step"
                and isinstance(e.obj, Scheduler)
                and isinstance(e.node, cst.Call)
                and e.node.args
            ):
                yield e.frame, e.node, [a.value for a in e.node.args]


def matters(facts: Facts, source: Source, stmt: cst.If | cst.While, within: bool) -> bool:
    """Whether more depends on a branch than what rank 0 prints and saves: work for all ranks, values, a way out.

    Within the loop of the evaluation only steps and collectives count: what else is done there is looked at where it
    decides.
    """
    known = work(facts.flow)
    branches = [stmt.body, *([stmt.orelse] if stmt.orelse is not None else [])]
    if within:
        return any(known.exchanges(b) for b in branches)
    return any(
        bool(known.inside(b))
        or bool(names_bound(b))
        or changes_places(b)
        or (leaves(source, b) and not only_skips(facts, source, b))
        for b in branches
    )


def only_skips(facts: Facts, source: Source, block: cst.CSTNode) -> bool:
    """`if row is None: continue` in a loop that no rank waits in, and of which nothing is read behind it.

    Each rank goes by its own rows there: rank 0's answer may not be true of them.
    """
    for node in walk(block):
        if isinstance(node, (cst.Return, cst.Raise, cst.Yield, cst.Await, cst.Global)):
            return False
        if isinstance(node, (cst.Break, cst.Continue)):
            above = list(source.ancestors(node))
            loop = next((a for a in above if isinstance(a, (cst.For, cst.While))), None)
            scope = next((a for a in above if isinstance(a, (cst.FunctionDef, cst.Module))), None)
            if loop is None or scope is None or steps_inside(facts, loop) or changes_places(loop.body):
                return False
            end, bound = source.span(loop).end, {name.split(".")[0] for name in names_bound(loop.body)}
            if any(isinstance(n, cst.Name) and n.value in bound and source.span(n).start >= end for n in walk(scope)):
                return False
    return True


def steps_inside(facts: Facts, loop: cst.For | cst.While) -> bool:
    """Whether the ranks meet in a loop, or an optimizer or a schedule changes there."""
    known = work(facts.flow)
    events = (e for node in walk(loop) for e in known.events.get(id(node), ()))
    return known.exchanges(loop) or any(isinstance(e.obj, (Optimizer, Scheduler)) for e in events)


def exchanges(facts: Facts, node: cst.CSTNode) -> bool:
    """Whether a branch has a step, a collective, or something that rank 0 writes."""
    known = work(facts.flow)
    return any(known.exchanges(b) or known.inside(b) for b in branches(node))


def branches(node: cst.CSTNode) -> list[cst.CSTNode]:
    found = [getattr(node, "body", None), getattr(node, "orelse", None)]
    return [b for b in found if b is not None] or [node]


def read_by(facts: Facts, nodes: list[cst.CSTNode]) -> Iterator[Value]:
    """The values of what some expressions read."""
    for node in nodes:
        for n in walk(node):
            yield facts.flow.values.get(n, ())


def reaches(facts: Facts, source: Source, node: cst.CSTNode) -> bool:
    """Whether what a branch does is seen outside its function; `lines.append(text)`, of a list of its own, is not."""
    known = work(facts.flow)
    events = [e for n in walk(node) for e in known.events.get(id(n), ())]
    bound = names_bound(node) or changes_places(node) or leaves(source, node)
    return bool(bound) or any(known.event(e) for e in events)
