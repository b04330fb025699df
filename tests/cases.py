"""fixtures/convert -> Case: what each fixture is for, and what becomes of it."""

from __future__ import annotations

import functools
import importlib
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ddpify.convert import Conversion, convert_source
from ddpify.rewrite import Rewriter
from ddpify.source import Source

tomllib: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")

FOLDER = Path(__file__).resolve().parent.parent / "fixtures" / "convert"
#: where scripts stand that no file has: the modules that they import come with them
NOWHERE = Path("nowhere")
#: what a conversion of before.py to after.py writes, under these names
_OUTPUTS = re.compile(r"after\.py|report\.txt|distributed_helpers\.py|.+_ddp\.py")


@dataclass(frozen=True)
class Case:
    """One folder of fixtures/convert.

    `sometimes` is a pattern of the lines, and file names, whose printing or text depends on the numbers. `in_order` is
    false where the conversion cannot repeat the original's numbers even when nothing is shuffled (the reason stands in
    case.toml). `unprefixed` is what the keys of the original's checkpoints begin with (`module.`, of nn.DataParallel),
    and those of the conversion do not.
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
    unprefixed: str = ""
    shape_of: str = ""

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def before(self) -> Path:
        return self.folder / "before.py"

    @property
    def modules(self) -> dict[str, bytes]:
        """The modules beside before.py, in folders too, by their paths."""
        return {
            n: p.read_bytes() for n, p in self._files() if p.suffix == ".py" and not is_output(p) and n != "before.py"
        }

    @property
    def outputs(self) -> dict[str, bytes]:
        """What the conversion is expected to write."""
        return {name: path.read_bytes() for name, path in self._files() if is_output(path)}

    def _files(self) -> list[tuple[str, Path]]:
        return [(p.relative_to(self.folder).as_posix(), p) for p in sorted(self.folder.rglob("*")) if p.is_file()]

    @property
    def converts(self) -> bool:
        return self.ends == "converted"


def is_output(path: Path) -> bool:
    """Whether a file of a fixture is one that the conversion writes."""
    return _OUTPUTS.fullmatch(path.name) is not None


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


def convert_bytes(data: bytes, modules: Mapping[str, bytes] | None = None, name: str = "before.py") -> Conversion:
    """Convert bytes that stand in no folder, with the modules that they import."""
    overlay = {NOWHERE / path: Source(NOWHERE / path, text) for path, text in (modules or {}).items()}
    return convert_source(Source(NOWHERE / name, data), overlay=overlay)


def conversion(case: Case) -> Conversion:
    """The conversion of a fixture, made once; it must not be changed."""
    return recorded(case)[0]


@functools.cache
def recorded(case: Case) -> tuple[Conversion, list[Rewriter]]:
    """A conversion, and for each file the rewriter with the changes that it made."""
    used: list[Rewriter] = []

    class Recording(Rewriter):
        def __init__(self, source: Source) -> None:
            super().__init__(source)
            used.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["ddpify.convert"], "Rewriter", Recording)
        found = convert_bytes(case.before.read_bytes(), case.modules)
    return found, used


def reconverted(case: Case, make: Callable[[Source], str]) -> Conversion:
    """The conversion of a fixture whose files all say the same in other words."""
    source = conversion(case).source
    modules = {name: Source(NOWHERE / name, data) for name, data in case.modules.items()}
    return convert_bytes(source.encode(make(source)), {name: s.encode(make(s)) for name, s in modules.items()})


def pairs(found: Conversion) -> list[tuple[Source, Source]]:
    """Each file that is written, before and after, the entry first; the new module of helpers is not among them."""
    changed = [(c.source, Source(path, c.data)) for path, c in found.files.items() if c.source is not None]
    return [(found.source, Source(found.source.path, found.data)), *changed]


def written(found: Conversion) -> dict[str, bytes]:
    """The texts of all files that a conversion writes, by their paths; the entry keeps its name."""
    files = {path.relative_to(NOWHERE).as_posix(): changed.data for path, changed in found.files.items()}
    return {"before.py": found.data, **files}


def places(found: Conversion) -> list[tuple[str, str, int]]:
    """What was found and where: rule, file and line, in order; edits, what is left and notes alike."""
    plan = found.plan
    return sorted((f.code, f.source.path.name, f.span.line) for f in (*plan.findings, *plan.left, *plan.notes))
