"""DDP404: files that are read while another rank writes them."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from ddpify.edits import AddImport, Edit, InsertBefore
from ddpify.facts import Facts
from ddpify.facts.caches import in_cache
from ddpify.facts.definitions import definitions
from ddpify.facts.first import by_one
from ddpify.facts.frames import Event
from ddpify.facts.moments import Moment, moments
from ddpify.facts.outside import holding
from ddpify.facts.placing import blocks
from ddpify.facts.ranks import guarded, never_with_others
from ddpify.facts.reads import Paths, Read, asks_files, find_questions, find_reads, written_before
from ddpify.facts.setup import SetUp, find_setup
from ddpify.facts.workers import in_workers
from ddpify.rules._base import Bad, Converts, Finding, Good, Rule
from ddpify.rules._guards import guards, joined_group, same_on_all_ranks
from ddpify.source import walk

#: Collectives that no rank leaves before the others have come (or that rank 0 takes part in after it wrote).
_MEETS = re.compile(
    r"torch\.distributed\.(\w+\.)*(init_process_group|\w*barrier|all_\w+|broadcast\w*|gather\w*|scatter\w*|reduce\w*|send|recv)"
    r"|(?!torch\.cuda\.)(\w+\.)*(\w*barrier|synchronize|wait_for_everyone)"  # of a module that is not there
)


class ReadBeforeWriteFinished(Rule):
    """A file is read by all ranks before the rank that writes it has finished.

    ## What it does
    Finds reads on all ranks (`torch.load`, `open`, `np.load` and their kin) of a file that rank 0 alone wrote
    before, with no collective between the two; also `assert os.path.exists(path)`, which fails on another rank.

    ## Why is this bad?
    The other ranks do not wait for rank 0: they find no file, half a file, or the one of the last epoch.

    ## Fix
    Let all ranks meet between the two: `dist.barrier()`.

    ## Edit
    `dist.barrier()` before the statement that reads, or before the `if os.path.exists(...)` around it: every
    rank has to come there.
    """

    code = "DDP404"
    references = ("https://docs.pytorch.org/tutorials/intermediate/ddp_tutorial.html#save-and-load-checkpoints",)
    good = (
        Good("""
            if dist.get_rank() == 0:
                torch.save(model.state_dict(), "best.pt")
            dist.barrier()
            model.load_state_dict(torch.load("best.pt", map_location="cpu"))
            """),
    )
    bad = (
        Bad("""
            if dist.get_rank() == 0:
                torch.save(model.state_dict(), "best.pt")
            model.load_state_dict(torch.load("best.pt", map_location="cpu"))
            """),
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
            state = torch.load("optimizer.pt")
            """,
            gives=("dist.barrier()", 'state = torch.load("optimizer.pt")'),
        ),
        Converts(
            """
            import os
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            def prepare(root):
                os.makedirs(root, exist_ok=True)
                for i in range(3):
                    with open(os.path.join(root, f"{i}.txt"), "w") as f:
                        f.write("1")
            torch.manual_seed(0)
            prepare("cache")
            names = sorted(os.listdir("cache"))
            loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
            net = nn.Linear(4, 1)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for (x,) in loader:
                net(x).mean().backward()
                optimizer.step()
            """,
            gives=('dist.barrier()\nnames = sorted(os.listdir("cache"))',),
        ),
    )

    def check(self, facts: Facts) -> Iterator[Finding]:
        paths = Paths(facts)
        when = moments(facts.flow)
        found = [*find_reads(facts), *find_questions(facts)]
        reads = [(m, r, e) for r in found for e in r.call.events for m in when.of(e)]
        seen: set[int] = set()
        met = self.set_up(facts)
        for moment, read, event in sorted(reads, key=lambda known: known[0]):
            if by_one(facts, event) or in_workers(facts, event) or event.seq >= facts.flow.main_end:
                continue
            writes = written_before(facts, read, event, moment, paths, certain=not facts.converting)
            if not facts.converting:
                yield from self.lint(facts, read, moment, [(w, m) for _, w, m in writes], seen)
                continue
            writes = [w for w in writes if not in_cache(w[1], facts)]
            if any(not any(w < m < moment for m in met) for _, _, w in writes):
                last = writes[-1][0].call
                barrier = self.convert(facts, read, event, last.source.line(last.node), seen)
                if barrier is not None:  # a read of rank 0 alone needs no meeting, and is none
                    met.append((*moment[:-1], moment[-1] - 1))
                    yield from barrier

    def set_up(self, facts: Facts) -> list[Moment]:
        """The set-up is a meeting, too: no rank leaves it before all have come."""
        setup = facts.cached("setup", find_setup) if facts.converting else None
        if not isinstance(setup, SetUp):
            return []
        found: list[Moment] = [(e.seq,) for e in setup.frame.events if e.stmt is setup.first]
        return found[:1]

    def lint(
        self, facts: Facts, read: Read, moment: Moment, writes: list[tuple[Event, Moment]], seen: set[int]
    ) -> Iterator[Finding]:
        when = moments(facts.flow)
        meetings = [m for e in facts.flow.log.of("external") if _MEETS.fullmatch(e.name) for m in when.of(e)]
        for w, written in writes:
            waits = (
                any(written < m < moment for m in meetings)
                if written < moment
                else any(m < moment or m > written for m in meetings)
            )
            if (
                guarded(w, facts.flow)
                and not never_with_others(w, facts.flow)
                and not waits
                and facts.editable(read.call.source)
                and id(read.call.node) not in seen
            ):
                seen.add(id(read.call.node))
                line, source = w.frame.source.line(w.node), read.call.source
                stmt = holding(source, read.call.node)
                place = same_on_all_ranks(source, stmt, lambda test: asks_files(test, facts)) if stmt else None
                edits: tuple[Edit, ...] = ()
                if place is not None and not isinstance(place, cst.While):
                    edits = (
                        InsertBefore(source, place, (f"{facts.names_of(source)['dist']}.barrier()",)),
                        AddImport(source, "dist"),
                    )
                yield self.finding(
                    source,
                    read.call.node,
                    f"`{self.path(read)}` is read by all ranks; rank 0 may still be writing it (line {line})",
                    *edits,
                    unsafe=True,
                )

    def convert(self, facts: Facts, read: Read, event: Event, line: int, seen: set[int]) -> tuple[Finding, ...] | None:
        """The barrier before a read (none where it is there already), or None where rank 0 alone comes there."""
        stmt = self.place(facts, read, event)
        source = facts.source_of(stmt) if stmt is not None else read.call.source
        message = f"`{self.path(read)}` is read by all ranks; rank 0 may still be writing it (line {line})"
        if stmt is None or isinstance(stmt, cst.While) or not joined_group(facts, event):
            if id(read.call.node) in seen:
                return ()
            seen.add(id(read.call.node))
            left = "let all ranks meet before it: torch.distributed.barrier()"
            return (self.finding(read.call.source, read.call.node, message, left=left),)
        if any(id(a) in guards(facts).done for a in (stmt, *source.ancestors(stmt))):
            return None
        if id(stmt) in seen:
            return ()
        seen.add(id(stmt))
        edits = (
            InsertBefore(source, stmt, (f"{facts.names_of(source)['dist']}.barrier()",)),
            AddImport(source, "dist"),
        )
        reason = "all ranks wait until rank 0 has written the file"
        return (self.finding(source, stmt, message, *edits, reason=reason),)

    def place(self, facts: Facts, read: Read, event: Event) -> cst.CSTNode | None:
        """The statement before which the ranks have to meet."""
        source, node = read.call.source, read.call.node
        if not facts.editable(source):
            ways = reversed(next(event.frame.chains(1), ()))
            entry = next((e for e in ways if facts.editable(e.frame.source) and isinstance(e.call, cst.Call)), None)
            if entry is None or not isinstance(entry.call, cst.Call):
                return None
            source, node = entry.frame.source, entry.call
        stmt = holding(source, node)
        if stmt is None:
            return None
        place = same_on_all_ranks(source, stmt, lambda test: asks_files(test, facts))
        if source is read.call.source:
            place = self.before_listing(facts, read, event, place)
        return place

    def before_listing(self, facts: Facts, read: Read, event: Event, place: cst.CSTNode) -> cst.CSTNode:
        """`found = glob("best_*.pt")`, `if found:`: before rank 0 has written, ranks may find different files."""
        source, todo, seen = read.call.source, [(read.path, event.frame)], set[int]()
        while todo:
            node, frame = todo.pop()
            for part in (n for n in walk(node) if isinstance(n, cst.Name)):
                for d in definitions(facts.flow).of(part, frame):
                    if d.frame is not event.frame or id(d.node) in seen:
                        continue
                    seen.add(id(d.node))
                    todo.append((d.node, d.frame))
                    stmt = holding(source, d.node) if asks_files(d.node, facts) else None
                    if stmt is None or source.span(stmt).start > source.span(place).start:
                        continue
                    if blocks(source, stmt)[0] in blocks(source, place):
                        place = same_on_all_ranks(source, stmt, lambda test: asks_files(test, facts))
        return place

    def path(self, read: Read) -> str:
        return read.call.source.code(read.path).split("\n")[0]
