"""An evaluation loop in, what it keeps beside its sums out: counts, meters and lists that the ranks bring together."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.altered import OTHERWISE, altered
from ddpify.facts.batchcounts import loader_read, says_on_bar
from ddpify.facts.collected import given_to, holder_of
from ddpify.facts.contents import data_of, is_of_batches
from ddpify.facts.dependencies import bindings
from ddpify.facts.frames import Event
from ddpify.facts.loops import LoopFacts, read_after, uses_of
from ddpify.facts.meters import Meter, meters
from ddpify.facts.setup import SetUp, find_setup
from ddpify.facts.starts import pairs, start_of
from ddpify.facts.tallies import Tally, is_sendable, tallies
from ddpify.source import walk

if TYPE_CHECKING:
    from ddpify.facts import Facts

#: what makes rows of a batch that are no samples any more, or others
_OTHER_ROWS = re.compile(
    r"view|reshape|flatten|ravel|repeat\w*|expand|permute|transpose|t|masked_select|nonzero|unfold|cat|concat\w*|"
    r"\w?stack|filter|unique|set|sorted|split|chunk|topk"
)
#: what gives a model other rows than those of the batch, but along another dimension: `cat([x, y], 1)`
_MORE_ROWS = re.compile(r"cat|concat\w*|[vd]stack|stack|repeat\w*|masked_select|index_select|nonzero|tile")


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
    meters: tuple[Meter, ...] = ()
    #: what the loader is called in the loop's function
    loader: str = ""
    #: meters of which nothing is used behind the loop, or nothing of the batches: of times
    others: tuple[str, ...] = ()

    @property
    def names(self) -> set[str]:
        """All that the loop may change."""
        held = (*(t.target for t in self.tallies), *(m.target for m in self.meters))
        return {*held, *self.by_sample, *self.by_batch, *self.others}

    @property
    def needed(self) -> bool:
        return bool(self.tallies or self.by_sample or self.by_batch or self.meters)


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
    found = [m for m in meters(facts, loop) if _is_only_updated(facts, loop, m.target, inside)]
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
        tuple(used),
        loader_read(facts, loop) if lists else "",
        tuple(m.target for m in found if m not in used),
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
    last = fields - whole_fields
    end = loop.source.span(loop.node.body).end
    for n in uses_of(loop.frame.node, meter.target) if last else ():
        if id(n) in inside or loop.source.span(n).start < end:
            continue
        parent = loop.source.parents.get(n)
        if isinstance(parent, cst.Attribute):
            if parent.attr.value not in {*meter.sums, *whole_fields, "all_reduce", "reset"}:
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
        name = next((n.value for n in (holder, grown) if isinstance(n, cst.Name)), "")
        if name:
            puts.setdefault(name, []).append(e)
    found: dict[str, str] = {}
    for name, events in puts.items():
        start = start_of(facts, loop, name)
        empty = start is not None and (
            (isinstance(start[1], cst.List) and not start[1].elements)
            or (isinstance(start[1], cst.Call) and loop.source.code(start[1]) == "list()")
        )
        stmts = {id(e.stmt) for e in events}
        once = len(stmts) == 1 and len(uses_of(loop.node.body, name)) == 1
        kind = _entry(facts, loop, events[0]) if empty and once and read_after(loop, name, inside) else ""
        if kind:
            found[name] = kind
    return found


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
        return "sample" if _has_a_row_each(facts, loop, given[0]) else ""
    around = source.parents.get(block) if block is not None else None  # for label in y.tolist(): truth.append(label)
    if not isinstance(around, cst.For) or many or source.parents.get(around) is not loop.node.body:
        return ""
    over = [around.iter]
    if isinstance(around.iter, cst.Call) and source.code(around.iter.func) in ("zip", "enumerate"):
        over = [a.value for a in around.iter.args]
    left = any(isinstance(n, (cst.Continue, cst.Break, cst.Return)) for n in walk(around.body))
    return "sample" if not left and all(_has_a_row_each(facts, loop, n) for n in over) else ""


def _has_a_row_each(facts: Facts, loop: LoopFacts, node: cst.BaseExpression) -> bool:
    """Whether what is iterated has an entry for each sample of the batch."""
    known = data_of(facts.flow.values.get(node, ()))
    if known is None or known.agg != "sample":
        return False
    return _keeps_rows(facts, loop, node, frozenset())


def _keeps_rows(facts: Facts, loop: LoopFacts, node: cst.CSTNode, asked: frozenset[str]) -> bool:
    """`asked`: the names whose values this one is part of."""
    if isinstance(node, cst.Call):
        name = node.func.attr.value if isinstance(node.func, cst.Attribute) else getattr(node.func, "value", "")
        if _OTHER_ROWS.fullmatch(name) or not _by_row(node):
            return False
        if any(e.node is node for e in loop.frame.events if e.kind == "forward"):
            return not any(_takes_other_rows(loop, a.value, frozenset()) for a in node.args)
        parts = [node.func, *(a.value for a in node.args)]
    elif isinstance(node, cst.Attribute):
        parts = [node.value]
    elif isinstance(node, cst.Name):
        made = [b.node for b in bindings(loop.node.body) if node.value in b.targets]
        values = [v for m in made for v in _given(m, node.value)]
        if len(values) < len(made):
            return False
        mine = asked | {node.value}
        return node.value in asked or all(_keeps_rows(facts, loop, v, mine) for v in values)
    elif isinstance(node, cst.Subscript):
        # out.max(1)[1], batch["label"]; a choice of rows is not followed
        index = node.slice[0].slice if len(node.slice) == 1 else None
        pair = (
            isinstance(index, cst.Index) and isinstance(index.value, cst.Integer) and isinstance(node.value, cst.Call)
        )
        item = isinstance(index, cst.Index) and _is_key(loop, node.value, index.value)
        parts = [node.value] if pair or item else []
        return bool(parts) and _keeps_rows(facts, loop, parts[0], asked)
    elif isinstance(node, cst.DictComp):  # {k: v.to(device) for k, v in batch.items()}
        return not node.for_in.ifs and _keeps_rows(facts, loop, node.value, asked)
    elif isinstance(node, (cst.Comparison, cst.BinaryOperation)):
        return _keeps_rows(facts, loop, node.left, asked)
    elif isinstance(node, cst.UnaryOperation):  # argmax(-1), -scores
        return _keeps_rows(facts, loop, node.expression, asked)
    else:
        return isinstance(node, (cst.Integer, cst.Float))
    return all(_keeps_rows(facts, loop, p, asked) for p in parts)


def _takes_other_rows(loop: LoopFacts, node: cst.BaseExpression, asked: frozenset[str]) -> bool:
    """`model(x[mask])`, `model(torch.cat([x, x.flip(3)]))`: what the model is given are no samples of the batch."""
    for part in (node, *walk(node)):
        if isinstance(part, cst.Call):
            name = part.func.attr.value if isinstance(part.func, cst.Attribute) else ""
            if _MORE_ROWS.fullmatch(name) and not any(isinstance(a.value, cst.Integer) for a in part.args[1:]):
                return True
        elif isinstance(part, cst.Subscript):
            index = part.slice[0].slice
            if isinstance(index, cst.Slice):
                if index.lower or index.upper or index.step:
                    return True
            elif isinstance(index, cst.Index) and not (
                isinstance(index.value, cst.Integer) or _is_key(loop, part.value, index.value)
            ):
                return True
        elif isinstance(part, cst.Name) and part.value not in asked:
            made = [b.node for b in bindings(loop.node.body) if part.value in b.targets]
            mine = asked | {part.value}
            if any(_takes_other_rows(loop, v, mine) for m in made for v in _given(m, part.value)):
                return True
    return False


def _is_key(loop: LoopFacts, holder: cst.BaseExpression, index: cst.BaseExpression) -> bool:
    """`batch["label"]`, and `batch[k]` of `for k in batch`, `for k, x in batch.items()`."""
    if isinstance(index, cst.SimpleString):
        return True
    made = [b.node for b in bindings(loop.node.body) if isinstance(index, cst.Name) and index.value in b.targets]
    name = loop.source.code(holder)
    over = {loop.source.code(n.iter) for n in made if isinstance(n, (cst.For, cst.CompFor))}
    return bool(made) and over <= {name, f"{name}.keys()", f"{name}.items()", f"list({name})", f"list({name}.keys())"}


def _given(node: cst.CSTNode, name: str) -> list[cst.BaseExpression]:
    """What a statement makes of a name: of `x, y = a, b`, of `batch["x"] = a` and of `for k, x in batch.items()`."""
    if isinstance(node, (cst.For, cst.CompFor)):
        return [node.iter]
    if not isinstance(node, cst.Assign):
        return []
    found: list[cst.BaseExpression] = []
    for target, value in (pair for t in node.targets for pair in pairs(t.target, node.value)):
        while isinstance(target, cst.Subscript):
            target = target.value
        if isinstance(target, cst.Name) and target.value == name:
            found.append(value)
    return found


def _by_row(call: cst.Call) -> bool:
    """`argmax(1)`, not `argmax(0)`, which is over the samples of the batch."""
    given = [a.value for a in call.args if a.keyword is None or a.keyword.value in ("dim", "axis")]
    return not any(isinstance(n, cst.Integer) and n.evaluated_value == 0 for n in given)
