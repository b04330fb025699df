"""The examples in the rules are their tests."""

from __future__ import annotations

from inspect import cleandoc
from pathlib import Path

import pytest

from ddpify.convert import convert_source
from ddpify.linting.check import Task, check
from ddpify.linting.problem import Problem
from ddpify.linting.settings import Settings
from ddpify.rules import Rule, all_rules
from ddpify.rules._base import Bad, Converts, Good, example
from ddpify.source import Source


def cases(kind: str) -> list[object]:
    """`DDP301-bad0`: a rule with one of its examples."""
    return [
        pytest.param(rule, case, id=f"{rule.code}-{kind}{at}")
        for rule in all_rules()
        for at, case in enumerate(getattr(rule, kind))
    ]


def source_of(code: str) -> Source:
    return Source(Path("train.py"), code.encode())


def linted(code: str) -> list[Problem]:
    return check(source_of(example(code)), "train.py", Task(Settings())).problems


@pytest.mark.parametrize(("rule", "case"), cases("bad"))
def test_bad_is_reported(rule: type[Rule], case: Bad) -> None:
    found = [f for f in linted(case.code) if f.severity != "info"]
    assert {f.code for f in found} == {rule.code}, [f.message for f in found]
    for finding in found:
        assert finding.message
        assert not finding.message.endswith(".")


@pytest.mark.parametrize(("rule", "case"), cases("good"))
def test_good_is_not_reported(rule: type[Rule], case: Good) -> None:
    found = linted(case.code)
    assert rule.code not in {f.code for f in found}, [f.message for f in found]


@pytest.mark.parametrize(("rule", "case"), cases("converts"))
def test_conversion(rule: type[Rule], case: Converts) -> None:
    conversion = convert_source(source_of(cleandoc(case.before) + "\n"))
    compile(conversion.text, "train.py", "exec")
    for line in case.gives:
        assert line in conversion.text
    for line in case.drops:
        assert line in case.before, "what is not in the script cannot be dropped"
        assert line not in conversion.text
    assert rule.code in {f.code for f in (*conversion.plan.findings, *conversion.plan.left, *conversion.plan.notes)}
