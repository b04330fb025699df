"""A script in, what is wrong in it and in the modules that it imports out: what a worker process does."""

from __future__ import annotations

import os
import traceback
from dataclasses import dataclass, field
from pathlib import Path

import libcst as cst

from ddpify.facts import Facts
from ddpify.linting.ignores import MARK, Ignore, ignores
from ddpify.linting.problem import Problem, problem_of
from ddpify.linting.settings import Settings
from ddpify.rules import Finding
from ddpify.shelf import SHELF
from ddpify.source import Source

#: in place of the name of a function: code of the module itself, and what only a run of the module itself does
MODULE, MAIN = "", "__main__"


@dataclass(frozen=True)
class Task:
    """What is asked of every file."""

    settings: Settings
    #: "", `safe` or `unsafe`
    mend: str = ""
    debug: bool = False


@dataclass
class Seen:
    """One file, as one script sees it."""

    name: str
    problems: list[Problem] = field(default_factory=list)
    #: the lines whose comments count, for each problem
    lines: list[range] = field(default_factory=list)
    #: the function that each problem stands in
    homes: list[str] = field(default_factory=list)
    comments: list[Ignore] = field(default_factory=list)
    text: str = ""
    #: the functions that the script ran in this file
    reached: frozenset[str] = frozenset()


@dataclass
class Root:
    """One script with its modules: what was found, by the key of each file."""

    path: str
    files: dict[str, Seen] = field(default_factory=dict)
    #: whether the file, run by itself, joins a process group or wraps a model
    script: bool = False
    #: why it could not be checked
    error: str = ""

    @property
    def key(self) -> str:
        return key_of(self.path)


def key_of(path: Path | str) -> str:
    """The same for every way to write the path of a file."""
    return os.path.realpath(path)


def shown_as(path: Path, root: Path) -> str:
    """The path of a module, in the way in which the path of the script was given."""
    if root.is_absolute() or not path.is_absolute():
        return os.path.normpath(path)
    try:
        return os.path.relpath(path)
    except ValueError:  # another drive
        return str(path)


def check_root(path: Path, task: Task, dismiss: bool = True) -> Root:
    """What is found, or the sentence that says why nothing could be."""
    try:
        source = SHELF.read(path)
        root, _ = look(source, task, dismiss=dismiss)
        return root
    except Exception as error:
        from ddpify.group import sentence

        if task.debug:
            traceback.print_exc()
        return Root(str(path), error=sentence(error, f"{path}: "))


def idle_root(path: Path) -> Root:
    """A file in which no rule can find anything by itself: its comments are all there is."""
    seen = Seen(str(path))
    try:
        seen.text = path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError):
        return Root(str(path), {key_of(path): seen})
    seen.comments = ignores(seen.text)
    return Root(str(path), {key_of(path): seen})


def look(
    source: Source, task: Task, overlay: dict[Path, Source] | None = None, *, dismiss: bool = True
) -> tuple[Root, dict[str, list[Finding]]]:
    """The problems that are selected, by file, with the findings that they were made of."""
    from ddpify.lint import lint_root, what_distributes

    linted = lint_root(source, overlay=overlay, debug=task.debug, dismiss=dismiss)
    root = Root(str(source.path))
    found: dict[str, list[Finding]] = {}
    facts = linted.facts
    first = what_distributes(facts) if facts is not None else None
    root.script = facts is not None and first is not None and first.seq < facts.flow.main_end
    alone = parents_of(facts) if facts is not None and not root.script else frozenset()
    for part in facts.looked_at if facts is not None else [source]:
        key = key_of(part.path)
        name = root.path if part is source else shown_as(part.path, source.path)
        mine = [f for f in linted.findings if f.source is part and task.settings.selects(f.code, name)]
        if part is source and alone:
            mine = [f for f in mine if not (home_of(f) == MAIN or named(part, f.node) in alone)]
        found[key] = mine
        root.files[key] = Seen(
            name,
            [problem_of(f, name) for f in mine],
            [lines_of(f) for f in mine],
            [home_of(f) for f in mine],
            ignores(part.text) if MARK in part.data else [],
            part.text if MARK in part.data else "",
            reached_in(facts, part) if facts is not None and part is not source else frozenset(),
        )
    return root, found


def lines_of(finding: Finding) -> range:
    """The lines whose comments count: those of the statement, of a block those of its head."""
    source, node = finding.source, finding.node
    top: cst.CSTNode = node
    if not isinstance(node, (cst.BaseSmallStatement, cst.BaseCompoundStatement, cst.Module)):
        for above in source.ancestors(node):
            if isinstance(above, (cst.BaseSmallStatement, cst.BaseCompoundStatement)):
                top = above
                break
    first, last = source.line(top), source.line_at(max(source.span(top).start, source.span(top).end - 1))
    body = getattr(top, "body", None)
    if isinstance(top, cst.BaseCompoundStatement) and isinstance(body, cst.IndentedBlock) and body.body:
        last = max(first, source.line(body.body[0]) - 1)
    return range(min(first, source.line(node)), last + 1)


def home_of(finding: Finding) -> str:
    """The name of the function that a finding stands in: `Trainer.save`."""
    from ddpify.facts.placing import is_guard

    if any(is_guard(a) for a in finding.source.ancestors(finding.node)):
        return MAIN
    return named(finding.source, finding.node)


def named(source: Source, node: cst.CSTNode) -> str:
    """The function at a node, with what it stands in."""
    above = [node, *source.ancestors(node)]
    function = next((at for at, a in enumerate(above) if isinstance(a, cst.FunctionDef)), len(above))
    return ".".join(a.name.value for a in reversed(above[function:]) if isinstance(a, (cst.FunctionDef, cst.ClassDef)))


def parents_of(facts: Facts) -> frozenset[str]:
    """What only the process that starts the ranks runs: a file that sets up a group when another one imports it."""
    ran: dict[bool, set[str]] = {True: set(), False: set()}
    for e in facts.flow.log.events:
        home = e.frame.func.node if e.frame.func is not None else None
        if e.frame.source is facts.source and isinstance(home, cst.FunctionDef):
            ran[e.seq < facts.flow.main_end].add(named(facts.source, home))
    return frozenset(ran[True] - ran[False])


def reached_in(facts: Facts, source: Source) -> frozenset[str]:
    """The functions of a file that a script runs, and the file itself."""
    ran = (n for n in source.of(cst.FunctionDef) if n in facts.flow.followed)
    return frozenset([MODULE, *(named(source, n) for n in ran)])
