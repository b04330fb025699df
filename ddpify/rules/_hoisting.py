"""The dataset of a loader in, a statement of its own out."""

from __future__ import annotations

import libcst as cst

from ddpify.edits import AddHelper, Edit, InsertBefore, Replace
from ddpify.facts import Facts
from ddpify.facts.contents import constants
from ddpify.facts.sharding import LoaderFacts
from ddpify.source import walk


def hoisted(facts: Facts, known: LoaderFacts, name: str) -> tuple[str, list[Edit]]:
    """The dataset as a name; made inside the call it gets a statement of its own (guarded where it downloads)."""
    source = known.source
    if known.dataset is None or known.is_simple or isinstance(known.dataset, cst.Subscript):
        return known.data, []
    name = facts.names_of(source).fresh(name)
    downloads = any(
        isinstance(n, cst.Arg)
        and n.keyword is not None
        and n.keyword.value == "download"
        and constants(facts.flow.values.get(n.value, ())) != [False]
        for n in walk(known.dataset)
    )
    unit = source.module.default_indent
    shift = unit if downloads else ""
    lines = _moved(known, f"{shift}{name} = ", shift, unit)
    text = f"{name} = " + "\n".join(lines)
    edits: list[Edit] = [Replace(source, known.dataset, name)]
    if downloads:
        header = f"with {facts.names_of(source)['main_process_first']}():"
        edits += [
            InsertBefore(source, known.stmt, (f"{header}\n{unit}{text}",)),
            AddHelper(source, "main_process_first"),
        ]
    else:
        edits.append(InsertBefore(source, known.stmt, (text,)))
    return name, edits


def _moved(known: LoaderFacts, lead: str, shift: str, unit: str) -> list[str]:
    """The lines of a dataset that moves out of the call: below its bracket, or below the statement where they hang."""
    source, dataset = known.source, known.dataset
    assert dataset is not None
    lines = source.code(dataset).split(source.newline)
    texts = (n for n in walk(dataset) if isinstance(n, (cst.SimpleString, cst.FormattedString)))
    if len(lines) == 1 or any(source.newline in source.code(n) for n in texts):
        return lines
    column = source.span(known.stmt).column
    by = column + len(lead) - source.span(dataset).column
    if lines[0].rstrip().endswith(("(", "[", "{")):
        inner = [len(line) - len(line.lstrip()) for line in lines[1:] if line.strip()]
        ends = lines[-1].lstrip()[:1] in (")", "]", "}")
        by = column + len(shift) - inner[-1] if ends else column + len(shift + unit) - min(inner)
    return [lines[0], *(_move(line, by, column) for line in lines[1:])]


def _move(line: str, by: int, base: int) -> str:
    """A continuation line moved sideways; the indentation of the statement is added again when it is inserted."""
    space = len(line) - len(line.lstrip())
    return " " * max(0, space + by - base) + line.lstrip()
