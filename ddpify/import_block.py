"""A source and an import in, the place where it belongs out."""

from __future__ import annotations

import re
import sys

import libcst as cst

from ddpify.rewrite import Rewriter
from ddpify.source import Source, walk


def import_run(source: Source) -> list[cst.CSTNode]:
    """The import statements at the top; behind other code, the first run of imports that has torch in it."""
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
    torch = [r for r in runs if any(re.search(r"\btorch\b", source.code(s)) for s in r)]
    return torch[0] if torch else next((r for r in runs if r), [])


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
        if line.startswith("import torch.distributed") or line == "import torch":
            heads = (
                [s for s in family if source.code(s) == "import torch"]
                or [s for s in family if isinstance(s, cst.Import)][-1:]
                or family[:1]
            )
            anchor = (
                heads[-1]
                if heads and line != "import torch"
                else (family[0] if family else plain[-1] if plain else run[-1])
            )
            if line == "import torch":
                at = rewriter.head(anchor, comments=False)
                rewriter.change(at, at, line + nl, 1)
                return
        else:
            anchor = family[-1] if family else run[-1]
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


def _is_standard(stmt: cst.Import) -> bool:
    return all(_first(a.name) in sys.stdlib_module_names for a in stmt.names)


def _first(node: cst.BaseExpression) -> str:
    while isinstance(node, cst.Attribute):
        node = node.value
    return node.value if isinstance(node, cst.Name) else ""
