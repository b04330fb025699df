"""Import statements in, modules of the project out, each run on its first import."""

from __future__ import annotations

import libcst as cst

from ddpify.facts.frames import Entry, Frame, Scope
from ddpify.facts.signals import Signals
from ddpify.facts.values import UNKNOWN, Const, Data, Ext, Mod, Value
from ddpify.source import Source, dotted


class Importing(Signals):
    """Modules: found as Python would, run once."""

    def module_frame(self, source: Source, name: str) -> Frame:
        scope = Scope(source, None, source.module)
        scope.names["__name__"] = (Const(name),)
        scope.names["__file__"] = (Data("str"),)
        frame = Frame(source, scope, None, True)
        self.modules[source] = frame
        self.frames.append(frame)
        return frame

    def import_module(self, source: Source, frame: Frame, stmt: cst.CSTNode) -> Frame:
        """Run a module of the project on its first import."""
        if source in self.modules:
            return self.modules[source]
        new = self.module_frame(source, "imported")
        new.entries.append(Entry(frame, stmt, stmt, tuple(self.loops), self.grad))
        kept, self.stmt, self.loops, self.grad = (self.stmt, self.loops, self.grad), source.module, [], True
        self.block(source.module.body, new)
        self.stmt, self.loops, self.grad = kept
        return new

    def imports(self, stmt: cst.Import | cst.ImportFrom, frame: Frame) -> None:
        names = frame.scope.names
        if isinstance(stmt, cst.Import):
            for alias in stmt.names:
                full = dotted(alias.name)
                parts = full.split(".")
                for at in range(len(parts)):  # `import a.b.c` runs a and a.b, too
                    source = self.project.find(".".join(parts[: at + 1]))
                    if source is not None:
                        self.import_module(source, frame, stmt)
                if alias.asname is not None:
                    bound, whole = dotted(alias.asname.name), full
                else:
                    bound = whole = full.split(".")[0]
                held = self.project.find(whole)
                names[bound] = (Mod(held),) if held is not None else (Ext(whole),)
            return
        module = dotted(stmt.module) if stmt.module is not None else ""
        source = self.project.find(module, len(stmt.relative), frame.source)
        inner = self.import_module(source, frame, stmt) if source is not None else None
        if isinstance(stmt.names, cst.ImportStar):
            if inner is not None:
                names.update({n: v for n, v in inner.scope.names.items() if not n.startswith("_")})
            else:
                self.star_imports.setdefault(frame.source, []).append(module)
            return
        for alias in stmt.names:
            name = dotted(alias.name)
            bound = dotted(alias.asname.name) if alias.asname is not None else name
            names[bound] = self.imported(module, name, inner, len(stmt.relative), frame, stmt)

    def imported(
        self, module: str, name: str, inner: Frame | None, level: int, frame: Frame, stmt: cst.CSTNode
    ) -> Value:
        if inner is not None and name in inner.scope.names:
            return inner.scope.names[name]
        sub = self.project.find(f"{module}.{name}" if module else name, level, frame.source)
        if sub is not None:
            self.import_module(sub, frame, stmt)
            return (Mod(sub),)
        return UNKNOWN if inner is not None else (Ext(f"{module}.{name}" if not level else f".{module}.{name}"),)
