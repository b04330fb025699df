"""Facts in, a listing out: every role that was found in a script, with its line and the evidence for it."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator

import libcst as cst

from ddpify.facts import Facts
from ddpify.facts.contents import data_of, is_of_batches, origins
from ddpify.facts.externals import role_of
from ddpify.facts.frames import Event
from ddpify.facts.handmade import Columns, Draws, Rows, Turns, Unshared, hand_fed
from ddpify.facts.roles import loaders_in, root
from ddpify.facts.trails import way_of_call
from ddpify.facts.untrained import find_untrained
from ddpify.facts.values import Const, FromBatch, FromForward, Loader, Obj, Sampler, Scheduler, Seq
from ddpify.facts.whole import quoted
from ddpify.facts.wraps import NoWrapPoint
from ddpify.rows import Row, at, event_line, line_of, lines_of, made, way_of
from ddpify.source import Source
from ddpify.understood_run import devices, entry_point, loads, saves

_WIDTH = 80


def listing(facts: Facts) -> Iterator[str]:
    """Every role as text, in the order in which a training script has them."""
    for title, find in _SECTIONS.items():
        rows = _merged(find(facts))
        yield f"{title}:" if rows else f"{title}: none found"
        for row in rows:
            yield from _told(row, facts)


def _merged(rows: Iterator[Row]) -> list[Row]:
    """A row for each place, with all the evidence for it, in the order of the text."""
    found: dict[tuple[int, int], Row] = {}
    for row in rows:
        known = found.get(key := (id(row.source), id(row.node)))
        if known is None:
            found[key] = row
        elif row.evidence not in known.evidence:
            found[key] = Row(row.source, row.node, f"{known.evidence}; {row.evidence}")
    return sorted(found.values(), key=lambda r: (str(r.source.path), r.source.span(r.node).start))


def _told(row: Row, facts: Facts) -> Iterator[str]:
    where = (
        row.source.line(row.node) if row.source is facts.source else f"{row.source.path}:{row.source.line(row.node)}"
    )
    yield f"  {where}  {_short(row.source, row.node)}"
    yield from textwrap.wrap(
        row.evidence, _WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6, break_on_hyphens=False
    )


def _short(source: Source, node: cst.CSTNode, most: int = 66) -> str:
    text = " ".join(source.code(node).split())
    return text if len(text) <= most else text[: most - 3] + "..."


# -- one function per role --------------------------------------------------------------------------------


def _trained(facts: Facts) -> Iterator[Row]:
    for module in facts.roles.trained:
        reached = [
            e
            for e in facts.roles.backwards
            if any(isinstance(o, FromForward) and root(o.module) is module for o in origins(e.value))
        ]
        held = ", ".join(at(o, facts) for o in facts.roles.optimizers if module in map(root, o.modules))
        by = f"; the optimizer at {held} has its parameters" if held else ""
        yield from made(module, f"{module.evidence}; its output reaches .backward() at {lines_of(reached, facts)}{by}")


def _untrained(facts: Facts) -> Iterator[Row]:
    for found in find_untrained(facts.flow, facts.roles):
        where = f" at {lines_of(list(found.at), facts)}" if found.at else ""
        yield from made(found.module, f"{found.why}{where}: no wrapper")


def _wrap_points(facts: Facts) -> Iterator[Row]:
    for wrapped in facts.roles.wrapped:
        yield from made(wrapped, "wrapped already")
    for point in facts.wraps:
        if isinstance(point, NoWrapPoint):
            yield Row(point.source, point.node, f"no wrap point: {point.reason}")
        else:
            held = f"`{point.target}` holds the module made at {at(point.module, facts)} from here on"
            yield Row(point.source, point.after, f"{held}, and its first training forward comes later")


def _training_loaders(facts: Facts) -> Iterator[Row]:
    for loader in facts.roles.training_loaders:
        reached = [e for e in facts.roles.backwards if FromBatch(loader) in origins(e.value)]
        yield from made(loader, f"its batches reach .backward() at {lines_of(reached, facts)}; {_order(loader)}")
    for obj, event in facts.roles.other_data:
        yield from made(
            obj, f"no DataLoader, but what is iterated here reaches .backward() at {event_line(event, facts)}"
        )


def _by_hand(facts: Facts) -> Iterator[Row]:
    for hand in hand_fed(facts):
        match hand:
            case Unshared(source=source, node=node, why=why):
                yield Row(source, node, why)
            case Turns(loop=loop, level=level):
                yield Row(level.frame.source, loop, "each pass makes a batch of its variable: they can be dealt out")
            case Columns(loop=loop, level=level):
                yield Row(level.frame.source, loop, "each pass goes on from the last: whole columns can be shared out")
            case Rows(level=level, names=names):
                yield Row(level.frame.source, level.loops[0].node, f"every step trains on all rows of {quoted(names)}")
            case Draws(draw=draw):
                yield Row(draw.frame.source, draw.node, "every step draws its batch here")


def _order(loader: Loader) -> str:
    if "sampler" in loader.arguments or "batch_sampler" in loader.arguments:
        return "it has a sampler"
    shuffle = loader.arguments.get("shuffle", (Const(False),))
    known = {o.value for o in shuffle if isinstance(o, Const)}
    if known not in ({True}, {False}):
        return "shuffled or not, decided at run time"
    return "shuffled" if True in known else "not shuffled"


def _evaluation_loaders(facts: Facts) -> Iterator[Row]:
    for loader in facts.roles.evaluation_loaders:
        read = [p.start for p in facts.roles.passes if p.loader is loader]
        off = (
            "gradients are off there"
            if all(e.grad is False for e in read)
            else "nothing that it gives reaches .backward()"
        )
        yield from made(loader, f"read at {lines_of(read, facts)}; {off}")
    known = [*facts.roles.training_loaders, *facts.roles.evaluation_loaders]
    for event in facts.flow.log.of("loader"):
        if event.obj is not None and event.obj not in known:
            yield from made(event.obj, "made, but no loop over it was found")


def _datasets(facts: Facts) -> Iterator[Row]:
    for event in facts.flow.log.of("loader"):
        if isinstance(event.obj, Loader):
            kind = "training" if event.obj in facts.roles.training_loaders else "other"
            for obj in event.obj.dataset:
                yield from made(obj, f"the dataset of the {kind} loader at {at(event.obj, facts)}")


def _samplers(facts: Facts) -> Iterator[Row]:
    for event in facts.flow.log.of("new"):
        if isinstance(event.obj, Sampler):
            yield from made(event.obj, event.obj.name)


def _optimizers(facts: Facts) -> Iterator[Row]:
    for optimizer in facts.roles.optimizers:
        over = ", ".join(dict.fromkeys(at(m, facts) for m in optimizer.modules))
        loose = " and parameters that belong to no module" if optimizer.loose or optimizer.bare else ""
        what = (
            f"the parameters of the module made at {over}{loose}" if over else "parameters that could not be followed"
        )
        yield from made(optimizer, f"{optimizer.name} over {what}")


def _schedulers(facts: Facts) -> Iterator[Row]:
    for event in facts.flow.log.of("new"):
        if isinstance(event.obj, Scheduler):
            yield from made(event.obj, event.obj.name)


_REDUCED = {"mean": "the mean over the batch", "sum": "the sum over the batch", "sample": "a value for each sample"}


def _criteria(facts: Facts) -> Iterator[Row]:
    for event in facts.flow.log.of("external", "forward"):
        name = event.name if event.kind == "external" else getattr(event.obj, "name", "")
        if event.kind == "external" and role_of(name) == "loss-module":
            yield Row(event.frame.source, event.node, f"{name} is made")
        elif role_of(name) in ("loss", "loss-module"):
            value = data_of(facts.flow.values.get(event.node, ()))
            gives = _REDUCED.get(value.agg if value is not None else "", "something that could not be followed")
            yield Row(event.frame.source, event.node, f"{name}: gives {gives}")


def _epochs(facts: Facts) -> Iterator[Row]:
    for epoch in facts.roles.epoch_loops:
        inner = line_of(epoch.batch_loop.frame.source, epoch.batch_loop.node, facts)
        if epoch.loop is None:
            yield Row(
                epoch.batch_loop.frame.source,
                _head(epoch.batch_loop.node),
                f"no epoch loop is around this one pass over the loader at {at(epoch.loader, facts)}",
            )
            continue
        target = getattr(epoch.loop.node, "target", None)
        source = epoch.loop.frame.source
        variable = f"its variable is `{source.code(target)}`" if target is not None else "it has no variable"
        yield Row(
            source,
            _head(epoch.loop.node),
            f"{variable}; the training loader at {at(epoch.loader, facts)} is read inside, at {inner}",
        )


def _head(loop: cst.CSTNode) -> cst.CSTNode:
    """What a loop runs over stands for the loop: its own text is the whole block."""
    return getattr(loop, "iter", None) or getattr(loop, "test", None) or loop


def _batches(facts: Facts) -> Iterator[Row]:
    for p in facts.roles.passes:
        target = getattr(p.loop.node, "target", None)
        if target is not None:
            yield Row(
                p.loop.frame.source,
                target,
                f"a batch of the {'training' if p.training else 'evaluation'} loader at {at(p.loader, facts)}",
            )


def _losses(facts: Facts) -> Iterator[Row]:
    for event in facts.roles.backwards:
        known = origins(event.value)
        forwards = {
            line_of(facts.source_of(o.node), o.node, facts)
            for o in known
            if isinstance(o, FromForward) and o.node in facts.source_of(o.node).parents
        }
        value = data_of(event.value)
        how = _REDUCED.get(value.agg if value is not None else "", "not known whether a mean or a sum")
        made = (
            f"computed from the forward at {', '.join(sorted(forwards))}"
            if forwards
            else f"not seen to come from a forward: {way_of(way_of_call(facts.flow, event))}"
        )
        yield Row(event.frame.source, event.node, f"{made}; {how}")


def _accumulators(facts: Facts) -> Iterator[Row]:
    for event in facts.flow.log.of("augment", "method"):
        if event.kind == "method" and not (event.name in ("append", "extend") and isinstance(event.obj, Seq)):
            continue
        if not is_of_batches(event.value):
            continue
        over = _loaders_around(event)
        if over:
            value = data_of(event.value)
            what = _ADDED.get(value.agg if value is not None else "", "a value that depends on the batch")
            yield Row(
                event.frame.source,
                event.node,
                f"collects {what}, over the loader at {', '.join(at(o, facts) for o in over)}",
            )


_ADDED = {
    "sum": "a sum over the samples of a batch",
    "mean": "a mean over a batch",
    "size": "the number of samples in a batch",
    "sample": "a value for each sample",
}


def _loaders_around(event: Event) -> list[Obj]:
    found = [
        o for loops in event.all_loops() for loop in loops for o in loaders_in(loop.iterates) if isinstance(o, Loader)
    ]
    return list(dict.fromkeys(found))


_SECTIONS: dict[str, Callable[[Facts], Iterator[Row]]] = {
    "entry point": entry_point,
    "trained modules": _trained,
    "models that are not trained": _untrained,
    "wrap points": _wrap_points,
    "training loaders": _training_loaders,
    "batches without a loader": _by_hand,
    "evaluation loaders": _evaluation_loaders,
    "datasets": _datasets,
    "samplers": _samplers,
    "optimizers": _optimizers,
    "schedulers": _schedulers,
    "criteria": _criteria,
    "device choices": devices,
    "epoch loops": _epochs,
    "batches": _batches,
    "losses": _losses,
    "metric accumulators": _accumulators,
    "what is loaded": loads,
    "what is saved": saves,
}
