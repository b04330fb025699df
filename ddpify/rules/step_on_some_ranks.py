"""DDP515: steps of the training that only some ranks make."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddpify.edits import AddHelper, Surround
from ddpify.facts import Facts
from ddpify.facts.chosen import Chosen, chosen_steps, passed_over
from ddpify.facts.handmade import made_alike
from ddpify.facts.setup import reduce_options
from ddpify.rules._base import Converts, Finding, Rule
from ddpify.rules._evaluated import agreed


class StepOnSomeRanks(Rule):
    """A rank makes a backward pass, or a step, that the others leave out.

    ## What it does
    Finds backward passes, steps of optimizers and training forwards under a test that each rank answers for itself: by
    its own batch (`if torch.isfinite(loss): loss.backward()`), or by chance (`if random.random() < 0.5: ...`), where
    the other branch does not make the same ones. Conversions only.

    ## Why is this bad?
    `backward()` exchanges gradients. The ranks that make it wait for those that do not: the job hangs, or the exchange
    meets another one, of another model, and the gradients are wrong, silently.

    ## Fix
    Let all ranks decide alike: draw on rank 0 and broadcast, or `dist.all_reduce` the condition.

    ## Edit
    What is drawn is drawn by rank 0: `if broadcast_value(random.random() < 0.5):`. By their own batches the ranks make
    the step where all of them would: `if not any_process(torch.isnan(loss)):`. Left for you where both branches make
    steps by the batch, or where an `except` goes on to the next batch.

    ## When not
    Where both branches make the same passes (`out = net(mixed)`, else `out = net(x)`), each rank may go its own way.
    """

    code = "DDP515"
    references = ("https://docs.pytorch.org/docs/stable/notes/ddp.html",)
    converts = (
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
            net = nn.Linear(4, 1)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for (x,) in loader:
                loss = net(x).mean()
                if not torch.isnan(loss):
                    loss.backward()
                    optimizer.step()
            """,
            gives=("    if not any_process(torch.isnan(loss)):\n        loss.backward()",),
        ),
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
            net = nn.Linear(4, 1)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for (x,) in loader:
                loss = net(x).mean()
                if loss.item() < 100:
                    loss.backward()
                    optimizer.step()
            """,
            gives=("    if not any_process(not (loss.item() < 100)):",),
        ),
        Converts(
            """
            import random
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
            one, two = nn.Linear(4, 1), nn.Linear(4, 1)
            optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in (one, two)]
            for (x,) in loader:
                first = True if random.random() < 0.5 else False
                if first:
                    one(x).mean().backward()
                    optimizers[0].step()
                else:
                    two(x).mean().backward()
                    optimizers[1].step()
                if random.random() < 0.5:
                    loss = one(2 * x).mean()
                else:
                    loss = one(x).mean()
                loss.backward()
            """,
            gives=("    if broadcast_value(first):\n", "    if random.random() < 0.5:\n"),
        ),
    )

    def check(self, facts: Facts) -> Iterator[Finding]:
        if not facts.converting:
            return
        done = made_alike(facts) | agreed(facts)
        for chosen in chosen_steps(facts):
            if id(chosen.test) in done or not facts.editable(chosen.source):
                continue
            yield self.by_chance(facts, chosen) if chosen.by_chance else self.by_batch(facts, chosen)
        for source, handler in passed_over(facts):
            yield self.finding(
                source,
                handler,
                "an exception in the step of one rank: it goes on to the next batch, and the others wait for it",
                left="let it end the run (raise), or have a launcher start again from the last checkpoint",
            )

    def by_chance(self, facts: Facts, chosen: Chosen) -> Finding:
        source, test = chosen.source, chosen.test
        name = facts.names_of(source)["broadcast_value"]
        return self.finding(
            source,
            test,
            f"`{_text(chosen)}` is drawn by each rank for itself, and steps of the training go by it",
            Surround(source, test, f"{name}(", ")"),
            AddHelper(source, "broadcast_value", frozenset({"tensor"})),
            reason="all ranks go by what rank 0 draws: they make the same steps",
        )

    def by_batch(self, facts: Facts, chosen: Chosen) -> Finding:
        source, test = chosen.source, chosen.test
        message = f"`{_text(chosen)}` is of this rank's own batch, and steps of the training go by it"
        if chosen.both:
            return self.finding(
                source,
                test,
                f"{message}: some ranks make those of the one branch, others those of the other",
                left="let all ranks decide alike: all_reduce the condition, then take the same branch",
            )
        name = facts.names_of(source)["any_process"]
        match test:
            case cst.UnaryOperation(operator=cst.Not(), expression=inner):
                edit = Surround(source, inner, f"{name}(", ")")
            case cst.Name() | cst.Attribute() | cst.Call():
                edit = Surround(source, test, f"not {name}(not ", ")")
            case _:
                edit = Surround(source, test, f"not {name}(not (", "))")
        return self.finding(
            source,
            test,
            message,
            edit,
            AddHelper(source, "any_process", reduce_options(facts)),
            reason="where one rank leaves them out, all of them do: they make the same steps",
        )


def _text(chosen: Chosen) -> str:
    return chosen.source.code(chosen.test).split("\n")[0]
