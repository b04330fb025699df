"""Where statements stand to each other: blocks, order, the frame in which a script does its work."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import libcst as cst

from ddpify.facts.frames import Event, Frame, Loop
from ddpify.source import Source, walk

Step = tuple[Frame, cst.CSTNode, tuple[Loop, ...]]


def steps(event: Event) -> list[Step]:
    """The frames that lead to an event, outermost first, each with the statement that leads on."""
    chain = next(event.frame.chains(1), ())
    return [*((e.frame, e.stmt, e.loops) for e in chain), (event.frame, event.stmt, event.loops)]


def ways(event: Event) -> list[list[Step]]:
    """All of the ways to an event: `evaluate()` is called by `train()`, and where the command line asks for it."""
    chains = list(event.frame.chains()) or [()]
    return [[*((e.frame, e.stmt, e.loops) for e in c), (event.frame, event.stmt, event.loops)] for c in chains]


def import_on(way: Sequence[Step]) -> int | None:
    """The place of the last import on a way: what comes behind it runs while that module is imported."""
    found = [at for at, (_, stmt, _) in enumerate(way) if isinstance(stmt, (cst.Import, cst.ImportFrom))]
    return found[-1] if found else None


def blocks(source: Source, stmt: cst.CSTNode) -> list[cst.CSTNode]:
    """The blocks around a statement, innermost first, the module last; those of other functions left out."""
    found: list[cst.CSTNode] = []
    for node in source.ancestors(stmt):
        if isinstance(node, (cst.IndentedBlock, cst.Module, cst.SimpleStatementSuite)):
            found.append(node)
        if isinstance(node, (cst.FunctionDef, cst.ClassDef)):
            break
    return found


def common_block(source: Source, stmts: Iterable[cst.CSTNode]) -> cst.CSTNode | None:
    """The innermost block that holds all of the statements."""
    common: list[cst.CSTNode] | None = None
    for stmt in stmts:
        around = blocks(source, stmt)
        common = around if common is None else [b for b in common if b in around]
    return common[0] if common else None


def in_block(source: Source, stmt: cst.CSTNode, block: cst.CSTNode) -> cst.CSTNode:
    """The statement of a block that holds a statement (or is it)."""
    node = stmt
    for above in source.ancestors(stmt):
        if above is block:
            break
        node = above
    return _statement(node)


def _statement(node: cst.CSTNode) -> cst.CSTNode:
    """The small statement, where a line holds just one."""
    return node.body[0] if isinstance(node, cst.SimpleStatementLine) else node


def following(source: Source, stmt: cst.CSTNode) -> list[cst.CSTNode]:
    """The statements behind one, in its own block."""
    owner = source.parents.get(stmt)
    line: cst.CSTNode = owner if isinstance(owner, cst.SimpleStatementLine) else stmt
    block = source.parents.get(line)
    body = list(getattr(block, "body", ()))
    at = body.index(line) if line in body else len(body)
    return [_statement(s) for s in body[at + 1 :]]


def leading(source: Source, outer: cst.CSTNode, stmt: cst.CSTNode) -> list[cst.CSTNode]:
    """The statements inside another one that run before the one that it leads to."""
    found: list[cst.CSTNode] = []
    inner = stmt
    for above in source.ancestors(stmt) if stmt is not outer else ():
        body = list(getattr(above, "body", ())) if isinstance(above, (cst.BaseSuite, cst.SimpleStatementLine)) else []
        found += body[: body.index(inner)] if inner in body else []
        if above is outer:
            break
        inner = above
    return found


def statement_of(source: Source, node: cst.CSTNode) -> cst.CSTNode:
    """The innermost statement around an expression."""
    if isinstance(node, (cst.BaseSmallStatement, cst.BaseCompoundStatement)):
        return node
    for above in source.ancestors(node):
        if isinstance(above, (cst.BaseSmallStatement, cst.BaseCompoundStatement)):
            return above
    return node


def exclusive(one: Event, other: Event) -> bool:
    """Whether a run of the script has one event or the other: two branches of an `if`, two functions of one call."""
    chains = [list(e.frame.chains(2)) for e in (one, other)]
    if any(len(ways) != 1 for ways in chains):
        return False
    calls = [[entry.call for entry in ways[0]] for ways in chains]
    for at, ((frame, stmt, loops), (frame2, stmt2, _)) in enumerate(zip(steps(one), steps(other), strict=False)):
        if frame is not frame2:
            return at > 0 and calls[0][at - 1] is calls[1][at - 1]  # one call runs one function
        if loops:
            return False
        if stmt is not stmt2:
            return in_branches(frame.source, stmt, stmt2)
    return False


def in_branches(source: Source, one: cst.CSTNode, other: cst.CSTNode) -> bool:
    """Whether two statements stand in the two branches of an `if`."""
    above, above2 = set(source.ancestors(one)), set(source.ancestors(other))
    tests = [n for n in above & above2 if isinstance(n, cst.If) and n.orelse is not None]
    return any((n.body in above and n.orelse in above2) or (n.body in above2 and n.orelse in above) for n in tests)


def alternatives(one: Event, other: Event) -> bool:
    """Whether one turn of a loop has just one of two events: two branches, or `if amp: a(); continue` before `b()`."""
    if other.frame is one.frame:
        return _apart(one.frame.source, one.stmt, other.stmt) or (one is other and _called_apart(one.frame))
    # `if amp: scaler(loss, optimizer)`, in which a backward stands, `else: loss.backward()`
    for frame in (one.frame, other.frame):
        pairs = [(a, b) for a in _places(one, frame) for b in _places(other, frame)]
        if pairs:
            return all(_apart(frame.source, a, b) for a, b in pairs)
    return False


def _called_apart(frame: Frame) -> bool:
    """`if amp: scaler(loss) else: scaler(loss)`: each turn makes one of the calls that run a function."""
    ways = list(frame.entries)
    pairs = [(a, b) for at, a in enumerate(ways) for b in ways[at + 1 :]]
    return bool(pairs) and all(a.frame is b.frame and _apart(a.frame.source, a.call, b.call) for a, b in pairs)


def of_one_call(one: Event, other: Event) -> bool:
    """`criterion = losses[args.loss]`, and then `criterion(net, x)`: each time one function of several runs there."""
    ways, ways2 = steps(one), steps(other)
    for (frame, stmt, loops), (frame2, stmt2, _), (inner, *_), (inner2, *_) in zip(
        ways, ways2, ways[1:], ways2[1:], strict=False
    ):
        if frame is not frame2 or stmt is not stmt2:
            return False
        if inner is inner2 or inner.func is None or inner2.func is None:
            continue
        calls = [[x.call for x in way.entries if x.frame is frame] for way in (inner, inner2)]
        if inner.func.node is inner2.func.node or len(calls[0]) != 1 or calls[0] != calls[1]:
            return False
        func = getattr(calls[0][0], "func", None)
        named = {n.value for n in walk(func) if isinstance(n, cst.Name)} if func is not None else set()
        return not any(named & _taken(lp) for lp in loops)  # for criterion in losses: total += criterion(net, x)
    return False


def _taken(loop: Loop) -> set[str]:
    """The names that a loop gives values to in each turn."""
    target = getattr(getattr(loop.node, "for_in", loop.node), "target", None)
    return {n.value for n in walk(target) if isinstance(n, cst.Name)} if target is not None else set()


def _places(event: Event, frame: Frame) -> list[cst.CSTNode]:
    """Where an event comes from in a frame: it is there itself, or a call leads to it."""
    if event.frame is frame:
        return [event.stmt]
    return [entry.call for chain in event.frame.chains(8) for entry in chain if entry.frame is frame]


def _apart(source: Source, one: cst.CSTNode, other: cst.CSTNode) -> bool:
    around = list(source.ancestors(other))
    if any(_excludes(source, a, b) for a in _values_asked(source, one) for b in _values_asked(source, other)):
        return True
    inner = one
    for above in source.ancestors(one):
        if isinstance(above, (cst.If, cst.Match, cst.Try)) and above in around:
            there = around[around.index(above) - 1] if around.index(above) else other
            if there is not inner:
                return True
        elif isinstance(above, cst.If) and ends_in_a_way_out(above.body) and inner is above.body:
            return True
        if isinstance(above, (cst.For, cst.While, cst.FunctionDef)):
            return False
        inner = above
    return False


def _values_asked(source: Source, node: cst.CSTNode) -> list[tuple[cst.BaseExpression, str]]:
    """`args.kind` and `"small"` of each `if args.kind == "small":` around a statement, in its function."""
    found: list[tuple[cst.BaseExpression, str]] = []
    inner = node
    for above in source.ancestors(node):
        match above:
            case cst.FunctionDef():
                break
            case cst.If(
                test=cst.Comparison(
                    left=cst.Name() | cst.Attribute() as left,
                    comparisons=[
                        cst.ComparisonTarget(operator=cst.Equal(), comparator=cst.SimpleString() | cst.Integer() as is_)
                    ],
                ),
                body=body,
            ) if body is inner:
                found.append((left, repr(is_.evaluated_value)))
        inner = above
    return found


def _excludes(source: Source, one: tuple[cst.BaseExpression, str], other: tuple[cst.BaseExpression, str]) -> bool:
    """`if kind == "a":` and `if kind == "b":`, of a name that nothing in the function gives another value."""
    name = source.code(one[0])
    if name != source.code(other[0]) or one[1] == other[1]:
        return False
    owner = next((a for a in source.ancestors(one[0]) if isinstance(a, cst.FunctionDef)), source.module)
    targets = (t for n in walk(owner) if isinstance(n, cst.AssignTarget) for t in (n.target, *walk(n.target)))
    return isinstance(owner, cst.FunctionDef) and not any(
        source.code(t) == name for t in targets if t in source.parents
    )


def ends_in_a_way_out(block: cst.BaseSuite) -> bool:
    """The last statement of a block is `return`, `continue`, `break` or `raise`."""
    last = block.body[-1] if block.body else None
    last = last.body[-1] if isinstance(last, cst.SimpleStatementLine) else last
    return isinstance(last, (cst.Return, cst.Continue, cst.Break, cst.Raise))


def is_guard(node: cst.CSTNode) -> bool:
    """`if __name__ == "__main__":`"""
    return (
        isinstance(node, cst.If)
        and isinstance(node.test, cst.Comparison)
        and any(
            isinstance(n, cst.Name) and n.value == "__name__"
            for n in (node.test.left, node.test.comparisons[0].comparator)
        )
    )
