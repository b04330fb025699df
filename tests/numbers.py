"""A conversion with `--global-batch keep` and its original -> what tells their numbers apart.

The conversion runs on ranks. The original is run a second time, in one process that draws, batch by batch, what the
ranks drew together, padding included. Then the loss of each step is the mean of the ranks' losses, and what is printed
and kept is the same: the evaluation is the original's own, over the whole set.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ddpify.convert import convert_source
from ddpify.source import Source
from tests.cases import CONVERTED, NOWHERE, Case, written
from tests.ranks import Job, JobResult, run_batch

TOLERANCE = 1e-4
FOLDER = Path(__file__).resolve().parent.parent / "fixtures" / "numbers"
Texts = dict[str, bytes]


@dataclass(frozen=True)
class Shape:
    """A fixture, and what is put into its text so that its batches divide by 2 and 3.

    `own` is a pattern of the lines that may show rank 0's own number (the loss of one step); `padded` of those with a
    mean over all samples of an epoch, which the original divides by the size of the set, also where padding makes more.
    `doubled` makes the original's batch that of two ranks, each of which reads as many samples as before.
    """

    name: str
    changes: tuple[tuple[str, str], ...] = ()
    own: str = ""
    padded: str = ""
    args: tuple[str, ...] | None = None
    doubled: tuple[tuple[str, str], ...] = ()

    @property
    def case(self) -> Case | None:
        return next((c for c in CONVERTED if c.name == self.name), None)

    @property
    def arguments(self) -> tuple[str, ...]:
        return self.args if self.args is not None else self.case.args if self.case is not None else ()

    @functools.cached_property
    def original(self) -> Texts:
        """The script, of fixtures/convert or one of those in fixtures/numbers, with the changes, and its modules."""
        case = self.case
        if case is None:
            texts = {"before.py": (FOLDER / f"{self.name}.py").read_bytes()}
        else:
            texts = {"before.py": case.before.read_bytes(), **case.modules}
        return changed(texts, self.changes)

    @functools.cached_property
    def converted(self) -> Texts:
        return self.conversion("keep")

    def conversion(self, global_batch: str) -> Texts:
        overlay = {NOWHERE / n: Source(NOWHERE / n, t) for n, t in self.original.items() if n != "before.py"}
        entry = Source(NOWHERE / "before.py", self.original["before.py"])
        return {**self.original, **written(convert_source(entry, overlay=overlay, global_batch=global_batch))}


def changed(texts: Texts, changes: Sequence[tuple[str, str]]) -> Texts:
    """The files with other texts in the place of some; each has to be there."""
    for old, new in changes:
        assert any(old.encode() in text for text in texts.values()), old
        texts = {name: text.replace(old.encode(), new.encode()) for name, text in texts.items()}
    return texts


# ---- running ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wanted:
    """A converted script to compare with its original."""

    shape: Shape
    world: int
    texts: Texts
    #: what it is compared with
    original: Texts
    #: what tells it from others of the same shape
    label: str = ""


@dataclass(frozen=True)
class Pair:
    """A run of the conversion on ranks, and one of the original on what the ranks drew; with the folders of both."""

    wanted: Wanted
    ranks: JobResult
    alone: JobResult
    folders: tuple[Path, Path]
    #: the original on its own order
    itself: JobResult


def _job(root: Path, shape: Shape, texts: Texts, world: int, given: Path | None = None) -> Job:
    scripts, cwd = root / "scripts", root / "run"
    cwd.mkdir(parents=True, exist_ok=True)
    for name, data in texts.items():
        (scripts / name).parent.mkdir(parents=True, exist_ok=True)
        (scripts / name).write_bytes(data)
    return Job(scripts / "before.py", shape.arguments, world, cwd, record=True, given=given)


def _together(result: JobResult) -> dict[int, list[list[int]]]:
    """The batches of each training pass as one process would draw them: those of all ranks, step by step."""
    trained = [[p for p in record["passes"] if p["trains"]] for record in result.records]
    together: dict[int, list[list[int]]] = {}
    for passes in zip(*trained, strict=True):
        steps = zip(*(p["batches"] for p in passes), strict=True)
        together[passes[0]["number"]] = [[i for batch in step for i in batch] for step in steps]
    return together


def run_pairs(root: Path, wanted: Sequence[Wanted]) -> list[Pair]:
    """All conversions, then all originals on the orders of the ranks."""
    places = [root / f"{w.shape.name}-{w.world}-{w.label}" for w in wanted]
    first = [_job(p / "ranks", w.shape, w.texts, w.world) for p, w in zip(places, wanted, strict=True)]
    kinds = [(w.shape.name, *w.original.values()) for w in wanted]
    alone = {k: _job(p / "itself", w.shape, w.original, 0) for k, p, w in zip(kinds, places, wanted, strict=True)}
    results = run_batch([*first, *alone.values()], timeout=90)
    itself = dict(zip(alone, results[len(first) :], strict=True))
    second: list[Job] = []
    for place, w, result in zip(places, wanted, results, strict=False):
        given = place / "given.json"
        try:
            given.write_text(json.dumps(_together(result)))
        except (ValueError, IndexError):
            given.write_text("{}")
        second.append(_job(place / "alone", w.shape, w.original, 0, given))
    return [
        Pair(w, ranks, one, (place / "ranks" / "run", place / "alone" / "run"), itself[kind])
        for w, kind, ranks, one, place in zip(
            wanted, kinds, results, run_batch(second, timeout=90), places, strict=False
        )
    ]


# ---- comparing -------------------------------------------------------------------------------------------

NUMBER = re.compile(r"[-+]?(?:\d+\.\d*(?:e[-+]?\d+)?|\d+(?:e[-+]?\d+)?|\binf\b|\bnan\b)")
CLOCK = re.compile(r"\d+\.\d+ ?s\b|\d+:\d\d:\d\d([,.]\d+)?")


def differences(pair: Pair) -> list[str]:
    """All that tells the conversion from its original."""
    if not pair.ranks.ok or not pair.alone.ok:
        return [r.stderr for run in (pair.ranks, pair.alone) for r in run.ranks if r.status]
    return [*order_differs(pair), *losses_differ(pair), *output_differs(pair), *files_differ(pair)]


def order_differs(pair: Pair) -> list[str]:
    """Each training pass has the original's samples: all of them, few twice, shuffled anew where they were."""
    found: list[str] = []
    ranks = [[p for p in record["passes"] if p["trains"]] for record in pair.ranks.records]
    originals = [p for p in pair.itself.records[0]["passes"] if p["trains"]]
    if len({len(passes) for passes in ranks}) > 1:
        return ["the ranks make different numbers of training passes"]
    for number, (original, *passes) in enumerate(zip(originals, *ranks, strict=False)):
        if len({len(p["batches"]) for p in passes}) > 1:
            return [f"pass {number}: the ranks make different numbers of steps"]
        union = [i for step in zip(*(p["batches"] for p in passes), strict=True) for batch in step for i in batch]
        samples = [i for batch in original["batches"] for i in batch]
        if not original["ended"] or not all(p["ended"] for p in passes):
            continue
        if len(passes[0]["batches"]) != len(original["batches"]):
            found.append(f"pass {number}: {len(passes[0]['batches'])} steps and not {len(original['batches'])}")
        repeats = len(union) - len(set(union))
        if repeats >= pair.wanted.world or abs(len(samples) - len(set(union))) >= pair.wanted.world:
            found.append(f"pass {number}: {len(set(union))} of {len(samples)} samples, {repeats} more than once")
    orders = [[[i for b in p["batches"] for i in b] for p in passes] for passes in (ranks[0], originals)]
    new, old = ([a != b for a, b in itertools.pairwise(order)] for order in orders)
    if old and all(old) and not any(new):
        found.append("the samples have the same order in each epoch")
    return found


def losses_differ(pair: Pair) -> list[str]:
    """The loss of a step is the mean over the ranks."""
    lists = [record["losses"] for record in pair.ranks.records]
    alone = pair.alone.records[0]["losses"]
    if len({len(losses) for losses in lists}) > 1 or len(lists[0]) != len(alone):
        return [f"{[len(losses) for losses in lists]} backward passes and not {len(alone)}"]
    means = [sum(step) / len(step) for step in zip(*lists, strict=True)]
    scale = max(map(abs, alone), default=0.0)
    off = [(n, m, a) for n, (m, a) in enumerate(zip(means, alone, strict=True)) if not _near(m, a, 1e-6 * scale)]
    return [f"backward {n}: {m} and not {a}" for n, m, a in off[:2]]


def _near(one: float, other: float, absolute: float = 0.0) -> bool:
    if one != one or other != other:
        return one != one and other != other
    return abs(one - other) <= TOLERANCE * max(abs(one), abs(other)) + absolute


def output_differs(pair: Pair) -> list[str]:
    return text_differs(pair.ranks.ranks[0].stdout, pair.alone.ranks[0].stdout, pair)


def text_differs(new: str, old: str, pair: Pair) -> list[str]:
    """Line by line: the same words, the same integers, and numbers that are near."""
    lines = [CLOCK.sub("#", text).splitlines() for text in (new, old)]
    if len(lines[0]) != len(lines[1]):
        return [f"{len(lines[0])} lines and not {len(lines[1])}"]
    return [f"{a!r} and not {b!r}" for a, b in zip(*lines, strict=True) if not _same_line(a, b, pair)][:3]


def _same_line(one: str, other: str, pair: Pair) -> bool:
    shape = pair.wanted.shape
    if " ".join(NUMBER.sub("#", one).split()) != " ".join(NUMBER.sub("#", other).split()):
        return False
    if shape.own and re.search(shape.own, other):
        return True
    factors = [1.0, *_padding(pair)] if shape.padded and re.search(shape.padded, other) else [1.0]
    numbers = zip(NUMBER.findall(one), NUMBER.findall(other), strict=True)
    return all(any(_same_number(a, b, factor) for factor in factors) for a, b in numbers)


def _padding(pair: Pair) -> set[float]:
    """How many samples a pass has for each that the ranks read, where some are read twice."""
    passes = [p["batches"] for p in pair.alone.records[0]["passes"] if p["trains"]]
    read = [[i for batch in batches for i in batch] for batches in passes]
    return {len(set(samples)) / len(samples) for samples in read if samples}


def _same_number(one: str, other: str, factor: float = 1.0) -> bool:
    if one == other:
        return True
    digits = [re.fullmatch(r"[-+]?\d+(\.\d*)?(e[-+]?\d+)?", t) for t in (one, other)]
    if any(d is None or (d[1] is None and d[2] is None) for d in digits):
        return False  # an integer is an integer
    last = max(10.0 ** (int((d[2] or "e0")[1:]) - len((d[1] or ".")[1:])) for d in digits if d)
    return _near(float(one), factor * float(other), 1.01 * last)


def files_differ(pair: Pair) -> list[str]:
    """What is kept as text: CSV, JSON, logs."""
    found: list[str] = []
    for path in sorted(pair.folders[1].rglob("*")):
        if path.suffix in (".csv", ".json", ".txt", ".log", ".tsv"):
            other = pair.folders[0] / path.relative_to(pair.folders[1])
            new = other.read_text() if other.exists() else ""
            found += [f"{path.name}: {line}" for line in text_differs(new, path.read_text(), pair)]
    return found
