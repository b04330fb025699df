"""An evaluation loop in, what it keeps beside its sums out: counts, meters and lists that the ranks bring together."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.altered import OTHERWISE, altered
from ddpify.facts.batchcounts import loader_read, says_on_bar
from ddpify.facts.collected import given_to, holder_of
from ddpify.facts.contents import is_of_batches
from ddpify.facts.eachrow import has_a_row_each
from ddpify.facts.frames import Event
from ddpify.facts.grown import grown
from ddpify.facts.loops import LoopFacts, read_after, uses_of
from ddpify.facts.meters import Meter, meters
from ddpify.facts.setup import SetUp, find_setup
from ddpify.facts.starts import base_of, start_of
from ddpify.facts.tallies import Tally, is_sendable, tallies
from ddpify.source import walk

if TYPE_CHECKING:
    from ddpify.facts import Facts


@dataclass(frozen=True)
class HeldOut:
    """What an evaluation keeps in lists, dicts, arrays and objects, and is used behind it."""

    #: counts for each class and the like: added up
    tallies: tuple[Tally, ...] = ()
    #: one of them that gets a whole array of a batch, which may have to be as it was
    whole: str = ""
    #: a list that gets an entry for each sample, or for each batch: put together in the order of one process
    by_sample: tuple[str, ...] = ()
    by_batch: tuple[str, ...] = ()
    #: an array that gets a row for each sample, and which kind of array it is
    rows: tuple[tuple[str, str], ...] = ()
    meters: tuple[Meter, ...] = ()
    #: what the loader is called in the loop's function
    loader: str = ""
    #: lists and meters of which nothing is used behind the loop, or nothing of the batches: of times
    others: tuple[str, ...] = ()

    @property
    def names(self) -> set[str]:
        """All that the loop may change."""
        held = (*(t.target for t in self.tallies), *(m.target for m in self.meters))
        lists = map(base_of, (*self.by_sample, *self.by_batch))
        return {*held, *lists, *(name for name, _ in self.rows), *self.others}

    @property
    def needed(self) -> bool:
        return bool(self.tallies or self.by_sample or self.by_batch or self.rows or self.meters)


def held_out(facts: Facts, loop: LoopFacts) -> HeldOut:
    """What of it can be brought together from the ranks' shares; what cannot is not in it."""
    inside = {id(n) for n in walk(loop.node.body)}
    setup = facts.cached("setup", find_setup)
    both = isinstance(setup, SetUp) and not setup.accelerator
    counted = [
        t
        for t in tallies(facts, loop)
        if t.form != "entries"
        and t.agg == "sum"
        and (both or t.form not in ("numpy", "tensor"))
        and t.target not in altered(facts, loop, by=OTHERWISE)
        and _is_only_added_to(loop, t.target)
    ]
    lists = _lists(facts, loop, inside)
    loader = loader_read(facts, loop)
    rows = grown(facts, loop, inside) if loader else {}
    held = [m for m in meters(facts, loop) if base_of(m.target) == m.target]
    found = [m for m in held if _is_only_updated(facts, loop, m.target, inside)]
    used = [m for m in found if read_after(loop, m.target, inside) and _is_of_batches(facts, loop, m.target, inside)]
    if any(_last_is_used(loop, m, inside) for m in used):
        found = used = []
    arrays = {
        n.target.value for n in walk(loop.node.body) if isinstance(n, cst.AugAssign) and isinstance(n.target, cst.Name)
    }
    return HeldOut(
        tuple(counted),
        next((t.target for t in counted if t.target in arrays), ""),
        tuple(name for name, kind in lists.items() if kind == "sample"),
        tuple(name for name, kind in lists.items() if kind == "batch"),
        tuple(rows.items()),
        tuple(used),
        loader if lists or rows else "",
        (*(m.target for m in found if m not in used), *_idle(facts, loop, inside)),
    )


def _is_only_added_to(loop: LoopFacts, name: str) -> bool:
    """Whether the loop's body has nothing of a name but the statements that add to it."""
    if not name.isidentifier():
        return False
    adds = [n for n in walk(loop.node.body) if isinstance(n, cst.AugAssign) and _base(n.target) == name]
    return len(uses_of(loop.node.body, name)) == len(adds)


def _base(node: cst.BaseExpression) -> str:
    while isinstance(node, cst.Subscript):
        node = node.value
    return node.value if isinstance(node, cst.Name) else ""


# -- meters -------------------------------------------------------------------------------------------------


def _updates(loop: LoopFacts, name: str, inside: set[int]) -> list[Event]:
    found = [(e, holder_of(e)) for e in loop.frame.events if id(e.node) in inside]
    return [e for e, holder in found if holder is not None and loop.source.code(holder) == name]


def _is_only_updated(facts: Facts, loop: LoopFacts, name: str, inside: set[int]) -> bool:
    """`losses.update(...)`, and besides that no more of it than the words of a progress bar."""
    if not name.isidentifier():
        return False
    heads = {id(holder_of(e)) for e in _updates(loop, name, inside)}
    return all(id(n) in heads or says_on_bar(facts, loop.source, n) for n in uses_of(loop.node.body, name))


def _is_of_batches(facts: Facts, loop: LoopFacts, name: str, inside: set[int]) -> bool:
    given = [facts.flow.values.get(n, ()) for e in _updates(loop, name, inside) for n in given_to(e)]
    return any(map(is_of_batches, given))


def _last_is_used(loop: LoopFacts, meter: Meter, inside: set[int]) -> bool:
    """Whether `meter.val`, what the last batch gave, may be shown behind the loop."""
    stmts = [n for n in walk(meter.update) if isinstance(n, cst.Assign)]
    fields = {t.target.attr.value for n in stmts for t in n.targets if isinstance(t.target, cst.Attribute)}
    whole = {cst.ensure_type(cst.parse_statement(m), cst.SimpleStatementLine) for m in meter.means}
    whole_fields = {
        t.target.attr.value
        for n in whole
        for t in cst.ensure_type(n.body[0], cst.Assign).targets
        if isinstance(t.target, cst.Attribute)
    }
    last = fields - whole_fields - set(meter.fields)
    end = loop.source.span(loop.node.body).end
    for n in uses_of(loop.frame.node, meter.target) if last else ():
        if id(n) in inside or loop.source.span(n).start < end:
            continue
        parent = loop.source.parents.get(n)
        if isinstance(parent, cst.Attribute):
            if parent.attr.value not in {*meter.fields, *whole_fields, "all_reduce", "reset"}:
                return True
        elif not _is_formatted(loop, parent, meter.target, last):
            return True
    return False


def _is_formatted(loop: LoopFacts, arg: cst.CSTNode | None, name: str, last: set[str]) -> bool:
    """`"{top.avg}".format(top=top)`"""
    call = loop.source.parents.get(arg) if isinstance(arg, cst.Arg) and arg.keyword is not None else None
    if not isinstance(call, cst.Call) or not isinstance(arg, cst.Arg) or arg.keyword is None:
        return False
    match call.func:
        case cst.Attribute(value=cst.SimpleString() | cst.ConcatenatedString() as text, attr=cst.Name(value="format")):
            key, shown = arg.keyword.value, str(text.evaluated_value)
            return f"{{{key}}}" not in shown and not any(f"{{{key}.{field}" in shown for field in last)
    return False


# -- lists --------------------------------------------------------------------------------------------------


def _lists(facts: Facts, loop: LoopFacts, inside: set[int]) -> dict[str, str]:
    """The lists that get one entry for each sample, or one for each batch, by which of the two."""
    puts: dict[str, list[Event]] = {}
    for e in loop.frame.events:
        holder = holder_of(e) if id(e.node) in inside else None
        grown = e.node.target if e.kind == "augment" and isinstance(e.node, cst.AugAssign) else None
        name = next((loop.source.code(n) for n in (holder, grown) if n is not None and _is_one_list(n)), "")
        if name:
            puts.setdefault(name, []).append(e)
    of_base = Counter(map(base_of, puts))
    found: dict[str, str] = {}
    for name, events in puts.items():
        start, base = start_of(facts, loop, name), base_of(name)
        empty = start is not None and (
            (isinstance(start[1], cst.List) and not start[1].elements)
            or (isinstance(start[1], cst.Call) and loop.source.code(start[1]) == "list()")
        )
        stmts = {id(e.stmt) for e in events}
        once = len(stmts) == 1 and len(uses_of(loop.node.body, base)) == of_base[base]
        kind = _entry(facts, loop, events[0]) if empty and once and read_after(loop, base, inside) else ""
        if kind:
            found[name] = kind
    alike = Counter(map(base_of, found))  # of a dict all lists or none
    return {name: kind for name, kind in found.items() if alike[base_of(name)] == of_base[base_of(name)]}


def _idle(facts: Facts, loop: LoopFacts, inside: set[int]) -> list[str]:
    """Lists that begin empty before the loop and that nothing looks at, there or behind it."""
    puts: dict[str, set[int]] = {}
    for e in loop.frame.events:
        holder = holder_of(e) if id(e.node) in inside and e.kind == "method" else None
        if isinstance(holder, cst.Name):
            puts.setdefault(holder.value, set()).add(id(e.stmt))
    starts = {name: start_of(facts, loop, name) for name in puts}
    return [
        name
        for name, start in starts.items()
        if start is not None
        and isinstance(start[1], cst.List)
        and isinstance(loop.frame.node, cst.FunctionDef)
        and len(uses_of(loop.frame.node, name)) == len(puts[name]) + 1
    ]


def _is_one_list(node: cst.BaseExpression) -> bool:
    """`preds`, `results["preds"]`"""
    if isinstance(node, cst.Subscript) and isinstance(node.value, cst.Name) and len(node.slice) == 1:
        index = node.slice[0].slice
        return isinstance(index, cst.Index) and isinstance(index.value, cst.SimpleString)
    return isinstance(node, cst.Name)


def _entry(facts: Facts, loop: LoopFacts, event: Event) -> str:
    """Whether a pass of the loop puts in an entry for each sample, or one for the batch."""
    source = loop.source
    line = source.parents.get(event.stmt)
    block = source.parents.get(line) if line is not None else None
    given = given_to(event)
    if len(given) != 1 or not is_sendable(facts, given[0]):
        return ""
    many = event.kind == "augment" or event.name == "extend"
    if block is loop.node.body and line in loop.node.body.body:
        if not many:
            return "batch" if event.name == "append" else ""
        match given[0]:
            case cst.ListComp(for_in=turn) | cst.GeneratorExp(for_in=turn):  # hyps.extend(words[p] for p in preds)
                each = not (turn.ifs or turn.inner_for_in) and has_a_row_each(facts, loop, turn.iter)
            case other:
                each = has_a_row_each(facts, loop, other)
        return "sample" if each else ""
    around = source.parents.get(block) if block is not None else None  # for label in y.tolist(): truth.append(label)
    if not isinstance(around, cst.For) or many or source.parents.get(around) is not loop.node.body:
        return ""
    over = [around.iter]
    if isinstance(around.iter, cst.Call) and source.code(around.iter.func) in ("zip", "enumerate"):
        over = [a.value for a in around.iter.args]
    elif counted := _counted(source.code(around.iter.func), around.iter) if isinstance(around.iter, cst.Call) else None:
        over = [counted]
    left = any(isinstance(n, (cst.Continue, cst.Break, cst.Return)) for n in walk(around.body))
    return "sample" if not left and all(has_a_row_each(facts, loop, n) for n in over) else ""


def _counted(name: str, call: cst.Call) -> cst.BaseExpression | None:
    """`y` of `range(len(y))` and `range(y.size(0))`: each sample of the batch has its turn."""
    if name != "range" or len(call.args) != 1:
        return None
    match call.args[0].value:
        case cst.Call(func=cst.Name(value="len"), args=[cst.Arg(value=counted)]):
            return counted
        case cst.Call(
            func=cst.Attribute(value=counted, attr=cst.Name(value="size")), args=[cst.Arg(value=cst.Integer(value="0"))]
        ):
            return counted
        case cst.Subscript(
            value=cst.Attribute(value=counted, attr=cst.Name(value="shape")),
            slice=[cst.SubscriptElement(slice=cst.Index(value=cst.Integer(value="0")))],
        ):
            return counted
    return None
