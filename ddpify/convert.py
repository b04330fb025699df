"""A script in, a Conversion out: the whole line from text to checked text."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field
from pathlib import Path

import libcst as cst

from ddpify.edits import Edit
from ddpify.errors import Refused
from ddpify.facts import Facts, collect
from ddpify.helpers import NEEDS, Names, helper
from ddpify.lint import lint_source
from ddpify.plan import Plan, make_plan
from ddpify.project import Project
from ddpify.refusals import check_convertible
from ddpify.rewrite import Rewriter
from ddpify.rules import Finding, Severity
from ddpify.source import Source, check_compiles, read_source, walk


@dataclass
class Conversion:
    """The result: the new text, why each line of it changed, and what is left for the user."""

    source: Source
    text: str
    plan: Plan
    facts: Facts
    helpers: dict[str, frozenset[str]] = field(default_factory=dict)

    @property
    def data(self) -> bytes:
        return self.source.encode(self.text)

    @property
    def left(self) -> list[Finding]:
        return self.plan.left

    def diff(self, to: str = "") -> str:
        """A unified diff from the input to the result."""
        before, after = lines_of(self.source.text), lines_of(self.text)
        lines = difflib.unified_diff(before, after, str(self.source.path), to or str(self.source.path))
        return "".join(
            line if line.endswith(("\n", "\r")) else line + "\n\\ No newline at end of file\n" for line in lines
        )


def lines_of(text: str) -> list[str]:
    """Lines with their ends, as Python counts them (a form feed ends none)."""
    return [line for line in re.split(r"(?<=\n)|(?<=\r)(?!\n)", text) if line]


def convert(path: Path | str, *, global_batch: str = "scale", debug: bool = False) -> Conversion:
    """Convert the script at `path`; nothing is written.

    Raises:
        Refused: where the script is not one that can be converted (the sentence says why and what to do).
        DdpifyError: where it cannot be read.
    """
    return convert_source(read_source(Path(path)), global_batch=global_batch, debug=debug)


def convert_source(source: Source, *, global_batch: str = "scale", debug: bool = False) -> Conversion:
    """Convert a script that has been read."""
    check_compiles(source)
    project = Project(source)
    facts = collect(project, converting=True, global_batch=global_batch)
    check_convertible(facts)
    plan = make_plan(facts, debug=debug)
    text = rewrite(source, plan, facts.names)
    conversion = Conversion(source, text, plan, facts, plan.helpers())
    self_check(conversion)
    return conversion


def rewrite(source: Source, plan: Plan, names: Names) -> str:
    """The edits of a plan applied to the entry file, helpers and imports included."""
    rewriter = Rewriter(source)
    edits: list[Edit] = [e for e in plan.edits if e.source is source]
    add_block(rewriter, plan, names)
    return rewriter.apply(edits)


def add_block(rewriter: Rewriter, plan: Plan, names: Names) -> None:
    """Imports into the import block, helper functions behind it."""
    source, nl, unit = rewriter.source, rewriter.nl, rewriter.unit
    run = import_run(source)
    for line in sorted(names.missing[key] for key in plan.imports() if key in names.missing):
        add_import(rewriter, run, line)
    blocks = []
    for name, options in plan.helpers().items():
        lines = helper(name, options, names)
        blocks.append(nl.join(re.sub(r"^( {4})+", lambda m: unit * (len(m[0]) // 4), line) for line in lines))
    if not blocks:
        return
    text = (nl + nl + nl).join(blocks)
    if run:
        at = rewriter.end(run[-1])
        rewriter.change(at, at, nl + nl + nl + text, 20)
        gap = re.match(r"((?:\r\n|\r|\n)[ \t]*)*", source.text[at:])
        breaks = len(re.findall(r"\r\n|\r|\n", gap[0])) if gap else 0
        if breaks < 3:
            rewriter.change(at, at, nl * (3 - breaks), 21)
    else:
        at = top_of(source)
        rewriter.change(at, at, text + nl + nl + nl, 20)


def import_run(source: Source) -> list[cst.CSTNode]:
    """The import statements at the top; where code stands before them, the first run of imports that has torch in it."""
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
        at = rewriter.head(run[0])
        rewriter.change(at, at, line + nl, 1)


def _is_standard(stmt: cst.Import) -> bool:
    import sys

    return all(_first(a.name) in sys.stdlib_module_names for a in stmt.names)


def _first(node: cst.BaseExpression) -> str:
    while isinstance(node, cst.Attribute):
        node = node.value
    return node.value if isinstance(node, cst.Name) else ""


def self_check(conversion: Conversion) -> None:
    """What is written compiles and passes lint; what does not is never written."""
    source = conversion.source
    try:
        compile(conversion.text, str(source.path), "exec", dont_inherit=True)
    except SyntaxError as error:
        line = (error.text or "").strip()
        raise Refused(
            f"{source.path}: the conversion would not compile (`{line}`): an internal error, nothing was written"
        ) from None
    result = Source(source.path, conversion.data)
    for finding in lint_source(result):
        if finding.severity is Severity.ERROR:
            code = result.code(finding.node).split("\n")[0]
            raise Refused(
                f"{source.path}: this script needs an edit that ddpify does not make yet ({finding.code}): {finding.message} (at `{code}`); nothing was written"
            )
        if finding.severity is Severity.WARNING:
            conversion.plan.left.append(finding)


__all__ = ["NEEDS", "Conversion", "convert", "convert_source"]
