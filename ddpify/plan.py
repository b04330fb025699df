"""Facts in, a plan out: every rule is asked, edits are put in order, what is left to the user is listed."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field

from ddpify.edits import AddHelper, AddImport, Edit, Guard
from ddpify.errors import DdpifyError, Refused
from ddpify.facts import Facts
from ddpify.helpers import NEEDS, ORDER, needed
from ddpify.lifting import lift_guards
from ddpify.rules import Finding, all_rules
from ddpify.source import Source


class RuleFault(DdpifyError):
    """A fault in a rule of ddpify; nothing is written."""


@dataclass
class Plan:
    """What will be done, and why."""

    findings: list[Finding] = field(default_factory=list)
    left: list[Finding] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)

    @property
    def edits(self) -> list[Edit]:
        return [e for f in self.findings for e in f.edits]

    def sources(self) -> list[Source]:
        """The files that are changed."""
        return list(dict.fromkeys(e.source for e in self.edits))

    def helpers(self, source: Source | None = None) -> dict[str, frozenset[str]]:
        """The helpers that the edits (of one file) need, and those that these need, in the order of the file."""
        wanted: dict[str, frozenset[str]] = {}
        todo = [(e.name, e.options) for e in self.edits if isinstance(e, AddHelper) and source in (None, e.source)]
        while todo:
            name, options = todo.pop()
            wanted[name] = wanted.get(name, frozenset()) | options
            todo.extend((n, frozenset()) for n in NEEDS[name][1] if n not in wanted)
        return {n: wanted[n] for n in ORDER if n in wanted}

    def imports(self, source: Source, *, helpers: bool = True) -> list[str]:
        """The imported names that a file's edits, and its helpers where they stand in it, ask for (keys of Names)."""
        asked = [e.line for e in self.edits if isinstance(e, AddImport) and e.source is source]
        for name, options in self.helpers(source).items() if helpers else ():
            asked.extend(needed(name, options))
        return list(dict.fromkeys(asked))


def ask_rules(facts: Facts, *, debug: bool = False) -> list[Finding]:
    """The findings of every rule, in the order of the text."""
    found: list[Finding] = []
    for rule in all_rules():
        try:
            found.extend(rule().check(facts))
        except DdpifyError:
            raise
        except Exception as error:
            if debug:
                traceback.print_exc()
            raise RuleFault(
                f"{facts.source.path}: internal error in rule {rule.code} ({rule.name()}): "
                f"{type(error).__name__}: {error}; nothing was written. "
                "Please report it with the script (or the part of it that fails) and the output of --debug"
            ) from error
    return sorted(found, key=lambda f: (f.source is not facts.source, str(f.source.path), f.span.start, f.code))


def make_plan(facts: Facts, *, debug: bool = False) -> Plan:
    """Ask the rules what to do; the first reason to refuse ends it."""
    plan = Plan()
    for finding in ask_rules(facts, debug=debug):
        if finding.refuse is not None:
            raise refusal(finding)
        if finding.note:
            plan.notes.append(finding)
        elif finding.edits:
            plan.findings.append(finding)
        elif finding.left:
            plan.left.append(finding)
    plan.findings = [f for f in plan.findings if not _done_by_one(f, plan.findings)]
    plan.findings = lift_guards(plan.findings, facts)
    return plan


def _done_by_one(finding: Finding, findings: list[Finding]) -> bool:
    """Under `with main_process_first()` one process per node does all that is there: no guard for rank 0 inside.

    What is printed where a cache is there already is printed by every process.
    """
    if finding.code == "DDP402":
        return False
    withs = {e.node for f in findings for e in f.edits if isinstance(e, Guard) and e.header.startswith("with ")}
    own = [e for e in finding.edits if isinstance(e, Guard) and e.header.startswith("if ")]
    return bool(withs) and bool(own) and all(any(a in withs for a in e.source.ancestors(e.node)) for e in own)


def refusal(finding: Finding) -> Refused:
    """Place, sentence and remedy of a finding that ends the conversion."""
    assert finding.refuse is not None
    remedy = finding.left
    if remedy.partition(" ")[0].isalpha():
        remedy = f". {remedy[0].upper()}{remedy[1:]}"
    elif remedy:
        remedy = f". {remedy}"
    return Refused(f"{finding.source.path}:{finding.span.line}", f"{finding.message}{remedy}", finding.refuse)
