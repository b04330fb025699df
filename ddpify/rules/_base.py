"""What a rule is: one pitfall or one rewrite, with its docs, its code and examples that run as tests."""

from __future__ import annotations

import enum
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import libcst as cst

from ddpify.edits import Edit
from ddpify.errors import About
from ddpify.facts import Facts
from ddpify.source import Source, Span


class Severity(enum.Enum):
    """How much a finding weighs: an error is silently wrong or hangs, a warning is wasteful, info is a remark."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True)
class Finding:
    """A place where a rule applies, with the edits that mend it.

    In a conversion, a finding without edits is either left for the user (`left` says what to do) or, with `refuse`, the
    reason why nothing is written: it says of which value, and on which way that came there, or what was seen.
    """

    code: str
    source: Source
    node: cst.CSTNode
    message: str
    severity: Severity
    edits: tuple[Edit, ...] = ()
    #: why the edit is made, for the report
    reason: str = ""
    left: str = ""
    refuse: About | None = None
    #: a remark for the report that asks nothing of the user
    note: bool = False
    #: lint: the edit changes what the script writes or when its ranks meet, so that the user has to want it
    unsafe: bool = False

    @property
    def span(self) -> Span:
        return self.source.span(self.node)


@dataclass(frozen=True)
class Good:
    """A distributed script (behind the prelude) in which the rule finds nothing."""

    code: str


@dataclass(frozen=True)
class Bad:
    """A distributed script (behind the prelude) in which lint reports the rule."""

    code: str


@dataclass(frozen=True)
class Converts:
    """A single-GPU script; the conversion has each of the lines in `gives` and none of those in `drops`."""

    before: str
    gives: tuple[str, ...]
    drops: tuple[str, ...] = ()


class Rule:
    """One pitfall or rewrite. The docstring is its documentation; `check` serves lint and conversion alike."""

    code: ClassVar[str]
    severity: ClassVar[Severity] = Severity.ERROR
    references: ClassVar[tuple[str, ...]] = ()
    good: ClassVar[tuple[Good, ...]] = ()
    bad: ClassVar[tuple[Bad, ...]] = ()
    converts: ClassVar[tuple[Converts, ...]] = ()

    def check(self, facts: Facts) -> Iterator[Finding]:
        raise NotImplementedError

    def finding(
        self,
        source: Source,
        node: cst.CSTNode,
        message: str,
        *edits: Edit,
        reason: str = "",
        left: str = "",
        refuse: About | None = None,
        note: bool = False,
        severity: Severity | None = None,
        unsafe: bool = False,
    ) -> Finding:
        weight = severity or self.severity
        return Finding(self.code, source, node, message, weight, tuple(edits), reason, left, refuse, note, unsafe)

    @classmethod
    def name(cls) -> str:
        """`loader-without-sampler`, from the name of the rule's module."""
        return cls.__module__.rsplit(".", 1)[-1].replace("_", "-")

    @classmethod
    def title(cls) -> str:
        return cls.docs().split("\n", 1)[0].rstrip(".")

    @classmethod
    def docs(cls) -> str:
        return inspect.getdoc(cls) or ""

    @classmethod
    def sections(cls) -> dict[str, str]:
        """The docstring by its `## Heading`s; the text before the first under ""."""
        parts = re.split(r"^## (.+)$", cls.docs(), flags=re.MULTILINE)
        return {"": parts[0].strip(), **{h: t.strip() for h, t in zip(parts[1::2], parts[2::2], strict=True)}}


#: Put before each Good and Bad example.
PRELUDE = """\
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("gloo")
dataset = TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
model = nn.Linear(8, 1)
"""
#: Put behind each Good and Bad example, unless it is about the end of the script itself.
POSTLUDE = """
dist.destroy_process_group()
"""


def example(code: str) -> str:
    """An example as a script: as it is where it has its own imports, else between prelude and postlude."""
    code = textwrap.dedent(code).strip("\n") + "\n"
    if re.search(r"^(import|from) ", code, re.MULTILINE):
        return code
    return PRELUDE + code + POSTLUDE
