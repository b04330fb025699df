"""`[tool.ddpify]` of a pyproject.toml and the command line in, checked settings out."""

from __future__ import annotations

import dataclasses
import difflib
import fnmatch
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddpify.errors import DdpifyError

_SELECTOR = re.compile(r"DDP\d{0,3}|ALL")
#: keys of [tool.ddpify] and what they hold
#: true of nearly every script: told where it is selected by name
_WHEN_ASKED = frozenset({"DDP311"})
_LISTS = ("select", "ignore", "extend-select", "exclude")
_KEYS = (*_LISTS, "per-file-ignores", "baseline", "respect-gitignore")


@dataclass(frozen=True)
class Settings:
    """What to report, and where. Patterns are relative to `root`."""

    select: tuple[str, ...] = ("ALL",)
    ignore: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    per_file: tuple[tuple[str, tuple[str, ...]], ...] = ()
    baseline: Path | None = None
    respect_gitignore: bool = True
    root: Path = Path()

    def selects(self, code: str, path: Path | str = "") -> bool:
        """Whether a code is reported in a file: the longest selector that fits decides, `ignore` over `select`."""
        on = max((len(s) for s in self.select if _fits(s, code)), default=-1)
        off = max((len(s) for s in self.ignore if _fits(s, code)), default=-1)
        if on < 0 or off >= on:
            return False
        return not any(
            any(_fits(s, code) for s in codes) and self._matches(pattern, path) for pattern, codes in self.per_file
        )

    def excludes(self, path: Path | str) -> bool:
        """Whether a file or folder is left out."""
        return any(self._matches(pattern, path) for pattern in self.exclude)

    def _matches(self, pattern: str, path: Path | str) -> bool:
        """`tests/*`, `legacy`, `*.gen.py`: the path below the root, or one of its parts."""
        below = self.below(path)
        parts = below.split("/")
        wanted = pattern.strip("/")
        if "/" not in wanted:
            return any(fnmatch.fnmatchcase(part, wanted) for part in parts)
        heads = ("/".join(parts[: n + 1]) for n in range(len(parts)))
        return any(fnmatch.fnmatchcase(head, wanted) for head in heads)

    def below(self, path: Path | str) -> str:
        """A path as it is below the root, with slashes."""
        try:
            found = os.path.relpath(path, self.root)
        except ValueError:  # another drive
            found = str(path)
        return found.replace(os.sep, "/")


def _fits(selector: str, code: str) -> bool:
    return code.startswith(selector) or (selector == "ALL" and code not in _WHEN_ASKED)


def read_settings(start: Path) -> Settings:
    """The settings of the nearest pyproject.toml with a table [tool.ddpify], from a folder upwards.

    Raises:
        DdpifyError: where the table is not right; the sentence names the file and the key.
    """
    place = start.absolute()
    for folder in (place, *place.parents):
        path = folder / "pyproject.toml"
        try:
            data = path.read_bytes()
        except OSError:
            continue
        if b"ddpify" in data and (table := _table(path, data)) is not None:
            return _checked(table, path)
    return Settings(root=place)


def _table(path: Path, data: bytes) -> dict[str, Any] | None:
    if re.search(rb"^\s*\[+\s*tool\s*\.\s*[\"']?ddpify|^\s*tool\.ddpify|^\s*ddpify\.", data, re.MULTILINE) is None:
        return None
    toml = _toml(path)
    try:
        document = toml.loads(data.decode("utf-8"))
    except (UnicodeDecodeError, ValueError) as error:
        raise DdpifyError(f"{path}: not a TOML file ({str(error).splitlines()[0]})") from None
    table = document.get("tool", {}).get("ddpify")
    if table is not None and not isinstance(table, dict):
        raise DdpifyError(f"{path}: tool.ddpify is no table")
    return table


def _toml(path: Path) -> Any:
    import importlib

    for name in ("tomllib", "tomli"):  # tomllib is part of Python since 3.11
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            continue
    raise DdpifyError(f"{path}: [tool.ddpify] is read with the package tomli on Python 3.10; install it")


def _checked(table: Mapping[str, Any], path: Path) -> Settings:
    for key, value in table.items():
        if key not in _KEYS:
            near = difflib.get_close_matches(key, _KEYS, n=1, cutoff=0.4)
            hint = f"did you mean {near[0]!r}?" if near else f"the keys are {', '.join(_KEYS)}"
            raise DdpifyError(f"{path}: tool.ddpify has no key {key!r}; {hint}")
        if key in _LISTS and not _is_texts(value):
            raise DdpifyError(f"{path}: tool.ddpify.{key} is a list of strings")
    where = f"{path}: tool.ddpify"
    lists = table.get("per-file-ignores", {})
    if not isinstance(lists, dict) or not all(map(_is_texts, lists.values())):
        raise DdpifyError(f"{where}.per-file-ignores is a table of patterns, each with a list of codes")
    baseline, git = table.get("baseline"), table.get("respect-gitignore", True)
    if baseline is not None and not isinstance(baseline, str):
        raise DdpifyError(f"{where}.baseline is the name of a file")
    if not isinstance(git, bool):
        raise DdpifyError(f"{where}.respect-gitignore is true or false")
    select = selectors(table.get("select", ["ALL"]), f"{where}.select")
    return Settings(
        (*select, *selectors(table.get("extend-select", []), f"{where}.extend-select")),
        selectors(table.get("ignore", []), f"{where}.ignore"),
        tuple(table.get("exclude", [])),
        tuple((p, selectors(codes, f"{where}.per-file-ignores")) for p, codes in lists.items()),
        path.parent / baseline if baseline is not None else None,
        git,
        path.parent,
    )


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(v, str) for v in value)


def selectors(given: Iterable[str], where: str) -> tuple[str, ...]:
    """Codes, beginnings of codes (`DDP3`), names of rules or ALL, as codes.

    Raises:
        DdpifyError: where no rule has that code or name.
    """
    from ddpify.rules import all_rules

    codes = {r.name(): r.code for r in all_rules()}
    found = []
    for text in given:
        code = codes.get(text.strip().lower().replace("_", "-"), text.strip().upper())
        if not _SELECTOR.fullmatch(code) or (code != "ALL" and not any(c.startswith(code) for c in codes.values())):
            near = difflib.get_close_matches(text, [*codes, *codes.values()], n=1, cutoff=0.6)
            hint = f"did you mean {near[0]}?" if near else "`ddpify rules` lists them"
            raise DdpifyError(f"{where}: no rule {text.strip()!r}; {hint}")
        found.append(code)
    return tuple(found)


def with_options(settings: Settings, select: Iterable[str], ignore: Iterable[str], extend: Iterable[str]) -> Settings:
    """The settings, with what the command line says of codes: --select takes the place of `select`, the rest adds."""
    chosen = selectors(select, "--select") or settings.select
    return dataclasses.replace(
        settings,
        select=(*chosen, *selectors(extend, "--extend-select")),
        ignore=(*(() if tuple(select) else settings.ignore), *selectors(ignore, "--ignore")),
    )
