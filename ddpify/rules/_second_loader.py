"""What reads the training loader for its numbers in, a loader of its own for it out: each sample once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import libcst as cst

from ddpify.edits import AddImport, Edit, InsertAfter, Replace
from ddpify.facts import Facts
from ddpify.facts.definitions import argument_of
from ddpify.facts.dependencies import bindings
from ddpify.facts.frames import Frame
from ddpify.facts.loops import LoopFacts
from ddpify.facts.metrics import loop_facts
from ddpify.facts.sharding import LoaderFacts, loader_facts
from ddpify.facts.summaries import loader_argument
from ddpify.facts.trails import shown
from ddpify.facts.values import Loader, Obj
from ddpify.rules._base import Finding, Rule
from ddpify.source import Source, walk

#: what the loader of an evaluation does not have: it reads in order, each sample once
_LEFT_OUT = frozenset({"shuffle", "generator"})


@dataclass(frozen=True, eq=False)
class Reading:
    """A loop or a comprehension over a loader: `over` is what it runs through, as it is written there."""

    loader: Obj
    over: cst.BaseExpression
    frame: Frame

    @property
    def source(self) -> Source:
        return self.frame.source


def readings(facts: Facts, loop: LoopFacts) -> list[Reading]:
    """A loop over a loader, once for each function context."""
    same = [lp for lp in facts.cached("loops", loop_facts) if lp.node is loop.node and lp.loader is loop.loader]
    return [Reading(lp.loader, lp.node.iter, lp.frame) for lp in same]


def second_loader(facts: Facts, read: Sequence[Reading], shared: bool, made: dict[tuple[int, bool], str]) -> list[Edit]:
    """`eval_loader = DataLoader(loader.dataset, ...)` behind the training loader, and its name where it is read.

    Of what is added up (`shared`) each rank reads its part, else all of it; none where the training loader has no name
    there. `made` keeps the names, by loader and form: two loops may read one.
    """
    loader = read[0].loader if read else None
    known = loader_facts(facts, loader) if isinstance(loader, Loader) else None
    target = _target(known) if known is not None else None
    uses = list({id(n): (s, n) for r in read for s, n in _uses(facts, r)}.values())
    if known is None or target is None or not uses or not facts.editable(known.source):
        return []
    name = known.source.code(target)
    if not all(s is known.source and s.code(n) == name and _sees(s, n, target) for s, n in uses):
        return []
    key = (id(loader), shared)
    edits: list[Edit] = []
    if key not in made:
        names = facts.names_of(known.source)
        base, dot, last = name.rpartition(".")
        made[key] = base + dot + names.fresh(f"{'eval' if shared else 'whole'}_{last}")
        call = _text(known, name, f"{names['dist']}." if shared else "")
        edits = [InsertAfter(known.source, known.stmt, (f"{made[key]} = {call}",))]
        edits += [AddImport(known.source, "dist")] if shared else []
    return [*edits, *(Replace(s, n, made[key]) for s, n in uses)]


def _text(known: LoaderFacts, name: str, dist: str) -> str:
    """The call once more: `DataLoader(loader.dataset, batch_size=8, sampler=range(rank, n, world_size))`"""
    source, found = known.source, list[str]()
    for at, arg in enumerate(known.call.args):
        what = "" if arg.star else loader_argument(at, arg)
        if what == "dataset":
            found.append(source.code(arg).replace(source.code(arg.value), f"{name}.dataset").rstrip(", \n"))
        elif what not in _LEFT_OUT and not (dist and what == "drop_last"):
            found.append(source.code(arg).rstrip(", \n"))
    if dist:
        found.append(f"sampler=range({dist}get_rank(), len({name}.dataset), {dist}get_world_size())")
    return f"{source.code(known.call.func)}({', '.join(found)})"


def _target(known: LoaderFacts) -> cst.Name | cst.Attribute | None:
    """What the training loader is assigned to, where its call can be written a second time."""
    stmt, args = known.stmt, known.call.args
    late = any(a.keyword is None and not a.star and at > 1 for at, a in enumerate(args))
    own = known.problem or known.draws is not None or known.plain is not None or known.subset or known.dataset is None
    if not isinstance(stmt, cst.Assign) or stmt.value is not known.call or len(stmt.targets) != 1:
        return None
    target = stmt.targets[0].target
    unknown = any(a.star == "*" for a in args) or (known.splat is not None and known.splat_shuffles)
    if late or own or unknown or not isinstance(target, (cst.Name, cst.Attribute)):
        return None
    return target


def _uses(facts: Facts, read: Reading) -> Iterator[tuple[Source, cst.CSTNode]]:
    """The expressions that give the training loader to the loop: in its header, or at the calls of its function."""
    for node in walk(read.over):
        held = facts.flow.values.get(node, ()) if isinstance(node, (cst.Name, cst.Attribute)) else ()
        if read.loader not in held:
            continue
        if not isinstance(node, cst.Name) or node.value not in read.frame.arguments:
            yield read.source, node
            return
        for entry in read.frame.entries:
            given = argument_of(entry.call, read.frame, node.value)
            if given is not None and read.loader in facts.flow.values.get(given, ()):
                yield entry.frame.source, given
        return


def _sees(source: Source, use: cst.CSTNode, target: cst.Name | cst.Attribute) -> bool:
    """Whether a name that is bound beside `target` can be read at `use`."""
    home, here = (_scope(source, node) for node in (target, use))
    if isinstance(target, cst.Attribute):
        classes = [next((a for a in source.ancestors(n) if isinstance(a, cst.ClassDef)), None) for n in (target, use)]
        return classes[0] is classes[1] and (classes[0] is not None or home is here)
    local = here is not None and any(target.value in b.targets for b in bindings(here))
    return home is here or (home is None and not local)


def _scope(source: Source, node: cst.CSTNode) -> cst.FunctionDef | None:
    return next((a for a in source.ancestors(node) if isinstance(a, cst.FunctionDef)), None)


def sums_samples(facts: Facts, loop: LoopFacts, shared: set[Loader]) -> bool:
    """The training loader read for its numbers: a sum over samples, in a loop that reads no loader in full."""
    same = [lp for lp in facts.cached("loops", loop_facts) if lp.node is loop.node and lp is not loop]
    training = facts.roles.training_loaders
    whole = any(lp.loader not in shared and lp.loader not in training for lp in same)
    return not (loop.problem or loop.per_batch or whole or any(lp.training for lp in same))


def rereads(
    rule: Rule, facts: Facts, loop: LoopFacts, adds_up: bool, made: dict[tuple[int, bool], str]
) -> Iterator[Finding]:
    """`accuracy(net, train_loader)`: its sampler deals out a shard, padded with samples that come twice."""
    edits = second_loader(facts, readings(facts, loop), adds_up, made)
    what = f"the loop over `{shown(loop.source, loop.node.iter)}` reads the training loader for its numbers"
    if edits:
        yield rule.finding(loop.source, loop.node, what, *edits, reason="numbers of the training set, each sample once")
        if not adds_up:
            yield rule.finding(loop.source, loop.node, f"{what}: every rank evaluates all of it", note=True)
    else:
        whose = (
            "and the shards repeat some samples to be of one length: those count twice"
            if adds_up
            else "and each rank has only a shard of it: they are one rank's"
        )
        yield rule.finding(
            loop.source,
            loop.node,
            f"this loop reads the training loader for its numbers, {whose}",
            left="evaluate on a second DataLoader over the training set, without the DistributedSampler",
        )
