"""DDP501: numbers of the whole set, added up over the ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import libcst as cst

from ddpify.edits import AddHelper, AddImport, Edit, InsertAfter, Replace
from ddpify.facts import Facts
from ddpify.facts.evaluation import evaluations
from ddpify.facts.kept import needed
from ddpify.facts.loops import Accumulator, LoopFacts, counts_batches, read_elsewhere
from ddpify.facts.metrics import loop_facts
from ddpify.facts.phases import phase_test
from ddpify.facts.setup import reduce_options
from ddpify.facts.starts import base_of
from ddpify.facts.tallies import tallies
from ddpify.facts.trails import shown, way_back
from ddpify.facts.unreduced import adds_up
from ddpify.facts.wholes import by_whole_set
from ddpify.rules._base import Bad, Converts, Finding, Good, Rule
from ddpify.rules._comprehensions import comprehensions
from ddpify.rules._denominators import denominators, divisors, is_count, means_of_draws
from ddpify.rules._kept import evaluated_numbers, kept_numbers, one_shard
from ddpify.rules._one_shard import of_one_shard
from ddpify.rules._repeats import counted_once
from ddpify.rules._second_loader import rereads, sums_samples
from ddpify.rules._shared import behind_wrapper, mean_helpers
from ddpify.source import walk

_WHOLE = "numbers of the whole set, alike on every rank"


class MetricNotReduced(Rule):
    """A number that is printed or decided is one shard's.

    ## What it does
    Finds the counters and sums of a loop over a loader that are used after it, and adds them up over the ranks once.

    ## Why is this bad?
    Each rank has seen its own shard: `correct / len(dataset)` is one world-th of the truth, and ranks that decide on
    numbers of their own stop at different epochs.

    ## Fix
    Add up sum and count over the ranks once behind the loop, `dist.all_reduce(torch.stack([total, count]))`, then
    divide.

    ## Edit
    Directly behind the loop. Sums over samples are added up: `correct, seen = all_reduce_sum(correct, seen)`; what
    they are divided by is made global with them. Sums of batch means are averaged over the ranks
    (`all_reduce_mean`): that is what one process that ran the union of the ranks' batches would have added up, and
    `len(loader)` stays what it divides by. Those that are divided by what counts the whole set (`len(dataset)`,
    `len(dataset) // batch_size`) are added up. What is set before the loop over the epochs and used behind it is
    brought together there. Numbers in dicts, lists and attributes are added up like those in variables, also where
    a method that the loop calls adds to them; counts for each class, a dict of sums by name and an array go over as
    a whole. A list that gets one batch mean a step is averaged entry by entry (`losses[-steps:]` of an epoch takes a
    rank's steps), a list of predictions is put together from those of all ranks (`gather_list`). A meter of the
    script's own (`sum += val * n`, `count += n`, `avg = sum / count`, or arrays that an evaluation counts into) gets a
    method that adds its sums up. What is not understood is named in the report.
    """

    code = "DDP501"
    references = ("https://github.com/pytorch/examples/issues/905",)
    good = (
        Good("""
            loader = DataLoader(dataset, sampler=DistributedSampler(dataset, shuffle=False, drop_last=True))
            right = torch.zeros(1)
            with torch.no_grad():
                for x, y in loader:
                    right += (model(x) > y).sum()
            dist.all_reduce(right)
            share = right.item() / len(loader.dataset)
            """),
        Good("""
            right = 0
            loader = DataLoader(dataset)
            with torch.no_grad():
                for x, y in loader:
                    right += (model(x) > y).sum().item()
            share = right / len(loader.dataset)
            """),
    )
    bad = (
        Bad("""
            loader = DataLoader(dataset, sampler=DistributedSampler(dataset, shuffle=False, drop_last=True))
            right = 0
            with torch.no_grad():
                for x, y in loader:
                    right += (model(x) > y).sum().item()
            share = right / len(loader.dataset)
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
            for epoch in range(2):
                total = 0.0
                for (x,) in loader:
                    loss = net(x).mean()
                    loss.backward()
                    optimizer.step()
                    total += loss.item()
                print(total / len(loader))
            """,
            gives=("    [total] = all_reduce_mean(total)", "total / len(loader)"),
        ),
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            data = TensorDataset(torch.ones(8, 4))
            loader = DataLoader(data, batch_size=2)
            net = nn.Linear(4, 1)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            count = int(len(data) / loader.batch_size)
            for epoch in range(2):
                total, other = 0.0, 0.0
                for (x,) in loader:
                    loss = net(x).mean()
                    loss.backward()
                    optimizer.step()
                    total += loss.item()
                    other += loss.item()
                print(total / count, other / len(loader))
            """,
            gives=(
                "    [total] = all_reduce_sum(total)",
                "    [other] = all_reduce_mean(other)",
                "print(total / count, other / len(loader))",
            ),
        ),
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
            net = nn.Linear(4, 1)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            losses = []
            for epoch in range(2):
                for (x,) in loader:
                    loss = net(x).mean()
                    loss.backward()
                    optimizer.step()
                    losses.append(loss.item())
            print(sum(losses) / len(losses))
            """,
            gives=("    losses[:] = all_reduce_mean(*losses)",),
        ),
    )

    def check(self, facts: Facts) -> Iterator[Finding]:
        if facts.converting:
            yield from self.find(facts)
        elif not adds_up(facts):
            yield from of_one_shard(self, facts)

    def phase(self, facts: Facts, loop: LoopFacts) -> str | None:
        """Where the same loop evaluates in full in another phase: the test that is true while training."""
        loops = facts.cached("loops", loop_facts)
        other = next((lp for lp in loops if lp.node is loop.node and not lp.training), None)
        if not loop.training or other is None:
            return ""
        return phase_test(facts, loop.start, other.start)

    def find(self, facts: Facts) -> Iterator[Finding]:
        modes = {id(e.loader): e.mode for e in facts.cached("evaluations", evaluations)}
        shared = {e.loader for e in facts.cached("evaluations", evaluations) if e.mode != "all"}
        done: set[int] = set()
        made: dict[tuple[int, bool], str] = {}
        for loop in facts.cached("loops", loop_facts):
            again = not loop.training and loop.loader in facts.roles.training_loaders and not loop.peeks
            if id(loop.node) in done or not facts.editable(loop.source):
                continue
            if again:
                adds_up = sums_samples(facts, loop, shared)
                yield from rereads(self, facts, loop, adds_up, made)
                if not adds_up:
                    done.add(id(loop.node))
                    continue
            if not (loop.training or loop.loader in shared or again):
                continue
            done.add(id(loop.node))
            if loop.reduces:
                continue  # the script's own helper does it
            test = self.phase(facts, loop)
            if test is None:
                yield self.finding(
                    loop.source,
                    loop.node,
                    f"the same loop over `{shown(loop.source, loop.node.iter)}` trains and evaluates, and nothing was "
                    "found that tells the two apart",
                    refuse=way_back(facts.flow, loop.node.iter, loop.source, loop.frame),
                )
                continue
            if loop.training:
                for f in kept_numbers(self, facts, loop, done):
                    yield replace(f, edits=tuple(self.only(e, test, loop) for e in f.edits)) if test else f
            if not loop.training:
                yield from evaluated_numbers(self, facts, loop, modes.get(id(loop.loader), ""), done)
            for f in self.reduce(facts, loop):
                yield replace(f, edits=tuple(self.only(e, test, loop) for e in f.edits)) if test else f
        yield from comprehensions(self, facts, made)

    def only(self, edit: Edit, test: str, loop: LoopFacts) -> Edit:
        """The reduction of a loop that also evaluates in full: while training only."""
        if isinstance(edit, InsertAfter) and edit.node is loop.node:
            unit = "    "
            return replace(edit, lines=(f"if {test}:\n" + "\n".join(unit + line for line in edit.lines),))
        return edit

    def reduce(self, facts: Facts, loop: LoopFacts) -> Iterator[Finding]:
        # they go over in one piece
        pieces = {t.target for t in tallies(facts, loop)} if loop.training else loop.held.names if loop.held else set()
        again = needed(facts, loop) if loop.training else frozenset[str]()
        read = [a for a in loop.accumulators if a.read_after or a.target in again]
        used = [a for a in read if base_of(a.target) not in pieces]
        sums = [a for a in used if a.fresh]
        if loop.dealt:
            # nothing else is any rank's own: what the sums are divided by counts the whole
            kept = [a for a in used if not a.fresh and not counts_batches(facts, loop, a)]
            yield from self.unreduced(facts, loop, kept)
            means = means_of_draws(loop, sums) if loop.drawn else []
            sums = [a for a in sums if a not in means]
            if means:
                yield self.average(facts, loop, means, loop.node)
        elif loop.training:
            kept = [a for a in used if not a.fresh and not counts_batches(facts, loop, a)]
            whole = [a for a in kept if a.whole is not None and not self.phase(facts, loop)]
            yield from self.unreduced(facts, loop, [a for a in kept if a not in whole])
            for outer in dict.fromkeys(a.whole for a in whole if a.whole is not None):
                yield from self.over_epochs(facts, loop, [a for a in whole if a.whole is outer], outer)
            # a number of batches is alike on every rank
            sums = [a for a in sums if not counts_batches(facts, loop, a)]
            means = self.means(facts, loop, sums)
            sums = [a for a in sums if a not in means]
            if means:
                yield self.average(facts, loop, means, loop.node)
        if sums:
            yield self.added_up(facts, loop, sums, loop.node)

    def added_up(self, facts: Facts, loop: LoopFacts, sums: list[Accumulator], behind: cst.For | cst.While) -> Finding:
        """Sums over samples."""
        targets, more = [behind_wrapper(facts, loop.frame, a.target) for a in sums], list[Edit]()
        values = [*targets]
        if not loop.training:
            more = self.batch_counts(facts, loop, targets, values)
        elif loop.dealt and not loop.drawn:
            more = counted_once(facts, loop, divisors(facts, loop, sums), targets, values)
        left = ", ".join(targets) if len(targets) > 1 else f"[{targets[0]}]"
        line = f"{left} = {facts.names_of(loop.source)['all_reduce_sum']}({', '.join(values)})"
        edits: list[Edit] = [
            InsertAfter(loop.source, behind, (line,)),
            *more,
            AddHelper(loop.source, "all_reduce_sum", reduce_options(facts) | _forms(sums, empty=not loop.training)),
            AddImport(loop.source, "dist"),
        ]
        if loop.training and (loop.drawn or not loop.dealt) and not self.phase(facts, loop):
            edits.extend(denominators(facts, loop, [a for a in sums if a.agg != "mean"]))
        quoted = " and ".join(f"`{a.target}`" for a in sums)
        return self.finding(
            loop.source,
            loop.node,
            f"{quoted} {'are' if len(sums) > 1 else 'is'} added up over the ranks",
            *edits,
            reason=_WHOLE,
        )

    def unreduced(self, facts: Facts, loop: LoopFacts, kept: list[Accumulator]) -> Iterator[Finding]:
        """What is used after the loop and cannot be added up behind it."""
        fields = [a.target for a in kept if not a.target.isidentifier() and a.agg != "const"]
        if held := [t for t in fields if read_elsewhere(facts, loop, t)]:
            yield one_shard(self, loop, held)
        for a in kept:
            if a.target.isidentifier() and self.used_after(facts, loop, a):
                yield self.finding(
                    loop.source,
                    loop.node,
                    f"`{a.target}` is used after the loop, and is no number that is set right before it: "
                    "it stays rank 0's own",
                    left=f"set `{a.target}` before the loop, or add it up over the ranks where it is used",
                )

    def means(self, facts: Facts, loop: LoopFacts, sums: list[Accumulator]) -> list[Accumulator]:
        found = [a for a in sums if a.agg == "mean" or (a.agg == "other" and not is_count(facts, loop, a, sums))]
        return [a for a in found if not by_whole_set(facts, loop, a)]

    def over_epochs(
        self, facts: Facts, loop: LoopFacts, found: list[Accumulator], outer: cst.For | cst.While
    ) -> Iterator[Finding]:
        """What is added up in all epochs, and used behind them."""
        means = self.means(facts, loop, found)
        if means:
            yield self.average(facts, loop, means, outer)
        if sums := [a for a in found if a not in means]:
            yield self.added_up(facts, loop, sums, outer)

    def average(self, facts: Facts, loop: LoopFacts, means: list[Accumulator], behind: cst.For | cst.While) -> Finding:
        """Sums of batch means: what one process would have added up over the global batches."""
        names = ", ".join(behind_wrapper(facts, loop.frame, a.target) for a in means)
        line = (
            f"{names if len(means) > 1 else f'[{names}]'} = {facts.names_of(loop.source)['all_reduce_mean']}({names})"
        )
        quoted = " and ".join(f"`{a.target}`" for a in means)
        edits = (
            InsertAfter(loop.source, behind, (line,)),
            *mean_helpers(facts, loop.source, _forms(means)),
        )
        return self.finding(
            loop.source,
            loop.node,
            f"{quoted} {'are' if len(means) > 1 else 'is'} averaged over the ranks",
            *edits,
            reason=_WHOLE,
        )

    def batch_counts(self, facts: Facts, loop: LoopFacts, targets: list[str], values: list[str]) -> list[Edit]:
        """The number of batches is reduced with what it divides: by its name, or by a name that each place gets."""
        edits: list[Edit] = []
        name = facts.names_of(loop.source)["batches"]
        for count in loop.batch_counts:
            if (count.name or name) not in targets:
                targets.append(count.name or name)
                values.append(count.value)
            if not count.name:
                edits.append(Replace(loop.source, count.node, name, brackets=True))
        return edits

    def used_after(self, facts: Facts, loop: LoopFacts, a: Accumulator) -> bool:
        inner = any(
            isinstance(n, cst.Assign) and loop.source.code(n.targets[0].target) == a.target
            for n in walk(loop.node.body)
        )
        return not inner  # set inside the loop: a running value, rank 0's own


def _forms(sums: list[Accumulator], empty: bool = False) -> frozenset[str]:
    """What the helper keeps: tensors stay tensors, also where a process had no batch (`empty`)."""
    tensors = any(a.tensor for a in sums)
    return frozenset(["tensor"] * tensors + ["empty"] * (tensors and empty))
