"""DDP507: schedules counted in one process's steps."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddpify.edits import AddImport, Replace
from ddpify.facts import Facts
from ddpify.facts.contents import origins
from ddpify.facts.externals import role_of
from ddpify.facts.intervals import counted_rows, intervals
from ddpify.facts.unreduced import shared_out
from ddpify.facts.values import FromLength, Loader
from ddpify.facts.worldsize import counts_ranks
from ddpify.rules._base import Bad, Converts, Finding, Good, Rule, Severity


class ScheduleFromDataset(Rule):
    """A schedule counts the steps that one process would make.

    ## What it does
    Finds learning rate schedulers whose length is computed from `len(dataset)` (divided by a batch size), or from the
    number of the rows that the dataset is made of (`len(frame)`), instead of the loader's length, and what is done
    every so many steps (`if step % (len(dataset) // (2 * batch_size)) == 0:`).

    ## Why is this bad?
    With N ranks each makes one N-th of these steps: a warm-up lasts N times as long, a decay never ends.

    ## Fix
    Count with the sharded loader: `epochs * len(train_loader)`.

    ## Edit
    An interval is divided by the number of processes, too: it stays the same part of an epoch. A schedule is left for
    you to change.

    ## When not
    With `--global-batch keep` a rank makes as many steps as one process did. `len(loader)` of the sharded loader is the
    number of steps that a rank makes: such a schedule needs no change.
    """

    code = "DDP507"
    severity = Severity.INFO
    references = ("https://github.com/huggingface/accelerate/issues/385",)
    good = (
        Good("""
            loader = DataLoader(dataset, 4, sampler=DistributedSampler(dataset, shuffle=False))
            ddp = DDP(model)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=len(loader))
            for x, y in loader:
                ddp(x).mean().backward()
                optimizer.step()
                schedule.step()
            """),
        Good("""
            loader = DataLoader(dataset, 4, sampler=DistributedSampler(dataset, shuffle=False))
            ddp = DDP(model)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            steps = len(dataset) // (4 * dist.get_world_size())
            schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps)
            for x, y in loader:
                ddp(x).mean().backward()
                optimizer.step()
                schedule.step()
            """),
    )
    bad = (
        Bad("""
            loader = DataLoader(dataset, 4, sampler=DistributedSampler(dataset, shuffle=False))
            ddp = DDP(model)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=len(dataset) // 4)
            for x, y in loader:
                ddp(x).mean().backward()
                optimizer.step()
                schedule.step()
            """),
    )
    converts = (
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            data = TensorDataset(torch.ones(8, 4))
            loader = DataLoader(data, batch_size=2)
            net = nn.Linear(4, 1)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=3 * len(data) // 2)
            for epoch in range(3):
                for (x,) in loader:
                    net(x).mean().backward()
                    optimizer.step()
                    schedule.step()
            """,
            gives=("total_steps=3 * len(data) // 2)",),
        ),
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset, random_split
            torch.manual_seed(0)
            data = TensorDataset(torch.rand(40, 4))
            held_out = int(len(data) * 0.2)
            n_train = len(data) - held_out
            train_set, val_set = random_split(data, [n_train, held_out])
            size = 2
            loader = DataLoader(train_set, batch_size=size)
            net = nn.Linear(4, 1)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            step = 0
            for epoch in range(3):
                for (x,) in loader:
                    net(x).mean().backward()
                    optimizer.step()
                    step += 1
                    every = n_train // (2 * size)
                    if every > 0 and step % every == 0:
                        print("half an epoch more, at step", step)
            """,
            gives=("        every = n_train // (2 * size * dist.get_world_size())",),
        ),
    )

    def check(self, facts: Facts) -> Iterator[Finding]:
        if facts.converting and facts.global_batch == "keep":
            return  # as many steps as before
        sharded = facts.converting or any(shared_out(loader) for loader in facts.roles.training_loaders)
        if not sharded:
            return
        yield from self.intervals(facts) if facts.converting else ()
        for e in facts.flow.log.of("external"):
            if role_of(e.name) != "scheduler" or not isinstance(e.node, cst.Call) or e.seq >= facts.flow.main_end:
                continue
            for at, arg in enumerate(e.node.args):
                if (arg.keyword.value if arg.keyword is not None else at) in (0, "optimizer"):
                    continue  # how large its model is counts no steps
                known = [o for o in origins(facts.flow.values.get(arg.value, ())) if isinstance(o, FromLength)]
                mine = not facts.converting and counts_ranks(facts, arg.value, e.frame)
                if not facts.editable(e.frame.source):
                    continue
                code = e.frame.source.code(arg.value).split("\n")[0]
                rows = counted_rows(facts, arg.value, e.frame) if facts.converting and not known else None
                if rows is not None:
                    source, made = facts.source_of(rows), facts.source_of(rows).code(rows)
                    yield self.finding(
                        e.frame.source,
                        arg,
                        f"the schedule counts the steps of one process (`{code}` comes from `{made}`, line "
                        f"{source.line(rows)}, the rows that the training set is made of)",
                        left="count the steps of a rank: use len(loader) of the training loader",
                        severity=Severity.WARNING,
                    )
                if known and not mine and not any(isinstance(o.of, Loader) for o in known):
                    yield self.finding(
                        e.frame.source,
                        arg,
                        f"the schedule counts the steps of one process (`{code}` comes from the length of a dataset)",
                        left="count the steps of a rank: use len(loader) of the training loader",
                        severity=Severity.WARNING,
                    )

    def intervals(self, facts: Facts) -> Iterator[Finding]:
        """`n_train // (2 * batch_size)` steps are N times as much of an epoch where N ranks make them."""
        for source, division in intervals(facts):
            if not facts.editable(source):
                continue
            size, world = division.right, f"{facts.names_of(source)['dist']}.get_world_size()"
            product = f"{source.code(size)} * {world}"
            yield self.finding(
                source,
                division,
                f"`{source.code(division)}` counts the steps of one process",
                Replace(source, size, product if size.lpar else f"({product})"),
                AddImport(source, "dist"),
                reason="the same part of an epoch as before",
            )
