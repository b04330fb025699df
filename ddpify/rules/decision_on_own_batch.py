"""DDP506: loops and schedules that go by one rank's own numbers."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddpify.edits import AddHelper, Edit, Surround
from ddpify.facts import Facts
from ddpify.facts.chosen import by_chance
from ddpify.facts.definitions import definitions
from ddpify.facts.dependencies import bindings, closure, read_names
from ddpify.facts.endings import is_success
from ddpify.facts.frames import Event, Frame
from ddpify.facts.handmade import made_alike
from ddpify.facts.locality import Locality, locality
from ddpify.facts.own import own_soon
from ddpify.facts.setup import reduce_options
from ddpify.facts.signals import comes_by_signal
from ddpify.facts.sizes import by_key, by_size, is_size
from ddpify.facts.values import Scheduler
from ddpify.facts.work import work
from ddpify.rules._base import Bad, Converts, Finding, Good, Rule
from ddpify.rules._evaluated import agreed
from ddpify.rules._own_decisions import decides, keeps
from ddpify.rules._own_meetings import tests_before_meetings
from ddpify.source import Source, walk


class DecisionOnOwnBatch(Rule):
    """A rank leaves a loop, or changes its learning rate, because of its own batches.

    ## What it does
    Finds `break`, `continue`, `return` and `while` tests, and `scheduler.step(value)`, and tests under which
    `group["lr"]` is set, that depend on the losses of this rank's batches or on the clock.

    ## Why is this bad?
    One rank stops and the others wait for it in the next backward: the job hangs. A learning rate that differs makes
    the replicas drift apart, silently.

    ## Fix
    Let all ranks decide alike: `dist.all_reduce(flag, op=dist.ReduceOp.MAX)` before the test.

    ## Edit
    Between epochs the test or the value is rank 0's: `if broadcast_value(loss.item() < 0.01): break`; so it is wherever
    a rank's clock or numbers decide whether it comes to a meeting: `if broadcast_value(time.time() - last > 600):` with
    an evaluation under it, whose numbers are added up. Inside a batch
    loop all ranks go the way of any of them: `if any_process(torch.isnan(loss)): continue`; so they do wherever a
    handler of signals sets what they go by. Left for you where not all ranks come to the test.
    """

    code = "DDP506"
    references = (
        "https://github.com/speechbrain/speechbrain/issues/1939",
        "https://github.com/Lightning-AI/pytorch-lightning/issues/5243",
    )
    good = (
        Good("""
            ddp = DDP(model)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            for x, y in DataLoader(dataset, sampler=DistributedSampler(dataset, shuffle=False)):
                loss = ddp(x).mean()
                bad = torch.isnan(loss).float()
                dist.all_reduce(bad, op=dist.ReduceOp.MAX)
                if bad.item():
                    continue
                loss.backward()
                optimizer.step()
            """),
        Good("""
            ddp = DDP(model)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            for i, (x, y) in enumerate(DataLoader(dataset, sampler=DistributedSampler(dataset, shuffle=False))):
                if i > 10:
                    break
                ddp(x).mean().backward()
                optimizer.step()
            """),
    )
    bad = (
        Bad("""
            ddp = DDP(model)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            for x, y in DataLoader(dataset, sampler=DistributedSampler(dataset, shuffle=False)):
                loss = ddp(x).mean()
                if torch.isnan(loss):
                    continue
                loss.backward()
                optimizer.step()
            """),
    )
    converts = (
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
            net = nn.Linear(4, 1)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for epoch in range(9):
                for (x,) in loader:
                    loss = net(x).mean()
                    loss.backward()
                    optimizer.step()
                if loss.item() < 0.01:
                    break
            """,
            gives=("    if broadcast_value(loss.item() < 0.01):",),
        ),
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
            net = nn.Linear(4, 1)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for epoch in range(9):
                for (x,) in loader:
                    loss = net(x).mean()
                    if torch.isnan(loss):
                        continue
                    loss.backward()
                    optimizer.step()
            """,
            gives=("        if any_process(torch.isnan(loss)):",),
        ),
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
            net = nn.Linear(4, 1)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            before = None
            for epoch in range(9):
                worst = 0.0
                for (x,) in loader:
                    loss = net(x).mean()
                    loss.backward()
                    optimizer.step()
                    worst = max(worst, loss.item())
                if before is not None and worst > before:
                    for group in optimizer.param_groups:
                        group["lr"] *= 0.5
                if worst < 0.01:
                    break
                before = worst
            """,
            gives=(
                "    if broadcast_value(before is not None and worst > before):",
                "    if broadcast_value(worst < 0.01):",
            ),
        ),
        Converts(
            """
            import signal
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            class Stop:
                def __init__(self):
                    self.asked, state = False, {"epoch": 0}
                    signal.signal(signal.SIGTERM, self.ask)
                def ask(self, number, frame):
                    self.asked = True
            loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
            net = nn.Linear(4, 1)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            late = False
            def alarm(number, frame):
                global late
                late = True
            signal.signal(signal.SIGALRM, alarm)
            stop, epoch = Stop(), 0
            while not stop.asked and epoch < 9:
                for (x,) in loader:
                    net(x).mean().backward()
                    optimizer.step()
                    if late:
                        break
                if late:
                    break
                epoch += 1
            """,
            gives=(
                "while any_process(not stop.asked and epoch < 9):",
                "        if any_process(late):",
                "    if any_process(late):",
            ),
        ),
    )

    def check(self, facts: Facts) -> Iterator[Finding]:
        known = locality(facts)
        if not facts.converting:
            told: set[int] = set()
            for finding in (*self.lint(facts, known), *decides(self, facts), *keeps(self, facts)):
                if id(finding.node) not in told:
                    told.add(id(finding.node))
                    yield finding
            return
        done = made_alike(facts)
        for test, frame in tests_before_meetings(facts):
            if id(test) not in done and is_own(facts, test.test, frame):
                done.add(id(test))
                why = "what it decides brings the ranks together, and has to happen on all of them"
                if by_signal(facts, test.test):
                    yield from self.agreed(facts, frame.source, "if", test.test)
                else:
                    yield from self.shared(facts, frame.source, test.test, why)
        for e in facts.flow.log.events:
            if e.seq >= facts.flow.main_end:
                return
            if e.kind in ("break", "continue", "return") or (e.kind == "exit" and is_success(e)):
                yield from self.exits(facts, known, e, done)
            elif (
                e.kind == "method"
                and e.name == "step"
                and isinstance(e.obj, Scheduler)
                and isinstance(e.node, cst.Call)
            ):
                for arg in e.node.args[:1]:
                    if id(arg.value) not in done and is_own(facts, arg.value, e.frame):
                        done.add(id(arg.value))
                        yield from self.shared(
                            facts, e.frame.source, arg.value, "a schedule that all ranks have to follow"
                        )
            elif e.kind in ("store", "augment") and _sets_rate(e.node) and not known.batch_loops(e.loops):
                for test in (u for u in e.under if isinstance(u, cst.If) and id(u) not in done):
                    if is_own(facts, test.test, e.frame):
                        done.add(id(test))
                        yield from self.shared(
                            facts, e.frame.source, test.test, "a learning rate that all ranks have to follow"
                        )
            elif (
                e.kind == "loop"
                and isinstance(e.node, cst.While)
                and id(e.node) not in done
                and self.inside(facts, e.node)
            ):
                done.add(id(e.node))
                if not known.batch_loops(e.loops) and by_signal(facts, e.node.test):
                    yield from self.agreed(facts, e.frame.source, "while", e.node.test)
                elif not known.batch_loops(e.loops) and is_own(facts, e.node.test, e.frame):
                    yield from self.shared(
                        facts, e.frame.source, e.node.test, "the loop has to end on all ranks at once"
                    )

    def lint(self, facts: Facts, known: Locality) -> Iterator[Finding]:
        """A batch that this rank leaves out, or after which it stops, where nothing brings the ranks to agree."""
        done: set[int] = set()
        for e in facts.flow.log.of("break", "continue"):
            loops = [lp for lp in e.loops if isinstance(lp.node, (cst.For, cst.While))]
            if e.seq >= facts.flow.main_end or not loops or not self.inside(facts, loops[-1].node):
                continue
            source, inner = e.frame.source, set(e.frame.source.ancestors(e.stmt))
            for test in (u for u in e.under if isinstance(u, cst.If) and u in inner and id(u) not in done):
                within = loops[-1].node in set(source.ancestors(test))
                agreed = self.agrees(facts, test.test, e)
                alike = by_size(test.test) or by_key(test.test) or self.of_shape(facts, test.test, e.frame)
                own = known.is_local(test.test, e.frame) and not alike
                if within and known.batch_loops(e.loops) and own and not agreed:
                    done.add(id(test))
                    code = source.code(test.test)
                    message = (
                        f"`{code}` is this rank's own: `{e.kind}` makes it do another number of steps than the others"
                    )
                    if facts.editable(source):
                        yield self.finding(source, test, message)

    def of_shape(self, facts: Facts, test: cst.BaseExpression, frame: Frame) -> bool:
        """`count < args.batch_size` of `count, height, width = x.shape`: samplers give all ranks as many."""
        match test:
            case cst.Comparison(left=cst.Name() as left, comparisons=[cst.ComparisonTarget(comparator=right)]):
                few = isinstance(right, cst.Integer) and right.value in ("0", "1")
                given = definitions(facts.flow).of(left, frame)
                return bool(given) and not few and all(is_size(d.node, d.index) for d in given)
        return False

    def agrees(self, facts: Facts, test: cst.BaseExpression, e: Event) -> bool:
        """Whether something that a test reads has been given to a collective, or to a function that makes one."""
        names = read_names(test)
        if work(facts.flow).meets(test):
            return True
        home = e.frame.node.body if isinstance(e.frame.node, cst.FunctionDef) else e.frame.node
        made_of = closure(names, bindings(home))
        for other in e.frame.events:
            call = other.node
            if other.kind in ("external", "call") and isinstance(call, cst.Call) and work(facts.flow).meets(call):
                given = {n for a in call.args for n in read_names(a.value)}
                trains = any(n in facts.roles.training_forwards for n in walk(call))
                filled = read_names(call.args[0].value) if other.kind == "external" and call.args else frozenset()
                if (given & names or filled & made_of) and not trains:
                    return True  # all_gather(losses, loss); bad = torch.isnan(torch.stack(losses)).any()
        return False

    def exits(self, facts: Facts, known: Locality, e: Event, done: set[int]) -> Iterator[Finding]:
        """A way out of a loop that trains, under a test of this rank's own numbers."""
        loops = [lp for lp in e.loops if isinstance(lp.node, (cst.For, cst.While))]
        if not loops or not any(self.inside(facts, lp.node) for lp in loops):
            return
        inner = set(e.frame.source.ancestors(e.stmt))
        for test in (u for u in e.under if isinstance(u, cst.If) and u in inner):
            within = any(lp.node in set(e.frame.source.ancestors(test)) for lp in loops)
            if not within or id(test) in done or not is_own(facts, test.test, e.frame):
                continue
            done.add(id(test))
            code = e.frame.source.code(test.test)
            met = known.batch_loops(e.loops) or by_signal(facts, test.test)
            if met and self.met_by_all(facts, known, test, e):
                if by_chance(facts, test.test, e.frame):
                    yield from self.shared(facts, e.frame.source, test.test, "all ranks go by what rank 0 draws")
                else:
                    yield from self.agreed(facts, e.frame.source, e.kind, test.test)
            elif known.batch_loops(e.loops):
                yield self.finding(
                    e.frame.source,
                    test,
                    f"`{code}` is this rank's own, and `{e.kind}` under it makes this rank do another number of steps "
                    "than the others",
                    left="let all ranks agree before the backward: all_reduce the condition (MAX), then take the same "
                    "way",
                )
            else:
                yield from self.shared(
                    facts, e.frame.source, test.test, f"`{e.kind}` has to happen on all ranks at once"
                )

    def met_by_all(self, facts: Facts, known: Locality, test: cst.If, e: Event) -> bool:
        """Whether all ranks come to a test in every turn: no other of this rank's own around it; of chance, DDP515."""
        outer = [a for a in e.frame.source.ancestors(test) if isinstance(a, (cst.If, cst.While))]
        return not any(is_own(facts, a.test, e.frame) and not by_chance(facts, a.test, e.frame) for a in outer)

    def agreed(self, facts: Facts, source: Source, way: str, test: cst.BaseExpression) -> Iterator[Finding]:
        """`if torch.isnan(loss): continue` -> `if any_process(torch.isnan(loss)): continue`"""
        if not facts.editable(source):
            return
        code = source.code(test).split("\n")[0]
        call = facts.names_of(source)["any_process"]
        yield self.finding(
            source,
            test,
            f"`{code}` is this rank's own, and the `{way}` that it decides would make it do another number of steps",
            Surround(source, test, f"{call}(", ")"),
            AddHelper(source, "any_process", reduce_options(facts)),
            reason=f"where it holds on one rank, all of them `{way}`: they make the same steps",
        )

    def inside(self, facts: Facts, node: cst.CSTNode) -> bool:
        return node in facts.roles.training_loops

    def shared(self, facts: Facts, source: Source, node: cst.BaseExpression, reason: str) -> Iterator[Finding]:
        if not facts.editable(source) or id(node) in agreed(facts):
            return
        code = source.code(node).split("\n")[0]
        edit: Edit = Surround(source, node, f"{facts.names_of(source)['broadcast_value']}(", ")")
        helper = AddHelper(source, "broadcast_value", frozenset({"tensor"}))
        yield self.finding(source, node, f"all ranks go by rank 0's `{code}`", edit, helper, reason=reason)


def is_own(facts: Facts, node: cst.CSTNode, frame: Frame) -> bool:
    """Whether a converted script's ranks would each have a number of their own there, or the time, or chance."""
    known = own_soon(facts)
    return not known.is_agreed(node, frame) and (locality(facts).is_local(node, frame) or known.is_own(node, frame))


def by_signal(facts: Facts, test: cst.BaseExpression) -> bool:
    """`while not stopped:`, of a flag that a handler of signals sets: a signal may reach one rank alone."""
    return any(comes_by_signal(facts.flow.values.get(n, ())) for n in walk(test))


def _sets_rate(node: cst.CSTNode) -> bool:
    """`group["lr"] = ...`, `group["lr"] *= 0.5`"""
    target = node.target if isinstance(node, cst.AugAssign) else node
    if not isinstance(target, cst.Subscript) or len(target.slice) != 1:
        return False
    key = target.slice[0].slice
    return isinstance(key, cst.Index) and isinstance(key.value, cst.SimpleString) and key.value.evaluated_value == "lr"
