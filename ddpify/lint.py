"""Files in, findings out: the rules over scripts that are distributed already."""

from __future__ import annotations

from pathlib import Path

from ddpify.facts import Facts, collect
from ddpify.facts.frames import Event
from ddpify.facts.values import Wrapped
from ddpify.plan import ask_rules
from ddpify.project import Project
from ddpify.rules import Finding
from ddpify.source import Source, read_source


def lint_source(source: Source, *, overlay: dict[Path, Source] | None = None, debug: bool = False) -> list[Finding]:
    """The findings in one file; a file that has nothing distributed in it has none.

    `overlay` are files that take the place of those on the disk (or are not there yet).
    """
    if overlay is None and (
        "torch" not in source.text or ("istributed" not in source.text and "DDP" not in source.text)
    ):
        return []
    facts = collect(Project(source, overlay=overlay), converting=False)
    if not is_distributed(facts):
        return []
    return [f for f in ask_rules(facts, debug=debug) if f.source is source]


def lint_file(path: Path, *, debug: bool = False) -> list[Finding]:
    return lint_source(read_source(path), debug=debug)


def is_distributed(facts: Facts) -> bool:
    """Whether a script joins a process group or wraps a model."""
    return what_distributes(facts) is not None


def what_distributes(facts: Facts) -> Event | None:
    """The first that joins a process group or wraps a model."""
    names = ("torch.distributed.init_process_group", "torch.distributed.distributed_c10d.init_process_group")
    own = [
        e for e in facts.flow.log.of("new", "external") if e.seq < facts.flow.main_end or e.frame.source is facts.source
    ]
    return next((e for e in own if isinstance(e.obj, Wrapped) or e.name in names), None)
