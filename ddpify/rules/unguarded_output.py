"""DDP402: output that every rank makes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import libcst as cst

from ddpify.facts import Facts
from ddpify.facts.caches import finds_cache
from ddpify.facts.first import by_one
from ddpify.facts.locality import locality
from ddpify.facts.outside import holding
from ddpify.facts.placing import following
from ddpify.facts.ranks import depends_on_rank, guarded, ranks
from ddpify.facts.talk import Talk, find_talk, is_below_level, is_off, is_quiet, may_be_a_file, names_process
from ddpify.facts.values import Ext
from ddpify.rules._base import Bad, Converts, Finding, Good, Rule, Severity
from ddpify.rules._by_rank import for_rank_0
from ddpify.rules._handles import opened_null
from ddpify.rules._launchers import printed_by_fire
from ddpify.rules._loggers import logging_by_rank, set_up_elsewhere
from ddpify.rules._output import Silenced, silence
from ddpify.rules._quiet import logs_are_replaced, print_is_replaced
from ddpify.source import Source

_NOT_RANKS = frozenset({"shell", "code", "input", "tracker"})


def _fails(source: Source, stmt: cst.CSTNode) -> bool:
    """`raise ...`, `sys.exit(1)`; an exit without a code, or with 0, is one that all ranks have to take."""
    if not isinstance(stmt, cst.Expr) or not isinstance(stmt.value, cst.Call):
        return isinstance(stmt, cst.Raise)
    code = source.code(stmt.value.args[0].value) if stmt.value.args else "0"
    return source.code(stmt.value.func) in _EXITS and code not in ("0", "None")


_EXITS = frozenset({"sys.exit", "exit", "quit", "os._exit"})


class UnguardedOutput(Rule):
    """Output is made by every rank.

    ## What it does
    Finds `print`, progress bars, logging, plots, TensorBoard writers, wandb runs and `input()` that no test of
    the rank stands around. A message that names the rank is fine, and so is one whose handler or format does. Of
    loggers in functions that only other files call, nothing is said where one of these sets levels by rank.

    ## Why is this bad?
    Every line, bar, event file and run is there once per rank; a question to the user ends in an EOFError on
    all ranks but one.

    ## Fix
    Let rank 0 alone do it: `if dist.get_rank() == 0:`, or `tqdm(..., disable=rank != 0)`.

    ## Edit
    `if is_main_process():` around the smallest statement. What a message computes and every rank has to compute
    (a forward, a pass over a loader, a step) is taken out before the guard. A bar gets `disable=not
    is_main_process()`, a `SummaryWriter` is None on the other ranks and guarded wherever it is used, as is what
    `mlflow.start_run()` gives, also as `with ... as run:`; `wandb.init` gets `mode="disabled"` there, a `Console` of
    rich `quiet=True`. What a function gives back to fire, which prints it, is None there.

    ## When not
    Where a part of the statement has to run on every rank and cannot be taken out, the statement is left and listed.
    """

    code = "DDP402"
    severity = Severity.WARNING
    references = ("https://github.com/Lightning-AI/pytorch-lightning/issues/11380",)
    good = (
        Good('if dist.get_rank() == 0:\n    print("start")'),
        Good('print(f"rank {dist.get_rank()} is ready")'),
        Good("""
            import torch
            from torch import nn
            import torch.distributed as dist
            from torch.nn.parallel import DistributedDataParallel as DDP
            from tqdm import tqdm
            dist.init_process_group("gloo")
            ddp = DDP(nn.Linear(8, 1))
            for step in tqdm(range(3), disable=dist.get_rank() != 0):
                ddp(torch.ones(1, 8))
            dist.destroy_process_group()
            """),
    )
    bad = (Bad('print("start")'), Bad('loss = model(torch.ones(1, 8)).mean()\nprint(f"loss {loss.item():.3f}")'))
    converts = (
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            from tqdm import tqdm
            loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
            net = nn.Linear(4, 1)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for (x,) in tqdm(loader):
                loss = net(x).mean()
                loss.backward()
                optimizer.step()
            print("last", loss.item())
            """,
            gives=("for (x,) in tqdm(loader, disable=not is_main_process()):", '    print("last", loss.item())'),
        ),
        Converts(
            """
            import torch
            import visdom
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
            net = nn.Linear(4, 1)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            panel = visdom.Visdom()
            panel.line([0.0], [0.0], win="loss")
            for (x,) in loader:
                loss = net(x).mean()
                loss.backward()
                optimizer.step()
            """,
            gives=(
                "panel = visdom.Visdom() if is_main_process() else None\n"
                'if is_main_process():\n    panel.line([0.0], [0.0], win="loss")',
            ),
        ),
        Converts(
            """
            import mlflow
            import torch
            from rich.console import Console
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            console = Console()
            loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
            net = nn.Linear(4, 1)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            with mlflow.start_run() as run:
                for (x,) in loader:
                    net(x).mean().backward()
                    optimizer.step()
                console.print(run.info.run_id)
            """,
            gives=(
                "console = Console(quiet=not is_main_process())",
                "with mlflow.start_run() if is_main_process() else nullcontext() as run:",
                "    if is_main_process():\n        console.print(run.info.run_id)",
            ),
        ),
    )
    #: what lint says of each kind
    says: ClassVar[dict[str, str]] = {
        "bar": "shows a progress bar",
        "writer": "has a writer of its own",
        "run": "starts a run",
        "live": "shows a display",
        "console": "has a console of its own",
        "log": "logs",
        "log-config": "writes the log file",
        "log-file": "writes the log file",
        "log-files": "opens the log files",
        "input": "asks the user",
        "shell": "runs the command",
        "code": "runs code of its own",
        "tracker": "reports to the tracker",
    }

    def check(self, facts: Facts) -> Iterator[Finding]:
        talk = find_talk(facts)
        if facts.converting:
            yield from self.convert(facts, talk)
            return
        seen: set[int] = set()
        by_rank, replaced = logging_by_rank(facts, talk), print_is_replaced(facts)
        elsewhere = logs_are_replaced(facts)
        for t in talk:
            source = t.call.source
            quiet = t.kind in _NOT_RANKS or is_off(facts, t) or (t.kind.startswith("log") and by_rank)
            quiet = quiet or (t.call.name == "builtins.print" and replaced) or (t.kind == "log" and elsewhere)
            quiet = quiet or (t.kind == "log" and set_up_elsewhere(facts, t))
            quiet = quiet or is_below_level(facts, t) or may_be_a_file(facts, t)
            if not facts.editable(source) or quiet or self.is_safe(facts, t) or self.dies(facts, t):
                continue
            stmt = holding(source, t.call.node)
            if id(stmt or t.call.node) not in seen:
                seen.add(id(stmt or t.call.node))
                edits = for_rank_0(facts, source, stmt, t.call.node, t.call.events) if t.kind == "print" else ()
                yield self.finding(source, t.call.node, self.said(t), *edits)

    def convert(self, facts: Facts, talk: list[Talk]) -> Iterator[Finding]:
        seen: set[int] = set()
        elsewhere: dict[int, list[Talk]] = {}
        for t in talk:
            if self.is_safe(facts, t) or self.dies(facts, t):
                continue
            found = silence(facts, t)
            if isinstance(found, str):
                if not facts.editable(t.call.source):
                    scope = next(
                        (a for a in t.call.source.ancestors(t.call.node) if isinstance(a, cst.FunctionDef)),
                        t.call.source.module,
                    )
                    elsewhere.setdefault(id(scope), []).append(t)
                else:
                    yield self.finding(t.call.source, t.call.node, f"{self.said(t)}; {found}", left=self.advice(t))
                continue
            yield from self.findings(facts, t, found, seen)
        for group in elsewhere.values():
            yield self.other_file(group)
        for source, stmt, edits in printed_by_fire(facts):
            yield self.finding(source, stmt, "every rank prints what fire gets back", *edits, reason="printed once")

    def dies(self, facts: Facts, t: Talk) -> bool:
        """The last words of a rank that ends the job because of its own numbers: whichever that is has to say them."""
        source = t.call.source
        stmt = holding(source, t.call.node)
        if stmt is None:
            return False
        if not facts.converting and (isinstance(stmt, cst.Assert) or _in_handler_that_raises(source, stmt)):
            return True
        test = next((a for a in source.ancestors(stmt) if isinstance(a, cst.If)), None)
        ends = any(_fails(source, s) for s in following(source, stmt))
        if not facts.converting:
            return ends and test is not None  # whoever ends the job says why
        return ends and test is not None and any(locality(facts).is_local(test.test, e.frame) for e in t.call.events)

    def findings(self, facts: Facts, t: Talk, found: list[Silenced], seen: set[int]) -> Iterator[Finding]:
        for s in found:
            if not s.whole or id(s.stmt) not in seen:
                seen.add(id(s.stmt))
                yield self.finding(facts.source_of(s.stmt), s.stmt, self.said(t), *s.edits, reason=s.why)

    def said(self, t: Talk) -> str:
        kind = "run" if t.kind.startswith("run-") else t.kind
        return f"every rank {self.says.get(kind, 'prints')}: `{t.call.text}`"

    def other_file(self, group: list[Talk]) -> Finding:
        first = group[0].call
        lines = ", ".join(str(first.source.line(t.call.node)) for t in group[:8]) + (", ..." if len(group) > 8 else "")
        what = f"`{first.text}` makes output on every rank, in another file of the project (lines {lines})"
        return self.finding(
            first.source,
            first.node,
            what,
            left="guard it there with a test of the rank",
        )

    def advice(self, t: Talk) -> str:
        if t.kind == "code":
            return "guard what prints or writes in it; training in it would not be distributed"
        if t.kind == "shell":
            return "guard it if it writes or prints, and add a barrier if the others need what it makes"
        return (
            "let rank 0 alone do it, or send its answer to the others"
            if t.kind == "input"
            else "let rank 0 alone do it (`is_main_process()`)"
        )

    # -- what is fine as it is ------------------------------------------------------------------------------

    def is_safe(self, facts: Facts, t: Talk) -> bool:
        call = t.call
        target = call.argument(None, "file")
        if (t.kind == "console" and not facts.converting) or is_quiet(facts, t):
            return True
        if (
            t.kind == "print"
            and target is not None
            and call.name == "builtins.print"
            and self.goes_to_file(facts, t, target)
        ):
            return True
        if not call.events:
            if not facts.converting:
                return True  # nothing here runs it
            frame = facts.flow.modules.get(call.source)
            return frame is not None and ranks(facts.flow).limited(call.node, frame)
        for e in call.events:
            named = any(
                depends_on_rank(a.value, e.frame, facts.flow) or names_process(facts, a.value) for a in call.node.args
            )
            shown = t.kind == "bar" and depends_on_rank(call.node.func, e.frame, facts.flow)  # tqdm if main else iter
            alone = by_one(facts, e) and not (facts.converting and finds_cache(e, facts) and not guarded(e, facts.flow))
            if not (shown or alone or (named and t.kind not in _NOT_RANKS)):
                return False
        return True

    def goes_to_file(self, facts: Facts, t: Talk, target: cst.BaseExpression) -> bool:
        """`print(..., file=log)`: the place that opens the file is looked at; it may be os.devnull elsewhere."""
        stream = any(isinstance(o, Ext) and o.name.startswith("sys.") for o in facts.flow.values.get(target, ()))
        return not stream and (not facts.converting or opened_null(t.call, target, facts))


def _in_handler_that_raises(source: Source, stmt: cst.CSTNode) -> bool:
    """`except Exception: logger.error(...); raise`, or sys.exit(1): whichever rank it happens to has to say so."""
    handler = next((a for a in source.ancestors(stmt) if isinstance(a, (cst.ExceptHandler, cst.FunctionDef))), None)
    body = handler.body.body if isinstance(handler, cst.ExceptHandler) else ()
    last = body[-1] if body else None
    return isinstance(last, cst.SimpleStatementLine) and _fails(source, last.body[-1])
