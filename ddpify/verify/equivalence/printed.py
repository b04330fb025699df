"""The lines of two runs -> the numbers that both print, and those that differ."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from .events import Line

_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+(?:,\d{3})*(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+|\b(?:nan|inf)\b)")
_REAL = r"[-+]?\d[\d.,]*"
#: numbers of a clock are no numbers of the training: `02:45`, `20261201-024500`, `3.1 s/it`, `Time 0.12 (0.34)`
_CLOCK = re.compile(
    r"(?<!\d)(?:19|20)\d{6}[-_T ]?\d{4,6}(?!\d)|\d+-\d\d-\d\d|\b\d\d?/\d\d?/\d{4}\b|\b\d{4}/\d\d/\d\d\b"
    r"|\d+:\d\d(:\d\d)?([.,]\d+)?"
    r"|\d[\d.,]*\s*(ms|s|sec|secs|seconds|min|mins|minutes|h|hours?|m|it(?=/s))(/\w+)?\b"
    rf"|(time|elapsed|took|eta|duration|speed|throughput|seconds|samples/s(ec)?|img/s|fps|memory|mem)\S*\s*[:=]?\s*{_REAL}"
    rf"(\s*\(\s*{_REAL}\s*\))?",
    re.IGNORECASE,
)
#: the wait for the data, which stands beside the time of the step: `Time 0.12 (0.34)  Data 0.01 (0.02)`
_WAIT = re.compile(rf"\bdata\S*\s*[:=]?\s*{_REAL}(\s*\(\s*{_REAL}\s*\))?", re.IGNORECASE)
#: a place in a script, where the converted one has other lines: `train.py:52`, `line 52`
_PLACE = re.compile(r"\.py\S?[:(]\s*\d+|\bline \d+", re.IGNORECASE)
#: where there are no GPUs, the original names one all the same
_DEVICE = re.compile(r"\b(?:(?:cuda|gpu|cpu)[:\s]*)+\d*", re.IGNORECASE)


@dataclass(frozen=True)
class Different:
    """A number that is not the same in both: the lines, and the numbers."""

    original: Line
    ranks: Line
    one: float
    mine: float
    place: float = 0.0  # one unit of the last place that is printed


@dataclass(frozen=True)
class Printed:
    """What came of holding the lines against each other."""

    equal: int
    differ: tuple[Different, ...]
    missing: tuple[str, ...]  # lines that the original prints and rank 0 does not


def _without_clocks(text: str) -> str:
    text = _PLACE.sub("@", _DEVICE.sub("@", text))
    timed = _CLOCK.sub("@", text)
    return _WAIT.sub("@", timed) if timed != text else text


def _kind(text: str) -> str:
    return " ".join(_NUMBER.sub("#", _without_clocks(text)).split())


def _numbers(text: str) -> list[str]:
    return [n.replace(",", "") for n in _NUMBER.findall(_without_clocks(text))]


def near(a: str, b: str, relative: float) -> bool:
    """Equal up to one unit of the last place that is printed."""
    if a == b:
        return True
    x, y = float(a), float(b)
    whole = _whole(a) and _whole(b)
    place = 0.0 if whole else 1.01 * max(_unit(a), _unit(b))
    return abs(x - y) <= max(place, relative * max(abs(x), abs(y)))


def _whole(text: str) -> bool:
    return re.fullmatch(r"[-+]?\d+", text) is not None


def _unit(text: str) -> float:
    digits, _, power = text.lower().partition("e")
    return float(10.0 ** (int(power or 0) - len(digits.partition(".")[2])))


def compare_lines(original: Iterable[Line], ranks: Iterable[Line], relative: float) -> Printed:
    """Hold the k-th line of each kind against the k-th line of that kind."""
    mine: dict[str, list[Line]] = defaultdict(list)
    for line in ranks:
        mine[_kind(line.text)].append(line)
    used: dict[str, int] = defaultdict(int)
    equal, differ, missing = 0, list[Different](), list[str]()
    for line in original:
        kind = _kind(line.text)
        number, used[kind] = used[kind], used[kind] + 1
        if number >= len(mine[kind]):
            missing.append(line.text)
            continue
        other = mine[kind][number]
        for a, b in zip(_numbers(line.text), _numbers(other.text), strict=False):
            if near(a, b, relative):
                equal += 1
            else:
                differ.append(Different(line, other, float(a), float(b), 0.0 if _whole(a) else max(_unit(a), _unit(b))))
    return Printed(equal, tuple(differ), tuple(dict.fromkeys(missing)))
