"""DDP308: training on whole tensors, without batches."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddpify.edits import AddHelper, AddImport, Edit, InsertAfter, InsertBefore, Replace, Surround
from ddpify.facts import Facts
from ddpify.facts.closures import searched_returns
from ddpify.facts.frames import Event
from ddpify.facts.handmade import hand_fed
from ddpify.facts.layers import mentions
from ddpify.facts.loops import uses_of
from ddpify.facts.overrows import Over
from ddpify.facts.placing import common_block, in_block, statement_of
from ddpify.facts.setup import reduce_options
from ddpify.facts.totals import Total
from ddpify.facts.whole import Rows, quoted
from ddpify.rules._base import Converts, Finding, Rule
from ddpify.rules._shared import loop_elsewhere, times, times_world_size
from ddpify.source import Source, dotted


class RowsNotShared(Rule):
    """Every rank trains on all rows of the training tensors.

    ## What it does
    Finds training steps without batches, `net(x)` with a whole tensor, and gives each rank its own rows of what the
    model and the loss get. The loss that is printed or kept is that of all rows.

    ## Why is this bad?
    Without batches there is no loader that could share them out: N processes would compute the same step N times.

    ## Fix
    Let each rank train on its rows: `rows[rank::world_size]`.

    ## Edit
    `x, y, row_weight = rows_of_rank(x, y)` before the loop: every world-th row. A step stays one over all rows, each
    once: a mean is multiplied by `row_weight`, since a rank may have a row less than another, and a sum by the world
    size, since DDP averages gradients. Of tensors of several lengths, and where the weight has no name at the backward,
    every rank gets as many rows, at most world size - 1 of them for a second time. A recurrent state that the script
    makes has its rows in dimension 1: `net(x, state_of_rank(state))`. Outputs that are shown are put together again.

    ## When not
    Where a row of the output may depend on other rows (graph layers, recurrent layers that take rows for time), where
    the loss needs all rows at once (contrastive losses, a covariance, a root of a mean, class weights, masks of rows),
    or where a tensor is used in a way that could not be followed, the script is refused.
    """

    code = "DDP308"
    references = ("https://docs.pytorch.org/docs/stable/notes/ddp.html",)
    converts = (
        Converts(
            """
            import torch
            from torch import nn
            torch.manual_seed(0)
            x, y = torch.rand(9, 4), torch.rand(9, 1)
            net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            criterion = nn.MSELoss()
            for step in range(4):
                loss = criterion(net(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                print(step, loss.item())
            """,
            gives=(
                "x, y, row_weight = rows_of_rank(x, y)",
                "    [mean_loss] = all_reduce_mean(loss.item() * row_weight)",
                "        print(step, mean_loss)",
            ),
        ),
        Converts(
            """
            import torch
            from torch import nn
            torch.manual_seed(0)
            x, y = torch.rand(9, 4), torch.rand(9, 1)
            net = nn.Linear(4, 1)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
            losses = []
            for step in range(4):
                fit = (net(x) - y).abs().sum() / len(x)
                loss = fit + 0.01 * net.weight.norm()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                scheduler.step(loss)
                losses.append(fit)
                if loss < 0.1:
                    break
            """,
            gives=(
                "    [mean_loss] = all_reduce_mean(loss.item() * row_weight)",
                "    scheduler.step(mean_loss)",
                "    losses.append(torch.tensor(mean_fit))",
                "    if mean_loss < 0.1:",
            ),
        ),
        Converts(
            """
            import torch
            from torch import nn
            class Net(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.steps, self.out = nn.RNN(4, 8), nn.Linear(8, 1)
                def forward(self, x, state):
                    steps, _ = self.steps(x.transpose(0, 1), state)
                    return self.out(steps[-1])
            torch.manual_seed(0)
            x, y = torch.rand(9, 5, 4), torch.rand(9, 1)
            net = Net()
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for step in range(4):
                out = net(x, torch.zeros(1, 9, 8))
                loss = (out - y).pow(2).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            print(out.squeeze(1))
            """,
            gives=(
                "    out = net(x, state_of_rank(torch.zeros(1, 9, 8)))",
                "all_out = rows_of_all(out)",
                "    print(all_out.squeeze(1))",
            ),
        ),
    )

    def check(self, facts: Facts) -> Iterator[Finding]:
        found = [known for known in hand_fed(facts) if isinstance(known, Rows)] if facts.converting else []
        form = form_of(found)
        for known in found:
            yield from self.one(facts, known, form)

    def one(self, facts: Facts, known: Rows, form: str) -> Iterator[Finding]:
        source = known.level.frame.source
        if not facts.editable(source):
            yield loop_elsewhere(self, source, known.level.body)
            return
        weight = facts.names_of(source).fresh("row_weight") if form == "weight" and has_mean(known) else ""
        yield self.share(facts, known, form, weight)
        if not facts.sync_bn and any(mentions(m, ("BatchNorm",)) for m in facts.roles.trained):
            yield self.finding(
                source,
                known.level.loops[0].node,
                "BatchNorm takes its statistics of each rank's own rows, not of all: a step is not quite that of one "
                "process (on GPUs the option --sync-bn makes it so)",
                note=True,
            )
        for state in known.states:
            yield self.finding(
                source,
                state,
                f"`{source.code(state)}` has a part for each row",
                Surround(source, state, f"{facts.names_of(source)['state_of_rank']}(", ")"),
                AddHelper(source, "state_of_rank"),
                AddHelper(source, "rows_of_rank", self.options(known, form)),
                reason="each row begins with its own",
            )
        yield from self.outputs(facts, known, form)
        for event in known.backwards:
            if facts.editable(event.frame.source):
                yield from self.weighed(facts, event, known.losses.get(id(event.node)), weight)
        for total in known.totals:
            if facts.editable(total.source):
                yield self.shown(facts, total, weight)

    def share(self, facts: Facts, known: Rows, form: str, weight: str) -> Finding:
        source, names, loop = known.level.frame.source, known.names, known.level.loops[0].node
        chosen, edits = list(names), list[Edit]()
        if any("." in name or self.used_elsewhere(known, loop, name) for name in names):
            # the whole tensors are needed too: the training step gets names of its own
            fresh = {name: facts.names_of(source).fresh(f"{name.split('.')[-1]}_rows") for name in names}
            chosen = list(fresh.values())
            edits.extend(Replace(source, node, fresh[dotted(node)]) for node in known.reads)
        if form == "weight":
            chosen.append(weight or "_")
        left = ", ".join(chosen) if len(chosen) > 1 else f"[{chosen[0]}]"
        helper = facts.names_of(source)["rows_of_rank"]
        return self.finding(
            source,
            loop,
            f"every step trains on all rows of {quoted(names)}",
            InsertBefore(source, loop, (f"{left} = {helper}({', '.join(names)})",)),
            *edits,
            AddHelper(source, "rows_of_rank", self.options(known, form)),
            *([AddImport(source, "DistributedSampler")] if form != "plain" else []),
            reason="each rank computes its own rows; a step is one over all rows, as before",
        )

    def options(self, known: Rows, form: str) -> frozenset[str]:
        return frozenset(({"leaf"} if known.of_inputs else set()) | {form})

    def used_elsewhere(self, known: Rows, loop: cst.CSTNode, name: str) -> bool:
        """Whether a tensor is read outside the training step, in the loop, behind it, or in a function."""
        source, scope = known.level.frame.source, known.level.frame.node
        frame = known.level.frame
        if frame.func is not None and name not in frame.assigned and name not in frame.arguments:
            return True  # a name of an outer scope
        reads, start = {id(n) for n in known.reads}, source.span(loop).start
        return any(
            id(node) not in reads and (source.span(node).start > start or _in_function(source, node, scope))
            for node in uses_of(scope, name)
        )

    def outputs(self, facts: Facts, known: Rows, form: str) -> Iterator[Finding]:
        """An output that is shown or counted is that of all rows again."""
        source = known.level.frame.source
        names = facts.names_of(source)
        for shown in known.shown:
            stmts = list(dict.fromkeys(statement_of(source, n) for n in shown.uses))
            block = common_block(source, stmts)
            if block is None:
                continue
            first = min((in_block(source, s, block) for s in stmts), key=lambda s: source.span(s).start)
            whole = names.fresh(f"all_{shown.name.split('.')[-1]}")
            kept = any("." in n or self.used_elsewhere(known, known.level.loops[0].node, n) for n in known.names)
            cut = f"[: len({known.names[0]})]" if kept and form != "plain" else ""
            gathered = f"{names['rows_of_all']}({shown.name}){cut}"
            if shown.many:
                gathered = f"[{names['rows_of_all']}(part){cut} for part in {shown.name}]"
            yield self.finding(
                source,
                first,
                f"`{shown.name}` holds one rank's rows here",
                InsertBefore(source, first, (f"{whole} = {gathered}",)),
                *(Replace(source, n, whole) for n in shown.uses),
                AddHelper(source, "rows_of_all"),
                AddHelper(source, "all_reduce_sum", reduce_options(facts)),
                reason="those of all ranks, in their order",
            )

    def weighed(self, facts: Facts, event: Event, over: Over | None, weight: str) -> Iterator[Finding]:
        """A sum is made one over all rows, and a mean counts for as many rows as it is over."""
        source, node = event.frame.source, event.node
        loss = node.func.value if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) else None
        if loss is None or not (over is Over.SUM or weight):
            return
        code = source.code(loss)
        if over is Over.SUM:
            yield self.finding(
                source,
                node,
                f"`{code}` is a sum over the rows: it is multiplied by the number of processes",
                *times_world_size(facts, source, loss),
                reason="the loss is a sum over the rows, and DDP averages over ranks",
            )
        else:
            yield self.finding(
                source,
                node,
                f"`{code}` is a mean over one rank's rows: it counts for as many as they are",
                times(source, loss, weight),
                reason="ranks may have a row more or less, and DDP averages over ranks",
            )

    def shown(self, facts: Facts, total: Total, weight: str) -> Finding:
        """`print(loss.item())`, `losses.append(float(loss))`: of one rank's rows, without the others'."""
        source, names = total.source, facts.names_of(total.source)
        reduce = "all_reduce_sum" if total.over is Over.SUM else "all_reduce_mean"
        word = "total" if total.over is Over.SUM else "mean"
        mean = names.fresh(f"{word}_{total.name.split('.')[-1]}")
        text = f"{total.name}.item()"
        counted = f"{text} * {weight}" if weight and total.over is Over.MEAN else text
        line = f"[{mean}] = {names[reduce]}({counted})"
        searched = {id(r.value) for _, r in searched_returns(facts)}
        edits: list[Edit] = []
        for use in total.uses:
            tensor = use.tensor and id(use.node) not in searched
            edits.append(Replace(source, use.node, f"{names['torch']}.tensor({mean})" if tensor else mean))
        stmts = list(dict.fromkeys(statement_of(source, u.node) for u in total.uses))
        alone = len(stmts) == 1 and not isinstance(source.parents.get(stmts[0]), cst.If)
        if alone and not isinstance(stmts[0], cst.While):
            place: Edit = InsertBefore(source, stmts[0], (line,))
        else:
            place = InsertAfter(source, total.bind, (line,))
        return self.finding(
            source,
            stmts[0],
            f"`{text}` is of one rank's rows",
            place,
            *edits,
            AddHelper(source, reduce),
            AddHelper(source, "all_reduce_sum", reduce_options(facts)),
            reason="the number of all rows, alike on every rank",
        )


def form_of(found: list[Rows]) -> str:
    """How a script's rows are shared out, all of them alike: "alike" where the weight of a mean has no name."""
    if not any(map(has_mean, found)):
        return "plain"
    named = all(_sees(known, s, n) for known in found for s, n in _means(known))
    return "weight" if named else "alike"


def has_mean(known: Rows) -> bool:
    return any(True for _ in _means(known))


def _means(known: Rows) -> Iterator[tuple[Source, cst.CSTNode]]:
    """The places where a mean over the rows is backpropagated or used."""
    for event in known.backwards:
        if known.losses.get(id(event.node)) is not Over.SUM:
            yield event.frame.source, event.node
    for total in known.totals:
        if total.over is not Over.SUM:
            yield total.source, total.bind
            yield from ((total.source, use.node) for use in total.uses)


def _sees(known: Rows, source: Source, node: cst.CSTNode) -> bool:
    """Whether what is bound before the training loop can be read there."""
    frame = known.level.frame
    return source is frame.source and (frame.func is None or frame.node in source.ancestors(node))


def _in_function(source: Source, node: cst.CSTNode, scope: cst.CSTNode) -> bool:
    for above in source.ancestors(node):
        if above is scope:
            return False
        if isinstance(above, (cst.FunctionDef, cst.Lambda)):
            return True
    return False
