"""A source and an import in, the place where it belongs out."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable

import libcst as cst

from ddpify.edits import AddHelper, AddImport, Edit, InsertAfter
from ddpify.helpers import Names, imported_names
from ddpify.rewrite import Rewriter
from ddpify.source import Source, walk


def import_run(source: Source, before: int | None = None) -> list[cst.CSTNode]:
    """The import statements at the top; behind other code, the first run of imports that has torch in it.

    `before`: where the code of the module first needs what is imported, in a notebook's cells perhaps above torch.
    """
    runs: list[list[cst.CSTNode]] = [[]]
    for line in source.module.body:
        imports = isinstance(line, cst.SimpleStatementLine) and all(
            isinstance(s, (cst.Import, cst.ImportFrom)) for s in line.body
        )
        doc = (
            isinstance(line, cst.SimpleStatementLine)
            and isinstance(line.body[0], cst.Expr)
            and isinstance(line.body[0].value, (cst.SimpleString, cst.ConcatenatedString))
        )
        guarded = (
            isinstance(line, cst.Try)
            and any(isinstance(n, (cst.Import, cst.ImportFrom)) for n in walk(line))
            and len(list(walk(line))) < 40
        )
        dunder = (
            isinstance(line, cst.SimpleStatementLine)
            and isinstance(line.body[0], cst.Assign)
            and "__" in source.code(line.body[0].targets[0])
        )
        if imports:
            assert isinstance(line, cst.SimpleStatementLine)
            runs[-1].append(line.body[-1])
        elif guarded and runs[-1]:
            runs[-1].append(line)
        elif not doc and not (dunder and not runs[-1]) and runs[-1]:
            runs.append([])
    if before is not None:
        runs = [r for r in runs if r and source.span(r[-1]).end <= before]
    torch = [r for r in runs if any(re.search(r"\btorch\b", source.code(s)) for s in r)]
    return torch[0] if torch else next((r for r in runs if r), [])


def first_use(source: Source, edits: Iterable[Edit]) -> int | None:
    """Where the code of the module itself, and no function in it, first comes to one of the edits."""
    inside = (cst.FunctionDef, cst.Lambda)
    found: list[int] = []
    for edit in edits:
        if isinstance(edit, (AddImport, AddHelper)) or any(isinstance(a, inside) for a in source.ancestors(edit.node)):
            continue
        span = source.span(edit.node)
        found.append(span.end if isinstance(edit, InsertAfter) else span.start)
    return min(found, default=None)


def imported_late(source: Source, names: Names, wanted: Iterable[str], run: list[cst.CSTNode]) -> list[str]:
    """The imports of the file that stand behind the block although what is written needs them from there on."""
    if not run:
        return [names.line(n) for n in wanted if n not in names.missing]
    end = source.span(run[-1]).end
    early = imported_names(source, end)
    return [names.line(n) for n in wanted if n not in names.missing and names[n] not in early.values()]


def top_of(source: Source) -> int:
    """Behind a docstring and the comments at the top of a file without imports."""
    body = source.module.body
    return source.line_start(source.line(body[0])) if body else len(source.text)


def add_import(rewriter: Rewriter, run: list[cst.CSTNode], line: str) -> None:
    """Put an import where it belongs: the standard library above, torch's behind the last of torch."""
    source, nl = rewriter.source, rewriter.nl
    if not run:
        at = top_of(source)
        rewriter.change(at, at, line + nl, 1)
        return
    plain = [s for s in run if isinstance(s, (cst.Import, cst.ImportFrom))]
    module = line.split()[1]
    if module.endswith("_helpers"):
        at = rewriter.end(plain[-1] if plain else run[-1])
        rewriter.change(at, at, nl + line, 6)
        return
    anchor: cst.CSTNode | None = None
    if module.split(".")[0] == "torch":
        family = [s for s in plain if re.match(r"(import|from)\s+torch\b", source.code(s))]
        if line == "import torch":
            anchor = family[0] if family else next((s for s in plain if not _is_early(source, s)), run[-1])
            at = rewriter.head(anchor, comments=False)
            rewriter.change(at, at, line + nl, 1)
            return
        anchor = family[-1] if family else run[-1]
        if line.startswith("import torch.distributed"):
            heads = (
                [s for s in family if source.code(s) == "import torch"]
                or [s for s in family if isinstance(s, cst.Import)][-1:]
                or family[:1]
                or plain[-1:]
            )
            anchor = heads[-1] if heads else run[-1]
        at = rewriter.end(anchor)
        rewriter.change(at, at, nl + line, 3 if line.startswith("import") else 4)
        return
    before = [s for s in plain if isinstance(s, cst.Import) and _is_standard(s) and _first(s.names[0].name) < module]
    future = [s for s in plain if "__future__" in source.code(s)]
    if before or future:
        anchor = before[-1] if before else future[-1]
        at = rewriter.end(anchor)
        rewriter.change(at, at, nl + line, 2)
    else:
        at = rewriter.head(run[0], comments=False)
        rewriter.change(at, at, line + nl, 1)


def _is_early(source: Source, stmt: cst.CSTNode) -> bool:
    """An import of the standard library, or from the future."""
    module = re.match(r"(?:import|from)\s+(\w+)", source.code(stmt))
    return module is not None and module[1] in sys.stdlib_module_names


def _is_standard(stmt: cst.Import) -> bool:
    return all(_first(a.name) in sys.stdlib_module_names for a in stmt.names)


def _first(node: cst.BaseExpression) -> str:
    while isinstance(node, cst.Attribute):
        node = node.value
    return node.value if isinstance(node, cst.Name) else ""
