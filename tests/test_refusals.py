"""Every refusal says where, and of which value: its name, and the way on which it came there, step by step."""

from __future__ import annotations

import ast
import contextlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from ddpify.convert import convert_source
from ddpify.errors import Refused, Seen, Step, Way
from ddpify.source import Source, read_source
from tests.cases import CASES, Case, each
from tests.refused import SEEN, VALUES

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "ddpify"


def refusal(script: Path) -> Refused:
    with pytest.raises(Refused) as caught:
        convert_source(read_source(script))
    return caught.value


def line_of(place: str) -> tuple[str, str]:
    """The file and the line that a place names."""
    match = re.fullmatch(r"(.+):(\d+)", place)
    assert match is not None, place
    lines = read_source(Path(match[1])).text.splitlines()
    assert 1 <= int(match[2]) <= len(lines)
    return match[1], lines[int(match[2]) - 1]


def first_word(code: str) -> str:
    found = re.search(r"\w+", code)
    return found[0] if found is not None else code[:1]


def check(found: Refused) -> None:
    """Place and sentence, and what it is about."""
    _, line = line_of(found.place)
    assert str(found).startswith(f"{found.place}: {found.sentence}")
    assert "\n" not in found.sentence
    if isinstance(found.about, Seen):
        assert first_word(found.about.what) in line, found
        return
    assert f"`{found.about.value}`" in found.sentence, found
    assert found.about.steps, found
    for step in found.about.steps:
        check_step(step)
    assert str(found).count("\n") == len(found.about.steps)


def check_step(step: Step) -> None:
    _, line = line_of(step.place)
    assert first_word(step.made_by) in line, step
    assert step.what != step.made_by or "given" in step.how or "is" in step.how


@pytest.mark.parametrize(("said", "script"), [*SEEN.items(), *VALUES.items()])
def test_a_refusal_says_of_what(said: str, script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(script)
    found = refusal(Path("train.py"))
    assert said in found.sentence, str(found)
    assert isinstance(found.about, Seen if said in SEEN else Way)
    check(found)


#: refusals that no small script reaches: the function that makes them, a part of the call, and why
UNREACHED = {
    ("convert.missing", "Refused"): "a gap in the rules",
    ("convert.self_check", "Refused"): "a fault",
    ("repoint._check_package", ""): "tests/test_several_files.py",
    ("repoint._in_two", ""): "tests/test_several_files.py",
    ("repoint._plain", ""): "tests/test_several_files.py",
    ("repoint._refuse_dotted", ""): "tests/test_several_files.py",
    ("repoint._refuse", ""): "tests/test_several_files.py",
    ("wraps.place", "is assigned in another function"): "what is left over",
    ("wraps.place", "no place for the wrap"): "what is left over",
    ("wraps.place", "is made and trained in one statement"): "what is left over",
    ("wraps.place", "is not assigned where"): "what is left over",
    ("wraps.by_itself", "in other places"): "tests/rules/test_model_not_wrapped.py",
    ("wraps.by_itself", "is prepared in the loop"): "tests/rules/test_model_not_wrapped.py",
    ("wraps.whole", ""): "tests/rules/test_model_not_wrapped.py",
    ("model_not_wrapped.check", "self.way_of"): "a file of which no copy is made",
    ("loader_without_sampler.check", "facts.source.module"): "a file of which no copy is made",
    ("attribute_through_wrapper.raw_findings", ""): "a file of which no copy is made",
    ("_shared.loop_elsewhere", ""): "a file of which no copy is made",
    ("metric_not_reduced.find", ""): "phases that nothing tells apart",
    ("evaluation_not_exact.check", "reduces over ranks by itself"): "an evaluation with collectives of its own",
    ("process_group_not_initialized.nowhere", "no statement was found"): "what is left over",
    ("refusals.no_loop", "Seen(path.name)"): "a module that is no Python 3",
    ("refusals.check_trains", "_OTHER"): "another framework, with torch in a module",
}


def makes_refusal(call: ast.Call) -> bool:
    """`Refused(...)`, `Unshared(...)`, `self.none(...)`, `self.finding(..., refuse=...)`"""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return name in ("Refused", "_refused", "Unshared", "NoWrapPoint", "none", "_refuse") or (
        name == "finding" and any(k.arg == "refuse" for k in call.keywords)
    )


def sites() -> Iterator[tuple[str, str, ast.Call]]:
    """Where the code refuses: the file, the function, and the call."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for func in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(func, ast.FunctionDef):
                for call in ast.walk(func):
                    if isinstance(call, ast.Call) and makes_refusal(call):
                        yield str(path), f"{path.stem}.{func.name}", call


def test_every_refusal_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new refusal needs a script in tests/refused.py, and with it a value, a way, a place."""
    wanted = list(sites())
    functions = {(path, function.partition(".")[2]) for path, function, _ in wanted}
    ran: set[tuple[str, int]] = set()

    def lines(frame: FrameType, event: str, _: object) -> Any:
        ran.add((frame.f_code.co_filename, frame.f_lineno))
        return lines

    def calls(frame: FrameType, event: str, _: object) -> Any:
        return lines if (frame.f_code.co_filename, frame.f_code.co_name) in functions else None

    monkeypatch.chdir(tmp_path)
    before = sys.gettrace()
    try:
        for script in (*SEEN.values(), *VALUES.values()):
            sys.settrace(calls)
            with contextlib.suppress(Refused):
                convert_source(Source(Path("train.py"), script.encode()))
    finally:
        sys.settrace(before)
    known = set()
    for path, function, call in wanted:
        text = ast.unparse(call)
        listed = next((key for key in UNREACHED if key[0] == function and key[1] in text), None)
        reached = any((path, line) in ran for line in range(call.lineno, (call.end_lineno or call.lineno) + 1))
        assert reached or listed is not None, f"{path}:{call.lineno}: no script in tests/refused.py is refused here"
        known.add(listed)
    assert known >= UNREACHED.keys(), UNREACHED.keys() - known


@each(c for c in CASES if not c.converts and c.name not in ("refused_python2", "refused_syntax_error"))
def test_a_refused_fixture_says_of_what(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(case.folder)
    check(refusal(Path("before.py")))
