"""fixtures/convert -> Case: what each fixture is for, and what becomes of it."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ddpify.convert import Conversion, convert_source
from ddpify.source import Source

tomllib: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")

FOLDER = Path(__file__).resolve().parent.parent / "fixtures" / "convert"


@dataclass(frozen=True)
class Case:
    """One folder of fixtures/convert.

    `sometimes` is a pattern of the lines whose printing or text depends on the numbers. `in_order` is false where the
    conversion cannot repeat the original's numbers even when nothing is shuffled (the reason stands in case.toml).
    """

    folder: Path
    ends: str
    args: tuple[str, ...] = ()
    run: bool = False
    world: tuple[int, ...] = ()
    again: tuple[str, ...] = ()
    needs: str = ""
    sometimes: str = ""
    in_order: bool = True
    shape_of: str = ""

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def before(self) -> Path:
        return self.folder / "before.py"

    @property
    def converts(self) -> bool:
        return self.ends == "converted"


def _case(folder: Path) -> Case:
    found: dict[str, Any] = tomllib.loads((folder / "case.toml").read_text(encoding="utf-8"))
    fields: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in found.items()}
    return Case(folder, **fields)


CASES = tuple(_case(path.parent) for path in sorted(FOLDER.glob("*/case.toml")))
CONVERTED = tuple(case for case in CASES if case.converts)
REFUSED = tuple(case for case in CASES if not case.converts)


def each(cases: Iterable[Case]) -> pytest.MarkDecorator:
    """Run a test for each case, under its name."""
    return pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in cases])


def convert_bytes(data: bytes, name: str = "before.py") -> Conversion:
    """Convert bytes that stand in no folder of their own; the modules that they import are not looked for."""
    return convert_source(Source(Path("nowhere", name), data))


@functools.cache
def conversion(case: Case) -> Conversion:
    """The conversion of a fixture, made once; it must not be changed."""
    return convert_bytes(case.before.read_bytes())


def places(found: Conversion) -> list[tuple[str, int]]:
    """What was found and where: rule and line, in order; edits, what is left and notes alike."""
    plan = found.plan
    return sorted((f.code, f.span.line) for f in (*plan.findings, *plan.left, *plan.notes))
