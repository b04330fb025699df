"""Flow in, the tests out under which a rank makes steps of the training that it does not make otherwise."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.contents import origins
from ddpify.facts.definitions import definitions
from ddpify.facts.frames import Event, Frame, Loop
from ddpify.facts.handmade import drawn_by_steps
from ddpify.facts.locality import locality
from ddpify.facts.values import FromBatch, FromForward, FromWorld, Module, Optimizer, Thing
from ddpify.source import Source, children, walk

if TYPE_CHECKING:
    from ddpify.facts import Facts

_CHANCE = re.compile(r"(random|numpy\.random|secrets)\..*|torch\.(rand|randn|randint|randperm|bernoulli|multinomial)")
_OF_BATCH = (FromBatch, FromForward)


@dataclass(frozen=True, eq=False)
class Chosen:
    """`if torch.isfinite(loss): loss.backward()`, `for _ in range(random.randint(1, 3)):`: what steps go by."""

    source: Source
    test: cst.BaseExpression
    #: drawn at random, and of no batch
    by_chance: bool
    #: the other branch makes steps, too
    both: bool = False


def by_chance(facts: Facts, node: cst.CSTNode, frame: Frame, depth: int = 4) -> bool:
    """Whether an expression is drawn at random, and of no batch: `flip`, after `flip = random.random() < 0.5`."""
    found = False
    for part in _parts(facts, node):
        known = origins(facts.flow.values.get(part, ()))
        if any(isinstance(o, _OF_BATCH) for o in known):
            return False
        bound = definitions(facts.flow).of(part, frame) if isinstance(part, cst.Name) else []
        if bound:
            found = found or (depth > 0 and any(by_chance(facts, d.node, d.frame, depth - 1) for d in bound))
        elif any(isinstance(o, FromWorld) and _CHANCE.fullmatch(o.what) for o in known):
            found = found or isinstance(part, (cst.Name, cst.Call))
    return found


def _parts(facts: Facts, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """The parts of an expression, without what is asked for its size only: `len(x)`, `x.size(0)`."""
    match node:
        case cst.Attribute(attr=cst.Name(value="shape" | "size" | "ndim" | "dtype" | "device")):
            return
        case cst.Call(func=cst.Attribute(attr=cst.Name(value="size" | "dim" | "numel"))):
            return
        case cst.Call(func=func) if any(
            getattr(o, "name", "") == "builtins.len" for o in facts.flow.values.get(func, ())
        ):
            return
    yield node
    for child in children(node):
        yield from _parts(facts, child)


def chosen_steps(facts: Facts) -> list[Chosen]:
    """The tests in a training loop whose branches do not make the same steps, where each rank answers for itself."""
    return facts.cached("chosen_steps", lambda f: list(_chosen(f)))


def _chosen(facts: Facts) -> Iterator[Chosen]:
    branches: dict[cst.If, tuple[Counter[tuple[str, int]], Counter[tuple[str, int]]]] = {}
    frames: dict[cst.If, Frame] = {}
    for step in _steps(facts):
        own = step.under[-1] if step.kind in ("break", "continue") else None  # that one the ranks agree on
        for test, frame, kept in _tests(facts, step):
            if test is own:
                continue
            frames[test] = frame
            one, two = branches.setdefault(test, (Counter(), Counter()))
            (one if kept else two)[step.kind, id(step.obj)] += 1
    known = locality(facts)
    for test, (one, two) in branches.items():
        frame = frames[test]
        if one == two:
            continue
        chance = by_chance(facts, test.test, frame)
        if chance or known.is_local(test.test, frame):
            yield Chosen(frame.source, test.test, chance, bool(two))
    yield from _counts(facts)


def _counts(facts: Facts) -> Iterator[Chosen]:
    """`for _ in range(random.randint(1, 3)):` around steps."""
    done: set[int] = set()
    for lp in (lp for step in _steps(facts) for loops in step.all_loops() for lp in loops):
        if isinstance(lp.node, cst.For) and id(lp.node) not in done:
            done.add(id(lp.node))
            match lp.node.iter:
                case cst.Call(func=cst.Name(value="range"), args=args):
                    for arg in args:
                        if by_chance(facts, arg.value, lp.frame):
                            yield Chosen(lp.frame.source, arg.value, True)


def passed_over(facts: Facts) -> Iterator[tuple[Source, cst.ExceptHandler]]:
    """`except RuntimeError: continue` around a backward pass, or before one: that rank goes on without the others."""
    done: set[int] = set()
    for e in facts.flow.log.of("continue", "break"):
        source, own = e.frame.source, {lp.node for lp in locality(facts).batch_loops(e.loops)}
        own |= {lp.node for lp in e.loops if id(lp.node) in drawn_by_steps(facts)}
        above = list(source.ancestors(e.node))
        handler = next((n for n in above if isinstance(n, (cst.ExceptHandler, cst.For, cst.While))), None)
        trains = any(lp.node in own for step in facts.roles.backwards for lp in step.loops)
        if isinstance(handler, cst.ExceptHandler) and trains and own.intersection(above):
            caught = source.code(handler.type) if handler.type is not None else ""
            if id(handler) not in done and not any(name in caught for name in ("KeyboardInterrupt", "StopIteration")):
                done.add(id(handler))
                yield source, handler
    for step in facts.roles.backwards:
        source = step.frame.source
        own = {lp.node for lp in locality(facts).batch_loops(step.loops)}
        above = list(source.ancestors(step.stmt))
        for at, node in enumerate(above):
            if not isinstance(node, cst.Try) or not own.intersection(above[at + 1 :]) or above[at - 1] is not node.body:
                continue
            for handler in node.handlers:
                caught = source.code(handler.type) if handler.type is not None else ""
                goes_on = any(isinstance(n, (cst.Continue, cst.Pass)) for n in walk(handler.body))
                last = handler.body.body[-1]
                raises = isinstance(last, cst.SimpleStatementLine) and isinstance(last.body[-1], cst.Raise)
                if id(handler) not in done and (goes_on or not raises) and "KeyboardInterrupt" not in caught:
                    done.add(id(handler))
                    yield source, handler


def _steps(facts: Facts) -> Iterator[Event]:
    """Backward passes, steps of optimizers, and training forwards through a wrapper: the other ranks wait in them."""
    yield from facts.roles.backwards
    for e in facts.flow.log.of("method"):
        if e.name == "step" and (isinstance(e.obj, Optimizer) or (isinstance(e.obj, Thing) and e.obj.name == "scaler")):
            yield e
    for e in facts.flow.log.of("forward"):
        inner = e.frame.func is not None and isinstance(e.frame.func.bound, Module)
        if e.node in facts.roles.training_forwards and not inner:
            yield e
    known = locality(facts)
    for e in facts.flow.log.of("break", "continue"):  # the ranks will agree there: all of them have to come to it
        if known.batch_loops(e.loops) and any(
            isinstance(u, cst.If) and known.is_local(u.test, e.frame) for u in e.under
        ):
            yield e


def _tests(facts: Facts, step: Event) -> Iterator[tuple[cst.If, Frame, bool]]:
    """The tests around a step, in its function and in those that call it, within a loop over the training batches."""
    seen: set[int] = set()
    for chain in step.frame.chains():
        ways: list[tuple[Frame, cst.CSTNode, tuple[Loop, ...]]] = [(e.frame, e.stmt, e.loops) for e in chain]
        ways.append((step.frame, step.stmt, step.loops))
        begun = False
        for frame, stmt, loops in ways:
            own = {lp.node for lp in locality(facts).batch_loops(loops)}
            above = list(frame.source.ancestors(stmt))
            for at, node in enumerate(above):
                if isinstance(node, (cst.FunctionDef, cst.Lambda)):
                    break
                inside = begun or bool(own.intersection(above[at + 1 :]))
                if isinstance(node, cst.If) and inside and id(node) not in seen:
                    seen.add(id(node))
                    below = above[at - 1] if at else stmt
                    yield node, frame, below is node.body
            begun = begun or bool(own)
