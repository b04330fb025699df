"""A script in, a Conversion out: the whole line from text to checked text."""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import libcst as cst

from ddpify.edits import AddHelper, AddImport, Edit
from ddpify.errors import About, Refused, Seen
from ddpify.facts import Facts, collect
from ddpify.facts.trails import shown, way_back
from ddpify.helpers import Names, canonical_names, helper, names_for
from ddpify.helpers import needed as needs_of
from ddpify.import_block import add_import, first_use, import_run, imported_late, top_of
from ddpify.lint import lint_source
from ddpify.parsing import compiled
from ddpify.plan import Plan, make_plan
from ddpify.project import Project
from ddpify.refusals import check_convertible
from ddpify.repoint import check_repointed, copy_of, repointed, with_importers
from ddpify.rewrite import Rewriter
from ddpify.rules import Finding, Severity
from ddpify.source import Source, check_compiles, read_source

#: How the module of helpers begins.
_HELPERS = '"""Helpers for distributed training."""'


@dataclass
class Conversion:
    """The result: the new text, why each line of it changed, and what is left for the user.

    `files` has the new text of every changed module besides the entry, by the path that it is to be written to.
    """

    source: Source
    text: str
    plan: Plan
    facts: Facts
    files: dict[Path, Changed] = field(default_factory=dict)

    @property
    def data(self) -> bytes:
        return self.source.encode(self.text)

    @property
    def left(self) -> list[Finding]:
        return self.plan.left

    def diff(self, to: str = "") -> str:
        """A unified diff from the input to the result, the entry first."""
        parts = [text_diff(self.source.text, self.text, str(self.source.path), to or str(self.source.path))]
        for path, changed in self.files.items():
            before = changed.source.text if changed.source is not None else ""
            name = str(changed.source.path) if changed.source is not None else "/dev/null"
            parts.append(text_diff(before, changed.text, name, str(path)))
        return "".join(parts)


@dataclass(frozen=True)
class Changed:
    """A module written beside the entry: a changed copy of the project's, or (source None) the shared helpers."""

    source: Source | None
    text: str

    @property
    def data(self) -> bytes:
        return self.source.encode(self.text) if self.source is not None else self.text.encode()


def text_diff(one: str, two: str, name_one: str, name_two: str) -> str:
    """A unified diff."""
    lines = difflib.unified_diff(lines_of(one), lines_of(two), name_one, name_two)
    return "".join(line if line.endswith(("\n", "\r")) else line + "\n\\ No newline at end of file\n" for line in lines)


def lines_of(text: str) -> list[str]:
    """Lines with their ends, as Python counts them (a form feed ends none)."""
    return [line for line in re.split(r"(?<=\n)|(?<=\r)(?!\n)", text) if line]


def convert(
    path: Path | str,
    *,
    global_batch: str = "scale",
    sync_bn: bool = False,
    suffix: str | None = "_ddp",
    debug: bool = False,
) -> Conversion:
    """Convert the script at `path`; nothing is written.

    `suffix` is what changed modules are called by (`utils.py` becomes `utils_ddp.py`, and imports say so); None changes
    them in place.

    Raises:
        Refused: where the script is not one that can be converted (the sentence says why and what to do).
        DdpifyError: where it cannot be read.
    """
    source = read_source(Path(path))
    return convert_source(source, global_batch=global_batch, sync_bn=sync_bn, suffix=suffix, debug=debug)


def convert_source(
    source: Source,
    *,
    global_batch: str = "scale",
    sync_bn: bool = False,
    suffix: str | None = "_ddp",
    overlay: dict[Path, Source] | None = None,
    debug: bool = False,
) -> Conversion:
    """Convert a script that has been read.

    `overlay` are modules that take the place of those on the disk (or are not there).
    """
    check_compiles(source)
    project = Project(source, overlay=overlay)
    facts = collect(project, converting=True, global_batch=global_batch, sync_bn=sync_bn)
    check_convertible(facts)
    plan = make_plan(facts, debug=debug)
    changed = with_importers(project, plan.sources()) if suffix is not None else plan.sources()
    shared = shared_helpers(facts, plan)
    texts = {s: rewrite(s, plan, facts, changed if suffix is not None else [], suffix or "", shared) for s in changed}
    files = {copy_of(s.path, suffix or ""): Changed(s, texts[s]) for s in changed if s is not source}
    if shared is not None:
        files[source.path.with_name(f"{shared}.py")] = Changed(None, helper_module(facts, plan))
    conversion = Conversion(source, texts.get(source, source.text), plan, facts, files)
    self_check(conversion, overlay or {})
    return conversion


def rewrite(source: Source, plan: Plan, facts: Facts, changed: list[Source], suffix: str, shared: str | None) -> str:
    """The edits of a plan applied to one file, helpers and imports included."""
    rewriter = Rewriter(source)
    edits: list[Edit] = [e for e in plan.edits if e.source is source]
    edits += repointed(facts.project, source, changed, suffix)
    module = helpers_from(facts.project, source, shared) if shared is not None else None
    add_block(rewriter, plan, facts.names_of(source), module)
    text = rewriter.apply(edits)
    check_repointed(facts.project, source, text, changed)
    return text


def with_edits(source: Source, edits: Sequence[Edit]) -> str:
    """Edits that need no helper applied to one file, the imports that they ask for included."""
    rewriter, names, run = Rewriter(source), names_for(source), import_run(source)
    asked = {e.line for e in edits if isinstance(e, AddImport)}
    for line in sorted(names.missing[k] for k in asked if k in names.missing):
        add_import(rewriter, run, line)
    return rewriter.apply([e for e in edits if e.source is source])


def shared_helpers(facts: Facts, plan: Plan) -> str | None:
    """The name of a module for the helpers, where more than the entry needs them."""
    if not any(plan.helpers(s) for s in plan.sources() if s is not facts.source):
        return None
    folder = facts.source.path.parent
    names = itertools.chain(
        ("distributed_helpers", "ddp_helpers"), map("distributed_helpers_{}".format, itertools.count(2))
    )
    return next(n for n in names if _is_free(folder / f"{n}.py"))


def helpers_from(project: Project, source: Source, shared: str) -> str:
    """How a file imports the module beside the entry: by its name, or from the package that the entry is run in."""
    package = project.package
    if package is None:
        return shared
    place, top = project.entry.path.absolute().parent, package.root / package.name.split(".")[0]
    folder = source.path.absolute().parent
    relative = _imports_relatively(source) or _imports_relatively(project.entry)
    if top not in (folder, *folder.parents) or not relative:
        return f"{package.name}.{shared}"
    dots = "."
    while folder not in (place, *place.parents):
        folder, dots = folder.parent, dots + "."
    return ".".join([dots[:-1], *place.relative_to(folder).parts, shared])


def _imports_relatively(source: Source) -> bool:
    return any(isinstance(n, cst.ImportFrom) and n.relative for n in source.nodes)


def _is_free(path: Path) -> bool:
    """Nothing is there, or what an earlier conversion wrote."""
    try:
        return path.read_bytes().startswith(_HELPERS.encode())
    except FileNotFoundError:
        return True
    except OSError:
        return False


def helper_module(facts: Facts, plan: Plan) -> str:
    """The module that changed files share: imports and helpers."""
    names = canonical_names()
    needed = list(dict.fromkeys(n for name, options in plan.helpers().items() for n in needs_of(name, options)))
    lines = sorted((names.missing[n] for n in needed), key=lambda line: (line.startswith("from"), line))
    parts = ["\n".join(s for s in lines if ("torch" in s) is ours) for ours in (False, True)]
    blocks = ["\n".join(helper(name, options, names)) for name, options in plan.helpers().items()]
    head = "\n\n".join([_HELPERS, *filter(None, parts)])
    return head + "\n\n\n" + "\n\n\n".join(blocks) + "\n"


def _texts(edit: Edit) -> Iterator[str]:
    """What an edit writes."""
    if isinstance(edit, (AddHelper, AddImport)):
        return
    for part in dataclasses.fields(edit):
        value = getattr(edit, part.name)
        for text in value if isinstance(value, tuple) else (value,):
            yield from (x for x in (text if isinstance(text, tuple) else (text,)) if isinstance(x, str))


def add_block(rewriter: Rewriter, plan: Plan, names: Names, shared: str | None) -> None:
    """Imports into the import block; behind it the helpers, or their import where they have a module of their own."""
    source, nl, unit = rewriter.source, rewriter.nl, rewriter.unit
    helpers, asked = plan.helpers(source), plan.imports(source, helpers=shared is None)
    written = [(e, text) for e in plan.edits if e.source is source for text in _texts(e)]
    users = {n: [e for e, text in written if re.search(rf"\b{names[n]}\b", text)] for n in (*asked, *helpers)}
    run = import_run(source, first_use(source, itertools.chain(*users.values())))
    asked_for = {names.missing[n] for n in asked if n in names.missing} | set(imported_late(source, names, asked, run))
    for line in sorted(asked_for):
        add_import(rewriter, run, line)
    if shared is not None:
        used = [n for n in helpers if users[n]]
        wanted = [n if names[n] == n else f"{n} as {names[n]}" for n in used]
        if wanted:
            add_import(rewriter, run, f"from {shared} import {', '.join(wanted)}")
        return
    blocks = []
    for name, options in helpers.items():
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


def missing(conversion: Conversion, finding: Finding) -> Refused:
    """The refusal of a result that lint would not pass, told of the line of the script that it comes from."""
    changed = conversion.files.get(finding.source.path)
    source = (changed.source if changed is not None else None) or conversion.source
    code = shown(finding.source, finding.node)
    line = line_before(source.text, finding.source.text, finding.span.line)
    there = (n for n in source.nodes if n in source.parents and source.line(n) == line)
    node = next((n for n in there if isinstance(n, cst.BaseExpression) and shown(source, n) == code), None)
    seen = source.text.splitlines()[line - 1].strip()
    about: About = Seen(seen) if node is None else way_back(conversion.facts.flow, node, source)
    why = f"this script needs an edit that ddpify does not make yet ({finding.code}): {finding.message}"
    return Refused(
        f"{source.path}:{line}", f"{why} (at `{seen if node is None else code}`); nothing was written", about
    )


def line_before(before: str, after: str, line: int) -> int:
    """The line of a text that a line of its conversion comes from, or stands behind."""
    found = 1
    matcher = difflib.SequenceMatcher(None, before.splitlines(), after.splitlines(), autojunk=False)
    for start, other, size in matcher.get_matching_blocks():
        if other < line:
            found = max(1, start + min(line - other, size))
    return found


def self_check(conversion: Conversion, overlay: dict[Path, Source]) -> None:
    """What is written compiles and passes lint; what does not is never written."""
    path = conversion.source.path
    results = {path: Source(path, conversion.data)}
    for target, changed in conversion.files.items():
        results[target] = Source(target, changed.data)
    overlay = {**overlay, **results}
    for target, result in results.items():
        try:
            compiled(result.text, target)
        except SyntaxError as error:
            text = (error.text or "").strip()
            why = f"the conversion would not compile (`{text}`): an internal error, nothing was written"
            raise Refused(f"{target}:{error.lineno or 1}", why, Seen(text)) from None
    wraps = any(f.code == "DDP201" for f in conversion.plan.findings)
    if wraps and not any(re.search(r"\b(DDP|DistributedDataParallel)_?\(", r.text) for r in results.values()):
        why = "the conversion would not wrap the model: an internal error, nothing was written"
        raise Refused(str(path), why, Seen("DDP"))
    listed = {f.code for f in conversion.plan.left}
    for finding in lint_source(results[path], overlay=overlay):
        if finding.source not in results.values():
            continue  # a file that stays as it is: what is wrong there is listed
        if finding.severity is Severity.ERROR and finding.code not in listed:
            raise missing(conversion, finding)
        known = {(f.code, f.source.code(f.node)) for f in conversion.plan.left}
        if finding.severity is Severity.WARNING and (finding.code, finding.source.code(finding.node)) not in known:
            conversion.plan.left.append(finding)
