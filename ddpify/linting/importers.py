"""Changed modules in, the scripts of their project that import them out, found in the text of import statements."""

from __future__ import annotations

import ast
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ddpify.files import Skips, python_files

#: what marks the folder of a project
_MARKS = (".git", "pyproject.toml", "setup.py", "setup.cfg")
#: scripts that are read for the sake of one call, the nearest first
_MOST = 64


@dataclass(frozen=True)
class Module:
    """A file as import statements name it: the folder of a package stands for its `__init__.py`."""

    path: Path

    @property
    def place(self) -> Path:
        return self.path.parent if self.path.name == "__init__.py" else self.path.with_suffix("")

    @property
    def word(self) -> bytes:
        return self.place.name.encode()

    def is_named(self, importer: Path, level: int, name: str) -> bool:
        """Whether `from ..a.b import c`, in a file, may mean this one."""
        parts = tuple(name.split(".")) if name else ()
        if level:
            base = importer.parent
            for _ in range(level - 1):
                base = base.parent
            return base.joinpath(*parts) == self.place
        return bool(parts) and self.place.parts[-len(parts) :] == parts


def importing_scripts(files: Iterable[Path], matters: Callable[[bytes], object], skips: Skips) -> list[Path]:
    """The scripts that import one of the files, by way of others too, where something on the way may be distributed."""
    found: dict[Path, int] = {}
    by_project: dict[Path, list[Path]] = {}
    for file in files:
        by_project.setdefault(project_of(file), []).append(file.absolute())
    for project, changed in by_project.items():
        every = list(_files(project, skips))
        for path in _above(changed, every, matters):
            near = max(len(os.path.commonpath([path, c])) for c in changed)
            found[path] = max(near, found.get(path, 0))
    scripts = sorted(found, key=lambda p: (-found[p], str(p)))[:_MOST]
    here = Path().absolute()
    return [Path(os.path.relpath(p)) if here in p.parents else p for p in scripts]


def importing_among(files: Iterable[Path], every: Iterable[Path], matters: Callable[[bytes], object]) -> list[Path]:
    """The same of the scripts among some files."""
    paths = {p.absolute(): p for p in every if p.suffix == ".py"}
    changed = [file.absolute() for file in files]
    return [paths[p] for p in sorted(_above(changed, list(paths), matters)) if b"__main__" in _bytes(p)]


def project_of(file: Path) -> Path:
    """The nearest folder above a file that looks like a project's; its own folder where none does."""
    folder = file.absolute().parent
    for mark in _MARKS:
        for above in (folder, *folder.parents):
            if (above / mark).exists():
                return above
    return folder


def _files(project: Path, skips: Skips) -> Iterator[Path]:
    if any((project / mark).exists() for mark in _MARKS):
        yield from python_files([project], skips)
    else:  # who knows what lies below a folder that is no project
        yield from sorted(p for p in project.glob("*.py") if not skips(str(p), False))


def _above(changed: list[Path], every: list[Path], matters: Callable[[bytes], object]) -> Iterator[Path]:
    """The files that import the changed ones and that are scripts, or imported by nobody who does."""
    wave = {Module(path) for path in changed}
    data = {path: _bytes(path) for path in changed}
    important = {path for path in changed if matters(data[path])}
    reached: dict[Path, bool] = {}  # whether it is imported by another that was reached
    while wave:
        words = re.compile(b"|".join(re.escape(m.word) for m in wave))
        following: set[Module] = set()
        for path in every:
            text = data.get(path) or _bytes(path)
            if not words.search(text) or b"import" not in text:
                continue
            named = [m for m in wave if m.path != path and m.word in text and _imports(path, text, m)]
            for m in named:
                if m.path in reached:
                    reached[m.path] = True
            if not named:
                continue
            if matters(text) or any(m.path in important for m in named):
                important.add(path)
            if path not in reached and path not in changed:
                reached[path] = False
                data[path] = text
                following.add(Module(path))
        wave = following
    for path, imported in reached.items():
        if path in important and (not imported or b"__main__" in data[path]):
            yield path


def _imports(path: Path, text: bytes, module: Module) -> bool:
    return any(module.is_named(path, level, name) for level, name in _statements(text))


def _statements(text: bytes) -> Iterator[tuple[int, str]]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((0, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            yield node.level, module
            yield from ((node.level, f"{module}.{a.name}".lstrip(".")) for a in node.names)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
