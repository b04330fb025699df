"""A script in, where it is run from out: `python -m app.train` from the folder above `app`, or by paths of its own."""

from __future__ import annotations

import ast
import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

_IMPORTS = re.compile(
    r"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import[ \t]+(?:\([ \t]*)?(\w+|\*)|import[ \t]+([\w.]+))", re.MULTILINE
)
_NAMES_A_PATH = frozenset({"join", "joinpath", "abspath", "realpath", "insert", "append"})
_RELATIVE = re.compile(r"\bfrom[\s\\]*\.")


@dataclass(frozen=True)
class Package:
    """`root` is on the search path when the script is run, `name` the package that it is in: `app`, `app.tools`."""

    root: Path
    name: str


def package_of(script: Path, text: str, is_file: Callable[[Path], bool] = Path.is_file) -> Package | None:
    """The package of a script that imports from its own package, or what lies beside its folder (`tools/train.py`).

    None where it is run by its path.
    """
    folder = script.absolute().parent
    if not is_file(folder / "__init__.py") and not _RELATIVE.search(text):
        return _from_above(folder, text, is_file)
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    froms = [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
    level = max((n.level for n in froms), default=0)
    parts: list[str] = []
    while folder.name and (len(parts) < level or is_file(folder / "__init__.py")):
        parts.insert(0, folder.name)
        folder = folder.parent
    if not parts:
        return None
    named = {n.module for n in froms if n.module is not None and not n.level}
    named |= {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    beside = script.absolute().parent / parts[0]
    by_name = any(n.split(".")[0] == parts[0] for n in named) and not (
        is_file(beside.with_name(f"{parts[0]}.py")) or is_file(beside / "__init__.py")
    )
    own = Package(folder, ".".join(parts)) if level or by_name else None
    return own or _from_above(script.absolute().parent, text, is_file)


def search_path(script: Path, text: str) -> tuple[Path, ...]:
    """The folders above a script that puts some of its own on `sys.path`: it may mean any of them.

    A module beside it may do so (`import _init_paths`); the folders that it names come first. Also the one that a
    script in a folder which is no package (`train/psp-net`) is run with as its PYTHONPATH.
    """
    folder = script.absolute().parent
    texts = [t for t in (text, *_beside(folder, text)) if "sys.path" in t]
    if texts:
        named = [path for t in texts for path in _named_folders(folder, t)]
        return tuple(dict.fromkeys([*named, *_folders_above(folder)]))
    found = python_path(script, text)
    return (found,) if found is not None else ()


def python_path(script: Path, text: str) -> Path | None:
    """The folder that has to be in PYTHONPATH: the script imports from it, says so nowhere, and is run by its path."""
    folder = script.absolute().parent
    if any("sys.path" in t for t in (text, *_beside(folder, text))) or package_of(script, text) is not None:
        return None
    found = _above_imports(folder, text, Path.is_file)
    return found[0] if found is not None else None


def _beside(folder: Path, text: str) -> Iterator[str]:
    """The texts of the modules beside a script that it imports whole: `import _init_paths`."""
    for _, _, plain in _IMPORTS.findall(text):
        path = folder / f"{plain}.py"
        if plain.isidentifier() and plain not in sys.stdlib_module_names and path.is_file():
            with contextlib.suppress(OSError):
                yield path.read_text(encoding="utf-8", errors="replace")


def _named_folders(folder: Path, text: str) -> Iterator[Path]:
    """`os.path.join(here, "..", "lib")`, `sys.path.insert(0, "../lib")`, where there is such a folder."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            given = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
            path = Path(os.path.normpath(folder.joinpath(*given))) if given else folder
            if node.func.attr in _NAMES_A_PATH and path != folder and path.is_dir():
                yield path


def _from_above(folder: Path, text: str, is_file: Callable[[Path], bool]) -> Package | None:
    """`from models.unet import Unet` in `tools/train.py`, where `models` lies beside `tools`: run from there.

    None where it also imports what lies beside itself, which is found only where it is run by its path.
    """
    found = _above_imports(folder, text, is_file) if "sys.path" not in text else None
    if found is None or not all(name.isidentifier() for name in found[1]):
        return None
    named = ((module or plain, item) for module, item, plain in _IMPORTS.findall(text))
    if any(m and _is_module(folder, m.split("."), item, is_file) and _is_local(m) for m, item in named):
        return None
    return Package(found[0], ".".join(found[1]))


def _above_imports(folder: Path, text: str, is_file: Callable[[Path], bool]) -> tuple[Path, tuple[str, ...]] | None:
    """The folder above in which something lies that is imported and is not beside the script; the folders down."""
    for module, item, plain in _IMPORTS.findall(text):
        parts = (module or plain).split(".")
        if parts[0] in sys.stdlib_module_names or not parts[0] or _is_module(folder, parts, item, is_file):
            continue
        for depth, root in enumerate(_folders_above(folder), 1):
            if _is_module(root, parts, item, is_file):
                return root, folder.parts[-depth:]
    return None


def _is_local(module: str) -> bool:
    return module.partition(".")[0] not in sys.stdlib_module_names


def _folders_above(folder: Path) -> list[Path]:
    return [p for p in list(folder.parents)[:3] if p.name]


def _is_module(root: Path, parts: list[str], item: str, is_file: Callable[[Path], bool]) -> bool:
    """Whether there is a file for a dotted name below a folder, or one for what is imported from there."""
    place = root.joinpath(*parts)
    found = [place.with_name(f"{place.name}.py"), place / "__init__.py"]
    return any(is_file(path) for path in (*found, *([place / f"{item}.py"] if item else [])))
