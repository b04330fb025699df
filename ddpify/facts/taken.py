"""A call of a model that gives several outputs in, those of them that the loss of a backward is computed from out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.contents import constants
from ddpify.facts.dependencies import bindings, closure, own_nodes, read_names
from ddpify.source import Source, dotted, walk

if TYPE_CHECKING:
    from ddpify.facts import Facts
    from ddpify.facts.frames import Event

#: the place of an output in a tuple, its key in a dict
Key = int | str
_KINDS = {int: frozenset({"tuple", "list"}), str: frozenset({"dict", "Mapping", "OrderedDict"})}


def taken(facts: Facts, source: Source, call: cst.Call, e: Event, keys: frozenset[Key]) -> set[Key] | None:
    """Which outputs of a call the loss of a backward is computed from, None where it may be all."""
    key = _subscript(source, call)
    if key is not None:  # disc(x)[0]
        return {key} if key in keys else None
    above = source.parents.get(call)
    target = above.targets[0].target if isinstance(above, cst.Assign) and len(above.targets) == 1 else None
    func = next((a for a in source.ancestors(call) if isinstance(a, cst.FunctionDef)), None)
    body: cst.CSTNode = func.body if func is not None else source.module
    pieces = _unpacked(target, keys) if target is not None else None
    if pieces is None:
        pieces = list(_pieces(source, body, target, keys)) if isinstance(target, cst.Name) else []
    if not pieces or any(key is None for key, _ in pieces):
        return None
    own = list(own_nodes(body))
    ends = [e.node] if e.node in own else [r.value for r in own if isinstance(r, cst.Return) and r.value is not None]
    if not ends:
        return None
    done = [b for b in bindings(body) if _is_done(facts, source, b.node, body)]
    known = closure(frozenset().union(*map(read_names, ends)), done)
    parts = {id(n) for part in (*ends, *(b.node for b in done if b.targets & known)) for n in walk(part)}
    return {
        key
        for key, node in pieces
        if key is not None and (node in known if isinstance(node, str) else id(node) in parts)
    }


def _unpacked(target: cst.BaseExpression, keys: frozenset[Key]) -> list[tuple[Key | None, str | cst.CSTNode]] | None:
    """`logits, features = ...`: each output and the name that it gets."""
    if not isinstance(target, (cst.Tuple, cst.List)) or len(target.elements) != len(keys):
        return None
    names = [t.value.value for t in target.elements if isinstance(t, cst.Element) and isinstance(t.value, cst.Name)]
    return list(enumerate(names)) if len(names) == len(keys) and 0 in keys else None


def _pieces(
    source: Source, body: cst.CSTNode, target: cst.Name, keys: frozenset[Key]
) -> Iterator[tuple[Key | None, str | cst.CSTNode]]:
    """What is taken out of a name that holds all outputs; a key of None where something else is done with it."""
    for node in own_nodes(body):
        if not isinstance(node, cst.Name) or node.value != target.value or node is target:
            continue
        above = source.parents.get(node)
        if isinstance(above, (cst.Attribute, cst.Arg)) and node in (
            getattr(above, "attr", None),
            getattr(above, "keyword", None),
        ):
            continue  # another name's attribute, a keyword
        if _is_kind(source, node) or _is_other_kind(source, node, keys):
            continue
        key = _subscript(source, node)
        unpacked = (
            _unpacked(above.targets[0].target, keys)
            if isinstance(above, cst.Assign) and above.value is node and len(above.targets) == 1
            else None
        )
        if key is not None and key in keys:
            yield key, source.parents[node]
        elif unpacked is not None:
            yield from unpacked
        else:
            yield None, node


def _subscript(source: Source, node: cst.CSTNode) -> Key | None:
    """`outputs[0]`, `outputs["logits"]`: the literal."""
    above = source.parents.get(node)
    if isinstance(above, cst.Subscript) and above.value is node:
        match above.slice:
            case [cst.SubscriptElement(slice=cst.Index(value=cst.Integer() as number))]:
                return number.evaluated_value
            case [cst.SubscriptElement(slice=cst.Index(value=cst.SimpleString() as text))]:
                return str(text.evaluated_value)
    return None


def _is_kind(source: Source, node: cst.CSTNode) -> bool:
    """`isinstance(outputs, tuple)`, `len(outputs)`: only its kind is asked for."""
    call = source.parents.get(source.parents[node])
    return isinstance(call, cst.Call) and dotted(call.func) in ("isinstance", "type", "len")


def _is_other_kind(source: Source, node: cst.Name, keys: frozenset[Key]) -> bool:
    """`else: loss = criterion(outputs, y)`, behind `if isinstance(outputs, tuple):` of a model that gives a tuple."""
    inner: cst.CSTNode = node
    for above in source.ancestors(node):
        if isinstance(above, (cst.FunctionDef, cst.Lambda)):
            return False
        if isinstance(above, (cst.If, cst.IfExp)) and inner is not above.test:
            asked = _asked_kind(above.test, node.value)
            if asked is not None:
                kinds, holds = asked
                right = any(kinds & _KINDS[type(key)] for key in keys)
                if (inner is above.body) is not (right is holds):
                    return True
        inner = above
    return False


def _asked_kind(test: cst.BaseExpression, name: str) -> tuple[frozenset[str], bool] | None:
    """`isinstance(name, (tuple, list))`: the kinds, and whether the test holds for them."""
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        found = _asked_kind(test.expression, name)
        return (found[0], not found[1]) if found is not None else None
    match test:
        case cst.Call(
            func=cst.Name(value="isinstance"), args=[cst.Arg(value=cst.Name(value=asked)), cst.Arg(value=kinds)]
        ) if asked == name:
            return frozenset(dotted(n).rpartition(".")[2] for n in (kinds, *walk(kinds))), True
    return None


def _is_done(facts: Facts, source: Source, node: cst.CSTNode, body: cst.CSTNode) -> bool:
    """Whether a statement runs where nobody asks for anything else: no constant and no default rules it out."""
    inner = node
    for above in source.ancestors(node):
        if above is body:
            break
        if isinstance(above, (cst.If, cst.IfExp)) and inner is not above.test:
            holds = holds_by_default(facts, above.test)
            if holds is not None and holds is not (inner is above.body):
                return False
        inner = above
    return True


def holds_by_default(facts: Facts, test: cst.BaseExpression) -> bool | None:
    """What a test says by constants and by the defaults of the command line, None where that is not known."""
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        inner = holds_by_default(facts, test.expression)
        return None if inner is None else not inner
    known = constants(facts.flow.values.get(test, ()))
    if known:
        return bool(known[0]) if len({bool(k) for k in known}) == 1 else None
    match test:
        case cst.Comparison(
            left=left,
            comparisons=[cst.ComparisonTarget(operator=cst.GreaterThan() | cst.NotEqual(), comparator=right)],
        ) if isinstance(right, (cst.Integer, cst.Float)) and not float(right.value):
            return holds_by_default(facts, left)  # args.weight > 0
        case cst.Attribute(attr=cst.Name(value=option)):
            return _default(facts, option)
    return None


def _default(facts: Facts, option: str) -> bool | None:
    """`parser.add_argument("--aux", action="store_true")`: off, unless somebody asks for it."""
    for e in facts.flow.log.of("method"):
        if e.name != "add_argument" or not isinstance(e.node, cst.Call):
            continue
        texts = {a.value.evaluated_value for a in e.node.args if isinstance(a.value, cst.SimpleString)}
        given = {a.keyword.value: a.value for a in e.node.args if a.keyword is not None}
        if not texts & {f"-{option}", f"--{option}", f"--{option.replace('_', '-')}"}:
            continue
        action = given.get("action")
        if isinstance(action, cst.SimpleString) and action.evaluated_value in ("store_true", "store_false"):
            return action.evaluated_value == "store_false"
        known = constants(facts.flow.values.get(given["default"], ())) if "default" in given else [None]
        return bool(known[0]) if known and len(known) == 1 else None
    return None
