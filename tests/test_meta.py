"""The project about itself: every rule is whole, what is generated is current, what is said twice agrees."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

import click
import pytest

import ddpify
from ddpify import rules
from ddpify.cli import cli
from ddpify.convert import convert_source
from ddpify.docs import explain, pages
from ddpify.docs.__main__ import generated
from ddpify.errors import DdpifyError
from ddpify.rules import Rule, all_rules

tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
ROOT = Path(__file__).parents[1]
MODULES = sorted(p.stem for p in (ROOT / "ddpify/rules").glob("[!_]*.py"))


def pyproject() -> dict[str, Any]:
    data: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return data


# -- rules ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODULES)
def test_a_module_holds_one_rule(name: str) -> None:
    module = f"{rules.__name__}.{name}"
    (rule,) = [r for r in all_rules() if r.__module__ == module]
    assert re.fullmatch(r"DDP\d{3}", rule.code)
    assert rule.__name__.lower() == name.replace("_", "")


def test_codes_are_unique() -> None:
    codes = [r.code for r in all_rules()]
    assert len(codes) == len(set(codes)) == len(MODULES) > 0


@pytest.mark.parametrize("rule", all_rules(), ids=lambda r: r.name())
def test_a_rule_is_documented(rule: type[Rule]) -> None:
    assert "__doc__" in vars(rule)
    first = rule.docs().split("\n", 1)[0]
    assert first.endswith(".")
    assert len(first) > 10
    sections = rule.sections()
    for heading in ("What it does", "Why is this bad?", "Fix"):
        assert sections.get(heading), f"no text under `## {heading}`"
    assert rule.good or rule.bad or rule.converts
    assert all(url.startswith("https://") for url in rule.references)


# -- documents -------------------------------------------------------------------------------------------------


def test_golden_readme(update_golden: bool) -> None:
    path = ROOT / "README.md"
    text = path.read_text(encoding="utf-8")
    expected = generated(text, ROOT)
    if update_golden:
        path.write_text(expected, encoding="utf-8")
    else:
        assert text == expected, "`make goldens` makes it anew"


def test_readme_names_every_command_and_option() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for name, command in cli.commands.items():
        assert re.search(rf"ddpify {name}\b", text) or name == "convert"
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert any(f"`{o}" in text or f" {o}" in text for o in parameter.opts), (name, parameter.opts)


def test_links_of_the_documents_lead_somewhere() -> None:
    documents = [ROOT / "README.md", *(ROOT / "ddpify/docs").glob("*.md")]
    for document in documents:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", document.read_text(encoding="utf-8")):
            assert target.startswith("https://") or (document.parent / target).exists(), (document, target)


def test_pages_name_only_topics_that_exist() -> None:
    for text in [(ROOT / "README.md").read_text(encoding="utf-8"), *map(explain, pages())]:
        for topic in re.findall(r"`ddpify\s+explain\s+([\w-]+)`", text):
            if topic not in ("CODE", "TOPIC"):
                assert explain(topic)


def test_every_command_has_help() -> None:
    for name, command in cli.commands.items():
        assert command.help, name
        assert len(command.get_short_help_str(80)) < 70, f"{name}: the first sentence is cut off in `ddpify --help`"
        assert not command.get_short_help_str(80).endswith("...")


# -- packaging -------------------------------------------------------------------------------------------------


def test_versions_agree() -> None:
    assert pyproject()["project"]["version"] == ddpify.__version__


def test_both_lists_of_development_packages_agree() -> None:
    data = pyproject()
    assert data["dependency-groups"]["dev"] == data["project"]["optional-dependencies"]["dev"]


def test_pre_commit_hook_names_a_command() -> None:
    text = (ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8")
    hooks = [
        dict(re.findall(r"^[- ] (\w+): (.+)$", part, re.MULTILINE)) for part in re.split(r"^(?=- )", text, flags=re.M)
    ]
    assert [(h["id"], h["language"]) for h in hooks if h] == [("ddpify-lint", "python"), ("ddpify-fix", "python")]
    for hook in filter(None, hooks):
        program, command, *options = hook["entry"].split()
        assert program in pyproject()["project"]["scripts"]
        assert {o for p in cli.commands[command].params for o in p.opts} >= set(options)


def test_public_names() -> None:
    import ddpify.convert
    import ddpify.lint

    assert ddpify.Conversion is sys.modules["ddpify.convert"].Conversion
    assert ddpify.convert is convert_source.__globals__["convert"]
    assert ddpify.lint is sys.modules["ddpify.lint"].lint_file
    with pytest.raises(DdpifyError, match="no such file"):
        ddpify.convert("nowhere.py")


# -- what is written ------------------------------------------------------------------------------------------


def test_no_page_names_a_path_of_one_machine() -> None:
    documents = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "ddpify/docs").glob("*.md")]
    for document in documents:
        assert not re.search(r"(?<![\w.])/(home|work|root|Users)/", document.read_text(encoding="utf-8")), document
