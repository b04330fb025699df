"""DDP302: set_epoch."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddpify.edits import AddImport, Edit, Hoist, InsertBefore, Replace
from ddpify.facts import Facts
from ddpify.facts.contents import constants
from ddpify.facts.counting import counter, counts, first_statement, resumed
from ddpify.facts.frames import Frame
from ddpify.facts.placing import statement_of
from ddpify.facts.roles import EpochLoop, expression_for, hands_out, loop_name
from ddpify.facts.sharding import loader_facts
from ddpify.facts.values import Const, Loader, Obj, Sampler
from ddpify.rules._base import Bad, Converts, Finding, Good, Rule
from ddpify.rules._passes import (
    begins_again,
    begun,
    counted,
    drawn,
    is_once,
    may_draw,
    one_by_one,
    passes,
    remade,
    set_epoch,
    steps_in,
)
from ddpify.rules._same_epoch import same_epoch
from ddpify.source import dotted, walk

_PASS = "call loader.sampler.set_epoch(n) with a growing n at the start of each pass"


class MissingSetEpoch(Rule):
    """Every epoch has the same order: `set_epoch` is not called.

    ## What it does
    Finds shuffling DistributedSamplers whose loader is read in an epoch loop that never calls `set_epoch`, or calls it
    with a number that stays the same: `sampler.set_epoch(args.epochs)`.

    ## Why is this bad?
    The sampler's order depends on its epoch alone: without `set_epoch` each epoch repeats the first one's order and
    shards, silently.

    ## Fix
    Call `sampler.set_epoch(epoch)` first in every epoch, with an epoch that grows.

    ## Edit
    `loader.sampler.set_epoch(epoch)` is the first statement of the epoch loop, with the loop's own variable; `_` gets a
    name.
    """

    code = "DDP302"
    references = ("https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler",)
    good = (
        Good("""
            ddp = DDP(model)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            loader = DataLoader(dataset, sampler=DistributedSampler(dataset))
            for epoch in range(3):
                loader.sampler.set_epoch(epoch)
                for x, y in loader:
                    ddp(x).mean().backward()
                    optimizer.step()
            """),
    )
    bad = (
        Bad("""
            ddp = DDP(model)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            loader = DataLoader(dataset, sampler=DistributedSampler(dataset))
            for epoch in range(3):
                for x, y in loader:
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
            data = TensorDataset(torch.ones(8, 4))
            loader = DataLoader(data, batch_size=2, shuffle=True)
            net = nn.Linear(4, 1)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for _ in range(3):
                for (x,) in loader:
                    net(x).mean().backward()
                    optimizer.step()
            """,
            gives=("for epoch in range(3):\n    loader.sampler.set_epoch(epoch)",),
        ),
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            data = TensorDataset(torch.ones(8, 4))
            net = nn.Linear(4, 1)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for epoch in range(3):
                for (x,) in DataLoader(data, batch_size=2, shuffle=True):
                    net(x).mean().backward()
                    optimizer.step()
            """,
            gives=(
                "    loader = DataLoader(data, batch_size=2, sampler=DistributedSampler(data))\n"
                "    loader.sampler.set_epoch(epoch)\n"
                "    for (x,) in loader:",
            ),
        ),
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            sets = {"train": TensorDataset(torch.ones(8, 4)), "val": TensorDataset(torch.ones(4, 4))}
            loaders = {}
            for part in ("train", "val"):
                loaders[part] = DataLoader(sets[part], batch_size=2, shuffle=(part == "train"))
            net = nn.Linear(4, 1)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for epoch in range(3):
                for phase in ["train", "val"]:
                    total = 0.0
                    for i, (x,) in enumerate(loaders[phase]):
                        with torch.set_grad_enabled(phase == "train"):
                            loss = net(x).mean()
                            if phase == "train":
                                loss.backward()
                                optimizer.step()
                        total += loss.item() * len(x)
                    print(phase, total / len(sets[phase]))
            """,
            gives=(
                'sampler=DistributedSampler(sets[part]) if part == "train" else None)',
                '    loaders["train"].sampler.set_epoch(epoch)',
                "all_reduce_sum(total)\n",
            ),
        ),
    )

    def check(self, facts: Facts) -> Iterator[Finding]:
        done: set[tuple[int, int]] = set()
        placed: set[tuple[int, str]] = set()
        for epoch in facts.roles.epoch_loops:
            if epoch.loop is None or not self.shuffles(facts, epoch.loader):
                continue
            several = self.one_of_several(facts, epoch)
            key = (id(epoch.batch_loop.node if several else epoch.loader), id(epoch.loop.node))
            if key in done:
                continue
            done.add(key)
            if facts.converting:
                for finding in self.edit(facts, epoch):  # loaders of several branches ask for one line
                    if (id(finding.node), finding.message) not in placed:
                        placed.add((id(finding.node), finding.message))
                        yield finding
            elif (
                not self.is_set(facts, epoch)
                and facts.editable(epoch.loop.frame.source)
                and not is_once(facts, epoch.loop.node)
                and steps_in(facts, epoch.batch_loop.node)
            ):
                name = next(
                    (e for f, _ in epoch.way if (e := expression_for(epoch.loader, f, facts.flow))), "the loader"
                )
                edits = next((f.edits for f in self.edit(facts, epoch)), ())
                yield self.finding(
                    epoch.loop.frame.source,
                    epoch.loop.node,
                    f"the sampler of `{name}` gets no set_epoch: every epoch has the same order",
                    *edits,
                )
            elif (same := same_epoch(facts, epoch)) is not None and not is_once(facts, epoch.loop.node):
                message = f"`{same.frame.source.code(same.node)}` gives every epoch one number: each has the same order"
                yield self.finding(same.frame.source, same.node, message)
        if facts.converting:
            yield from self.steps(facts)

    def shuffles(self, facts: Facts, loader: Loader) -> bool:
        if facts.converting:
            known = loader_facts(facts, loader)
            return known is not None and known.shuffles is not False
        samplers = [
            o for o in loader.arguments.get("sampler", ()) if isinstance(o, Sampler) and "DistributedSampler" in o.name
        ]
        return any(constants(s.arguments.get("shuffle", ())) != [False] for s in samplers)

    def is_set(self, facts: Facts, epoch: EpochLoop) -> bool:
        samplers = set(epoch.loader.arguments.get("sampler", ()))
        for e in facts.flow.log.of("method"):
            if e.name == "set_epoch" and (e.obj in samplers or not isinstance(e.obj, Sampler)):
                return True
        return False

    def edit(self, facts: Facts, epoch: EpochLoop) -> Iterator[Finding]:
        assert epoch.loop is not None
        node = epoch.loop.node
        several = self.one_of_several(facts, epoch)
        again = self.by_passes(facts, epoch) if begins_again(facts, epoch) and not several else None
        if again is not None:
            yield again
            return
        for at, (frame, stmt) in enumerate(epoch.way):
            if not facts.editable(frame.source) or (several and frame is not epoch.batch_loop.frame):
                continue
            within = node if at == 0 else None
            loader = several or self.loader_in(facts, epoch, frame, within)
            if loader is None:
                continue
            edits: list[Edit] = []
            variable = self.variable(facts, epoch, frame, edits)
            if variable is None:
                continue
            line = set_epoch(facts, epoch.loader, loader, variable)
            if may_draw(facts, epoch, at, loader):
                kind = facts.names_of(frame.source)["DistributedSampler"]
                line = f"if isinstance({line.rpartition('.')[0]}, {kind}):\n    {line}"
                edits.append(AddImport(frame.source, "DistributedSampler"))
            if at == 0 and isinstance(node, (cst.For, cst.While)) and not several:
                place = first_statement(node)
                made = self.made_inside(facts, epoch, node)
                edits.append(InsertBefore(frame.source, made or place, (line,)))
            else:
                place = statement_of(frame.source, epoch.batch_loop.node if several else stmt)
                edits.append(InsertBefore(frame.source, place, (line,)))
            yield self.finding(
                frame.source,
                place,
                f"`{loader}` is shuffled anew in every epoch",
                *edits,
                reason="the order of a DistributedSampler depends on its epoch",
            )
            return
        headed = self.in_the_header(facts, epoch)
        if headed is not None:
            yield headed
            return
        counted = self.by_passes(facts, epoch)
        if counted is not None:
            yield counted
            return
        yield self.finding(
            epoch.loop.frame.source,
            node,
            "the sampler of the training loader needs set_epoch here, and ddpify could not name both "
            "the loader and the epoch in one place",
            left="call loader.sampler.set_epoch(epoch) at the head of each epoch",
        )

    def one_of_several(self, facts: Facts, epoch: EpochLoop) -> str:
        """`for loader in loaders: for batch in loader:`: each of them, by the name that it has there."""
        loop = epoch.batch_loop
        for above in loop.frame.source.ancestors(loop.node):
            for name in hands_out(facts.flow, above, epoch.loader):
                if any(isinstance(n, cst.Name) and n.value == name for n in walk(getattr(loop.node, "iter", above))):
                    return name
        return ""

    def in_the_header(self, facts: Facts, epoch: EpochLoop) -> Finding | None:
        """`for x in DataLoader(...):` within the epoch: the loader gets a name first."""
        loop, (frame, _) = epoch.batch_loop.node, epoch.way[-1]
        call, edits = epoch.loader.call, list[Edit]()
        if not isinstance(loop, cst.For) or call is None or not facts.editable(frame.source):
            return None
        variable = self.variable(facts, epoch, frame, edits)
        if variable is None or not (call is loop.iter or any(n is call for n in walk(loop.iter))):
            return None
        name = facts.names_of(frame.source).fresh("loader")
        return self.finding(
            frame.source,
            loop,
            "the loader of each epoch is shuffled anew",
            *edits,
            Hoist(frame.source, call, name, loop),
            InsertBefore(frame.source, loop, (set_epoch(facts, epoch.loader, name, variable),), last=True),
            reason="the order of a DistributedSampler depends on its epoch",
        )

    def by_passes(self, facts: Facts, epoch: EpochLoop) -> Finding | None:
        """`while True:` around the loader: nothing counts the epochs, so the sampler does."""
        assert epoch.loop is not None
        node = epoch.loop.node
        for at, (frame, stmt) in enumerate(epoch.way):
            loader = self.loader_in(facts, epoch, frame, node if at == 0 else None)
            here = facts.editable(frame.source) and loader is not None and not self.made_there(epoch, node)
            if not here or loader is None or may_draw(facts, epoch, at, loader):
                continue
            place = (
                first_statement(node)
                if at == 0 and isinstance(node, (cst.For, cst.While))
                else statement_of(frame.source, stmt)
            )
            if remade(epoch):
                return drawn(self, facts, frame.source, place, epoch.loader, loader)
            return passes(self, facts, frame.source, place, epoch.loader, loader)
        return None

    def made_inside(self, facts: Facts, epoch: EpochLoop, node: cst.CSTNode) -> cst.CSTNode | None:
        """The statement that leads to the loop over the loader, where the loader is made anew in each epoch."""
        made = (e for e in facts.flow.log.of("loader") if e.obj is epoch.loader)
        around = {lp.node for e in made for loops in e.all_loops() for lp in loops}
        frame, stmt = epoch.way[0]
        return statement_of(frame.source, stmt) if node in around or self.made_there(epoch, node) else None

    def made_there(self, epoch: EpochLoop, node: cst.CSTNode) -> bool:
        """Whether the call that makes the loader stands in the loop itself."""
        call = epoch.loader.call
        return call is not None and node in epoch.loader.site.source.ancestors(call)

    def loader_in(self, facts: Facts, epoch: EpochLoop, frame: Frame, within: cst.CSTNode | None) -> str | None:
        every: list[Obj] = [*facts.roles.training_loaders]
        named: list[list[Obj]] = [[o for o in facts.roles.training_loaders if self.shuffles(facts, o)], every]
        if frame is epoch.batch_loop.frame:
            named.append([*every, Const(None)])  # `self.loader = None` without training: here it is read
        for alike in named:  # `may_draw` has what does not shuffle
            for inside in dict.fromkeys((within, None)):
                name = expression_for(epoch.loader, frame, facts.flow, inside, alike)
                if name is not None:
                    return name
        return None

    def variable(self, facts: Facts, epoch: EpochLoop, frame: Frame, edits: list[Edit]) -> str | None:
        """The name of the epoch in a frame; `_` in the loop gets one."""
        assert epoch.loop is not None
        node = epoch.loop.node
        if frame is not epoch.loop.frame:
            return loop_name(epoch, frame, facts.flow)
        if isinstance(node, cst.While):
            return counter(frame.source, node)
        if not isinstance(node, cst.For) or not counts(facts, node):
            return None
        target = node.target
        if isinstance(target, cst.Tuple) and target.elements and isinstance(target.elements[0].value, cst.Name):
            target = target.elements[0].value
        if not isinstance(target, cst.Name):
            return dotted(target) or None  # for self.epoch in range(self.epoch, epochs)
        if target.value == "_":
            edits.append(Replace(frame.source, target, facts.names_of(frame.source)["epoch"]))
            return facts.names_of(frame.source)["epoch"]
        return resumed(facts, frame.source, node, target.value) or target.value

    def steps(self, facts: Facts) -> Iterator[Finding]:
        """Batches that are not read by a loop over the loader (`next(it)`): passes that cannot be counted here."""
        trains = facts.roles.training_loaders
        for found in one_by_one(facts, lambda loader: loader in trains and self.shuffles(facts, loader)):
            place = statement_of(found.source, found.node)
            loop = found.remade_in(facts)
            if found.name and loop is not None:
                yield counted(self, facts, found, loop, place)
            elif found.name:
                yield begun(self, facts, found, place)
            else:
                yield self.finding(found.source, found.node, found.problem, left=_PASS)
