"""DDP305: splits that every rank draws for itself."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddpify.edits import AddHelper, Edit, InsertAfter, SetArgument, Surround
from ddpify.facts import Facts
from ddpify.facts.caches import caches, in_cache
from ddpify.facts.drawing import Drawn, unseeded_data
from ddpify.facts.placing import steps
from ddpify.facts.redrawn import covered
from ddpify.facts.splits import Split, unseeded_orders, unseeded_splits
from ddpify.facts.workers import for_samples
from ddpify.rules._base import Bad, Converts, Finding, Good, Rule
from ddpify.rules._guards import joined_group


class SplitDiffersPerRank(Rule):
    """Every rank draws a train/validation split of its own.

    ## What it does
    Finds `random_split`, `train_test_split`, `KFold(5, shuffle=True)`, `df.sample(frac=0.8)` and their kin, orders
    (`np.random.permutation(n)`) and data that are drawn at random (`torch.randn(1000, 8)`) that no seed comes before.

    ## Why is this bad?
    Rank 0's training set holds samples of rank 1's validation set: validation leaks, and the shards overlap. The
    lengths agree, so nothing fails.

    ## Fix
    Give it `generator=torch.Generator().manual_seed(seed)` or `random_state=seed`, the same on every rank.

    ## Edit
    `generator=torch.Generator().manual_seed(0)` (or `random_state=0`): the same split on every rank. A script that
    seeds before it splits is left as it is; in a loop over runs its variable is the seed. A seed under
    `if args.seed is not None:` may not be set. Drawn data are rank 0's on every rank; where a function draws them piece
    by piece, what the function gives back is.
    """

    code = "DDP305"
    references = ("https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.random_split",)
    good = (
        Good("ddp = DDP(model)\ntorch.manual_seed(0)\ntrain, val = torch.utils.data.random_split(dataset, [48, 16])"),
    )
    bad = (Bad("ddp = DDP(model)\ntrain, val = torch.utils.data.random_split(dataset, [48, 16])"),)
    converts = (
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset, random_split
            train, val = random_split(TensorDataset(torch.ones(8, 4)), [6, 2])
            loader = DataLoader(train, batch_size=2)
            net = nn.Linear(4, 1)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for (x,) in loader:
                net(x).mean().backward()
                optimizer.step()
            """,
            gives=("[6, 2], generator=torch.Generator().manual_seed(0))",),
        ),
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            x = torch.randn(8, 4)
            loader = DataLoader(TensorDataset(x), batch_size=2)
            net = nn.Linear(4, 1)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for (x,) in loader:
                net(x).mean().backward()
                optimizer.step()
            """,
            gives=("x = broadcast_value(torch.randn(8, 4))",),
        ),
        Converts(
            """
            import numpy as np
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            def marked(n):
                x = torch.zeros(n, 4)
                for i in range(n):
                    x[i, np.random.choice(4)] = 1
                return x
            x = marked(8)
            loader = DataLoader(TensorDataset(x), batch_size=2)
            net = nn.Linear(4, 1)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for (x,) in loader:
                net(x).mean().backward()
                optimizer.step()
            """,
            gives=("x = broadcast_value(marked(8))", "x[i, np.random.choice(4)] = 1"),
        ),
        Converts(
            """
            import torch
            from sklearn.model_selection import KFold
            from torch import nn
            from torch.utils.data import DataLoader, Subset, TensorDataset
            data = TensorDataset(torch.ones(8, 4))
            for train, _ in KFold(n_splits=2, shuffle=True).split(data):
                loader = DataLoader(Subset(data, train), batch_size=2)
                net = nn.Linear(4, 1)
                optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
                for (x,) in loader:
                    net(x).mean().backward()
                    optimizer.step()
            """,
            gives=("KFold(n_splits=2, shuffle=True, random_state=0).split(data)",),
        ),
        Converts(
            """
            import numpy as np
            import pandas as pd
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, Subset, TensorDataset
            frame = pd.read_csv("rows.csv").sample(frac=0.8)
            rng = np.random.default_rng()
            order = rng.permutation(len(frame))
            data = TensorDataset(torch.tensor(frame.values[order]))
            for run in range(3):
                chosen = torch.randperm(len(data))[:40]
                train, rest = torch.utils.data.random_split(Subset(data, chosen), [30, 10])
                loader = DataLoader(train, batch_size=2)
                net = nn.Linear(4, 1)
                optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
                for (x,) in loader:
                    net(x).mean().backward()
                    optimizer.step()
            """,
            gives=(
                ".sample(frac=0.8, random_state=0)",
                "order = broadcast_value(rng.permutation(len(frame)))",
                "chosen = broadcast_value(torch.randperm(len(data)))[:40]",
                "[30, 10], generator=torch.Generator().manual_seed(run))",
            ),
        ),
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            loader = DataLoader(TensorDataset(torch.randn(8, 4)), batch_size=2, shuffle=True)
            net = nn.Linear(4, 1)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for (x,) in loader:
                net(x).mean().backward()
                optimizer.step()
            """,
            gives=("train_set = TensorDataset(broadcast_value(torch.randn(8, 4)))\n",),
        ),
    )

    def drawn(self, facts: Facts) -> Iterator[Finding]:
        """`np.random.shuffle(indices)` and `torch.randperm(n)` before training: what they draw is rank 0's."""
        for e in unseeded_orders(facts):
            if not isinstance(e.node, cst.Call) or id(e) in covered(facts):
                continue
            source = e.frame.source
            if in_cache(e, facts):
                code = source.code(e.node).split("\n")[0]
                message = f"`{code}` is drawn once for each node, as no seed comes before it: nodes that share no disk"
                yield self.finding(source, e.node, f"{message} have orders of their own", note=True)
                continue
            why = "the process group is not set up yet there" if not joined_group(facts, e) else ""
            if for_samples(facts, e):
                why = "loader workers do it, too, who cannot ask rank 0"
            if why:
                yield self.finding(
                    source,
                    e.node,
                    f"`{source.code(e.node).split(chr(10))[0]}` draws another order on every rank, as no seed comes "
                    f"before it, and {why}",
                    left="fix the seed at the top of the script (torch.manual_seed, np.random.seed, random.seed)",
                )
                continue
            name = facts.names_of(source)["broadcast_value"]
            edit: Edit
            if e.name.rpartition(".")[2] == "shuffle":
                target = e.node.args[0].value if e.node.args else None
                if not isinstance(e.stmt, cst.Expr) or not isinstance(target, (cst.Name, cst.Attribute)):
                    continue
                text = source.code(target)
                edit = InsertAfter(source, e.stmt, (f"{text} = {name}({text})",))
            else:
                edit = Surround(source, e.node, f"{name}(", ")")
            helper = AddHelper(source, "broadcast_value", frozenset({"tensor"}))
            code = source.code(e.node).split("\n")[0]
            yield self.finding(
                source,
                e.node,
                f"`{code}` draws another order on every rank",
                edit,
                helper,
                reason="no seed comes before it; now every rank has rank 0's order",
            )

    def data(self, facts: Facts) -> Iterator[Finding]:
        """`X = torch.randn(1000, 8)` before training, without a seed: each rank would shard data of its own."""
        alike = covered(facts)
        for drawn in unseeded_data(facts):
            if all(id(e) in alike for e in drawn.events):
                continue
            source, code = drawn.source, drawn.source.code(drawn.node).split("\n")[0]
            message = f"`{code}` draws other numbers in every process"
            obstacle = self.obstacle(facts, drawn)
            if obstacle:
                yield self.finding(
                    source,
                    drawn.node,
                    f"{message}, as no seed comes before it, and {obstacle}: where they are data, the ranks have "
                    "different sets",
                    left="fix the seed at the top of the script (torch.manual_seed, np.random.seed, random.seed)",
                )
                return
            yield self.finding(
                source,
                drawn.node,
                message,
                Surround(source, drawn.node, f"{facts.names_of(source)['broadcast_value']}(", ")"),
                AddHelper(source, "broadcast_value", frozenset({"tensor"})),
                reason="no seed comes before it; now every rank has rank 0's numbers",
            )

    def obstacle(self, facts: Facts, drawn: Drawn) -> str:
        """Why rank 0's numbers cannot be given to all ranks there."""
        if drawn.looped:
            return "a loop draws them piece by piece"
        if not facts.editable(drawn.source):
            return "its file gets no changed copy"
        places = {id(c.place) for c in caches(facts)}
        if any(
            id(stmt) in places or id(a) in places
            for e in drawn.events
            for f, stmt, _ in steps(e)
            for a in f.source.ancestors(stmt)
        ):
            return "one process alone does it there"
        if any(for_samples(facts, e) for e in drawn.events):
            return "loader workers do it, too, who cannot ask rank 0"
        if not all(joined_group(facts, e) for e in drawn.events):
            return "the process group is not set up yet there"
        return ""

    def check(self, facts: Facts) -> Iterator[Finding]:
        if facts.converting:
            yield from self.drawn(facts)
            yield from self.data(facts)
        told: set[cst.CSTNode] = set()
        for split in unseeded_splits(facts):
            if split.node not in told:  # the method of several objects
                told.add(split.node)
                yield from self.split(facts, split)

    def split(self, facts: Facts, split: Split) -> Iterator[Finding]:
        """`random_state=0`; in a loop over runs each has a split of its own, `random_state=run`."""
        e, node = split.event, split.node
        source, name = e.frame.source, e.frame.source.code(node.func)
        if not facts.editable(source):
            if facts.converting:
                yield self.finding(
                    source,
                    node,
                    f"`{name}` draws another split on every rank, in another file",
                    left=f"give it {split.keyword}=",
                )
            return
        value = split.variable(facts) or "0"
        if split.keyword == "generator":
            value = f"{facts.names_of(source)['torch']}.Generator().manual_seed({value})"
        yield self.finding(
            source,
            node,
            f"`{name}` draws another split on every rank",
            SetArgument(source, node, split.keyword, value),
            unsafe=True,
            reason="no seed comes before it; now every rank has the same split",
        )
