"""DDP314: training data that every rank draws for itself, as many as its own numbers give."""

from __future__ import annotations

from collections.abc import Iterator

from ddpify.edits import AddHelper, AddImport, Edit, Guard, Hoist
from ddpify.facts import Facts
from ddpify.facts.caches import in_cache
from ddpify.facts.redrawn import Redrawn, redrawn
from ddpify.facts.sharding import loader_facts
from ddpify.rules._base import Converts, Finding, Rule
from ddpify.rules._guards import joined_group
from ddpify.rules._hoisting import has_own_statement
from ddpify.rules._repeats import share_helper

_MODULES = {"torch": "torch", "numpy": "np", "random": "random"}


class DrawnOnEveryRank(Rule):
    """Every rank draws training data of its own: another number of samples, and then another number of steps.

    ## What it does
    Finds draws whose result decides what the batches are cut from, or what a DataLoader is made of: negatives that are
    drawn anew in each epoch and left out where they are positives, a set that keeps samples by chance.

    ## Why is this bad?
    The ranks deal out one sequence, by its places. Where each has drawn its own, the parts overlap; where a draw
    decides how many there are, one rank makes a step more than the others, and waits for them for ever.

    ## Fix
    Draw with the same random numbers on all ranks, then deal out.

    ## Edit
    `with same_draws():` around the statement that draws: all ranks draw rank 0's numbers there, and go on with their
    own. A script that fixes its seed, and draws nothing else while training, is left as it is.

    ## When not
    Where each step draws a batch of a given size, each rank draws its own. What is drawn on a GPU, or in a file that
    gets no changed copy, is listed.
    """

    code = "DDP314"
    references = ("https://docs.pytorch.org/docs/stable/notes/randomness.html",)
    converts = (
        Converts(
            """
            import random
            import torch
            from torch import nn
            def draw():
                return [(i, random.random()) for i in range(90) if random.random() < 0.5]
            net = nn.Linear(2, 1)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for epoch in range(2):
                rows = draw()
                for i in range(0, len(rows), 8):
                    loss = net(torch.tensor(rows[i:i + 8])).mean()
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
            """,
            gives=(
                "    with same_draws():\n        rows = draw()\n    for i in share_of_rank(range(0, len(rows), 8)):",
            ),
        ),
        Converts(
            """
            import numpy as np
            import torch
            from torch import nn
            def batches(size):
                kept = []
                for i in range(90):
                    if np.random.rand() < 0.5:
                        kept.append([float(i), 1.0])
                    if len(kept) == size:
                        yield torch.tensor(kept)
                        kept = []
            net = nn.Linear(2, 1)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for epoch in range(2):
                for batch in batches(8):
                    loss = net(batch).mean()
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
            """,
            gives=(
                "    with same_draws():\n        batches_2 = share_of_rank(batches(8))\n    for batch in batches_2:",
            ),
        ),
    )

    def check(self, facts: Facts) -> Iterator[Finding]:
        for known in redrawn(facts):
            yield from self.alike(facts, known)

    def alike(self, facts: Facts, known: Redrawn) -> Iterator[Finding]:
        """`with same_draws():` around the statement, or around the batches that are drawn as the loop goes."""
        source, first = known.source, known.events[0]
        text = first.frame.source.code(first.node).split("\n")[0]
        message = f"every rank draws training data of its own (`{text}`), and may have more of them than the others"
        if any(in_cache(e, facts) for e in known.events):
            return
        why = self.obstacle(facts, known)
        if why:
            yield self.finding(
                source,
                known.place,
                f"{message}, and {why}",
                left="fix the seed at the top of the script (torch.manual_seed, np.random.seed, random.seed), and draw "
                "with a generator of its own",
            )
            return
        names = facts.names_of(source)
        header = f"with {names['same_draws']}()"
        edits: list[Edit] = []
        if known.turns is not None:
            name = names.fresh("batches")
            around = (f"{names[share_helper(facts, known.turns)]}(", ")")
            edits.append(Hoist(source, known.turns.sequence, name, known.place, around=around, header=f"{header}:"))
        elif not self.hoisted(facts, known):
            edits.append(Guard(source, known.place, header))
        options = frozenset(_MODULES[k] for k in known.kinds)
        yield self.finding(
            source,
            known.place,
            message,
            *edits,
            AddHelper(source, "same_draws", options),
            *(AddImport(source, m) for m in sorted(options)),
            reason="all ranks draw rank 0's numbers there: the same samples, and as many",
        )

    def hoisted(self, facts: Facts, known: Redrawn) -> bool:
        """`DataLoader(Triples(rows), ...)`: DDP301 gives the dataset a statement under that header."""
        loaders = (loader_facts(facts, o) for o in facts.roles.training_loaders)
        return any(
            k is not None and k.stmt is known.place and has_own_statement(k) and k.plain is None and k.draws is None
            for k in loaders
        )

    def obstacle(self, facts: Facts, known: Redrawn) -> str:
        """Why the ranks cannot be made to draw alike there."""
        if not facts.editable(known.source):
            return "its file gets no changed copy"
        if any("device" in e.extra and e.kind == "external" for e in known.events):
            return "a GPU may draw them"
        if not all(joined_group(facts, e) for e in known.events):
            return "the process group is not set up yet there"
        return ""
