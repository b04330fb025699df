"""What an evaluation keeps of a batch in, whether it has an entry for each of the batch's samples out."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.contents import data_of
from ddpify.facts.dependencies import bindings
from ddpify.facts.loops import LoopFacts
from ddpify.facts.starts import pairs
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


def has_a_row_each(facts: Facts, loop: LoopFacts, node: cst.BaseExpression) -> bool:
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
        index = node.slice[0].slice
        if isinstance(index, cst.Slice):  # out[:, 0], and a, b = outputs[:2]
            every = index.lower is None and index.upper is None and index.step is None
            whole = (len(node.slice) > 1 and every) or _is_unpacked(loop, node)
            return whole and _keeps_rows(facts, loop, node.value, asked)
        if len(node.slice) > 1 or not isinstance(index, cst.Index):
            return False
        several = isinstance(node.value, cst.Call) or _is_several(loop, node.value)
        item = (isinstance(index.value, cst.Integer) and several) or _is_key(loop, node.value, index.value)
        return item and _keeps_rows(facts, loop, node.value, asked)
    elif isinstance(node, (cst.DictComp, cst.ListComp, cst.GeneratorExp)):  # {k: v.cuda() for k, v in batch.items()}
        each = node.value if isinstance(node, cst.DictComp) else node.elt
        return not node.for_in.ifs and _keeps_rows(facts, loop, each, asked)
    elif isinstance(node, (cst.Dict, cst.Tuple, cst.List)):  # {"x": batch[0], "labels": batch[1]}
        return all(_keeps_rows(facts, loop, e.value, asked) for e in node.elements)
    elif isinstance(node, (cst.Comparison, cst.BinaryOperation)):
        return _keeps_rows(facts, loop, node.left, asked)
    elif isinstance(node, cst.UnaryOperation):  # argmax(-1), -scores
        return _keeps_rows(facts, loop, node.expression, asked)
    else:
        return isinstance(node, (cst.Integer, cst.Float))
    return all(_keeps_rows(facts, loop, p, asked) for p in parts)


def _is_several(loop: LoopFacts, node: cst.BaseExpression) -> bool:
    """`batch` of `x, y = batch[0], batch[1]`: the loop's own variable, of which more than one item is used."""
    target: cst.BaseExpression = loop.node.target
    if isinstance(target, cst.Tuple) and loop.source.code(loop.node.iter).startswith("enumerate("):
        target = target.elements[-1].value
    if not isinstance(target, cst.Name) or not target.deep_equals(node):
        return False
    mine = [n for n in walk(loop.node.body) if isinstance(n, cst.Subscript) and n.value.deep_equals(node)]
    return len({loop.source.code(n.slice[0]) for n in mine if len(n.slice) == 1}) > 1


def _is_unpacked(loop: LoopFacts, node: cst.Subscript) -> bool:
    """`loss, logits = outputs[:2]`: the first of what a model gives."""
    stmt = loop.source.parents.get(node)
    if not isinstance(stmt, cst.Assign) or len(node.slice) > 1 or not isinstance(node.value, cst.Name):
        return False
    made = [
        v for b in bindings(loop.node.body) if node.value.value in b.targets for v in _given(b.node, node.value.value)
    ]
    forwards = {id(e.node) for e in loop.frame.events if e.kind == "forward"}
    several = all(isinstance(t.target, cst.Tuple) for t in stmt.targets)
    return several and bool(made) and all(id(v) in forwards for v in made)


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
