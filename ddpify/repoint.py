"""Changed modules in, edits of the imports that have to find their copies out.

A package's `__init__.py` is copied to a module beside the package: `tools/__init__.py` to `tools_ddp.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import libcst as cst

from ddpify.edits import Edit, Replace
from ddpify.errors import Refused, Seen
from ddpify.facts.spelled import spelled
from ddpify.facts.trails import shown
from ddpify.project import Project
from ddpify.source import Source, dotted

Import = cst.Import | cst.ImportFrom
INIT = "__init__.py"


def copy_of(path: Path, suffix: str) -> Path:
    """Where the changed copy of a module goes; without a suffix it takes the module's place."""
    if suffix and path.name == INIT:
        return path.parent.with_name(f"{path.parent.name}{suffix}.py")
    return path.with_name(f"{path.stem}{suffix}.py")


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
    while (idle := _unused_package(project, found)) is not None:
        found.remove(idle)
    for source in found:
        if source.path.name == INIT:
            _check_package(project, source)
    return found


def _unused_package(project: Project, found: list[Source]) -> Source | None:
    """A package whose names nobody imports: its modules are imported by themselves."""
    packages = [s for s in found if s.path.name == INIT]
    return next((p for p in packages if not any(_targets(project, s, [p]) for s in found)), None)


def _check_package(project: Project, source: Source) -> None:
    """Whether an `__init__.py` can stand beside its package, as a module."""
    if _holds_entry(project, source):
        _refuse(source, None, f"{source.path.name} has to change, and the script is a module of its package")
    node = _own_place(source)
    if node is not None:
        _refuse(source, node, f"it has to change, and uses `{node.value}`, which its copy would have otherwise")


def can_be_copied(project: Project, source: Source) -> bool:
    """Whether a module may have a changed copy: of an `__init__.py`, where a file gets names from it."""
    if source.path.name != INIT:
        return True
    named = any(_targets(project, s, [source]) for s in project.files())
    return named and not _holds_entry(project, source) and _own_place(source) is None


def _holds_entry(project: Project, source: Source) -> bool:
    """Whether the script itself lies in a package: a module beside the package is no part of it."""
    return source.path.parent in project.entry.path.parents


def _own_place(source: Source) -> cst.Name | None:
    """`__path__` and its kind, which are others in a copy."""
    own = ("__path__", "__package__", "pkgutil")
    return next((n for n in source.nodes if isinstance(n, cst.Name) and n.value in own), None)


def _refuse(source: Source, node: cst.CSTNode | None, why: str) -> NoReturn:
    place = source.line(node) if node is not None else 1
    what = shown(source, node) if node is not None else source.path.name
    raise Refused(f"{source.path}:{place}", f"{why}; convert with --in-place", Seen(what))


def _targets(project: Project, source: Source, changed: list[Source]) -> list[Source]:
    return [
        t
        for stmt in _imports(source)
        for t in _named(project, source, stmt)
        if t in changed and t is not project.entry and t is not source
    ]


def _imports(source: Source) -> list[Import]:
    return list(source.of(cst.Import, cst.ImportFrom))


def _named(project: Project, source: Source, stmt: Import) -> list[Source]:
    """The project's files that an import statement gets names from."""
    found: list[Source | None] = []
    if isinstance(stmt, cst.Import):
        found = [project.find(name) for alias in stmt.names for name in _loaded(alias)]
    elif isinstance(stmt.names, cst.ImportStar):
        found = [_whole(project, source, stmt)]
    else:
        found = [_giver(project, source, stmt, alias) for alias in stmt.names]
    return [f for f in found if f is not None]


def _loaded(alias: cst.ImportAlias) -> list[str]:
    """`import a.b` gives `a`, and with it `a.b`; `import a.b as c` gives `a.b` alone."""
    name = dotted(alias.name)
    parts = name.split(".")
    return [name] if alias.asname is not None else [".".join(parts[:n]) for n in range(len(parts), 0, -1)]


def _module(stmt: cst.ImportFrom) -> str:
    return dotted(stmt.module) if stmt.module is not None else ""


def _whole(project: Project, source: Source, stmt: cst.ImportFrom) -> Source | None:
    return project.find(_module(stmt), len(stmt.relative), source)


def _giver(project: Project, source: Source, stmt: cst.ImportFrom, alias: cst.ImportAlias) -> Source | None:
    """The file that gives a name: of a package its `__init__.py`, or the module of that name in it."""
    whole, name = _whole(project, source, stmt), dotted(alias.name)
    if whole not in (None, source) and (whole.path.name != INIT or name in _binds(whole)):
        return whole
    module = _module(stmt)
    return project.find(f"{module}.{name}" if module else name, len(stmt.relative), source) or whole


def _binds(package: Source) -> set[str]:
    """The names that an `__init__.py` gives to something."""
    found: set[str] = set()
    for node in package.nodes:
        match node:
            case cst.ImportAlias(name=name, asname=asname):
                found.add(dotted(asname.name) if asname is not None else dotted(name).split(".")[0])
                if asname is None and package.path.absolute().parent.name == dotted(name).split(".")[0]:
                    found.add(dotted(name).partition(".")[2])  # `import models.net` in `models/__init__.py`
            case cst.FunctionDef(name=name) | cst.ClassDef(name=name) | cst.AssignTarget(target=cst.Name() as name):
                found.add(name.value)
    return found


def repointed(project: Project, source: Source, changed: list[Source], suffix: str) -> list[Edit]:
    """`from utils import x` becomes `from utils_ddp import x`, in the places where that is all there is to it."""
    moved = [s for s in changed if s is not project.entry]
    edits: list[Edit] = []
    if source.path.name == INIT and suffix:
        # os.path.dirname(__file__) in tools_ddp.py is the folder above tools/__init__.py's
        place = f'__file__.replace("{suffix}.py", "/{INIT}")'
        edits += [Replace(source, n, place) for n in source.of(cst.Name) if n.value == "__file__"]
    for stmt in _imports(source):
        if isinstance(stmt, cst.Import):
            for alias in stmt.names:
                if any(project.find(name) in moved for name in _loaded(alias)):
                    edits += _plain(project, source, alias, moved, suffix)
        elif source.path.name == INIT and suffix and stmt.relative:
            edits.append(_from_beside(project, source, stmt, moved, suffix))
        else:
            edits += _from(project, source, stmt, moved, suffix)
    return edits


def _from(project: Project, source: Source, stmt: cst.ImportFrom, moved: list[Source], suffix: str) -> list[Edit]:
    whole = _whole(project, source, stmt)
    if isinstance(stmt.names, cst.ImportStar):
        through = whole in moved
    else:
        givers = {_giver(project, source, stmt, a) for a in stmt.names}
        through = whole in moved and whole in givers
        if through and len(givers) > 1:
            return [_in_two(project, source, stmt, moved, suffix)] if suffix else []
    if not through:
        return [
            Replace(source, alias.name, text)
            for alias in (stmt.names if not isinstance(stmt.names, cst.ImportStar) else ())
            if (text := _renamed(project, source, stmt, alias, moved, suffix)) is not None
        ]
    if stmt.module is None:
        return [_from_inside(project, source, stmt, suffix)]
    return [Replace(source, stmt.module, _module(stmt) + suffix)]


def _in_two(project: Project, source: Source, stmt: cst.ImportFrom, moved: list[Source], suffix: str) -> Edit:
    """`from tools import make, layers`: names of the package come from its copy, modules from the package itself."""
    code, whole = source.code(stmt), _whole(project, source, stmt)
    line, start = source.parents[stmt], source.span(stmt).start
    if isinstance(stmt.names, cst.ImportStar) or stmt.relative or "#" in code:
        _refuse(
            source, stmt, f"`{code}` imports names and modules of a package that has to change; write two statements"
        )
    names: list[str] = []
    inner: list[str] = []
    for alias in stmt.names:
        if _giver(project, source, stmt, alias) is whole:
            names.append(source.code(alias).strip().rstrip(","))
        else:
            renamed = _renamed(project, source, stmt, alias, moved, suffix) or dotted(alias.name)
            inner.append(renamed + (f" as {dotted(alias.asname.name)}" if alias.asname is not None else ""))
    alone = isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1
    between = f"{source.newline}{source.text[source.line_start(source.line(stmt)) : start]}" if alone else "; "
    first = f"from {_module(stmt)}{suffix} import {', '.join(names)}"
    return Replace(source, stmt, f"{first}{between}from {_module(stmt)} import {', '.join(inner)}")


def _from_inside(project: Project, source: Source, stmt: cst.ImportFrom, suffix: str) -> Edit:
    """`from . import x` in a module of `tools` becomes `from ..tools_ddp import x`: the copy is beside the package."""
    folder = source.path.absolute().parent
    for _ in stmt.relative[1:]:
        folder = folder.parent
    above = "" if folder.parent in [r.absolute() for r in project.roots] else "." * (len(stmt.relative) + 1)
    code = source.code(stmt)
    return Replace(source, stmt, re.sub(r"\Afrom[\s.]+import", f"from {above}{folder.name}{suffix} import", code))


def _renamed(
    project: Project, source: Source, stmt: cst.ImportFrom, alias: cst.ImportAlias, moved: list[Source], suffix: str
) -> str | None:
    """`from package import module` becomes `from package import module_ddp as module`."""
    giver = _giver(project, source, stmt, alias)
    if giver not in moved or giver is _whole(project, source, stmt):
        return None
    name = dotted(alias.name)
    return f"{name}{suffix}" if alias.asname is not None else f"{name}{suffix} as {name}"


def _from_beside(project: Project, source: Source, stmt: cst.ImportFrom, moved: list[Source], suffix: str) -> Edit:
    """`from .layers import x` in `tools/__init__.py` becomes `from tools.layers import x` in `tools_ddp.py`."""
    base = folder = source.path.absolute().parent
    for _ in stmt.relative[1:]:
        base = base.parent
    package, module = project.package, _module(stmt)
    if package is not None and package.root / package.name.split(".")[0] in folder.parents:
        # of a package in another one: `from .tools.layers import x`, and `from .names import y` for `..names`
        inner = [folder.name] if len(stmt.relative) == 1 else []
        path = "." * max(1, len(stmt.relative) - 1) + ".".join([*inner, *filter(None, [module])])
    else:
        roots = [r.absolute() for r in project.roots]
        root = next((r for r in roots if r in (base, *base.parents)), roots[0])
        path = ".".join([*base.relative_to(root).parts, *filter(None, [module])])
    code, start = source.code(stmt), source.span(stmt).start
    if not isinstance(stmt.names, cst.ImportStar):
        for alias in reversed(stmt.names):
            text = _renamed(project, source, stmt, alias, moved, suffix)
            if text is not None:
                span = source.span(alias.name)
                code = code[: span.start - start] + text + code[span.end - start :]
    path += suffix if stmt.module is not None and _whole(project, source, stmt) in moved else ""
    return Replace(source, stmt, re.sub(r"\Afrom[\s.]+([\w.]+\s+)?import", f"from {path} import", code))


def _plain(project: Project, source: Source, alias: cst.ImportAlias, moved: list[Source], suffix: str) -> list[Edit]:
    """`import utils` becomes `import utils_ddp as utils`; of `import a.b`, every `a.b` becomes `a.b_ddp`."""
    name = dotted(alias.name)
    if _own_part(source, alias) and suffix:
        module = project.find(name)
        part = name.partition(".")[2]
        if any(isinstance(n, cst.Attribute) and source.code(n.value) == name.partition(".")[0] for n in _read(source)):
            _refuse_dotted(source, alias)
        return [Replace(source, alias.name, f"{name}{suffix if module in moved else ''} as {part}")]
    if "." in name and alias.asname is None:
        if any(loaded != name and project.find(loaded) in moved for loaded in _loaded(alias)):
            _refuse_dotted(source, alias)
        return [Replace(source, alias.name, f"{name}{suffix}"), *_uses(source, name, suffix)]
    bound = dotted(alias.asname.name) if alias.asname is not None else name
    module = project.find(name)
    package = module is not None and module.path.name == INIT
    given = _binds(module) if module is not None and package else set[str]()
    for node in source.nodes if package else ():
        if isinstance(node, cst.Attribute) and source.code(node.value) == bound and node.attr.value not in given:
            inner = project.find(f"{name}.{node.attr.value}")
            if inner is not None:
                _refuse(
                    source,
                    node,
                    f"`{source.code(node)}` is a module of a package that has to change; import it by itself",
                )
    for node in source.of(cst.Call) if package and suffix else ():
        if isinstance(node.func, cst.Name) and node.func.value == "eval" and node.args:
            first, *parts = spelled(node.args[0].value, _text).split(".")
            inside = [s.path for s in project.files() if module is not None and s.path.parent == module.path.parent]
            if first == bound and len(parts) > 1 and any(p.name != INIT and p.stem not in given for p in inside):
                _refuse(source, node, f"`{source.code(node)}` names a module of a package that has to change")
    text = f"{name}{suffix}" if alias.asname is not None else f"{name}{suffix} as {name}"
    return [Replace(source, alias.name, text)]


def _text(node: cst.BaseExpression) -> list[object] | None:
    return [node.evaluated_value] if isinstance(node, cst.SimpleString) else None


def _own_part(source: Source, alias: cst.ImportAlias) -> bool:
    """`import models.net` in `models/__init__.py`, which makes it an attribute of the package."""
    package, _, part = dotted(alias.name).partition(".")
    own = source.path.name == INIT and source.path.absolute().parent.name == package
    return own and part.isidentifier() and alias.asname is None


def _read(source: Source) -> Iterator[cst.CSTNode]:
    """What is no part of an import statement."""
    for node in source.nodes:
        if not isinstance(source.parents.get(node), (cst.ImportAlias, cst.ImportFrom)):
            yield node


def _uses(source: Source, name: str, suffix: str) -> Iterator[Edit]:
    """The places that name a module by its dots."""
    for node in source.nodes:
        imported = isinstance(source.parents.get(node), (cst.ImportAlias, cst.ImportFrom))
        if isinstance(node, cst.Attribute) and not imported and source.code(node) == name:
            yield Replace(source, node.attr, f"{node.attr.value}{suffix}")


def _refuse_dotted(source: Source, alias: cst.ImportAlias) -> NoReturn:
    name = dotted(alias.name)
    _refuse(
        source,
        alias,
        f"`import {name}` names a module that has to change; write `import {name} as ...` or `from ... import`",
    )


def check_repointed(project: Project, source: Source, text: str, changed: list[Source]) -> None:
    """Raise where a result still names a module by the dots of an `import a.b` that is gone."""
    moved = [s for s in changed if s is not project.entry]
    for stmt in _imports(source):
        for alias in stmt.names if isinstance(stmt, cst.Import) else ():
            name = dotted(alias.name)
            gone = "." in name and alias.asname is None and project.find(name) in moved
            if gone and re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", text):
                _refuse_dotted(source, alias)
