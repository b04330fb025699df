"""A script in, the package that it is run in out: `python -m app.train`, from the folder above `app`."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_RELATIVE = re.compile(r"\bfrom[\s\\]*\.")


@dataclass(frozen=True)
class Package:
    """`root` is on the search path when the script is run, `name` the package that it is in: `app`, `app.tools`."""

    root: Path
    name: str


def package_of(script: Path, text: str, is_file: Callable[[Path], bool] = Path.is_file) -> Package | None:
    """The package of a script that imports from its own package; None where it is run by its path."""
    folder = script.absolute().parent
    if not is_file(folder / "__init__.py") and not _RELATIVE.search(text):
        return None  # most scripts are in no package
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
    return Package(folder, ".".join(parts)) if level or by_name else None
