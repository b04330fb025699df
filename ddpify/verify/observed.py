"""Lines of the ranks -> the events that one check each asks for; `trace.py` holds those that several need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from .trace import Event


@dataclass(frozen=True, kw_only=True)
class Collective(Event):
    """All ranks of the world were to meet; `through` are the user's lines that led there, the innermost first."""

    kind: ClassVar[str] = "collective"
    op: str = ""
    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    through: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Forward(Event):
    """A training forward of a wrapper: hashes of its inputs and of the generators, and which of them it drew from."""

    kind: ClassVar[str] = "forward"
    number: int = 0
    wrapper: int = 0
    inputs: str | None = None  # None where no tensor was given
    states: Mapping[str, str] = field(default_factory=dict)
    drew: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Fetch(Event):
    """A batch was put together, here or in a worker process."""

    kind: ClassVar[str] = "fetch"
    loader: int = 0
    number: int = 0
    worker: int | None = None
    states: Mapping[str, str] = field(default_factory=dict)
    drew: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Data(Event):
    """The data behind a loader: what is nested in it (class, length, hash), and its numberings and lists of names."""

    kind: ClassVar[str] = "data"
    loader: int = 0
    base: int = 0  # the same number for the same dataset at the bottom
    levels: tuple[tuple[str, int | None, str], ...] = ()
    names: Mapping[str, tuple[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Names(Event):
    """Numberings of words and classes in the script, and orders of buffers: hashes in order, and without it."""

    kind: ClassVar[str] = "names"
    names: Mapping[str, tuple[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Reload(Event):
    """A saved file was read again after the script's end and, where it holds a wrapped model's state, loaded."""

    kind: ClassVar[str] = "reload"
    path: str = ""
    model: str | None = None
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class Request(Event):
    """A pretended GPU was asked for, by its index or (None) as the current one; did set_device come before?"""

    kind: ClassVar[str] = "request"
    index: int | None = None
    bound: bool = False


@dataclass(frozen=True, kw_only=True)
class Attribute(Event):
    """The script set an attribute of the wrapper that the model inside has, too."""

    kind: ClassVar[str] = "attribute"
    name: str = ""
    model: str = ""


@dataclass(frozen=True, kw_only=True)
class Standin(Event):
    """Data was not on this machine, and was made up."""

    kind: ClassVar[str] = "standin"
    what: str = ""
