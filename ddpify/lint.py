"""Files in, findings out: the rules over scripts that are distributed already."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ddpify.facts import Facts, collect
from ddpify.facts.frames import Event
from ddpify.facts.given_ranks import joins_alone, of_one_process
from ddpify.facts.values import Wrapped
from ddpify.files import may_matter
from ddpify.plan import ask_rules
from ddpify.project import Project
from ddpify.rules import Finding
from ddpify.source import Source, read_source


@dataclass(frozen=True)
class Linted:
    """What the rules find in a script and in the modules that it imports; no facts where nothing is distributed."""

    findings: list[Finding]
    facts: Facts | None = None


def lint_source(source: Source, *, overlay: dict[Path, Source] | None = None, debug: bool = False) -> list[Finding]:
    """The findings in a script and in the modules that it imports; where nothing is distributed there are none.

    `overlay` are files that take the place of those on the disk (or are not there yet).
    """
    return lint_root(source, overlay=overlay, debug=debug).findings


def lint_root(
    source: Source, *, overlay: dict[Path, Source] | None = None, debug: bool = False, dismiss: bool = True
) -> Linted:
    """The same with the facts; `dismiss` says that a file with nothing distributed in its text need not be run."""
    if dismiss and overlay is None and not may_matter(source.data):
        return Linted([])
    facts = collect(Project(source, overlay=overlay), converting=False)
    if not is_distributed(facts):
        # what a script that is told of no other rank runs in its modules, it runs by itself
        return Linted([], facts if what_distributes(facts, alone=True) is not None else None)
    return Linted([f for f in ask_rules(facts, debug=debug) if facts.editable(f.source)], facts)


def lint_file(path: Path, *, debug: bool = False) -> list[Finding]:
    return lint_source(read_source(path), debug=debug)


def is_distributed(facts: Facts) -> bool:
    """Whether a script joins a process group or wraps a model."""
    return what_distributes(facts) is not None


def what_distributes(facts: Facts, alone: bool = False) -> Event | None:
    """The first that joins a process group or wraps a model; `alone`: also where there is only one process."""
    names = ("torch.distributed.init_process_group", "torch.distributed.distributed_c10d.init_process_group")
    own = [
        e for e in facts.flow.log.of("new", "external") if e.seq < facts.flow.main_end or e.frame.source is facts.source
    ]
    found = [e for e in own if isinstance(e.obj, Wrapped) or e.name in names]
    joins = [e for e in found if e.name in names]
    if not alone and joins and all(map(joins_alone, joins)):
        return None
    # model = DDP(model) if world_size > 1, of a trainer that nobody tells of others
    return next((e for e in found if alone or e.name in names or not of_one_process(e, facts.flow)), None)
