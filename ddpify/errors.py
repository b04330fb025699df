"""What ddpify says when it cannot go on."""

from __future__ import annotations

from dataclasses import dataclass


class DdpifyError(Exception):
    """A sentence for the user: what is wrong, where, and what to do."""


@dataclass(frozen=True)
class Step:
    """`loss = criterion(out, y)`: what an expression has its value from, how, and where that stands."""

    what: str
    how: str
    made_by: str
    place: str

    def __str__(self) -> str:
        return f"{self.place}: `{self.what}` {self.how} `{self.made_by}`"


@dataclass(frozen=True)
class Way:
    """A refusal is about a value: as the script calls it, and the way back from where it was seen, step by step."""

    value: str
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        return "".join(f"\n  {step}" for step in self.steps)


@dataclass(frozen=True)
class Seen:
    """A refusal is about what stands at its place (an import, a call): no value was lost there."""

    what: str

    def __str__(self) -> str:
        return ""


About = Way | Seen


class Refused(DdpifyError):
    """The script is not one that ddpify converts.

    The sentence says where, why and what does the job instead; under it stands the way of the value that it is about.
    """

    def __init__(self, place: str, sentence: str, about: About) -> None:
        super().__init__(f"{place}: {sentence}{about}")
        self.place = place
        self.sentence = sentence
        self.about = about
