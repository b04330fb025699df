"""DDP401: files that every rank writes."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddpify.facts import Facts
from ddpify.facts.beside import instead_of_training
from ddpify.facts.contents import origins
from ddpify.facts.first import by_one
from ddpify.facts.outside import holding
from ddpify.facts.ranks import depends_on_rank, ranks
from ddpify.facts.values import FromBatch
from ddpify.facts.writes import Write, find_writes
from ddpify.rules._base import Bad, Converts, Finding, Good, Rule, Severity
from ddpify.rules._by_rank import for_rank_0
from ddpify.rules._guards import Placed, guards
from ddpify.rules._handles import handles
from ddpify.rules._listings import listing_of
from ddpify.source import dotted, walk


class UnguardedSave(Rule):
    """A file is written by every rank.

    ## What it does
    Finds calls that write, move or remove files (`torch.save`, `open(..., "w")`, `np.save`, `savefig`,
    `to_csv`, `shutil.copy`, `os.remove` and their kin) and that no test of the rank stands around. A path that
    holds the rank is fine.

    ## Why is this bad?
    The ranks write to one path at the same time: the file ends up corrupt, or half of it is there when it is
    read. The same holds for a file that one rank removes while another one reads it.

    ## Fix
    Let rank 0 alone write: `if dist.get_rank() == 0:`. Other ranks that read the file wait at a `dist.barrier()`.

    ## Edit
    `if is_main_process():` around the smallest statement; around an `if` or `for` as a whole where neighbours then
    share one guard; a `with open(...)` block as a whole where it only writes, and a loop over old files with the
    listing that it goes by. A file that is kept in a variable is guarded wherever it is used. Where training goes on
    while the file is open, the other ranks write to `os.devnull`.
    """

    code = "DDP401"
    references = ("https://github.com/pytorch/pytorch/issues/12042", "https://github.com/NVIDIA/apex/issues/886")
    good = (
        Good('if dist.get_rank() == 0:\n    torch.save(model.state_dict(), "model.pt")'),
        Good("""
            def save(path):
                if dist.get_rank() != 0:
                    return
                torch.save(model.state_dict(), path)
            save("model.pt")
            """),
        Good('torch.save(torch.get_rng_state(), f"rng_{dist.get_rank()}.pt")'),
    )
    bad = (
        Bad('torch.save(model.state_dict(), "model.pt")'),
        Bad('with open("log.txt", "a") as log:\n    log.write("done")'),
    )
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
                net(x).mean().backward()
                optimizer.step()
            torch.save(optimizer.state_dict(), "optimizer.pt")
            """,
            gives=("if is_main_process():", '    torch.save(optimizer.state_dict(), "optimizer.pt")'),
        ),
        Converts(
            """
            import shutil
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            def keep(state, best):
                torch.save(state, "last.pt")
                if best:
                    shutil.copyfile("last.pt", "best.pt")
            loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
            net = nn.Linear(4, 1)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for (x,) in loader:
                net(x).mean().backward()
                optimizer.step()
            keep(optimizer.state_dict(), True)
            """,
            gives=('    if is_main_process():\n        torch.save(state, "last.pt")\n        if best:\n',),
        ),
    )

    def check(self, facts: Facts) -> Iterator[Finding]:
        writes = facts.cached("writes", find_writes)
        seen: set[int] = set()
        for write in writes:
            if self.is_safe(facts, write):
                continue
            found = self.lint(facts, write) if not facts.converting else self.convert(facts, write)
            for finding in found:
                if id(finding.node) not in seen:
                    seen.add(id(finding.node))
                    yield finding

    def is_safe(self, facts: Facts, write: Write) -> bool:
        """Under a test of the rank, or at a path of its own."""
        events = write.call.events
        if not facts.converting and (not events or self.of_own_batch(facts, write) or _says_who(write)):
            return True
        if not events:
            frame = facts.flow.modules.get(write.call.source)
            return frame is not None and ranks(facts.flow).limited(write.call.node, frame)
        if not facts.converting and all(instead_of_training(facts, e) for e in events):
            return True
        return all(
            by_one(facts, e) or (write.path is not None and depends_on_rank(write.path, e.frame, facts.flow))
            for e in events
        )

    def of_own_batch(self, facts: Facts, write: Write) -> bool:
        """`mask.save(f"{name}.png")` for the names in a batch: each rank has other ones."""
        values = (facts.flow.values.get(n, ()) for n in walk(write.path)) if write.path is not None else ()
        return any(isinstance(o, FromBatch) for v in values for o in origins(v))

    def lint(self, facts: Facts, write: Write) -> Iterator[Finding]:
        source = write.call.source
        stmt = holding(source, write.call.node)
        if facts.editable(source):
            hard = bool(guards(facts).obstacle(source, stmt, write.call.node)) and not isinstance(stmt, cst.With)
            severity = Severity.WARNING if hard else Severity.ERROR
            edits = () if write.opens else for_rank_0(facts, source, stmt, write.call.node, write.call.events)
            yield self.finding(source, write.call.node, f"every rank {self.says(write)}", *edits, severity=severity)

    def convert(self, facts: Facts, write: Write) -> Iterator[Finding]:
        source, call = write.call.source, write.call
        if not facts.editable(source):
            yield from self.elsewhere(facts, write)
            return
        stmt = holding(source, call.node)
        result: list[Placed] | str
        if write.opens:
            result = handles(facts).of(write)
        else:
            result = guards(facts).obstacle(source, stmt, call.node)
            if not result and stmt is not None:
                listing = listing_of(facts, source, stmt)
                result = [guards(facts).whole(source, s) for s in listing] or [
                    guards(facts).guard(source, stmt, call.node)
                ]
        if isinstance(result, str):
            yield self.finding(
                source,
                call.node,
                f"every rank {self.says(write)}: {result}",
                left="let rank 0 alone do it (`is_main_process()`)",
            )
            return
        null = id(call.node) in handles(facts).null
        for placed in result:
            reason = "the other ranks write to os.devnull" if null else "one rank writes the file"
            yield self.finding(source, placed.stmt, f"every rank {self.says(write)}", *placed.edits, reason=reason)

    def elsewhere(self, facts: Facts, write: Write) -> Iterator[Finding]:
        """A write in another file: guarded where the entry file calls for it, if nothing else happens there."""
        placed = guards(facts).at_the_call(write.call)
        where = f"{write.call.source.path.name}:{write.call.source.line(write.call.node)}"
        if placed is None:
            if write.call.events:
                yield self.finding(
                    write.call.source,
                    write.call.node,
                    f"every rank {self.says(write)}, in another file of the project",
                    left="guard it there",
                )
            return
        for p in placed:
            yield self.finding(
                facts.source,
                p.stmt,
                f"every rank {self.says(write)} ({where})",
                *p.edits,
                reason="one rank writes the file",
            )

    def says(self, write: Write) -> str:
        path = write.call.source.code(write.path).split("\n")[0] if write.path is not None else ""
        verb = (
            "opens"
            if write.opens
            else "runs"
            if not path or write.call.text.startswith(("os.", "shutil."))
            else "writes"
        )
        what = f"`{path}`" if path and verb != "runs" else f"`{write.call.text}`"
        return f"{verb} {what}" if verb != "writes" else f"writes {what} with `{write.call.text}`"


def _says_who(write: Write) -> bool:
    """`net.save_pretrained(path, is_main_process=main)`, `save_function=accelerator.save`: told who writes."""
    main, saves = (write.call.argument(None, name) for name in ("is_main_process", "save_function"))
    given = main is not None and dotted(main) != "True"
    return given or (saves is not None and dotted(saves).rpartition(".")[0] not in ("", "torch"))
