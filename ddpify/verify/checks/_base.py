"""Trace -> Result: what every check derives from."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from ..trace import Trace


class Status(enum.Enum):
    """What a run can say of a property."""

    HELD = "held"
    FAILED = "failed"
    NOTED = "noted"  # a look is worth while; nothing is wrong by it
    NOT_TRIED = "not tried"


@dataclass(frozen=True)
class Result:
    """One property after one run."""

    name: str
    section: str  # of the contract
    status: Status
    sentence: str
    likely: tuple[str, ...] = ()  # rules that find the cause in the text; only where it failed


class Check(ABC):
    """A property of a run.

    The docstring of a subclass says what it holds, the harm that it catches, and where it may not be tried. A check
    that had nothing to look at says "not tried", never "held".
    """

    section: ClassVar[str]
    likely: ClassVar[tuple[str, ...]]

    @classmethod
    def name(cls) -> str:
        """The name of the file that the check lives in."""
        return cls.__module__.rpartition(".")[2]

    @abstractmethod
    def check(self, trace: Trace) -> Result:
        """Look at the run."""

    def held(self, sentence: str) -> Result:
        """The property was tried and held."""
        return Result(self.name(), self.section, Status.HELD, sentence)

    def failed(self, sentence: str, *, likely: tuple[str, ...] | None = None) -> Result:
        """The property was tried and did not hold."""
        codes = self.likely if likely is None else likely
        return Result(self.name(), self.section, Status.FAILED, sentence, codes)

    def noted(self, sentence: str) -> Result:
        """The property did not hold, and the training is right without it."""
        return Result(self.name(), self.section, Status.NOTED, sentence, self.likely)

    def not_tried(self, why: str) -> Result:
        """The run said nothing about the property."""
        return Result(self.name(), self.section, Status.NOT_TRIED, why)


def at(place: str | None) -> str:
    """` at train.py:12`, or nothing where the line is unknown."""
    return f" at {place}" if place else ""


def count(number: int, noun: str) -> str:
    """`1 step`, `12 steps`, `2 passes`."""
    return f"{number:,} {noun}{'' if number == 1 else 'es' if noun.endswith('s') else 's'}"
