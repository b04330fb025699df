"""Random programs and random edits: the result holds the same statements, each under the guards that were asked for."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import libcst as cst
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from ddpify.edits import Append, Edit, Guard, InsertAfter, InsertBefore, Replace
from ddpify.rewrite import Rewriter
from ddpify.source import Source, walk

HEADERS = ("if is_main_process()", "with main_process_first()")
MARKS = ("before", "after")
SETTINGS = settings(max_examples=150, deadline=None, derandomize=True, phases=[Phase.generate, Phase.shrink])
SMALL = (
    "a{n} = f({n})",
    "print({n}, x)",
    "b{n} = g(\n  {n},\n        x)",
    'print("""{n}\n  text\nmore""", x)',
    'h(f"""{{x}}\n{n}""")',
    "c{n} = x + \\\n  {n}",
    "d{n} = (x,\n{i}# {n} inside\n{i}y)",
    "(yield)",
    "(e{n}) = {n}",
)
HEADS = (
    ("if x{n}:",),
    ("if x{n}:", "else:"),
    ("if x{n}:", "elif y:", "else:"),
    ("for a{n} in y:", "else:"),
    ("while x{n}:",),
    ("with x{n}:",),
    ("try:", "except E{n}:", "finally:"),
    ("@x.y({n})\n{i}def f{n}(a, b={n}):",),
    ("class A{n}(x):",),
)


@st.composite
def programs(draw: st.DrawFn) -> str:
    """The text of a program, in one indentation and one kind of line end."""
    unit = draw(st.sampled_from(["    ", "  ", "\t"]))
    lines = _block(draw, "", unit, iter(range(1000)), 0)
    text = "def main():\n" + "\n".join(unit + s if s else s for s in "\n".join(lines).split("\n"))
    return text + draw(st.sampled_from(["", "\n", "\n\n"]))


def _block(draw: st.DrawFn, indent: str, unit: str, numbers: Iterator[int], depth: int) -> list[str]:
    lines: list[str] = []
    for _ in range(draw(st.integers(1, 3))):
        n = next(numbers)
        lines += draw(
            st.sampled_from([[], [""], [f"{indent}# {n} above"], ["", f"{indent}# {n} a", f"{indent}# {n} b"]])
        )
        if depth < 3 and draw(st.booleans()):
            heads = draw(st.sampled_from(HEADS))
            for head in heads:
                first = indent + head.format(n=n, i=indent)
                if draw(st.integers(0, 3)) == 0:
                    lines.append(f"{first} {_line(draw, indent, numbers)}")
                else:
                    lines += [first, *_block(draw, indent + unit, unit, numbers, depth + 1)]
        else:
            lines.append(indent + _line(draw, indent, numbers))
    return lines


def _line(draw: st.DrawFn, indent: str, numbers: Iterator[int]) -> str:
    smalls = [
        draw(st.sampled_from(SMALL)).format(n=next(numbers), i=indent)
        for _ in range(draw(st.sampled_from([1, 1, 1, 2, 3])))
    ]
    return draw(st.sampled_from(["; ", ";"])).join(smalls) + draw(st.sampled_from(["", "", ";", "  # behind"]))


# ---- what is asked for, and what came of it -----------------------------------------------------------


@dataclass
class Seen:
    """A statement of a tree, its guards taken away: what stands around it."""

    node: ast.stmt
    guards: tuple[str, ...]
    marks: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)


def _header(stmt: ast.stmt) -> str | None:
    """The guard that a statement is, or None."""
    text = ast.unparse(stmt).split(":\n")[0]
    return text if text in HEADERS else None


def _mark(stmt: ast.stmt) -> str | None:
    text = ast.unparse(stmt)
    return text if text.startswith(tuple(f"{m}_" for m in MARKS)) else None


def statements(body: Sequence[ast.stmt], guards: tuple[str, ...] = ()) -> list[Seen]:
    """Every statement in the order of the text, without what is inside it: that comes as statements of its own."""
    here: list[Seen] = []
    waiting: list[tuple[str, tuple[str, ...]]] = []
    for seen in _flat(body, guards):
        mark = _mark(seen.node)
        if mark is None:
            seen.marks, waiting = waiting, []
            here.append(seen)
        elif mark.startswith("before_"):
            waiting.append((mark, seen.guards))
        else:
            here[-1].marks.append((mark, seen.guards))
    assert not waiting
    return [s for seen in here for s in (seen, *_inside(seen))]


def _inside(seen: Seen) -> list[Seen]:
    found: list[Seen] = []
    for part in (seen.node, *getattr(seen.node, "handlers", ())):
        for name in ("body", "orelse", "finalbody"):
            if part is seen.node and name != "body":
                continue  # handlers stand between the body and the rest
            found += _taken(part, name, seen.guards)
    for name in ("orelse", "finalbody"):
        found += _taken(seen.node, name, seen.guards)
    return found


def _taken(part: ast.AST, name: str, guards: tuple[str, ...]) -> list[Seen]:
    body: list[ast.stmt] = getattr(part, name, [])
    if body:
        setattr(part, name, [ast.Pass()])
    return statements(body, guards)


def _flat(body: Sequence[ast.stmt], guards: tuple[str, ...]) -> Iterator[Seen]:
    for stmt in body:
        header = _header(stmt)
        if header is None:
            yield Seen(stmt, guards)
        else:
            assert isinstance(stmt, (ast.If, ast.With))
            yield from _flat(stmt.body, (*guards, header))


def nodes(source: Source) -> list[cst.CSTNode]:
    """The statements in the same order. An `elif` is one, but nothing may stand before it."""
    return [n for n in walk(source.module) if isinstance(n, (cst.BaseSmallStatement, cst.BaseCompoundStatement))]


def expected_guards(source: Source, node: cst.CSTNode, asked: dict[cst.CSTNode, str], own: bool) -> tuple[str, ...]:
    """Headers from the outside in; one that stands around the statement already is not written again."""
    around = [asked[a] for a in reversed([*([node] if own else []), *source.ancestors(node)]) if a in asked]
    return tuple(dict.fromkeys(around))


@SETTINGS
@given(programs(), st.data())
def test_statements_stay_and_guards_come(text: str, data: st.DataObject) -> None:
    source = Source(Path("train.py"), text.encode())
    every = nodes(source)
    free = [n for n in every[1:] if not isinstance(source.parents.get(n), cst.If)]
    some = st.lists(st.integers(0, len(free) - 1), max_size=4, unique=True)
    guarded = {free[i]: data.draw(st.sampled_from(HEADERS)) for i in data.draw(some, label="guarded")}
    marked = [(data.draw(st.sampled_from(MARKS)), free[i]) for i in data.draw(some, label="marked")]
    edits: list[Edit] = [Guard(source, n, h) for n, h in guarded.items()]
    for at, (side, n) in enumerate(marked):
        edits.append((InsertBefore if side == "before" else InsertAfter)(source, n, (f"{side}_{at}()",)))
    edits = [edits[i] for i in data.draw(st.permutations(range(len(edits))), label="order")]

    result = Rewriter(source).apply(edits)
    before = statements(ast.parse(text).body)
    assert len(before) == len(every)
    after = statements(ast.parse(result).body)
    assert [ast.dump(s.node) for s in after] == [ast.dump(s.node) for s in before]
    for node, seen in zip(every, after, strict=True):
        assert seen.guards == expected_guards(source, node, guarded, own=True)
        around = expected_guards(source, node, guarded, own=False)
        wanted = [(f"{side}_{at}()", around) for at, (side, n) in enumerate(marked) if n is node]
        assert sorted(seen.marks) == sorted(wanted)
    assert sorted(_comments(result)) == sorted(_comments(text))

    windows = Source(Path("train.py"), text.replace("\n", "\r\n").encode())
    there = dict(zip(every, nodes(windows), strict=True))
    again = [_moved(e, windows, there) for e in edits]
    assert Rewriter(windows).apply(again) == result.replace("\n", "\r\n")


def _moved(edit: Edit, source: Source, there: dict[cst.CSTNode, cst.CSTNode]) -> Edit:
    match edit:
        case Guard(node=node, header=header):
            return Guard(source, there[node], header)
        case InsertBefore(node=node, lines=lines):
            return InsertBefore(source, there[node], lines)
        case InsertAfter(node=node, lines=lines):
            return InsertAfter(source, there[node], lines)
    raise AssertionError(edit)


def _comments(text: str) -> list[str]:
    return [t.string for t in tokenize.generate_tokens(io.StringIO(text).readline) if t.type == tokenize.COMMENT]


@SETTINGS
@given(programs(), st.data())
def test_names_change_where_asked(text: str, data: st.DataObject) -> None:
    source = Source(Path("train.py"), text.encode())
    names = [n for n in walk(source.module) if isinstance(n, cst.Name) and n.value in ("x", "y", "f", "print")]
    free = [n for n in nodes(source)[1:] if not isinstance(source.parents.get(n), cst.If)]
    chosen = [n for n in names if data.draw(st.booleans())]
    guarded = [n for n in free if data.draw(st.integers(0, 5)) == 0]
    edits: list[Edit] = [Guard(source, n, HEADERS[0]) for n in guarded]
    for at, node in enumerate(chosen):
        edits.append(Append(source, node, ".module") if at % 2 else Replace(source, node, "renamed"))
    expected = source.text
    for at, node in sorted(enumerate(chosen), key=lambda c: source.span(c[1]).start, reverse=True):
        span = source.span(node)
        new = f"{node.value}.module" if at % 2 else "renamed"
        expected = expected[: span.start] + new + expected[span.end :]
    result = Rewriter(source).apply(edits)
    before = [ast.dump(s.node) for s in statements(ast.parse(expected).body)]
    assert [ast.dump(s.node) for s in statements(ast.parse(result).body)] == before
