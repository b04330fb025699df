"""DDP313: recurrent states that go on from batch to batch."""

from __future__ import annotations

from collections.abc import Iterator

from ddpify.edits import AddHelper, AddImport, InsertBefore, Replace, Surround
from ddpify.facts import Facts
from ddpify.facts.columns import Columns
from ddpify.facts.handmade import hand_fed
from ddpify.facts.whole import quoted
from ddpify.rules._base import Converts, Finding, Rule
from ddpify.rules._shared import loop_elsewhere
from ddpify.source import dotted


class ColumnsNotShared(Rule):
    """Every rank trains on all the columns that a recurrent state runs along.

    ## What it does
    Finds language models and their kin that hand a recurrent state on from batch to batch (`output, hidden =
    net(data[i:i + 35], hidden)`) and gives each rank whole columns of the data, and of the state that it begins with.

    ## Why is this bad?
    Each step goes on where the step before it stopped, so steps cannot be dealt out; without a part of its own, every
    rank trains on the same columns.

    ## Fix
    Share out the batch dimension of (time, batch), or of (batch, time): every column goes on by itself.

    ## Edit
    `own_columns = columns_of_rank(train_data)` before the loop, which reads these; `hidden =
    columns_of_rank(model.init_hidden(20))`. A step stays one over all columns, so the batch size has to divide by the
    number of processes: it is checked at run time.

    ## When not
    Where some recurrent layers have `batch_first` and others not, dimensions are swapped on the way, the data are not
    cut along time alone, the loss is no mean, or the state begins in no place that could be followed, the script is
    refused.
    """

    code = "DDP313"
    references = ("https://docs.pytorch.org/docs/stable/generated/torch.nn.LSTM.html",)
    converts = (
        Converts(
            """
            import torch
            from torch import nn
            class Net(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.cells, self.out = nn.GRU(3, 8), nn.Linear(8, 3)
                def forward(self, x, state):
                    x, state = self.cells(x, state)
                    return self.out(x), state
            torch.manual_seed(0)
            waves = torch.rand(41, 6, 3)
            net = Net()
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            criterion = nn.MSELoss()
            for epoch in range(2):
                state = torch.zeros(1, 6, 8)
                for i in range(0, len(waves) - 1, 10):
                    guess, state = net(waves[i : i + 10], state.detach())
                    loss = criterion(guess, waves[i + 1 : i + 11])
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
            """,
            gives=(
                "    state = columns_of_rank(torch.zeros(1, 6, 8))",
                "    own_columns = columns_of_rank(waves)",
                "        guess, state = net(own_columns[i : i + 10], state.detach())",
                "        loss = criterion(guess, own_columns[i + 1 : i + 11])",
            ),
        ),
    )

    def check(self, facts: Facts) -> Iterator[Finding]:
        for known in hand_fed(facts) if facts.converting else ():
            if isinstance(known, Columns):
                yield from self.one(facts, known)

    def one(self, facts: Facts, known: Columns) -> Iterator[Finding]:
        source, names = known.level.frame.source, facts.names_of(known.level.frame.source)
        if not facts.editable(source):
            yield loop_elsewhere(self, source, known.loop)
            return
        helper, read = names["columns_of_rank"], {dotted(n) for n in known.reads}
        one, rows = len(read) == 1, ", dim=0" if known.batch == 0 else ""
        fresh = {n: names.fresh("own_columns" if one else f"own_{n.split('.')[-1]}") for n in sorted(read)}
        lines = tuple(f"{new} = {helper}({name}{rows})" for name, new in fresh.items())
        yield self.finding(
            source,
            known.loop,
            f"every rank trains on all columns of {quoted(sorted(read))}",
            InsertBefore(source, known.loop, lines),
            *(Replace(source, n, fresh[dotted(n)]) for n in known.reads),
            *(Surround(source, s, f"{helper}(", ")") for s in known.states),
            AddHelper(source, "columns_of_rank", frozenset({"rows"} if rows else ())),
            AddImport(source, "dist"),
            reason="each rank goes on along its own columns; a step is one over all columns, as before",
        )
        yield self.finding(
            source,
            known.loop,
            f"the columns of {quoted(sorted(read))} are shared out: a step stays one over all of them, and their "
            "number (the batch size) has to divide by the number of processes",
            note=True,
        )
