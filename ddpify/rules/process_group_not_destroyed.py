"""DDP102: the tear-down of the process group."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddpify.edits import AddImport, Edit, Hoist, InsertAfter, InsertBefore
from ddpify.facts import Facts
from ddpify.facts.endings import Ending, endings
from ddpify.facts.frames import Entry, Event, Frame
from ddpify.facts.setup import SetUp, find_setup
from ddpify.facts.work import work
from ddpify.rules._base import Bad, Converts, Finding, Good, Rule, Severity


class ProcessGroupNotDestroyed(Rule):
    """The process group is never destroyed.

    ## What it does
    Asks for `destroy_process_group()` at the normal end of a script that initialises a group.

    ## Why is this bad?
    NCCL warns at exit since torch 2.4, and a rank that leaves early can block the others.

    ## Fix
    Call `dist.destroy_process_group()` on every rank as the last statement of the script.

    ## Edit
    The call is the last statement of the block that set the group up, and stands before each `return` of it and each
    `sys.exit(0)`. What comes behind `sys.exit(main())`, or behind a command of click or typer, never runs: there it
    stands at the end of the function. An exception, or an exit that tells of a failure, is left to torchrun: it ends
    the job with that rank's traceback.
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
            helpers = bool(inits) and inits[0].seq >= facts.flow.main_end and not self.trains_too(facts, inits[0])
            if inits and not finished and not helpers and facts.editable(inits[0].frame.source):
                message = "the process group that is initialised here is never destroyed"
                yield self.finding(inits[0].frame.source, inits[0].node, message)
            return
        setup = facts.cached("setup", find_setup)
        if not isinstance(setup, SetUp):
            return
        places = endings(facts, setup)
        edits = [edit for ending in places for edit in self.destroyed(facts, ending)]
        if not places:
            return
        yield self.finding(
            places[0].source,
            places[0].stmt,
            "the process group is destroyed at the normal end",
            *edits,
            reason="destroyed at the normal end",
        )

    def trains_too(self, facts: Facts, init: Event) -> bool:
        """Whether the function that nothing here calls, and that sets up, is the one that trains."""
        roots = {root.node for chain in init.frame.chains() if (root := _root(init, chain)) is not None}
        trained = (root for e in facts.roles.backwards for chain in e.frame.chains() if (root := _root(e, chain)))
        return any(root.node in roots for root in trained)

    def destroyed(self, facts: Facts, ending: Ending) -> Iterator[Edit]:
        source, stmt, names = ending.source, ending.stmt, facts.names_of(ending.source)
        line = f"{names['dist']}.destroy_process_group()"
        yield AddImport(source, "dist")
        if not ending.before:
            yield InsertAfter(source, stmt, (line,), last=True)
            return
        value = stmt.value if isinstance(stmt, cst.Return) else None
        if value is not None and work(facts.flow).inside(value):
            yield Hoist(source, value, names.fresh("result"), stmt)  # `return train(args)`
        yield InsertBefore(source, stmt, (line,), last=True)


def _root(event: Event, chain: tuple[Entry, ...]) -> Frame | None:
    """The outermost function on a way to an event."""
    if not chain:
        return None
    return chain[1].frame if len(chain) > 1 else event.frame
