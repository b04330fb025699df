"""The closed set of edits: data with a place and a text, applied by rewrite.py and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass, field

import libcst as cst

from ddpify.source import Source


@dataclass(frozen=True)
class Replace:
    """Put `text` in the place of an expression, an argument or a statement; also of the `brackets` around it."""

    source: Source
    node: cst.CSTNode
    text: str
    brackets: bool = False


@dataclass(frozen=True)
class Append:
    """Write `text` directly behind an expression: `model` becomes `model.module`."""

    source: Source
    node: cst.CSTNode
    text: str


@dataclass(frozen=True)
class Surround:
    """Write text before and behind an expression: `DDP(` and `)`."""

    source: Source
    node: cst.CSTNode
    before: str
    after: str


@dataclass(frozen=True)
class SetArgument:
    """Give a call `name=value`; an argument of that name, or of a name in `replaces`, gives way to it."""

    source: Source
    node: cst.Call
    name: str
    value: str
    replaces: tuple[str, ...] = ()
    #: places of positional arguments that give way, with the text that takes their place
    positions: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True)
class DropArguments:
    """Take positional arguments out of a call, by their places."""

    source: Source
    node: cst.Call
    positions: tuple[int, ...]


@dataclass(frozen=True)
class Hoist:
    """Give an expression, with the edits inside it, a statement of its own (`name = expression`) before another."""

    source: Source
    node: cst.CSTNode
    name: str
    before: cst.CSTNode
    #: what is written around it there: `DDP(` and `)`
    around: tuple[str, str] = ("", "")
    #: what the statement stands under: `with main_process_first():`
    header: str = ""
    #: above what later edits write before the same statement, and not below all of them
    in_turn: bool = False


@dataclass(frozen=True)
class InsertBefore:
    """Write statements (a line each) before a statement, above the comments that belong to it.

    `last`: below whatever else is inserted or taken out there.
    """

    source: Source
    node: cst.CSTNode
    lines: tuple[str, ...]
    blank_after: bool = False
    last: bool = False


@dataclass(frozen=True)
class InsertAfter:
    """Write statements (a line each) behind a statement.

    `last`: behind whatever else is inserted there.
    """

    source: Source
    node: cst.CSTNode
    lines: tuple[str, ...]
    last: bool = False


@dataclass(frozen=True)
class Guard:
    """Put a statement under `if <test>:` or `with <item>:`; neighbours under the same header share it."""

    source: Source
    node: cst.CSTNode
    header: str


@dataclass(frozen=True)
class Delete:
    """Take a statement out, with the comments directly above it where they go elsewhere with it."""

    source: Source
    node: cst.CSTNode
    comments: bool = False


@dataclass(frozen=True)
class AddImport:
    """An import line that the file needs (text as it stands in the file)."""

    source: Source
    line: str


@dataclass(frozen=True)
class AddHelper:
    """A helper function that the file needs, by its name in helpers.py, with what shapes it."""

    source: Source
    name: str
    options: frozenset[str] = field(default_factory=frozenset)


Edit = (
    Replace
    | Append
    | Surround
    | SetArgument
    | DropArguments
    | Hoist
    | InsertBefore
    | InsertAfter
    | Guard
    | Delete
    | AddImport
    | AddHelper
)
