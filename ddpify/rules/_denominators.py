"""Sums that are reduced behind a training loop in, the edits of what they are divided by, one rank's numbers, out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from ddpify.edits import Edit, Replace, Surround
from ddpify.facts import Facts
from ddpify.facts.batchsize import is_given
from ddpify.facts.contents import data_of, origins
from ddpify.facts.loops import Accumulator, LoopFacts
from ddpify.facts.roles import expression_for
from ddpify.facts.sharding import loader_facts, subset_indices
from ddpify.facts.values import Dataset, FromLength, FromLoop, Instance, Loader, Sampler, Thing
from ddpify.source import Source, walk


def denominators(facts: Facts, loop: LoopFacts, sums: list[Accumulator]) -> Iterator[Edit]:
    """`total / len(loader)` behind the loop: the divisor is one rank's number of batches, so it is multiplied."""
    world = f" * {facts.names_of(loop.source)['dist']}.get_world_size()"
    for divisor in divisors(facts, loop, sums):
        yield from _divisor(facts, loop, divisor, world)


def divisors(facts: Facts, loop: LoopFacts, sums: list[Accumulator]) -> Iterator[cst.BaseExpression]:
    """What the sums are divided by behind the loop, where that is no sum itself, nor a size for all ranks together."""
    targets = {a.target for a in sums if not _of_all(facts, loop, a.added)}
    end = loop.source.span(loop.node.body).end
    for node in walk(loop.frame.node):
        if loop.source.span(node).start <= end if isinstance(node, (cst.BinaryOperation, cst.AugAssign)) else True:
            continue
        if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, (cst.Divide, cst.FloorDivide)):
            numerator, divisor = node.left, node.right
        elif isinstance(node, cst.AugAssign) and isinstance(node.operator, cst.DivideAssign):
            numerator, divisor = node.target, node.value
        else:
            continue
        if not any(
            isinstance(n, (cst.Name, cst.Attribute, cst.Subscript)) and loop.source.code(n) in targets
            for n in walk(numerator)
        ):
            continue
        if any(
            isinstance(n, (cst.Name, cst.Attribute, cst.Subscript)) and loop.source.code(n) in targets
            for n in walk(divisor)
        ):
            continue
        if _of_all(facts, loop, [divisor]):
            continue
        yield divisor


def _of_all(facts: Facts, loop: LoopFacts, nodes: Iterable[cst.BaseExpression]) -> bool:
    """`hits / args.batch_size`, `len(loader) * args.batch_size`, where that is the size for all ranks together."""
    if facts.global_batch != "keep" or not isinstance(loop.loader, Loader):
        return False
    return any(is_given(facts, loop.loader, loop.frame, n) for node in nodes for n in (node, *walk(node)))


def _divisor(facts: Facts, loop: LoopFacts, divisor: cst.BaseExpression, world: str) -> Iterator[Edit]:
    value = facts.flow.values.get(divisor, ())
    share = loop.training and _is_share(facts, loop, divisor)
    for origin in (*origins(value), *([None] if share else [])):
        batches = isinstance(origin, FromLength) and origin.of is loop.loader
        index = isinstance(origin, FromLoop) and origin.loop is loop.node
        if batches or index or share:
            yield from _times(loop.source, divisor, world)
            return
        if (
            isinstance(origin, FromLength)
            and isinstance(origin.of, (Dataset, Instance, Thing))
            and _is_length(facts, loop, divisor)
        ):
            name = expression_for(loop.loader, loop.frame, facts.flow)
            mine = isinstance(loop.loader, Loader) and origin.of in loop.loader.dataset
            if name is not None and isinstance(loop.loader, Loader) and mine and _reads_all(facts, loop.loader):
                yield from _samples(loop, divisor, name, world)
                return


def _times(source: Source, divisor: cst.BaseExpression, world: str) -> Iterator[Edit]:
    """`len(loader) * world`, in brackets where something is divided by it; what stands in brackets keeps its own."""
    alone = isinstance(source.parents.get(divisor), cst.AugAssign) or bool(divisor.lpar)
    before, after = "", world
    if isinstance(divisor, (cst.BinaryOperation, cst.IfExp)):
        before, after = "(", f"){world}"
    yield Surround(source, divisor, before if alone else f"({before}", after if alone else f"{after})")


def _reads_all(facts: Facts, loader: Loader) -> bool:
    """Whether a pass has as many samples as the dataset, but for the padding; a sampler of the script's own may not."""
    known = loader_facts(facts, loader)
    if known is None or known.draws is None:
        return not subset_indices(loader)
    held = loader.arguments.get("sampler", ())
    return bool(held) and all(
        isinstance(o, Sampler) and o.call is not None and _as_many(facts, loader, o) for o in held
    )


def _as_many(facts: Facts, loader: Loader, sampler: Sampler) -> bool:
    """`WeightedRandomSampler(weights, len(weights))`, `RandomSampler(data, replacement=True)`."""
    args = sampler.call.args if sampler.call is not None else ()
    named = {a.keyword.value: a.value for a in args if a.keyword is not None}
    plain = [a.value for a in args if a.keyword is None]
    if sampler.name.endswith(".WeightedRandomSampler"):
        given = named.get("num_samples") or (plain[1] if len(plain) > 1 else None)
        weights = named.get("weights") or (plain[0] if plain else None)
        match given:
            case cst.Call(func=cst.Name(value="len"), args=[cst.Arg(value=of)]) if weights is not None:
                if of.deep_equals(weights):
                    return True
        known = origins(facts.flow.values.get(given, ())) if given is not None else ()
        return any(isinstance(o, FromLength) and o.of in loader.dataset for o in known)
    return sampler.name.endswith(".RandomSampler") and "num_samples" not in named and len(plain) < 3


def _is_length(facts: Facts, loop: LoopFacts, divisor: cst.BaseExpression) -> bool:
    """`len(dataset)`, or a name for it."""
    if isinstance(divisor, cst.Call):
        return bool(divisor.args)
    binds = [e for e in facts.flow.log.of("bind") if e.frame is loop.frame] if isinstance(divisor, cst.Name) else []
    own = [e for e in binds if isinstance(divisor, cst.Name) and e.name == divisor.value]
    return bool(own) and all(isinstance(e.stmt, cst.Assign) and _counts(e.stmt.value) for e in own)


def _counts(value: cst.BaseExpression) -> bool:
    """`len(dataset)`, not `int(len(dataset) / size)`"""
    parts = [n for arg in value.args for n in (arg.value, *walk(arg.value))] if isinstance(value, cst.Call) else ()
    return isinstance(value, cst.Call) and not any(isinstance(n, cst.BinaryOperation) for n in parts)


def _samples(loop: LoopFacts, divisor: cst.BaseExpression, name: str, world: str) -> Iterator[Edit]:
    """`len(loader.dataset)`: the sampler pads, so as many samples were seen as all ranks' samplers have."""
    alone = isinstance(loop.source.parents.get(divisor), cst.AugAssign)
    text = f"len({name}.sampler){world}"
    yield Replace(loop.source, divisor, text if alone else f"({text})")


def _is_share(facts: Facts, loop: LoopFacts, divisor: cst.BaseExpression) -> bool:
    """`len(loader.sampler)`: one rank's number of samples."""
    match divisor:
        case cst.Call(
            func=cst.Name(value="len"), args=[cst.Arg(value=cst.Attribute(attr=cst.Name("sampler")) as part)]
        ):
            return loop.loader in facts.flow.values.get(part.value, ())
    return False


def is_count(facts: Facts, loop: LoopFacts, a: Accumulator, sums: list[Accumulator]) -> bool:
    """A value per batch that could not be followed is a count where a number of samples divides it or weighs it."""
    if any(weighed(facts, added) for added in a.added):
        return True
    counts = {s.target for s in sums if s.agg in ("sum", "size")}
    for node in walk(loop.frame.node):
        divided: tuple[cst.CSTNode, cst.BaseExpression] | None = None
        if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Divide):
            divided = node.left, node.right
        elif isinstance(node, cst.AugAssign) and isinstance(node.operator, cst.DivideAssign):
            divided = node.target, node.value
        if divided is None or not any(isinstance(n, cst.Name) and n.value == a.target for n in walk(divided[0])):
            continue
        if any(isinstance(n, cst.Name) and n.value in counts for n in walk(divided[1])):
            return True
        known = origins(facts.flow.values.get(divided[1], ()))
        if any(isinstance(o, FromLength) and not isinstance(o.of, Loader) for o in known):
            return True
    return False


def means_of_draws(loop: LoopFacts, sums: list[Accumulator]) -> list[Accumulator]:
    """Of steps that every rank makes on batches of its own: all but counts that other sums of theirs divide."""
    targets = {a.target for a in sums}
    divided = {
        (loop.source.code(n.left), loop.source.code(n.right))
        for n in walk(loop.frame.node)
        if isinstance(n, cst.BinaryOperation) and isinstance(n.operator, cst.Divide)
    }
    ratios = {one for left, right in divided for one in (left, right) if left in targets and right in targets}
    return [a for a in sums if a.target not in ratios and a.agg != "const"]


def weighed(facts: Facts, added: cst.BaseExpression) -> bool:
    """`loss.item() * len(x)`, `len(x) - len(kept)`: what the batch gives, for each of its samples."""
    operators = (cst.Multiply, cst.Add, cst.Subtract)
    if not isinstance(added, cst.BinaryOperation) or not isinstance(added.operator, operators):
        return False
    sides = (data_of(facts.flow.values.get(n, ())) for n in (added.left, added.right))
    return any(side is not None and side.agg == "size" for side in sides)
