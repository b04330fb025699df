"""Topics in, Markdown out: the pages of this folder, and the rules' own documentation."""

from __future__ import annotations

import difflib
from importlib.resources import files
from inspect import cleandoc

from ddpify.errors import DdpifyError
from ddpify.rules import Rule, all_rules, rule


def pages() -> list[str]:
    """The names of the longer pages: `contract`, `launching`."""
    return sorted(entry.name.removesuffix(".md") for entry in files(__name__).iterdir() if entry.name.endswith(".md"))


def explain(topic: str) -> str:
    """The documentation of a rule (by code or name) or a page.

    Raises:
        DdpifyError: where there is neither; the sentence names what is near.
    """
    found = rule(topic.replace("_", "-"))
    if found is not None:
        return rule_page(found)
    page = topic.lower().removesuffix(".md")
    if page in pages():
        return files(__name__).joinpath(f"{page}.md").read_text(encoding="utf-8")
    known = [*pages(), *(r.name() for r in all_rules()), *(r.code for r in all_rules())]
    near = difflib.get_close_matches(topic, known, n=3, cutoff=0.5)
    hint = (
        f"did you mean {' or '.join(near)}?"
        if near
        else f"the pages are {', '.join(pages())}; `ddpify rules` lists the rules"
    )
    raise DdpifyError(f"{topic}: no rule and no page of that name; {hint}")


def rule_page(of: type[Rule]) -> str:
    """A rule's documentation with its examples."""
    parts = [f"# {of.code} {of.name()} ({of.severity.value})", of.docs()]
    for heading, examples in (("Reported", [b.code for b in of.bad]), ("Not reported", [g.code for g in of.good])):
        parts.extend([f"## {heading}", *map(_code, examples)] if examples else [])
    if of.converts:
        parts.append("## Converted")
    for example in of.converts:
        parts.extend([_code(example.before), "gives", _code("\n".join(example.gives))])
    if of.references:
        parts.append("\n".join(["## References", "", *(f"- <{url}>" for url in of.references)]))
    return "\n\n".join(parts) + "\n"


def rule_table() -> str:
    """Every rule in a Markdown table, for the README."""
    rows = ["| rule | severity | what is wrong |", "| --- | --- | --- |"]
    rows.extend(
        f"| {r.code} `{r.name()}` | {r.severity.value} | {r.title().replace('|', '&#124;')} |" for r in all_rules()
    )
    return "\n".join(rows)


def _code(text: str) -> str:
    return f"```python\n{cleandoc(text)}\n```"
