"""A training loop in, findings for the lists, dicts, arrays and meters out that keep its batches' numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddpify.edits import AddHelper, AddImport, Edit, InsertAfter, Replace
from ddpify.facts import Facts
from ddpify.facts.kept import kept
from ddpify.facts.loops import LoopFacts
from ddpify.facts.meters import METHOD, Meter
from ddpify.facts.roles import expression_for
from ddpify.facts.setup import reduce_options
from ddpify.facts.tallies import Tally
from ddpify.facts.windows import windows
from ddpify.rules._base import Finding, Rule
from ddpify.rules._meters import with_method
from ddpify.rules._shared import behind_wrapper, mean_helpers

_REASON = "numbers of the whole set, alike on every rank"


def kept_numbers(rule: Rule, facts: Facts, loop: LoopFacts, done: set[int]) -> Iterator[Finding]:
    """What is put together behind the loop, and a note on what is not: rank 0 shows its own of that."""
    found = kept(facts, loop)
    if found.rest:
        yield one_shard(rule, loop, found.rest)
    for name in found.ordered:
        yield _in_order(rule, facts, loop, name)
    for name in found.lists:
        yield _average_list(rule, facts, loop, name)
        yield from _windows(rule, facts, loop, name)
    yield from _meters(rule, facts, loop, found.meters, done)
    for tally in found.tallies:
        yield _add_up(rule, facts, loop, tally)
    for name, form in found.rows:
        yield _merge(rule, facts, loop, name, form)
    for name in found.holes:
        yield rule.finding(
            loop.source,
            loop.node,
            f"`{name}` gets the rows of this rank's own samples: those of the other ranks stay as they were",
            left=f"collect the rows, and where they go, from all ranks behind the loop (dist.all_gather_object) before "
            f"`{name}` is used",
        )
    for again in found.again:
        yield rule.finding(
            loop.source,
            loop.node,
            f"`{again.name}` is one rank's own behind the loop: it was computed within",
            InsertAfter(loop.source, loop.node, (loop.source.code(again.stmt),), last=True),
            reason=_REASON,
        )


def evaluated_numbers(rule: Rule, facts: Facts, loop: LoopFacts, mode: str, done: set[int]) -> Iterator[Finding]:
    """What a shared-out evaluation keeps beside its sums, brought together behind the loop."""
    held = loop.held
    if held is None:
        return
    names = facts.names_of(loop.source)
    for name in (*held.by_sample, *held.by_batch):
        by_index = mode == "batch" and name in held.by_sample
        helper = "gather_by_index" if by_index else "gather_in_order"
        given = f"{name}, {held.loader}.batch_sampler" if by_index else name
        yield rule.finding(
            loop.source,
            loop.node,
            f"`{name}` is put together from all ranks",
            InsertAfter(loop.source, loop.node, (f"{name}[:] = {names[helper]}({given})",)),
            AddHelper(loop.source, helper),
            reason=_REASON,
        )
    for name, kind in held.rows:
        yield rule.finding(
            loop.source,
            loop.node,
            f"`{name}` is put together from all ranks",
            InsertAfter(
                loop.source, loop.node, (f"{name} = {names['gather_rows']}({name}, {held.loader}.batch_sampler)",)
            ),
            AddHelper(loop.source, "gather_rows", frozenset({kind})),
            AddImport(loop.source, "torch"),
            AddImport(loop.source, "dist"),
            reason=_REASON,
        )
    yield from _meters(rule, facts, loop, held.meters, done, empty=True)
    for tally in held.tallies:
        yield _add_up(rule, facts, loop, tally)


def one_shard(rule: Rule, loop: LoopFacts, kept: Sequence[str]) -> Finding:
    """The note on what stays a rank's own."""
    return rule.finding(loop.source, loop.node, keeps_one_shard(kept), note=True)


def keeps_one_shard(kept: Sequence[str]) -> str:
    """What is said of the names that keep a rank's own numbers."""
    names = " and ".join(f"`{name}`" for name in kept)
    return (
        f"{names} {'keep' if len(kept) > 1 else 'keeps'} numbers of each rank's own training batches: what rank 0 "
        "prints of them is an estimate from its shard (dist.all_gather_object collects those of all ranks)"
    )


def _average_list(rule: Rule, facts: Facts, loop: LoopFacts, name: str) -> Finding:
    """A list of batch means: each one averaged over the ranks, in place, since others may hold the list."""
    held = behind_wrapper(facts, loop.frame, name)
    line = f"{held}[:] = {facts.names_of(loop.source)['all_reduce_mean']}(*{held})"
    return rule.finding(
        loop.source,
        loop.node,
        f"the numbers in `{name}` are averaged over the ranks",
        InsertAfter(loop.source, loop.node, (line,)),
        *mean_helpers(facts, loop.source),
        reason=_REASON,
    )


def _windows(rule: Rule, facts: Facts, loop: LoopFacts, name: str) -> Iterator[Finding]:
    """`losses[-iterations:]`, the part of an epoch: a rank has as many as its loader has batches."""
    loader = expression_for(loop.loader, loop.frame, facts.flow)
    for steps in windows(facts, loop, name):
        yield rule.finding(
            loop.source,
            steps,
            f"`{name}` has fewer entries of an epoch than `{loop.source.code(steps)}`: a rank makes a part of them",
            *([Replace(loop.source, steps, f"len({loader})")] if loader is not None else []),
            reason="as many as a rank has in an epoch",
            left="" if loader is not None else "take as many entries as the training loader has batches",
        )


def _in_order(rule: Rule, facts: Facts, loop: LoopFacts, name: str) -> Finding:
    """A list with an entry for each batch that was dealt out: those of all ranks, as one process has them."""
    held = behind_wrapper(facts, loop.frame, name)
    line = f"{held}[:] = {facts.names_of(loop.source)['gather_in_order']}({held})"
    return rule.finding(
        loop.source,
        loop.node,
        f"`{name}` is put together from all ranks",
        InsertAfter(loop.source, loop.node, (line,)),
        AddHelper(loop.source, "gather_in_order"),
        AddImport(loop.source, "dist"),
        reason=_REASON,
    )


def _meters(
    rule: Rule, facts: Facts, loop: LoopFacts, held: Sequence[Meter], done: set[int], *, empty: bool = False
) -> Iterator[Finding]:
    """`losses.all_reduce()` behind the loop, a method that the class of the meter gets."""
    for m in held:
        held_in = behind_wrapper(facts, loop.frame, m.target)
        edits: list[Edit] = [InsertAfter(loop.source, loop.node, (f"{held_in}.{METHOD}()",))]
        if id(m.update) not in done:
            done.add(id(m.update))
            edits += with_method(facts, m)
        if (
            empty and m.tensor and (m.sums or any(kind == "list" for _, kind in m.arrays))
        ):  # a rank without a batch has the number that the meter begins with
            edits.append(AddHelper(m.source, "all_reduce_sum", frozenset({"tensor", "empty"})))
        yield rule.finding(loop.source, loop.node, f"`{m.target}` is added up over the ranks", *edits, reason=_REASON)


def _merge(rule: Rule, facts: Facts, loop: LoopFacts, name: str, form: str) -> Finding:
    """The rows of a rank's own samples, put into those of all."""
    names = facts.names_of(loop.source)
    array = f"{names['torch']}.from_numpy({name})" if form == "numpy" else name
    return rule.finding(
        loop.source,
        loop.node,
        f"the rows of `{name}` are put together from all ranks",
        InsertAfter(loop.source, loop.node, (f"{names['merge_rows']}({array})",)),
        AddHelper(loop.source, "merge_rows"),
        AddHelper(facts.source, "setup_distributed", frozenset({"host"})),
        AddImport(loop.source, "torch"),
        AddImport(loop.source, "dist"),
        reason=_REASON,
    )


def _add_up(rule: Rule, facts: Facts, loop: LoopFacts, tally: Tally) -> Finding:
    """The line for what a list, a dict or an array has counted."""
    source, names = loop.source, facts.names_of(loop.source)
    name = behind_wrapper(facts, loop.frame, tally.target)
    call = names["all_reduce_mean" if tally.agg == "mean" else "all_reduce_sum"]
    options = reduce_options(facts) | frozenset({"tensor"} if tally.tensor else ())
    edits: list[Edit] = [AddHelper(source, "all_reduce_sum", options)]
    edits += [AddHelper(source, "all_reduce_mean")] if tally.agg == "mean" else []
    match tally.form:
        case "list":
            line = f"{name}[:] = {call}(*{name})"
        case "dict":
            line = f"{name}.update(zip({name}, {call}(*{name}.values())))"
        case "entries":
            line = f"{name}[:] = {names['gather_list']}({name})"
            edits = [AddHelper(source, "gather_list")]
        case _:
            array = f"{names['torch']}.from_numpy({name})" if tally.form == "numpy" else name
            line = f"{names['dist']}.all_reduce({array})"
            edits = [AddImport(source, "dist"), AddHelper(facts.source, "setup_distributed", frozenset({"host"}))]
            edits += [AddImport(source, "torch")] if tally.form == "numpy" else []
    return rule.finding(
        source,
        loop.node,
        f"`{tally.target}` is put together from all ranks"
        if tally.form == "entries"
        else f"`{tally.target}` is added up over the ranks",
        InsertAfter(source, loop.node, (line,)),
        *edits,
        reason=_REASON,
    )
