"""An evaluation loop in, the arrays out that grow by the rows of each batch: `preds = np.append(preds, x, axis=0)`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.contents import constants
from ddpify.facts.dependencies import Binding, bindings
from ddpify.facts.eachrow import has_a_row_each
from ddpify.facts.loops import LoopFacts, read_after, uses_of
from ddpify.facts.starts import names, start_of
from ddpify.facts.tallies import is_sendable
from ddpify.source import walk

if TYPE_CHECKING:
    from ddpify.facts import Facts

#: what is put behind, how many dimensions it has to have (0: any), and whether it is an array of numpy
_Rows = tuple[cst.BaseExpression, int, bool]
_TENSORS = {f"torch.{name}" for name in ("cat", "concat", "concatenate")}
_ARRAYS = {"numpy.concatenate", "numpy.append", "numpy.hstack", "numpy.vstack"}
#: functions that put rows behind each other where these have so many dimensions, with the number
_OF = {"numpy.hstack": 1, "numpy.vstack": 2}
#: what makes something without a row
_EMPTY = {f"torch.{name}" for name in ("empty", "zeros", "tensor", "Tensor", "FloatTensor", "LongTensor")}
_EMPTY |= {f"numpy.{name}" for name in ("empty", "zeros", "array")}


def grown(facts: Facts, loop: LoopFacts, inside: set[int]) -> dict[str, str]:
    """The arrays that begin empty, or as None, and get a row for each sample, by kind: array, tensor or cpu.

    The place of a row tells its sample, so that the rows of all ranks can be put in one process' order.
    """
    body = [b for b in bindings(loop.node.body) if isinstance(b.node, cst.Assign)]
    found: dict[str, list[Binding]] = {}
    for name in dict.fromkeys(n for b in body for n in sorted(b.targets)):
        mine = [b for b in bindings(loop.node.body) if name in b.targets]
        if any(name in b.reads for b in mine) and name.isidentifier() and read_after(loop, name, inside):
            found[name] = mine
    starts = {name: start_of(facts, loop, name, rebound=True) for name in found}
    from_none = {name for name, s in starts.items() if s is not None and loop.source.code(s[1]) == "None"}
    kept: dict[str, str] = {}
    for name, mine in found.items():
        start = starts[name]
        if start is None or not (name in from_none or _is_empty(facts, start[1])):
            continue
        first, rows = _rows(facts, loop, name, mine, from_none)
        if rows is None or (first is None) == (name in from_none):
            continue
        given, dimensions = rows[:2]
        if first is not None and not first.deep_equals(given):
            continue
        own = isinstance(start[1], cst.Call) and _is_tensor(facts, start[1])
        beside = dimensions not in (0, _dimensions(start[1]))
        if not beside and (own or is_sendable(facts, given)) and has_a_row_each(facts, loop, given):
            kept[name] = "array" if rows[2] else "tensor" if own else "cpu"
    # a test for None asks of others, too
    return (
        kept
        if all(n in kept for n in from_none & set(found))
        else {n: o for n, o in kept.items() if n not in from_none}
    )


def _is_tensor(facts: Facts, start: cst.Call) -> bool:
    return any(name.startswith("torch.") for name in _made_by(facts, start))


def _made_by(facts: Facts, start: cst.BaseExpression) -> set[str]:
    """What makes the value: `torch.tensor([]).to(device)` comes of `torch.tensor`."""
    while isinstance(start, cst.Call):
        if found := names(facts, start.func):
            return found
        if not isinstance(start.func, cst.Attribute):
            return set()
        start = start.func.value
    return set()


def _is_empty(facts: Facts, start: cst.BaseExpression) -> bool:
    """`[]`, `torch.tensor([])`, `np.empty((0, 3))`: no row."""
    if isinstance(start, cst.List):
        return not start.elements
    if not isinstance(start, cst.Call):
        return False
    if isinstance(start.func, cst.Attribute) and start.func.attr.value in ("to", "cuda", "cpu", "long", "float", "int"):
        return _is_empty(facts, start.func.value)
    made = _made_by(facts, start)
    first = next((a.value for a in start.args if a.keyword is None), None)
    if not made & _EMPTY or any(a.star for a in start.args):
        return False
    if first is None:
        return bool(made & {f"torch.{name}" for name in ("Tensor", "FloatTensor", "LongTensor")})
    if isinstance(first, (cst.List, cst.Tuple)):
        if not first.elements:
            return not made & {f"{m}.{n}" for m in ("torch", "numpy") for n in ("empty", "zeros")}
        first = first.elements[0].value
    elif made & {"torch.tensor", "numpy.array"}:
        return False
    return not made & {"torch.tensor", "numpy.array"} and constants(facts.flow.values.get(first, ())) == [0]


def _dimensions(start: cst.BaseExpression) -> int:
    """1 of `[]`, `np.array([])` and `np.empty(0)`, 2 of `np.empty((0, 3))`."""
    given = start.args[0].value if isinstance(start, cst.Call) and start.args else None
    if isinstance(given, (cst.Tuple, cst.List)) and given.elements:
        return len(given.elements)
    return 1


def _rows(
    facts: Facts, loop: LoopFacts, name: str, mine: list[Binding], from_none: set[str]
) -> tuple[cst.BaseExpression | None, _Rows | None]:
    """What it is in the first pass where it begins as None, and what each pass puts behind; nothing else is done."""
    first: cst.BaseExpression | None = None
    rows: list[_Rows | None] = []
    asked: set[cst.CSTNode] = set()
    for b in mine:
        node = b.node
        if (
            not isinstance(node, cst.Assign)
            or len(node.targets) > 1
            or not isinstance(node.targets[0].target, cst.Name)
        ):
            return None, None
        ways: list[tuple[cst.BaseExpression, bool | None]] = [(node.value, None)]
        test, side = _test(loop, node)
        if isinstance(node.value, cst.IfExp) and test is None:
            test, ways = node.value.test, [(node.value.body, True), (node.value.orelse, False)]
        elif test is not None:
            ways = [(node.value, side)]
        elif not _stands_in_body(loop, node):
            return None, None
        none = _is_none(test, from_none) if test is not None else None
        if test is not None and none is None:
            return None, None
        asked |= {test} if test is not None and name in _names_in(test) else set()
        for value, then in ways:
            if then is not None and then == none:
                if first is not None:
                    return None, None
                first = value
            else:
                rows.append(_joined(facts, name, value))
    uses = len(mine) + len(asked) + len(rows)  # its targets, the tests, and the place in what it is joined with
    alone = len(rows) == 1 and len(uses_of(loop.node.body, name)) == uses
    return (first, rows[0]) if alone else (None, None)


def _names_in(node: cst.CSTNode) -> Iterator[str]:
    return (n.value for n in (node, *walk(node)) if isinstance(n, cst.Name))


def _test(loop: LoopFacts, node: cst.Assign) -> tuple[cst.BaseExpression | None, bool]:
    """The `if` of the loop's body that a statement stands under, and on which side of it."""
    line = loop.source.parents.get(node)
    block = loop.source.parents.get(line) if line is not None else None
    above = loop.source.parents.get(block) if block is not None else None
    side = not isinstance(above, cst.Else)
    above = loop.source.parents.get(above) if isinstance(above, cst.Else) else above
    if isinstance(above, cst.If) and _stands_in_body(loop, above) and isinstance(above.orelse, cst.Else):
        return above.test, side
    return None, True


def _stands_in_body(loop: LoopFacts, node: cst.CSTNode) -> bool:
    """Whether each pass of the loop comes to a statement; a `with` around it changes nothing."""
    for above in loop.source.ancestors(node):
        if above is loop.node:
            return True
        if not isinstance(above, (cst.SimpleStatementLine, cst.IndentedBlock, cst.With)):
            return False
    return False


def _is_none(test: cst.CSTNode, from_none: set[str]) -> bool | None:
    """True of `preds is None`, False of `preds is not None`, None of other tests."""
    match test:
        case cst.Comparison(
            left=cst.Name(value=name),
            comparisons=[cst.ComparisonTarget(operator=operator, comparator=cst.Name(value="None"))],
        ) if name in from_none and isinstance(operator, (cst.Is, cst.IsNot)):
            return isinstance(operator, cst.Is)
    return None


def _joined(facts: Facts, name: str, value: cst.BaseExpression) -> _Rows | None:
    """`x` of `np.append(preds, x, axis=0)` and `torch.cat([preds, x])`."""
    if not isinstance(value, cst.Call):
        return None
    called = names(facts, value.func)
    if not called & (_TENSORS | _ARRAYS):
        return None
    append = "numpy.append" in called
    dimensions = next((n for name, n in _OF.items() if name in called), 0)
    plain = [a.value for a in value.args if a.keyword is None]
    along = [a.value for a in value.args if a.keyword is not None and a.keyword.value in ("axis", "dim")]
    pair, along = (plain[:2], [*along, *plain[2:]]) if append else (_items(plain[:1]), [*along, *plain[1:]])
    if len(value.args) != (2 if append else 1) + len(along) or any(not _is_zero(a) for a in along) or len(pair) != 2:
        return None
    mine = isinstance(pair[0], cst.Name) and pair[0].value == name
    return (pair[1], dimensions, not called & _TENSORS) if mine and name not in _names_in(pair[1]) else None


def _items(given: list[cst.BaseExpression]) -> list[cst.BaseExpression]:
    return [e.value for e in given[0].elements] if given and isinstance(given[0], (cst.List, cst.Tuple)) else []


def _is_zero(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Integer) and node.evaluated_value == 0
