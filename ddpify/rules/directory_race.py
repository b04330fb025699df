"""DDP403: directories that every rank makes, removes or names."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddpify.edits import AddHelper, AddImport, Edit, Replace, SetArgument, Surround
from ddpify.facts import Facts
from ddpify.facts.asked import asked_before, path_of
from ddpify.facts.beside import instead_of_training
from ddpify.facts.contents import constants
from ddpify.facts.definitions import definitions
from ddpify.facts.first import by_one
from ddpify.facts.outside import Outside, holding, outside_calls
from ddpify.facts.ranks import depends_on_rank, ranks
from ddpify.facts.reads import Paths
from ddpify.facts.writes import PRIVATE
from ddpify.rules._base import Bad, Converts, Finding, Good, Rule, Severity
from ddpify.rules._free_names import searched_names
from ddpify.rules._guards import guards, joined_group
from ddpify.rules._launchers import Launched, by_hydra
from ddpify.rules._run_names import Named, named_by_chance, of_own_name
from ddpify.source import Source, walk

_MAKES = frozenset({"os.makedirs", "os.mkdir"})
_CATCHES = frozenset(
    {"FileExistsError", "OSError", "IOError", "Exception", "BaseException", "EnvironmentError", "os.error"}
)


class DirectoryRace(Rule):
    """Every rank makes, removes or names the run's directory by itself.

    ## What it does
    Finds `os.makedirs` and `mkdir` without `exist_ok=True`, `shutil.rmtree` on all ranks, and directories that
    are named by the time, a random number, a temporary name or by what is there already (`exp2` where `exp` is).

    ## Why is this bad?
    Between the question whether a directory exists and its creation another rank creates it: FileExistsError. A
    directory that one rank removes takes the files of the others with it. A name with the time in it is another
    one on each rank.

    ## Fix
    Make it with `exist_ok=True`; let rank 0 alone remove and name, and send the name to the others with
    `dist.broadcast_object_list`.

    ## Edit
    `exist_ok=True`; where all ranks go by whether it is there (`if os.path.exists(out): raise ...`), rank 0's answer;
    `if is_main_process():` around `rmtree` and around what makes the directory anew;
    `broadcast_value(...)` around the expression that names it, so that every rank has rank 0's name; a function that
    searches for a free name is run by rank 0 alone.
    Before a function of `@hydra.main` the ranks other than 0 tell hydra to write nothing.
    """

    code = "DDP403"
    severity = Severity.WARNING
    references = ("https://github.com/allenai/allennlp/issues/3841",)
    good = (
        Good('os.makedirs("runs", exist_ok=True)'),
        Good('if dist.get_rank() == 0:\n    os.makedirs("runs")'),
        Good('try:\n    os.mkdir("runs")\nexcept FileExistsError:\n    pass'),
    )
    bad = (
        Bad('if not os.path.exists("runs"):\n    os.makedirs("runs")'),
        Bad("""
            import os
            import time
            import torch.distributed as dist
            from torch import nn
            from torch.nn.parallel import DistributedDataParallel as DDP
            dist.init_process_group("gloo")
            folder = time.strftime("runs/%H%M%S")
            os.makedirs(folder, exist_ok=True)
            ddp = DDP(nn.Linear(8, 1))
            dist.destroy_process_group()
            """),
    )
    converts = (
        Converts(
            """
            import os
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
            net = nn.Linear(4, 1)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for (x,) in loader:
                net(x).mean().backward()
                optimizer.step()
            if not os.path.exists("out"):
                os.mkdir("out")
            """,
            gives=('    os.makedirs("out", exist_ok=True)',),
            drops=('os.mkdir("out")',),
        ),
        Converts(
            """
            import os
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
            net = nn.Linear(4, 1)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for (x,) in loader:
                net(x).mean().backward()
                optimizer.step()
            if not os.path.exists("out"):
                print("making out")
                os.mkdir("out")
            """,
            gives=('    if is_main_process():\n        print("making out")\n        os.mkdir("out")',),
        ),
    )

    def check(self, facts: Facts) -> Iterator[Finding]:
        calls = facts.cached("outside", outside_calls)
        removed: list[tuple[Outside, cst.CSTNode]] = []
        for call in calls:
            if call.name == "shutil.rmtree" and not self.is_safe(facts, call):
                yield from self.remove(facts, call, removed)
        for call in calls:
            makes = call.name in _MAKES or (call.method == "mkdir" and not self.is_remote(call))
            if makes and not self.is_safe(facts, call):
                yield from self.make(facts, call, removed)
        dated = list(named_by_chance(facts, calls))
        for named in dated:
            if facts.converting or named.what not in PRIVATE:
                yield self.name_of(facts, named)
        if facts.converting:
            yield from searched_names(self, facts, dated)
            yield from self.answers(facts)
        for launched in by_hydra(facts) if facts.converting else ():
            yield from self.run_directory(launched)

    def run_directory(self, launched: Launched) -> Iterator[Finding]:
        message = "hydra makes a run directory and a log file in every process"
        yield self.finding(launched.source, launched.stmt, message, *launched.edits, reason="one rank has them")
        if launched.moves is not None:
            yield self.finding(
                launched.source,
                launched.moves,
                "hydra runs rank 0 inside its run directory, and the others where they were started",
                left='give hydra.main version_base="1.2", or start it with hydra.job.chdir=False',
            )

    # -- making ------------------------------------------------------------------------------------------------

    def make(self, facts: Facts, call: Outside, removed: list[tuple[Outside, cst.CSTNode]]) -> Iterator[Finding]:
        source = call.source
        at = 1 if call.name == "os.mkdir" else 2
        allowed = call.argument(at, "exist_ok") if call.name != "os.mkdir" else None
        known = constants(facts.flow.values.get(allowed, ())) if allowed is not None else None
        anew = next((r for r, stmt in removed if self.follows(facts, r, call)), None)
        if anew is None and (known == [True] or self.is_caught(source, call)):
            return
        path = self.path(call)
        message = f"every rank makes the directory `{path}`; the second one finds it there"
        if not facts.converting:
            if facts.editable(source):
                simple = anew is None and not any(a.star for a in call.node.args) and known != [True]
                edits = self.accepting(facts, call, allowed) if simple else ()
                yield self.finding(source, call.node, message, *edits)
            return
        if not facts.editable(source):
            yield from self.elsewhere(facts, call, message)
            return
        stmt = holding(source, call.node)
        if anew is not None and stmt is not None and not guards(facts).obstacle(source, stmt, call.node):
            placed = guards(facts).guard(source, stmt, call.node)
            yield self.finding(source, stmt, message, *placed.edits, reason="the rank that removes it makes it anew")
        elif stmt is not None and self.says_so(source, stmt) and not guards(facts).obstacle(source, stmt, call.node):
            placed = guards(facts).guard(source, stmt, call.node)
            yield self.finding(source, stmt, message, *placed.edits, reason="the rank that says so makes it")
        elif any(a.star for a in call.node.args) or call.argument(None, "dir_fd") is not None:
            yield self.finding(
                source, call.node, message, left="let it accept a directory that is there: exist_ok=True"
            )
        elif known != [True]:
            yield self.finding(
                source,
                call.node,
                message,
                *self.accepting(facts, call, allowed),
                reason="another rank may have made it",
            )

    def says_so(self, source: Source, stmt: cst.CSTNode) -> bool:
        """`if not os.path.exists(p): print("making", p); os.mkdir(p)`: made by another rank, it would not be said."""
        line = source.parents.get(stmt)
        block = source.parents.get(line) if line is not None else None
        return (
            isinstance(block, cst.IndentedBlock)
            and isinstance(source.parents.get(block), cst.If)
            and len(block.body) > 1
        )

    def accepting(self, facts: Facts, call: Outside, allowed: cst.BaseExpression | None) -> list[Edit]:
        source, func = call.source, call.node.func
        if allowed is not None and not any(a.keyword is not None and a.value is allowed for a in call.node.args):
            return [Replace(source, allowed, "True")]
        edits: list[Edit] = [SetArgument(source, call.node, "exist_ok", "True")]
        if call.name == "os.mkdir" and isinstance(func, cst.Attribute):
            edits.append(Replace(source, func.attr, "makedirs"))
        elif call.name == "os.mkdir":
            edits += [Replace(source, func, f"{facts.names_of(source)['os']}.makedirs"), AddImport(source, "os")]
        return edits

    def follows(self, facts: Facts, removal: Outside, call: Outside) -> bool:
        """The directory that was removed is made again, or one below it."""
        if removal.source is call.source and self.path(removal) in self.path(call):
            return removal.source.span(removal.node).start < call.source.span(call.node).start
        paths = facts.cached("paths", Paths)
        (gone, new), pairs = (path_of(removal), path_of(call)), [(r, c) for r in removal.events for c in call.events]
        return (
            gone is not None
            and new is not None
            and any(
                r.seq < c.seq
                and (paths.same((gone, r.frame), (new, c.frame)) or paths.inside((gone, r.frame), (new, c.frame)))
                for r, c in pairs
            )
        )

    def is_caught(self, source: Source, call: Outside) -> bool:
        """`try: os.mkdir(...)` with a handler for the case that it is there."""
        below: cst.CSTNode = call.node
        for above in source.ancestors(call.node):
            if isinstance(above, cst.FunctionDef):
                return False
            if isinstance(above, cst.Try) and above.body is below:
                for handler in above.handlers:
                    kinds = source.code(handler.type) if handler.type is not None else "Exception"
                    if any(k.strip() in _CATCHES for k in kinds.strip("()").split(",")):
                        return True
            below = above
        return False

    # -- removing ------------------------------------------------------------------------------------------------

    def remove(self, facts: Facts, call: Outside, removed: list[tuple[Outside, cst.CSTNode]]) -> Iterator[Finding]:
        message = f"every rank removes the directory `{self.path(call)}`, with what other ranks have in it"
        if not facts.converting:
            if facts.editable(call.source) and not of_own_name(facts, call):
                yield self.finding(call.source, call.node, message)
            return
        if not facts.editable(call.source):
            yield from self.elsewhere(facts, call, message)
            return
        stmt = holding(call.source, call.node)
        why = guards(facts).obstacle(call.source, stmt, call.node)
        if why or stmt is None:
            yield self.finding(
                call.source, call.node, f"{message}: {why}", left="let rank 0 alone do it (`is_main_process()`)"
            )
            return
        removed.append((call, stmt))
        placed = guards(facts).guard(call.source, stmt, call.node)
        yield self.finding(call.source, stmt, message, *placed.edits, reason="one rank removes it")

    def answers(self, facts: Facts) -> Iterator[Finding]:
        """`if os.path.exists(out): raise ...`, and rank 0 makes it behind that: another rank may find it there."""
        for asked in asked_before(facts):
            source, change = asked.source, asked.change
            if _is_rank_0_s(facts, source, asked.node) or by_one(facts, asked.event):
                continue
            where = f"line {change.source.line(change.node)}" + (
                "" if change.source is source else f" of {change.source.path.name}"
            )
            message = f"`{source.code(asked.node)}`: another rank may ask when rank 0 is past `{change.text}` ({where})"
            if not facts.editable(source) or not joined_group(facts, asked.event):
                yield self.finding(
                    source,
                    asked.node,
                    message,
                    left="let rank 0 ask, and send its answer to all ranks (broadcast_object_list)",
                )
                continue
            edit = Surround(source, asked.node, f"{facts.names_of(source)['broadcast_value']}(", ")")
            yield self.finding(
                source,
                asked.node,
                message,
                edit,
                AddHelper(source, "broadcast_value"),
                reason="all ranks go by rank 0's answer",
            )

    # -- naming --------------------------------------------------------------------------------------------------

    def name_of(self, facts: Facts, named: Named) -> Finding:
        code = named.source.code(named.node).split("\n")[0]
        message = f"`{code}` ({named.what}) names a path differently on each rank"
        if not facts.converting or named.problem:
            left = "" if not facts.converting else "take rank 0's value on all ranks (broadcast_object_list)"
            return self.finding(
                named.source, named.node, message + (f"; {named.problem}" if named.problem else ""), left=left
            )
        edits = (
            Surround(named.source, named.node, f"{facts.names_of(named.source)['broadcast_value']}(", ")"),
            AddHelper(named.source, "broadcast_value"),
        )
        return self.finding(named.source, named.node, message, *edits, reason="every rank has rank 0's name")

    # -- all of them -----------------------------------------------------------------------------------------------

    def elsewhere(self, facts: Facts, call: Outside, message: str) -> Iterator[Finding]:
        placed = guards(facts).at_the_call(call) if call.events else []
        where = f"{call.source.path.name}:{call.source.line(call.node)}"
        for p in placed or ():
            yield self.finding(facts.source, p.stmt, f"{message} ({where})", *p.edits, reason="one rank does it")
        if placed is None:
            yield self.finding(
                call.source,
                call.node,
                f"{message}, in another file of the project",
                left="mend it there",
            )

    def path(self, call: Outside) -> str:
        if call.method and isinstance(call.node.func, cst.Attribute):
            return call.source.code(call.node.func.value)
        return call.source.code(call.node.args[0].value) if call.node.args else ""

    def is_safe(self, facts: Facts, call: Outside) -> bool:
        """Under a test of the rank, or at a path of its own."""
        own = [a.value for a in call.node.args] + (
            [call.node.func.value] if isinstance(call.node.func, cst.Attribute) and call.method else []
        )
        home = facts.flow.modules.get(call.source)
        if not call.events and not facts.converting and home is not None:
            func = next((a for a in call.source.ancestors(call.node) if isinstance(a, cst.FunctionDef)), None)
            frames = definitions(facts.flow).frames.get(id(func), []) or [home]
            return any(ranks(facts.flow).limited(call.node, f) for f in frames)  # code that was not reached
        if call.events and not facts.converting and all(instead_of_training(facts, e) for e in call.events):
            return True
        return bool(call.events) and all(
            by_one(facts, e) or any(depends_on_rank(n, e.frame, facts.flow) for n in own) for e in call.events
        )

    def is_remote(self, call: Outside) -> bool:
        """`sftp.mkdir`, a method of something that is no path."""
        return len(call.node.args) > 3


def _is_rank_0_s(facts: Facts, source: Source, node: cst.CSTNode) -> bool:
    """Whether rank 0 alone asks: under a guard, or all that a branch does is (`if isfile(p): log = open(p, "a")`)."""
    done = guards(facts).done
    above = source.parents.get(node)
    if any(id(a) in done for a in source.ancestors(node)):
        return True
    if not isinstance(above, cst.If) or above.test is not node:
        return False
    inside = [n for b in (above.body, above.orelse) if b is not None for n in walk(b)]
    small = [n for n in inside if isinstance(n, cst.BaseSmallStatement)]
    return all(any(id(a) in done for a in (n, *source.ancestors(n))) for n in small)
