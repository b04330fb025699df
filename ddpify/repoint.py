"""Changed modules in, edits of the imports that have to find their copies out."""

from __future__ import annotations

import libcst as cst

from ddpify.edits import Edit, Replace
from ddpify.errors import Refused
from ddpify.project import Project
from ddpify.source import Source, dotted, walk

Import = cst.Import | cst.ImportFrom


def with_importers(project: Project, changed: list[Source]) -> list[Source]:
    """The changed files, and those that import one of them: their imports have to name the copies."""
    found = [project.entry, *(s for s in changed if s is not project.entry)]
    grown = True
    while grown:
        grown = False
        for source in project.files():
            if source not in found and any(_targets(project, source, found)):
                found.append(source)
                grown = True
    for source in found:
        if source.path.name == "__init__.py":
            inner = next(t for t in _targets(project, source, found))
            raise Refused(
                f"{source.path}: {inner.path.name} has to change, and this package imports it in its __init__.py, "
                "which cannot get a copy under another name; convert with --in-place"
            )
    return found


def _targets(project: Project, source: Source, changed: list[Source]) -> list[Source]:
    return [
        t
        for stmt in _imports(source)
        for t in _named(project, source, stmt)
        if t in changed and t is not project.entry and t is not source
    ]


def _imports(source: Source) -> list[Import]:
    return [n for n in walk(source.module) if isinstance(n, (cst.Import, cst.ImportFrom))]


def _named(project: Project, source: Source, stmt: Import) -> list[Source]:
    """The project's files that an import statement names."""
    found: list[Source | None] = []
    if isinstance(stmt, cst.Import):
        found = [project.find(dotted(a.name)) for a in stmt.names]
    else:
        module = dotted(stmt.module) if stmt.module is not None else ""
        level = len(stmt.relative)
        found.append(project.find(module, level, source))
        if not isinstance(stmt.names, cst.ImportStar):
            for a in stmt.names:
                found.append(project.find(f"{module}.{dotted(a.name)}" if module else dotted(a.name), level, source))
    return [f for f in found if f is not None]


def repointed(project: Project, source: Source, changed: list[Source], suffix: str) -> list[Edit]:
    """`from utils import x` becomes `from utils_ddp import x`, in the places where that is all there is to it."""
    moved = {s.path for s in changed if s is not project.entry}
    edits: list[Edit] = []
    for stmt in _imports(source):
        if isinstance(stmt, cst.Import):
            for alias in stmt.names:
                target = project.find(dotted(alias.name))
                if target is not None and target.path in moved:
                    edits.append(_plain(source, alias, suffix))
            continue
        module = dotted(stmt.module) if stmt.module is not None else ""
        level = len(stmt.relative)
        target = project.find(module, level, source)
        if target is not None and target.path in moved and stmt.module is not None:
            edits.append(Replace(source, stmt.module, module + suffix))
        elif not isinstance(stmt.names, cst.ImportStar):
            for alias in stmt.names:
                name = dotted(alias.name)
                inner = project.find(f"{module}.{name}" if module else name, level, source)
                if inner is not None and inner.path in moved and inner.path.name != "__init__.py":
                    bound = "" if alias.asname is not None else f" as {name}"
                    edits.append(Replace(source, alias.name, f"{name}{suffix}{bound}"))
    return edits


def _plain(source: Source, alias: cst.ImportAlias, suffix: str) -> Edit:
    """`import utils` becomes `import utils_ddp as utils`; `import a.b` cannot be said that way."""
    name = dotted(alias.name)
    if "." in name and alias.asname is None:
        raise Refused(
            f"{source.path}:{source.line(alias)}: `import {name}` names a module that has to change; write "
            f"`import {name} as ...` or `from ... import`, or convert with --in-place"
        )
    bound = "" if alias.asname is not None else f" as {name}"
    return Replace(source, alias.name, f"{name}{suffix}{bound}")
