"""DDP509: gradient accumulation that exchanges gradients at every batch."""

from __future__ import annotations

from collections.abc import Iterator

from ddpify.edits import AddImport, Edit, Guard, InsertBefore, Replace
from ddpify.facts import Facts
from ddpify.facts.accumulation import Accumulation, accumulations
from ddpify.rules._base import Converts, Finding, Rule, Severity


class GradientsExchangedEachBatch(Rule):
    """Gradients are exchanged at every batch, and used at every k-th only.

    ## What it does
    Finds loops that step every so many batches (`if (i + 1) % 4 == 0: optimizer.step()`) and puts the forward and the
    backward of the batches between under `model.no_sync()`, of two or three models under that of each.

    ## Why is this bad?
    The result is right, but the ranks send k times as much as they need to: DDP exchanges gradients in every backward.

    ## Fix
    Run forward and backward of the batches without a step under `model.no_sync()`, and those of the others, the last
    batches of an epoch included, as they are.

    ## Edit
    The test gets a name before the forward, and says there whether the batch exchanges: `with nullcontext() if
    is_step else model.no_sync():`. `no_sync()` acts at the forward, so the forward is inside. A batch with a step
    always exchanges, and then sends what was added up before it, too.

    ## When not
    Where gradients are read, clipped or used outside of the `if` (in a step after the loop for the batches that are
    left, for example), the loop stays as it is.
    """

    code = "DDP509"
    severity = Severity.INFO
    references = (
        "https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html#torch.nn.parallel.DistributedDataParallel.no_sync",
    )
    converts = (
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            loader = DataLoader(TensorDataset(torch.ones(16, 4)), batch_size=2)
            net = nn.Linear(4, 1)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for i, (x,) in enumerate(loader):
                loss = net(x).mean() / 4
                loss.backward()
                if (i + 1) % 4 == 0 or i + 1 == len(loader):
                    optimizer.step()
                    optimizer.zero_grad()
            """,
            gives=(
                "    is_step = (i + 1) % 4 == 0 or i + 1 == len(loader)",
                "    with nullcontext() if is_step else net.no_sync():",
                "        loss.backward()",
                "    if is_step:",
            ),
        ),
    )

    def check(self, facts: Facts) -> Iterator[Finding]:
        for known in accumulations(facts) if facts.converting else ():
            yield self.apart(facts, known)

    def apart(self, facts: Facts, known: Accumulation) -> Finding:
        source, names = known.source, facts.names_of(known.source)
        name = names.fresh("is_step")
        waits = (f"{names['nullcontext']}() if {name} else {model}.no_sync()" for model in known.models)
        header = f"with {', '.join(waits)}"
        edits: list[Edit] = [
            InsertBefore(source, known.batch[0], (f"{name} = {source.code(known.step.test)}",)),
            *(Guard(source, stmt, header) for stmt in known.batch),
            Replace(source, known.step.test, name),
            AddImport(source, "nullcontext"),
        ]
        return self.finding(
            source,
            known.batch[0],
            "gradients are exchanged in the batches that step",
            *edits,
            reason="the others keep theirs until then: the sum is the same, and less is sent",
        )
