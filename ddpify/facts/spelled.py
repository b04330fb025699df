"""A name that a script puts together as text in, what it may be out: `eval("models." + args.net + ".make")(...)`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import libcst as cst

from ddpify.facts.frames import Frame, Scope
from ddpify.facts.registries import MOST, of_library, of_project
from ddpify.facts.state import State
from ddpify.facts.values import Class, Ext, Func, Mod, Obj, Value

Known = Callable[[cst.BaseExpression], "list[object] | None"]
_SEGMENT = re.compile(r"(?!\d)[\w*]+")


def spelled(node: cst.BaseExpression, known: Known) -> str:
    """The text of an expression, `*` for each part that is known at run time only."""
    values = known(node)
    if values is not None and len(values) == 1:
        return str(values[0])
    match node:
        case cst.BinaryOperation(left=left, operator=cst.Add(), right=right):
            return spelled(left, known) + spelled(right, known)
        case cst.FormattedString(parts=parts):
            return "".join(p.value if isinstance(p, cst.FormattedStringText) else "*" for p in parts)
        case cst.Call(func=cst.Attribute(value=cst.SimpleString() as text, attr=cst.Name(value="format"))):
            return re.sub(r"\{\w*\}", "*", str(text.evaluated_value))
    return "*"


class Spelled(State):
    """Lookups of dotted names, parts of which are not known."""

    def get(self, obj: Obj, name: str, node: cst.CSTNode, frame: Frame) -> Value:
        raise NotImplementedError

    def named(self, text: str, node: cst.CSTNode, frame: Frame, asked: str = "") -> Value:
        """What an expression of names may be, that is called or `asked` for an attribute; nothing of another text."""
        first, *rest = text.split(".")
        if not all(_SEGMENT.fullmatch(s) for s in (first, *rest)):
            return ()
        found = self._visible(first, not rest and not asked, frame)
        for at, segment in enumerate(rest):
            last = at == len(rest) - 1 and not asked
            found = [o for obj in found for o in self._inside(obj, segment, last, node, frame)]
        if asked:
            found = [o for o in found if not isinstance(o, Mod) or self._has(o, asked)]
        unique = {o.source if isinstance(o, Mod) else o: o for o in found}
        return tuple(unique.values()) if len(unique) <= MOST else ()

    def _has(self, module: Mod, name: str) -> bool:
        return module.source in self.modules and name in self.modules[module.source].scope.names

    def _visible(self, segment: str, last: bool, frame: Frame) -> list[Obj]:
        holder = frame.scope.holder(segment)
        if "*" not in segment:
            return list(holder.names.get(segment, ())) if holder is not None else []
        scopes: list[Scope] = []
        scope: Scope | None = frame.scope
        while scope is not None:
            scopes.append(scope)
            scope = scope.parent
        names = {n: v for s in reversed(scopes) for n, v in s.names.items()}
        return list(_chosen(Mod(frame.source), names, segment, last))

    def _inside(self, obj: Obj, segment: str, last: bool, node: cst.CSTNode, frame: Frame) -> Iterator[Obj]:
        if "*" not in segment:
            if not last or not isinstance(obj, Mod) or self._has(obj, segment):
                yield from self.get(obj, segment, node, frame)
        elif isinstance(obj, Ext) and segment == "*" and last:
            yield from of_library(obj)
        elif isinstance(obj, Mod) and obj.source in self.modules:
            if last:
                yield from _chosen(obj, self.modules[obj.source].scope.names, segment, last)
            elif obj.source.path.name == "__init__.py":
                folder = obj.source.path.parent
                yield from (Mod(s) for s in self.modules if s.path.parent == folder and _fits(segment, s.path.stem))


def _chosen(module: Mod, names: dict[str, Value], segment: str, last: bool) -> Value:
    if not last:
        return tuple(o for name, v in names.items() if _fits(segment, name) for o in v if isinstance(o, Mod))
    if segment == "*":
        return of_project(module, names)
    return tuple(o for name, v in names.items() if _fits(segment, name) for o in v if isinstance(o, (Class, Func)))


def _fits(segment: str, name: str) -> bool:
    return re.fullmatch(re.escape(segment).replace(r"\*", r"\w+"), name) is not None
