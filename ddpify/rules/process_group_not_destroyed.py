"""DDP102: the tear-down of the process group."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddpify.edits import AddImport, Edit, InsertAfter, InsertBefore
from ddpify.facts import Facts
from ddpify.facts.definitions import returns
from ddpify.facts.placing import in_block
from ddpify.facts.setup import SetUp, find_setup
from ddpify.rules._base import Bad, Converts, Finding, Good, Rule, Severity


class ProcessGroupNotDestroyed(Rule):
    """The process group is never destroyed.

    ## What it does
    Asks for `destroy_process_group()` at the normal end of a script that initialises a group.

    ## Why is this bad?
    NCCL warns at exit since torch 2.4, and a rank that leaves early can block the others.

    ## Edit
    The call is the last statement of the block that set the group up, and stands before each `return` of it. An
    exception is left to torchrun: it ends the job with that rank's traceback.
    """

    code = "DDP102"
    severity = Severity.WARNING
    references = ("https://docs.pytorch.org/docs/stable/distributed.html#shutdown",)
    good = (
        Good("ddp = DDP(model)"),
        Good("""
            import torch.distributed as dist
            def setup_distributed():
                dist.init_process_group("gloo")
            """),
    )
    bad = (
        Bad("""
            import torch.distributed as dist
            from torch import nn
            from torch.nn.parallel import DistributedDataParallel as DDP
            dist.init_process_group("gloo")
            ddp = DDP(nn.Linear(4, 1))
            """),
    )
    converts = (
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            def main():
                loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
                model = nn.Linear(4, 1).cuda()
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                for (x,) in loader:
                    model(x.cuda()).mean().backward()
                    optimizer.step()
                return model
            main()
            """,
            gives=("    dist.destroy_process_group()\n    return model",),
        ),
    )

    def check(self, facts: Facts) -> Iterator[Finding]:
        if not facts.converting:
            inits = [e for n, es in facts.identifiers.items() if n.endswith("init_process_group") for e in es]
            finished = [n for n in facts.identifiers if n.endswith(("destroy_process_group", "cleanup_distributed"))]
            # a module that sets up for the scripts that import it leaves the end to them
            helpers = inits and inits[0].seq >= facts.flow.main_end and not facts.roles.wrapped
            if inits and not finished and not helpers and inits[0].frame.source is facts.source:
                yield self.finding(
                    facts.source, inits[0].node, "the process group that is initialised here is never destroyed"
                )
            return
        setup = facts.cached("setup", find_setup)
        if not isinstance(setup, SetUp):
            return
        call = f"{facts.names['dist']}.destroy_process_group()"
        body = list(getattr(setup.block, "body", ()))
        last = body[-1].body[-1] if isinstance(body[-1], cst.SimpleStatementLine) else body[-1]
        start = setup.source.span(in_block(setup.source, setup.first, setup.block)).start
        edits: list[Edit] = [AddImport(setup.source, "dist")]
        if not isinstance(last, (cst.Return, cst.Raise)):
            edits.append(InsertAfter(setup.source, last, (call,)))
        for stmt in returns(setup.block):
            if setup.source.span(stmt).start > start:
                edits.append(InsertBefore(setup.source, stmt, (call,)))
        yield self.finding(
            setup.source,
            last,
            "the process group is destroyed at the normal end",
            *edits,
            reason="destroyed at the normal end",
        )
