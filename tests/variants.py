"""A script -> the same script in other words: names, imports and places changed, meaning kept."""

from __future__ import annotations

import ast
import builtins
import io
import keyword
import re
import tokenize
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

import libcst as cst

from ddpify.source import Source, walk

#: Names of attributes that libraries look for, or that their objects have too: they must stay.
_WORDS = """
forward train eval to cuda cpu parameters state_dict load_state_dict training modules children apply zero_grad step
dataset sampler batch_size transform target_transform data targets classes device dtype shape size mean sum std item
append extend update add write close log keys values items get name path parent format count index
"""
_KNOWN_OUTSIDE = frozenset(_WORDS.split())
Replacement = tuple[int, int, str]
STATEMENT = (cst.BaseSmallStatement, cst.BaseCompoundStatement)


def replaced(text: str, replacements: Iterable[Replacement]) -> str:
    """Put new texts in the place of old ones."""
    for start, end, new in sorted(set(replacements), reverse=True):
        text = text[:start] + new + text[end:]
    return text


def parse(text: str) -> Source:
    """The tree and the positions of a text."""
    return Source(Path("before.py"), text.encode(tokenize.detect_encoding(io.BytesIO(text.encode()).readline)[0]))


def bound(text: str) -> set[str]:
    """Every name that a script gives to something."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
                found.add(name)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.alias(name=name, asname=other):
                found.add(other or name.split(".")[0])
    return found


# ---- renaming -------------------------------------------------------------------------------------------


class Renamer:
    """Gives everything that a project defines itself a name without meaning, in all its files alike.

    `modules` are the names of its modules: what is imported from them is renamed as they rename it.
    """

    def __init__(self, sources: Sequence[Source], modules: Collection[str] = ()) -> None:
        self.modules = modules
        self.imported: set[str] = set()
        #: names that hold modules of the project
        self.own: set[str] = set()
        self.namespaces: set[str] = set()
        self.functions: set[str] = set()
        self.parameters: set[str] = set()
        self.fields: set[str] = set()
        variables: list[str] = []
        attributes: list[str] = []
        for self.source in sources:
            self._imports()
            self.namespaces.update(self._namespaces())
            for node in walk(self.source.module):
                self._defined(node, variables, attributes)
        stay = self.imported | self.own | set(dir(builtins)) | set(keyword.softkwlist)
        self.variables = {
            n: f"v_{i}" for i, n in enumerate(dict.fromkeys(variables)) if n not in stay and not n.startswith("__")
        }
        self.attributes = {
            n: f"a_{i}"
            for i, n in enumerate(dict.fromkeys(attributes))
            if n not in _KNOWN_OUTSIDE and not n.startswith("__")
        }

    def _imports(self) -> None:
        """What comes from outside under a name that must stay, and the names of the project's modules."""
        for node, alias in _aliases(self.source):
            full, name = self.source.code(alias.name), _bound(alias, self.source)
            if full in self.modules:
                self.own.add(name)
            elif not self._is_local(node) or alias.asname is not None:
                self.imported.add(name)

    def _is_local(self, node: cst.Import | cst.ImportFrom) -> bool:
        """Whether something is imported from a module of the project."""
        if isinstance(node, cst.Import):
            return False
        return bool(node.relative) or (node.module is not None and self.source.code(node.module) in self.modules)

    def _namespaces(self) -> Iterator[str]:
        """Names that hold what argparse made: their attributes are named by the user of the script."""
        for node in walk(self.source.module):
            if isinstance(node, cst.Assign) and re.search(
                r"parse_(known_)?args\(|Namespace\(", self.source.code(node.value)
            ):
                for target in node.targets:
                    yield from (n.value for n in walk(target.target) if isinstance(n, cst.Name))

    def _defined(self, node: cst.CSTNode, variables: list[str], attributes: list[str]) -> None:
        match node:
            case cst.FunctionDef(name=cst.Name(value=name)) | cst.ClassDef(name=cst.Name(value=name)):
                self.functions.add(name)
                (attributes if self._in_class(node) else variables).append(name)
            case cst.Param(name=cst.Name(value=name)):
                self.parameters.add(name)
                variables.append(name)
            case (
                cst.AssignTarget(target=target)
                | cst.AnnAssign(target=target)
                | cst.For(target=target)
                | cst.CompFor(target=target)
            ):
                self._targets(target, node, variables, attributes)
            case cst.AsName(name=target) if not isinstance(self.source.parents[node], cst.ImportAlias):
                self._targets(target, node, variables, attributes)
            case cst.NamedExpr(target=target):
                self._targets(target, node, variables, attributes)

    def _targets(self, target: cst.CSTNode, node: cst.CSTNode, variables: list[str], attributes: list[str]) -> None:
        for part in walk(target):
            if isinstance(part, cst.Name) and self._is_variable(part):
                inside = self._in_class(node)
                (attributes if inside else variables).append(part.value)
                if inside and isinstance(node, cst.AnnAssign):
                    self.fields.add(part.value)
            elif isinstance(part, cst.Attribute) and isinstance(part.value, cst.Name) and self._is_self(part.value):
                attributes.append(part.attr.value)

    def _in_class(self, node: cst.CSTNode) -> bool:
        """Whether a statement stands in the body of a class, not in a method."""
        around = (a for a in self.source.ancestors(node) if isinstance(a, (cst.FunctionDef, cst.Lambda, cst.ClassDef)))
        return isinstance(next(around, None), cst.ClassDef)

    def _is_self(self, name: cst.Name) -> bool:
        method = next((a for a in self.source.ancestors(name) if isinstance(a, cst.FunctionDef)), None)
        while method is not None and not self._in_class(method):
            method = next((a for a in self.source.ancestors(method) if isinstance(a, cst.FunctionDef)), None)
        return method is not None and bool(method.params.params) and method.params.params[0].name.value == name.value

    def _is_variable(self, node: cst.Name) -> bool:
        """A name that is read or bound, not the attribute, keyword or module of that name."""
        match self.source.parents.get(node):
            case cst.Attribute(value=value) | cst.Arg(value=value) if value is not node:
                return False
        return not any(isinstance(a, (cst.Import, cst.ImportFrom)) for a in self.source.ancestors(node))

    # -- the new text --

    def text(self, source: Source) -> str:
        self.source = source
        return replaced(source.text, self._replacements())

    def _replacements(self) -> Iterator[Replacement]:
        for node in walk(self.source.module):
            if isinstance(node, cst.Name):
                new = self._new_name(node)
                if new is not None:
                    span = self.source.span(node)
                    yield span.start, span.end, new

    def _new_name(self, node: cst.Name) -> str | None:
        parent = self.source.parents.get(node)
        if isinstance(parent, cst.Attribute) and parent.attr is node:
            holder = parent.value.value if isinstance(parent.value, cst.Name) else ""
            if holder in self.own:
                return self.variables.get(node.value)
            return None if holder in self.namespaces | self.imported else self.attributes.get(node.value)
        if isinstance(parent, cst.ImportAlias) and parent.name is node:
            around = self.source.parents[parent]
            local = isinstance(around, cst.ImportFrom) and self._is_local(around) and node.value not in self.modules
            return self.variables.get(node.value) if local else None
        if isinstance(parent, cst.Arg) and parent.keyword is node:
            return self._new_keyword(parent, node.value)
        if not self._is_variable(node):
            return None
        statement = parent if isinstance(parent, (cst.FunctionDef, cst.ClassDef)) and parent.name is node else node
        bound = isinstance(parent, (cst.FunctionDef, cst.ClassDef, cst.AssignTarget, cst.AnnAssign))
        if (
            bound
            and self._in_class(statement)
            and not (isinstance(parent, cst.AnnAssign) and parent.target is not node)
        ):
            return self.attributes.get(node.value)
        return self.variables.get(node.value)

    def _new_keyword(self, arg: cst.Arg, name: str) -> str | None:
        """A keyword argument is renamed with the parameter, where the function is the script's own."""
        call = self.source.parents[arg]
        if not isinstance(call, cst.Call):
            return None
        func = call.func
        called = (
            func.value if isinstance(func, cst.Name) else func.attr.value if isinstance(func, cst.Attribute) else ""
        )
        if isinstance(func, cst.Attribute) and called in _KNOWN_OUTSIDE:
            return None
        if called not in self.functions:
            return None
        if name in self.fields and name not in self.parameters:
            return self.attributes.get(name)
        return self.variables.get(name) if name in self.parameters else None


def renamed_files(texts: dict[str, str]) -> dict[str, str]:
    """All variables, functions, classes, parameters and attributes of a project's files under other names."""
    sources = {name: parse(text) for name, text in texts.items()}
    renamer = Renamer(list(sources.values()), _module_names(texts))
    return {name: renamer.text(source) for name, source in sources.items()}


def _module_names(texts: Iterable[str]) -> set[str]:
    """What modules are called in imports, whole and by their last name."""
    dotted = {name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in texts}
    return (dotted | {name.rpartition(".")[2] for name in dotted}) - {"before"}


# ---- imports ----------------------------------------------------------------------------------------------


def _aliases(source: Source) -> Iterator[tuple[cst.Import | cst.ImportFrom, cst.ImportAlias]]:
    for node in walk(source.module):
        if isinstance(node, (cst.Import, cst.ImportFrom)) and not isinstance(node.names, cst.ImportStar):
            yield from ((node, alias) for alias in node.names)


def _bound(alias: cst.ImportAlias, source: Source) -> str:
    return source.code(alias.asname.name) if alias.asname is not None else source.code(alias.name).split(".")[0]


def _torch_imports(source: Source) -> Iterator[tuple[cst.Import | cst.ImportFrom, str]]:
    """Imports of torch with the module that they name."""
    for node in walk(source.module):
        if isinstance(node, cst.ImportFrom) and node.module is not None and not isinstance(node.names, cst.ImportStar):
            yield from [(node, source.code(node.module))] if source.code(node.module).split(".")[0] == "torch" else []
        elif isinstance(node, cst.Import) and len(node.names) == 1:
            name = source.code(node.names[0].name)
            dotted = "." in name and node.names[0].asname is None
            yield from [(node, name)] if name.split(".")[0] == "torch" and not dotted else []


def _uses(source: Source, name: str) -> Iterator[cst.Name]:
    renamer = Renamer([source])
    for node in walk(source.module):
        if isinstance(node, cst.Name) and node.value == name and renamer._is_variable(node):
            yield node


def aliased(text: str) -> str:
    """`import torch` becomes `import torch as t_0`, and so on: every name from torch under another."""
    source, changes, number = parse(text), list[Replacement](), 0
    for node, _ in _torch_imports(source):
        parts = []
        for alias in node.names if not isinstance(node.names, cst.ImportStar) else ():
            number += 1
            parts.append(f"{source.code(alias.name)} as t_{number}")
            for use in _uses(source, _bound(alias, source)):
                span = source.span(use)
                changes.append((span.start, span.end, f"t_{number}"))
        span = source.span(node)
        head = (
            f"from {source.code(node.module)} " if isinstance(node, cst.ImportFrom) and node.module is not None else ""
        )
        changes.append((span.start, span.end, f"{head}import {', '.join(parts)}"))
    return replaced(text, changes)


def qualified(text: str) -> str:
    """`from torch.utils.data import DataLoader` becomes `import torch.utils.data as q_0`, and `q_0.DataLoader`."""
    source, changes = parse(text), list[Replacement]()
    for number, (node, module) in enumerate(_torch_imports(source)):
        if not isinstance(node, cst.ImportFrom) or isinstance(node.names, cst.ImportStar):
            continue
        for alias in node.names:
            for use in _uses(source, _bound(alias, source)):
                span = source.span(use)
                changes.append((span.start, span.end, f"q_{number}.{source.code(alias.name)}"))
        span = source.span(node)
        changes.append((span.start, span.end, f"import {module} as q_{number}"))
    return replaced(text, changes)


# ---- places -----------------------------------------------------------------------------------------------


def string_lines(source: Source) -> set[int]:
    """The lines that begin inside a string."""
    found: set[int] = set()
    for node in walk(source.module):
        if isinstance(node, (cst.SimpleString, cst.FormattedString)):
            span = source.span(node)
            found.update(range(span.line + 1, source.line_at(span.end) + 1))
    return found
