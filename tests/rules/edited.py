"""A script in, what some rules make of it out: without the other rules, and without helpers and imports."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent, indent

from ddpify.edits import AddHelper, AddImport, Edit, Guard
from ddpify.facts import Facts, collect
from ddpify.plan import Plan
from ddpify.project import Project
from ddpify.rewrite import Rewriter
from ddpify.rules import Finding, rule
from ddpify.source import Source

#: A script that trains, with places for more.
SCRIPT = """
import os
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
{imports}

def evaluate(model, loader):
    with torch.no_grad():
        return sum(model(x).sum().item() for (x,) in loader)

{functions}

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2, shuffle=True)
model = nn.Linear(4, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
{before}
for epoch in range(2):
    for (x,) in loader:
        loss = model(x.to(device)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
{inside}
{after}
"""


@dataclass(frozen=True)
class Edited:
    """The new text, and the findings that left something to the user."""

    text: str
    plan: Plan

    @property
    def left(self) -> list[str]:
        return [f.message for f in self.plan.left]

    @property
    def needs(self) -> set[str]:
        """The helpers and imports that the edits ask for."""
        edits: list[Edit] = self.plan.edits
        return {e.name if isinstance(e, AddHelper) else e.line for e in edits if isinstance(e, (AddHelper, AddImport))}

    def guarded(self, name: str) -> list[str]:
        """The statements of a file that get a guard, each by its header and its first line."""
        found = [e for f in self.plan.findings for e in f.edits if isinstance(e, Guard) and e.source.path.name == name]
        return [f"{e.header}: {e.source.code(e.node)}".split("\n")[0] for e in found]

    def has(self, snippet: str) -> bool:
        """Whether these lines stand together in the text, as deep as they may be."""
        lines = f"\n{clean(snippet)}\n"
        return any(indent(lines, " " * depth) in f"\n{self.text}\n" for depth in range(0, 24, 4))


def clean(text: str) -> str:
    return dedent(text).strip("\n")


def script(*, imports: str = "", functions: str = "", before: str = "", inside: str = "", after: str = "") -> str:
    parts = {"imports": imports, "functions": functions, "before": before, "after": after}
    body = "\n".join("    " + line if line else "" for line in clean(inside).split("\n"))
    return SCRIPT.format(inside=body, **{k: clean(v) for k, v in parts.items()})


def edited(text: str, *codes: str, path: Path = Path("train.py")) -> Edited:
    """The script after the edits of some rules."""
    source = Source(path, text.encode())
    facts = collect(Project(source), converting=True)
    plan = Plan()
    for finding in _ask(codes, facts):
        (plan.findings if finding.edits else plan.left).append(finding)
    new = Rewriter(source).apply([e for e in plan.edits if e.source is source])
    compile(new, "train.py", "exec")
    return Edited(new, plan)


def linted(text: str, code: str) -> list[Finding]:
    """What a rule says of a script that is distributed already."""
    source = Source(Path("train.py"), f"{clean(text)}\n".encode())
    return _ask((code,), collect(Project(source), converting=False))


def _ask(codes: tuple[str, ...], facts: Facts) -> list[Finding]:
    found: list[Finding] = []
    for code in codes:
        known = rule(code)
        assert known is not None, code
        found.extend(known().check(facts))
    return found
