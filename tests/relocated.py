"""A script -> the same script with its parts elsewhere: in a function, in another module, in a class."""

from __future__ import annotations

import ast
import builtins
import re
import symtable
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import libcst as cst

from ddpify.source import Source, walk
from tests.variants import parse, replaced, string_lines

#: a line of a new file, and the number of the line that it was, where it was one
Line = tuple[str, int | None]
MODULE, CLASS, RUN = "parts", "WholeScript", "run_all"


@dataclass(frozen=True)
class Relocated:
    """The texts of the files, and for each of their lines the line of the script that it was."""

    files: dict[str, str]
    origins: dict[tuple[str, int], tuple[str, int]]


Relocate = Callable[[str], Relocated | None]


def relocated(files: dict[str, list[Line]]) -> Relocated:
    origins = {
        (name, number): ("before.py", was)
        for name, lines in files.items()
        for number, (_, was) in enumerate(lines, 1)
        if was is not None
    }
    return Relocated({name: "".join(text for text, _ in lines) for name, lines in files.items()}, origins)


def new_lines(text: str) -> list[Line]:
    return [(line, None) for line in text.splitlines(keepends=True)]


# ---- what a script is made of -------------------------------------------------------------------------------


@dataclass(eq=False)
class Part:
    """A statement of a module, or several on one line, with the comments above it."""

    nodes: list[ast.stmt]
    first: int
    last: int
    binds: set[str] = field(default_factory=set)
    reads: set[str] = field(default_factory=set)
    #: names that are a function's own somewhere in it
    inner: set[str] = field(default_factory=set)
    declared: set[str] = field(default_factory=set)

    @property
    def start(self) -> int:
        decorators = getattr(self.nodes[0], "decorator_list", [])
        first: int = min(n.lineno for n in (self.nodes[0], *decorators))
        return first

    @property
    def kind(self) -> str:
        return _kind(self.nodes[0]) if len({_kind(n) for n in self.nodes}) == 1 else "work"


def _kind(node: ast.stmt) -> str:
    match node:
        case ast.Import() | ast.ImportFrom():
            return "import"
        case ast.FunctionDef():
            return "function"
        case ast.ClassDef():
            return "class"
        case ast.If(test=ast.Compare(left=ast.Name(id="__name__"))):
            return "guard"
        case ast.Expr(value=ast.Constant()):
            return "text"
    return "work"


def parts_of(text: str) -> list[Part]:
    """The statements of a script in order, each with what it binds and reads of the module's names."""
    found: list[Part] = []
    for node in ast.parse(text).body:
        assert node.end_lineno is not None
        if found and found[-1].last >= node.lineno:
            found[-1].nodes.append(node)
            found[-1].last = node.end_lineno
        else:
            found.append(Part([node], found[-1].last + 1 if found else 1, node.end_lineno))
    for part in found:
        _names(part, text)
    return found


def _names(part: Part, text: str) -> None:
    """By Python's own symbol table of the part alone."""
    lines = text.splitlines(keepends=True)[part.first - 1 : part.last]
    table = symtable.symtable("".join(lines), "before.py", "exec")
    for symbol in table.get_symbols():
        if symbol.is_assigned() or symbol.is_imported():
            part.binds.add(symbol.get_name())
        if symbol.is_referenced():
            part.reads.add(symbol.get_name())
    for inner in _below(table):
        for symbol in inner.get_symbols():
            if symbol.is_global():
                part.reads.add(symbol.get_name())
                if symbol.is_declared_global():
                    part.declared.add(symbol.get_name())
            elif inner.get_type() != "class":
                part.inner.add(symbol.get_name())


def _below(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    for child in table.get_children():
        yield child
        yield from _below(child)


def _lines(text: str, parts: Iterable[Part], shift: str = "", inside: Iterable[int] = ()) -> list[Line]:
    lines = text.splitlines(keepends=True)
    kept = set(inside)
    return [
        ((shift if lines[n - 1].strip() and n not in kept else "") + lines[n - 1], n)
        for part in parts
        for n in range(part.first, part.last + 1)
    ]


# ---- in a function -------------------------------------------------------------------------------------------


def in_function(text: str) -> str | None:
    """The module-level code of a script moved into a function; None where it has a main guard already."""
    source = parse(text)
    if "__name__" in text:
        return None
    stay, moved = list[cst.CSTNode](), list[cst.CSTNode]()
    for stmt in source.module.body:
        first = stmt.body[0] if isinstance(stmt, cst.SimpleStatementLine) else stmt
        doc = isinstance(first, cst.Expr) and isinstance(first.value, cst.SimpleString)
        (
            stay if doc or isinstance(first, (cst.Import, cst.ImportFrom, cst.FunctionDef, cst.ClassDef)) else moved
        ).append(stmt)
    inside = string_lines(source)
    head, body = list[str](), list[str]()
    lines = text.splitlines(keepends=True)
    for stmt in source.module.body:
        start, end = source.span(stmt).line, source.line_at(_last(source, stmt))
        decorators = getattr(stmt, "decorators", ())
        start = source.line(decorators[0]) if decorators else start
        for number in range(start, end + 1):
            line = lines[number - 1]
            shift = source.module.default_indent if stmt in moved and line.strip() and number not in inside else ""
            (body if stmt in moved else head).append(shift + line)
    read = {n.value for s in stay for n in walk(s) if isinstance(n, cst.Name)}
    targets = [t for s in moved for t in walk(s) if isinstance(t, (cst.AssignTarget, cst.For, cst.AnnAssign))]
    bound = {n.value for t in targets for n in walk(t.target) if isinstance(n, cst.Name)}
    shared = sorted(read & bound)
    declared = f"{source.module.default_indent}global {', '.join(shared)}\n" if shared else ""
    return "".join(head) + "\n\ndef whole_script():\n" + declared + "".join(body).rstrip() + "\n\n\nwhole_script()\n"


def _last(source: Source, stmt: cst.CSTNode) -> int:
    return max(source.span(n).end for n in walk(stmt) if not isinstance(n, (cst.IndentedBlock, cst.Module)))


# ---- in another module ---------------------------------------------------------------------------------------


def movable(parts: Sequence[Part]) -> list[tuple[Part, list[Part]]]:
    """The functions and classes that can stand in another module, each with those that have to come along."""
    imported = {n for p in parts if p.kind == "import" for n in p.binds} | set(dir(builtins))
    given = {n: p for p in parts for n in p.binds if p.kind in ("function", "class")}
    worked = {n for p in parts if p.kind not in ("function", "class") for n in p.binds}
    found = []
    for part in parts:
        if part.kind not in ("function", "class"):
            continue
        along, todo = list[Part](), [part]
        while todo:
            now = todo.pop()
            along.append(now)
            todo += [given[n] for n in now.reads - imported if n in given and given[n] not in (*along, *todo)]
        reads = {n for p in along for n in p.reads} - imported
        if reads <= given.keys() - worked and not any(p.declared for p in along):
            found.append((part, [p for p in parts if p in along]))
    return found


def longest_moved(text: str) -> Relocated | None:
    """The longest function that can stand in another module does, with what it needs."""
    parts = parts_of(text)
    functions = [(p, along) for p, along in movable(parts) if p.kind == "function"]
    if not functions:
        return None
    _, along = max(functions, key=lambda f: f[0].last - f[0].start)
    return _moved(text, parts, along)


def all_moved(text: str) -> Relocated | None:
    """All functions and classes that can stand in another module do."""
    parts = parts_of(text)
    moved = [part for part, _ in movable(parts)]
    return _moved(text, parts, moved) if moved else None


def _moved(text: str, parts: Sequence[Part], moved: Sequence[Part]) -> Relocated:
    rest = [p for p in parts if p not in moved]
    read = {n for p in rest for n in p.reads}
    names = [n for p in moved for n in sorted(p.binds) if n in read]
    head = new_lines(f"from {MODULE} import {', '.join(names)}\n") if names else []
    at = max((i for i, p in enumerate(rest) if p.kind == "import"), default=-1) + 1
    needed = {n for p in moved for n in p.reads}
    imports = [p for p in rest if p.kind == "import" and p.binds & needed]
    tail = [(line, n) for n, line in enumerate(text.splitlines(keepends=True), 1) if n > parts[-1].last]
    entry = [*_lines(text, rest[:at]), *head, *_lines(text, rest[at:]), *tail]
    module = [(line, None) for line, _ in _lines(text, imports)]
    return relocated({"before.py": entry, f"{MODULE}.py": [*module, *new_lines("\n\n"), *_lines(text, moved)]})


# ---- in a class ----------------------------------------------------------------------------------------------


def on_self(text: str) -> Relocated | None:
    """As in_class, and every variable that is plainly assigned is an attribute of `self`."""
    return in_class(text, variables=True)


def in_class(text: str, *, variables: bool = False) -> Relocated | None:
    """Functions become methods of a class, what the module does its last method; None where names forbid it.

    What a function read as a global becomes an attribute of `self`.
    """
    parts = parts_of(text)
    stay = _staying(parts)
    moved = [p for p in parts if p not in stay]
    methods = [p for p in moved if p.kind == "function"]
    work = [p for p in moved if p.kind != "function"]
    bound = {n for p in work for n in p.binds}
    own = {n for p in methods for n in p.binds} | {n for p in methods for n in (p.reads | p.declared) & bound}
    if variables:
        hidden = {n for p in work for n in p.inner} | {n for p in methods for n in p.inner & p.reads}
        own |= _plainly_assigned(work) - hidden
    if not work or any(p.kind == "guard" and p.binds & _needed(stay) for p in work):
        return None
    if any(own & p.inner & p.reads for p in moved) or any(own & p.inner for p in work):
        return None
    if any(own & _read_by_head(p.nodes[0]) for p in methods):
        return None
    changed = _through_self(text, moved, own)
    source = parse(changed)
    unit, inside = source.module.default_indent, string_lines(source)
    body: list[Line] = []
    for part in work:
        body += (
            _lines(changed, [part], unit * 2, inside) if part.kind != "guard" else _guarded(changed, part, inside, unit)
        )
    guard = any(p.kind == "guard" for p in work)
    start = f'if __name__ == "__main__":\n{unit}{CLASS}().{RUN}()\n' if guard else f"{CLASS}().{RUN}()\n"
    return relocated(
        {
            "before.py": [
                *_lines(changed, stay),
                *new_lines(f"\n\nclass {CLASS}:\n"),
                *_lines(changed, methods, unit, inside),
                *new_lines(f"\n{unit}def {RUN}(self):\n"),
                *body,
                *new_lines(f"\n\n{start}"),
            ]
        }
    )


def _read_by_head(node: ast.stmt) -> set[str]:
    """What decorators, defaults and annotations name: a class body has no `self` for them."""
    assert isinstance(node, ast.FunctionDef)
    arguments = node.args
    notes = [a.annotation for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    heads = [*node.decorator_list, *arguments.defaults, *arguments.kw_defaults, *notes, node.returns]
    return {n.id for head in heads if head is not None for n in ast.walk(head) if isinstance(n, ast.Name)}


def _plainly_assigned(work: Iterable[Part]) -> set[str]:
    """Names that `x = ...` binds and no loop, `with` or import does."""
    plain, other = set[str](), set[str]()
    for node in (n for p in work for top in p.nodes for n in ast.walk(top)):
        match node:
            case ast.Assign(targets=targets):
                plain.update(t.id for t in targets if isinstance(t, ast.Name))
            case ast.For(target=target) | ast.comprehension(target=target):
                other.update(n.id for n in ast.walk(target) if isinstance(n, ast.Name))
            case ast.withitem(optional_vars=ast.Name(id=name)) | ast.alias(asname=str(name)):
                other.add(name)
    return plain - other


def _guarded(text: str, guard: Part, inside: set[int], unit: str) -> list[Line]:
    """The lines below `if __name__ == "__main__":`, one step further in."""
    lines = text.splitlines(keepends=True)
    node = guard.nodes[0]
    assert isinstance(node, ast.If)
    if node.body[0].lineno == node.lineno:
        return [(unit * 2 + lines[node.lineno - 1].partition(":")[2].lstrip(), node.lineno)]
    numbers = range(node.lineno + 1, guard.last + 1)
    return [((unit if lines[n - 1].strip() and n not in inside else "") + lines[n - 1], n) for n in numbers]


def _needed(parts: Iterable[Part]) -> set[str]:
    return {n for p in parts for n in p.reads}


def _staying(parts: Sequence[Part]) -> list[Part]:
    """Imports, classes, and whatever these need of the module: `parser.add_argument(...)` with `args`, too."""
    stay = [p for p in parts if p.kind in ("import", "class", "text")]
    while True:
        needed, made = _needed(stay), {n for p in stay if p.kind == "work" for n in p.binds}
        more = [p for p in parts if p not in stay and p.kind != "guard" and p.binds & needed]
        more += [p for p in parts if p not in stay and isinstance(p.nodes[0], ast.Expr) and p.reads & made]
        if not more:
            return [p for p in parts if p in stay]
        stay += more


def _through_self(text: str, moved: Sequence[Part], own: set[str]) -> str:
    """`self` as first parameter, and before each name that is the object's now."""
    source = parse(text)
    changes: list[tuple[int, int, str]] = []
    for part, names in [(p, own - p.inner) for p in moved]:
        for node in walk(source.module):
            line = source.line(node) if isinstance(node, (cst.Name, cst.Global)) else 0
            if not part.start <= line <= part.last:
                continue
            span = source.span(node)
            if isinstance(node, cst.Global):
                changes.append((span.start, span.end, "pass"))
            elif isinstance(node, cst.Name) and node.value in names and _stands_for_itself(source, node):
                changes.append((span.start, span.start, "self."))
        if part.kind == "function":
            at = _parameters(source, part)
            changes.append((at, at, "self" if re.match(r"\s*\)", source.text[at:]) else "self, "))
    return replaced(text, changes)


def _parameters(source: Source, part: Part) -> int:
    """Behind the `(` of a function's head."""
    node = part.nodes[0]
    head = re.compile(rf"def\s+{re.escape(getattr(node, 'name', ''))}\s*\(")
    found = head.search(source.text, source.line_start(node.lineno))
    assert found is not None
    return found.end()


def _stands_for_itself(source: Source, node: cst.Name) -> bool:
    """A name that is read or bound, not the attribute, keyword or definition of that name."""
    match source.parents.get(node):
        case cst.Attribute(value=value) | cst.Arg(value=value) if value is not node:
            return False
        case cst.Param(name=name) | cst.FunctionDef(name=name) | cst.ClassDef(name=name) if name is node:
            return False
        case cst.ImportAlias() | cst.NameItem():
            return False
    return True
