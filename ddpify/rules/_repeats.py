"""A loop whose batches are dealt out whole in, the edits out by which a batch that comes again is counted once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from ddpify.edits import AddHelper, AddImport, Edit, Guard, Replace, Surround
from ddpify.facts import Facts
from ddpify.facts.contents import origins
from ddpify.facts.handmade import Turns, hand_fed
from ddpify.facts.loops import LoopFacts
from ddpify.facts.repeats import is_enumerated, repeats, takes_weights
from ddpify.facts.values import FromLoop
from ddpify.source import Source, walk

_ATOMS = (cst.Name, cst.Attribute, cst.Subscript, cst.Call, cst.Integer, cst.Float)
_TIGHT = (cst.Multiply, cst.Divide, cst.FloorDivide, cst.Modulo, cst.MatrixMultiply, cst.Power)


def weighs(facts: Facts, known: Turns) -> bool:
    """Whether the share of a rank comes with weights."""
    return takes_weights(known) and repeats(facts, known.loop).weighs


def share_helper(facts: Facts, known: Turns) -> str:
    """The helper that deals the batches out."""
    return "share_with_weights" if weighs(facts, known) else "share_of_rank"


def weight_of(facts: Facts, source: Source) -> str:
    """The name that the weight of a batch gets in a file."""
    chosen = facts.cached("weights of batches", lambda _: dict[int, str]())
    if id(source) not in chosen:
        chosen[id(source)] = facts.names_of(source).fresh("weight")
    return chosen[id(source)]


def turns_of(facts: Facts, loop: cst.For) -> Turns | None:
    """The dealt loop of a node."""
    return next((h for h in hand_fed(facts) if isinstance(h, Turns) and h.loop is loop), None)


def needs(facts: Facts, known: Turns) -> list[Edit]:
    """The helper, and what it needs."""
    source, helper = known.level.frame.source, share_helper(facts, known)
    return [
        AddHelper(source, helper),
        AddImport(source, "DistributedSampler" if helper == "share_of_rank" else "dist"),
    ]


def target_edits(facts: Facts, known: Turns, count: str, index: str) -> Iterator[Edit]:
    """`i` becomes `i, weight`, `count, i` or `count, (i, weight)`; `index` stands for a `_` that is asked for."""
    source, target = known.level.frame.source, known.loop.target
    inner: cst.BaseExpression = target
    if is_enumerated(known) and isinstance(target, cst.Tuple):
        inner = target.elements[1].value
    before, after = f"{count}, " if count else "", ""
    if weighs(facts, known):
        weight = weight_of(facts, source)
        nested = bool(count) or inner is not target
        if isinstance(inner, cst.Tuple) and not inner.lpar:
            before, after = f"{before}(", f"), {weight}"
        else:
            before, after = f"{before}{'(' if nested else ''}", f", {weight}{')' if nested else ''}"
    if index:
        yield Replace(source, inner, f"{before}{index}{after}")
    elif before or after:
        yield Surround(source, inner, before, after)


def weight_edits(facts: Facts, known: Turns) -> Iterator[Edit]:
    """`total += weight * loss.item()`, and `if weight:` before what puts something into a list."""
    if not weighs(facts, known):
        return
    source, found = known.level.frame.source, repeats(facts, known.loop)
    weight = weight_of(facts, source)
    for node in found.added:
        if isinstance(node, cst.Integer) and node.value == "1":
            yield Replace(source, node, weight)
            continue
        tight = isinstance(node, _ATOMS) or (
            isinstance(node, cst.BinaryOperation) and isinstance(node.operator, _TIGHT) and not node.lpar
        )
        yield Surround(source, node, f"{weight} * " if tight else f"{weight} * (", "" if tight else ")")
    for stmt in found.skipped:
        yield Guard(source, stmt, f"if {weight}")


def counted_once(
    facts: Facts, loop: LoopFacts, divisors: Iterable[cst.BaseExpression], targets: list[str], values: list[str]
) -> list[Edit]:
    """What is reduced of the numbers that count the passes, where the first batches come again; and more edits."""
    taken_off = set(repeats(facts, loop.node).counters) & set(targets)
    for at, name in enumerate(targets):
        if name in taken_off:
            values[at] = f"{name} - 1 + {weight_of(facts, loop.source)}"
    return list(_by_index(facts, loop, divisors, targets, values))


def _by_index(
    facts: Facts, loop: LoopFacts, divisors: Iterable[cst.BaseExpression], targets: list[str], values: list[str]
) -> Iterator[Edit]:
    """`total / (i + 1)` behind the loop: the last pass of this rank says nothing of how many there were in all."""
    known = turns_of(facts, loop.node)
    for divisor in divisors if known is not None and weighs(facts, known) else ():
        assert known is not None
        read = [n for n in (divisor, *walk(divisor)) if isinstance(n, cst.Name) and _is_index(facts, loop, n)]
        if not read:
            continue
        index = read[0].value
        whole = loop.source.code(divisor) == f"{index} + 1"
        if not is_enumerated(known):
            sequence = loop.source.code(known.sequence)
            args = known.sequence.args if isinstance(known.sequence, cst.Call) else ()
            if whole and len(args) == 1:
                number = loop.source.code(args[0])
                text = number if isinstance(args[0].value, _ATOMS) else f"({number})"
                yield Replace(loop.source, divisor, text, brackets=True)
            else:
                yield from (Replace(loop.source, n, f"{sequence}[-1]") for n in read)
            continue
        name, first = facts.names_of(loop.source)["batches"], _first(known)
        if name not in targets:
            targets.append(name)
            values.append(f"{index} - {first} + {weight_of(facts, loop.source)}".replace(" - 0 ", " "))
        last = name if first == "1" else f"({name} - 1)" if first == "0" else f"({name} - 1 + {first})"
        if whole and first == "0":
            yield Replace(loop.source, divisor, name, brackets=True)
        else:
            yield from (Replace(loop.source, n, last) for n in read)


def _is_index(facts: Facts, loop: LoopFacts, node: cst.Name) -> bool:
    known = origins(facts.flow.values.get(node, ()))
    return any(isinstance(o, FromLoop) and o.loop is loop.node for o in known)


def _first(known: Turns) -> str:
    """`1` of `enumerate(batches, 1)`."""
    node = known.loop.iter
    while isinstance(node, cst.Call) and node.args:
        if isinstance(node.func, cst.Name) and node.func.value == "enumerate":
            more = node.args[1:]
            return known.level.frame.source.code(more[0].value) if more else "0"
        node = node.args[0].value
    return "0"
