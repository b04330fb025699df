"""fixtures/facts: `# -> role` behind a line says what is there; nothing else may have that role.

A first line `# xfail: why` marks what the flow cannot do yet.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddpify.facts import Facts, collect
from ddpify.facts.values import Heap, Obj
from ddpify.facts.wraps import NoWrapPoint
from ddpify.project import Project
from ddpify.source import Source, read_source

FOLDER = Path(__file__).resolve().parent.parent.parent / "fixtures" / "facts"
SCRIPTS = sorted((*FOLDER.glob("*.py"), *FOLDER.glob("*/train.py")))
EXPECTED = re.compile(r"#.*?-> (.+)$")
Place = tuple[str, int, str]  # file, line, role


def expected(script: Path) -> set[Place]:
    """The roles as the comments say them, of the script and of the files beside it."""
    files = [script] if script.parent == FOLDER else sorted(script.parent.rglob("*.py"))
    found: set[Place] = set()
    for path in files:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            match = EXPECTED.search(line)
            for role in match[1].split(", ") if match else ():
                found.add((path.relative_to(script.parent).as_posix(), number, role))
    return found


def understood(facts: Facts) -> Iterator[Place]:
    """The same roles as the flow finds them."""
    folder = facts.source.path.parent

    def place(source: Source, line: int, role: str) -> Place:
        return source.path.relative_to(folder).as_posix(), line, role

    def made(obj: Obj, role: str) -> Place:
        assert isinstance(obj, Heap)
        return place(obj.site.source, obj.site.source.line(obj.site.node), role)

    yield from (made(loader, "train loader") for loader in facts.roles.training_loaders)
    yield from (made(loader, "eval loader") for loader in facts.roles.evaluation_loaders)
    yield from (made(module, "model") for module in facts.roles.trained)
    for epoch in facts.roles.epoch_loops:
        if epoch.loop is not None:
            source = epoch.loop.frame.source
            yield place(source, source.line(epoch.loop.node), "epoch loop")
    for wrap in facts.wraps:
        if isinstance(wrap, NoWrapPoint):
            yield place(wrap.source, wrap.source.line(wrap.node), f"no wrap ({wrap.reason})")
        else:
            yield place(wrap.source, wrap.source.line(wrap.after), "wrapped here")


def case(script: Path) -> object:
    first = script.read_text().splitlines()[0]
    marks = [pytest.mark.xfail(reason=first[9:], strict=True)] if first.startswith("# xfail: ") else []
    name = script.stem if script.parent == FOLDER else script.parent.name
    return pytest.param(script, id=name, marks=marks)


@pytest.mark.parametrize("script", [case(s) for s in SCRIPTS])
def test_roles(script: Path) -> None:
    found, wanted = set(understood(collect(Project(read_source(script)), converting=True))), expected(script)
    assert (wanted - found, found - wanted) == (set(), set())  # what is missing, what is too much


def test_every_file_expects_something() -> None:
    assert all(any(role == "train loader" for _, _, role in expected(script)) for script in SCRIPTS)
    assert len(SCRIPTS) > 40
