"""The files that the ranks of a run left -> Trace, everything that a check may know."""

from __future__ import annotations

import functools
import importlib
import json
import linecache
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from .processes.log import is_user_file


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that one rank did; `at` is the line of the user's code, `time` is in seconds since the epoch."""

    kind: ClassVar[str] = ""
    time: float = 0.0
    at: str | None = None


@dataclass(frozen=True, kw_only=True)
class Start(Event):
    """The observer is in place and the script begins."""

    kind: ClassVar[str] = "start"
    pid: int = 0
    thread: int = 0
    local_rank: int | None = None


@dataclass(frozen=True, kw_only=True)
class Init(Event):
    """The process group was asked for."""

    kind: ClassVar[str] = "init"
    backend: str | None = None
    device: int | None = None


@dataclass(frozen=True, kw_only=True)
class SetDevice(Event):
    """The script chose the GPU of this process."""

    kind: ClassVar[str] = "set_device"
    index: int | None = None
    after_init: bool = False


@dataclass(frozen=True, kw_only=True)
class Wrap(Event):
    """DistributedDataParallel was built."""

    kind: ClassVar[str] = "wrap"
    module: str = ""
    parameters: int = 0
    device_ids: tuple[int, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Step(Event):
    """An optimizer stepped. `checksum` is None for the steps that were only counted."""

    kind: ClassVar[str] = "step"
    number: int = 0
    optimizer: int = 0
    backwards: int = 0
    parameters: int = 0
    outside: int = 0  # trained parameters that no wrapper holds
    checksum: str | None = None
    seconds: float = 0.0
    rates: tuple[float, ...] = ()  # the learning rates of its groups
    loss: float | None = None  # of the last backward, as this rank had it


@dataclass(frozen=True, kw_only=True)
class Pass(Event):
    """One pass over one DataLoader; `indices` is None where samples have no number, `split` names a Subset's choice.

    `batch`: how many samples the longest batch had, where a batch sampler of the script deals them.
    """

    kind: ClassVar[str] = "pass"
    loader: int = 0
    order: int = 0
    size: int | None = None
    sampler: str = ""
    shuffle: bool = False
    epoch: int | None = None
    drop_last: bool = False
    drawn: int = 0
    batch: int = 0
    training: bool = False
    steps: int = 0
    grad: bool = True  # gradients were on while it gave a batch
    statistics: bool = False  # BatchNorm statistics are taken of it (update_bn), and nothing else
    begun: float = 0.0
    complete: bool = False
    split: str | None = None
    indices: tuple[int, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class SetEpoch(Event):
    """A DistributedSampler was told the epoch."""

    kind: ClassVar[str] = "set_epoch"
    epoch: int = 0


@dataclass(frozen=True, kw_only=True)
class Write(Event):
    """A file below the working folder was opened for writing, or took its name by a rename."""

    kind: ClassVar[str] = "write"
    path: str = ""


@dataclass(frozen=True, kw_only=True)
class Save(Event):
    """torch.save to a file: the keys that only the wrapper has, the class of a pickled wrapper."""

    kind: ClassVar[str] = "save"
    path: str = ""
    prefixed: tuple[str, ...] = ()
    wrapper: str | None = None


@dataclass(frozen=True, kw_only=True)
class Output(Event):
    """A line of the user's code printed, logged or drew a progress bar."""

    kind: ClassVar[str] = "output"
    stream: str = "stdout"
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class Destroy(Event):
    """The process group was destroyed."""

    kind: ClassVar[str] = "destroy"


@dataclass(frozen=True, kw_only=True)
class Final(Event):
    """Checksums of all trained parameters after the last line of the script."""

    kind: ClassVar[str] = "final"
    sums: Mapping[str, str]
    steps: int = 0
    backwards: int = 0


@dataclass(frozen=True, kw_only=True)
class End(Event):
    """The script ended: ok, error, exit (with a code other than 0) or cut (by --max-steps)."""

    kind: ClassVar[str] = "end"
    status: str = "ok"
    error: str = ""
    traceback: str = ""
    backwards: int = 0  # begun
    devices: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Exit(Event):
    """The process ended by itself; was the group still there?"""

    kind: ClassVar[str] = "exit"
    initialized: bool | None = None


E = TypeVar("E", bound=Event)


@functools.cache
def _kinds() -> dict[str, type[Event]]:
    for module in (".observed", ".equivalence.events", ".bench.events"):  # those that not everybody asks for
        importlib.import_module(module, __package__)
    return {cls.kind: cls for cls in Event.__subclasses__()}


def _event(line: Mapping[str, Any]) -> Event | None:
    cls = _kinds().get(line.get("kind", ""))
    if cls is None:
        return None
    names = {field.name for field in fields(cls)}
    return cls(**{k: _tuples(v) for k, v in line.items() if k in names})


def _tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _tuples(v) for k, v in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


@dataclass(frozen=True)
class RankTrace:
    """What one rank did."""

    rank: int
    events: tuple[Event, ...] = ()
    stdout: str = ""
    stderr: str = ""
    standing: str | None = None  # where it was when the time was up

    @classmethod
    def from_lines(cls, rank: int, lines: Iterable[Mapping[str, Any]], **rest: Any) -> RankTrace:
        """Build from the JSON objects that the rank wrote."""
        events = tuple(event for line in lines if (event := _event(line)) is not None)
        return cls(rank, events, **rest)

    def of(self, kind: type[E]) -> tuple[E, ...]:
        """All events of one kind, in order."""
        return tuple(event for event in self.events if isinstance(event, kind))

    @property
    def end(self) -> End | None:
        """How the script ended; None where the process was killed."""
        return next(iter(self.of(End)), None)

    @property
    def local_rank(self) -> int:
        """Its number on its machine."""
        known = next((start.local_rank for start in self.of(Start)), None)
        return self.rank if known is None else known

    @property
    def ended_well(self) -> bool:
        """At the script's own end, or stopped by --max-steps."""
        return self.end is not None and self.end.status in ("ok", "cut")

    @property
    def steps(self) -> tuple[Step, ...]:
        """The optimizer steps."""
        return self.of(Step)

    @property
    def training_passes(self) -> tuple[Pass, ...]:
        """The passes during which an optimizer stepped, in the order in which they began."""
        return tuple(sorted((p for p in self.of(Pass) if p.training), key=lambda p: p.order))


@dataclass(frozen=True)
class Trace:
    """What all ranks did, and how the run was made."""

    ranks: tuple[RankTrace, ...]
    backend: str = "gloo"
    timed_out: bool = False
    timeout: float = 300.0
    deadline: float = 0.0  # when the time was up, in seconds since the epoch
    max_steps: int | None = None
    log: str = ""  # what the launcher said
    pretended: Trace | None = None  # a second run, with pretended GPUs
    left: tuple[str, ...] | None = None  # command lines that outlived the ranks; None where nobody looked

    @property
    def world(self) -> int:
        """The number of ranks."""
        return len(self.ranks)

    @property
    def ended_well(self) -> bool:
        """Every rank came to its end."""
        return all(rank.ended_well for rank in self.ranks)

    @property
    def was_cut(self) -> bool:
        """Some rank was stopped by --max-steps."""
        return any(rank.end is not None and rank.end.status == "cut" for rank in self.ranks)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


_FRAME = re.compile(r'  File "(.+)", line (\d+) in')


def standing(dump: str, thread: int, home: Path) -> str | None:
    """The innermost line of the user's code in what faulthandler wrote of the main thread, with its text."""
    blocks = re.split(r"^(?=(?:Current t|T)hread 0x)", dump, flags=re.MULTILINE)
    mine = [block for block in blocks if re.match(rf".*hread 0x0*{thread:x}\b", block)] or blocks[-1:]
    for filename, line in _FRAME.findall(mine[0]):
        if is_user_file(filename):
            path = Path(filename)
            shown = path.relative_to(home) if path.is_absolute() and path.is_relative_to(home) else path
            return f"{shown}:{line} `{linecache.getline(filename, int(line)).strip()}`"
    return None


def read_rank(folder: Path, rank: int, script: Path) -> RankTrace:
    """Read the files of one rank; missing ones mean that it never started."""
    lines = []
    for line in _text(folder / f"rank{rank}.jsonl").splitlines():
        try:
            lines.append(json.loads(line))
        except ValueError:
            continue  # the disk was full, or the kill came early
    thread = next((line["thread"] for line in lines if line.get("kind") == "start"), 0)
    ended = any(line.get("kind") == "exit" for line in lines)
    dump = _text(folder / f"rank{rank}.stand")
    return RankTrace.from_lines(
        rank,
        lines,
        stdout=_text(folder / f"rank{rank}.out"),
        stderr=_text(folder / f"rank{rank}.err"),
        standing=standing(dump, thread, script.resolve().parent) if dump and not ended else None,
    )
