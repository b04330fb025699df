"""DDP309: batches that are cut by hand."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddpify.edits import AddHelper, Edit, InsertAfter, InsertBefore, Replace, Surround
from ddpify.facts import Facts
from ddpify.facts.cursors import Cursor
from ddpify.facts.drawing import is_certain, unseeded_data
from ddpify.facts.frames import Event
from ddpify.facts.handmade import Draws, Turns, hand_fed
from ddpify.facts.metrics import loop_facts
from ddpify.facts.redrawn import covered, redrawn
from ddpify.facts.repeats import repeats
from ddpify.facts.seeds import is_noisy, seeds
from ddpify.facts.splits import unseeded_orders
from ddpify.facts.trails import Hints, shown, way_back
from ddpify.rules._base import Converts, Finding, Rule
from ddpify.rules._repeats import needs, share_helper, target_edits, weighs, weight_edits
from ddpify.rules._shared import loop_elsewhere
from ddpify.source import Source


class BatchesNotDealtOut(Rule):
    """Every rank trains on all the batches that a loop cuts by hand.

    ## What it does
    Finds the loop that makes a batch of its variable (`for i in range(0, len(x), 32): batch = x[i:i + 32]`, `for pair
    in pairs`) and deals its passes out to the ranks.

    ## Why is this bad?
    Nothing in such a loop knows of ranks: N processes would do the same epoch N times.

    ## Fix
    Let each rank take every world_size-th batch: `batches[rank::world_size]`, as many on each.

    ## Edit
    `for i in share_of_rank(range(0, len(x), 32))`. Every rank makes as many steps; where the batches do not divide, the
    first ones come twice, as in a DistributedSampler, and numbers that are put together behind the loop count them
    once (`for i, weight in share_with_weights(...)`, `total += weight * loss.item()`). An order that is drawn at random
    is rank 0's. What is done every so many passes (`if (i + 1) % 4 == 0: optimizer.step()`) goes by the passes of each
    rank, which all count alike.

    ## When not
    Where a step goes on from what the step before it left (a recurrent state, a position that is moved on), or what is
    done goes by the batch itself (`if len(batch) < 8: continue`), the script is refused.
    """

    code = "DDP309"
    references = ("https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler",)
    converts = (
        Converts(
            """
            import torch
            from torch import nn
            torch.manual_seed(0)
            x, y = torch.rand(40, 4), torch.rand(40, 1)
            net = nn.Linear(4, 1)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for epoch in range(2):
                for i in range(0, len(x), 8):
                    loss = (net(x[i:i + 8]) - y[i:i + 8]).pow(2).mean()
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
            """,
            gives=("    for i in share_of_rank(range(0, len(x), 8)):",),
        ),
        Converts(
            """
            import torch
            from torch import nn
            torch.manual_seed(0)
            x, y = torch.rand(40, 4), torch.rand(40, 1)
            net = nn.Linear(4, 1)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for i in range(10):
                loss = (net(x[4 * i : 4 * i + 4]) - y[4 * i : 4 * i + 4]).pow(2).mean()
                loss.backward()
                if (i + 1) % 2 == 0:
                    optimizer.step()
                    optimizer.zero_grad()
            """,
            gives=(
                "for count, i in zip(range(10), share_of_rank(range(10))):",
                "    if (count + 1) % 2 == 0:",
            ),
        ),
        Converts(
            """
            import torch
            from torch import nn
            x, y = torch.randn(40, 3), torch.randn(40, 1)
            net = nn.Linear(3, 1)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for epoch in range(2):
                at = 0
                for _ in range(len(x) // 4):
                    loss = (net(x[at : at + 4]) - y[at : at + 4]).pow(2).mean()
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    at += 4
            """,
            gives=("    for index in share_of_rank(range(len(x) // 4)):\n        at = index * 4\n        loss =",),
        ),
    )

    def check(self, facts: Facts) -> Iterator[Finding]:
        done: set[int] = set()
        for known in hand_fed(facts) if facts.converting else ():
            if isinstance(known, Turns):
                yield from self.deal(facts, known, done)
            elif isinstance(known, Draws) and facts.global_batch == "keep":
                yield self.finding(
                    known.draw.frame.source,
                    known.draw.node,
                    "each step draws its batch, and which number is its size could not be established",
                    left="divide the batch size by dist.get_world_size() to keep the global batch",
                )

    def deal(self, facts: Facts, known: Turns, done: set[int]) -> Iterator[Finding]:
        source = known.level.frame.source
        if not facts.editable(source):
            yield loop_elsewhere(self, source, known.loop)
            return
        if facts.global_batch == "keep":
            yield self.finding(
                source,
                known.loop,
                "the loop cuts its batches by hand, and which number is their size could not be established",
                left="divide the batch size by dist.get_world_size() to keep the global batch",
            )
        edits, problem = self.orders(facts, known, done)
        if problem is not None:
            yield problem
            return
        yield self.finding(
            source,
            known.loop,
            f"every rank trains on all batches of `{source.code(known.sequence)}`",
            *self.shared(facts, known),
            *edits,
            *needs(facts, known),
            reason="each rank gets its own batches, and as many as the others",
        )
        yield self.finding(
            source,
            known.loop,
            f"the batches of `{source.code(known.sequence)}` are dealt out whole: a step on N processes sees N of "
            "them, and where they do not divide by N, the first ones are trained on twice"
            + (", and counted once" if weighs(facts, known) else ""),
            note=True,
        )
        found = repeats(facts, known.loop)
        twice = found.unweighed if weighs(facts, known) or not found.weighs else self.all_of(facts, known)
        for name in dict.fromkeys(twice):
            yield self.finding(
                source,
                known.loop,
                f"`{name}` counts the first batches twice where `{source.code(known.sequence)}` does not divide by the "
                "number of processes",
                left=f"add to `{name}` in the loop itself, and only what it is used for behind the loop",
            )

    def all_of(self, facts: Facts, known: Turns) -> list[str]:
        """Every sum of a loop whose target has no place for a weight."""
        loops = (lp for lp in facts.cached("loops", loop_facts) if lp.node is known.loop and lp.dealt)
        return [a.target for lp in loops for a in lp.accumulators if a.fresh and a.read_after]

    def shared(self, facts: Facts, known: Turns) -> Iterator[Edit]:
        """`for i in share_of_rank(range(n))`, with a number of its own where tests count the passes."""
        source, names = known.level.frame.source, facts.names_of(known.level.frame.source)
        before, after, count, index = f"{names[share_helper(facts, known)]}(", ")", "", ""
        if known.counted:
            count = names.fresh("count")
            yield from (Replace(source, n, count) for n in known.counted)
            paired = f"zip({source.code(known.sequence)}, "
            if known.loop.iter is known.sequence:
                before, after = f"{paired}{before}", f"{after})"
            else:
                yield Surround(source, known.loop.iter, paired, ")")
        if not any(r.turns is known for r in redrawn(facts)):  # there DDP314 gives it a statement of its own
            yield Surround(source, known.sequence, before, after)
        if known.cursor is not None and source.code(known.loop.target) == "_":
            index = names.fresh("index")
        yield from target_edits(facts, known, count, index)
        if known.cursor is not None:
            yield self.placed(source, known, known.cursor, index)
        yield from weight_edits(facts, known)

    def placed(self, source: Source, known: Turns, cursor: Cursor, index: str) -> Edit:
        """`at = step * size` at the head of each pass, where the pass before would have left it."""
        first = known.loop.body.body[0]
        stmt = first.body[0] if isinstance(first, cst.SimpleStatementLine) else first
        index = index or source.code(known.loop.target)
        return InsertBefore(source, stmt, (f"{cursor.name} = {index} * {source.code(cursor.step)}",))

    def orders(self, facts: Facts, known: Turns, done: set[int]) -> tuple[list[Edit], Finding | None]:
        """An order that is drawn while training has to be the same on all ranks."""
        fixed = {s.what for s in seeds(facts) if is_certain(facts, s)}
        data = {id(e) for drawn in unseeded_data(facts) for e in drawn.events} | {id(e) for e in unseeded_orders(facts)}
        alike = covered(facts)
        edits: list[Edit] = []
        for e in known.orders:
            if id(e.node) in done:
                continue
            done.add(id(e.node))
            kind = _generator(e)
            if kind in fixed and not is_noisy(facts):
                continue  # every rank draws the same
            if id(e) in alike or id(e) in data or not (e.loops or any(loops for loops in e.all_loops())):
                continue  # before training, or with no seed before it: DDP305 sees to it
            edit = self.same_order(facts, e)
            if edit is None:
                source, value = e.frame.source, shown(e.frame.source, e.node)
                given = e.node.args[0].value if isinstance(e.node, cst.Call) and e.node.args else e.node
                problem = self.finding(
                    source,
                    e.node,
                    f"`{value}` draws another order on every rank, in a place where ddpify cannot make them alike",
                    refuse=way_back(facts.flow, given, source, e.frame, value=value, hints=Hints(before=e.seq)),
                    left="Give the order a statement of its own: `order = torch.randperm(n)`",
                )
                return [], problem
            edits.append(edit)
            edits.append(AddHelper(e.frame.source, "broadcast_value", frozenset({"tensor"})))
        return edits, None

    def same_order(self, facts: Facts, e: Event) -> Edit | None:
        source = e.frame.source
        if not facts.editable(source) or not isinstance(e.node, cst.Call):
            return None
        name = facts.names_of(source)["broadcast_value"]
        if e.name.rsplit(".", 1)[-1] != "shuffle" or e.name.startswith("sklearn."):
            return Surround(source, e.node, f"{name}(", ")")
        target = e.node.args[0].value if e.node.args else None
        if not isinstance(e.stmt, cst.Expr) or not isinstance(target, (cst.Name, cst.Attribute)):
            return None
        text = source.code(target)
        return InsertAfter(source, e.stmt, (f"{text} = {name}({text})",))


def _generator(event: Event) -> str:
    """Which of the global generators an order is drawn from; "" for one of its own."""
    if event.kind == "method":
        return "numpy" if "frac" in event.extra else ""
    package = event.name.split(".")[0]
    return {"torch": "torch", "random": "random"}.get(package, "numpy")
