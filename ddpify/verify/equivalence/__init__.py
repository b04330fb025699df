"""Original and converted script -> do they train the same model? By running both on the same samples."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..checks import Result, Status
from ..checks._base import count
from ..launch import Launch, run
from ..trace import Trace
from .alone import of_one
from .events import Loss
from .pair import Pair
from .plan import plan_of
from .report import head, table
from .rows import TOGETHER, differ_by_weights, failed, is_sum, losses, padded_apart, rows, untried
from .shadow import shadow

__all__ = ["Equivalence", "compare"]
ENV = "DDPIFY_VERIFY_TOGETHER"


@dataclass(frozen=True)
class Still:
    """What is left as it is, although it makes one process differ from several."""

    dropout: bool = False
    batch_norm: bool = False


@dataclass(frozen=True)
class Equivalence:
    """What came of it: a result for each thing that was compared, and the losses by step."""

    original: Path
    world: int  # 1: the original could not be given the batches of more ranks
    double: bool
    still: Still
    results: tuple[Result, ...]
    curve: tuple[tuple[int, float, float], ...] = ()  # step, original, ranks

    @property
    def ok(self) -> bool:
        """Nothing that was compared differs."""
        return not any(result.status is Status.FAILED for result in self.results)

    @property
    def compared(self) -> bool:
        """Something could be compared."""
        return any(result.status is not Status.NOT_TRIED for result in self.results)

    def head(self) -> str:
        """What was held against what, in a line."""
        off = [
            name
            for name, kept in (("no dropout", self.still.dropout), ("BatchNorm frozen", self.still.batch_norm))
            if not kept
        ]
        return head(str(self.original), self.world, self.double, off)

    def table(self) -> list[str]:
        """The losses of both by step."""
        return table(self.curve, self.world)

    def to_json(self) -> dict[str, Any]:
        """The comparison as plain data."""
        return {
            "original": str(self.original),
            "precision": "float64" if self.double else "float32",
            "dropout": self.still.dropout,
            "batch_norm": self.still.batch_norm,
            "losses": [{"step": step, "original": one, "ranks": mean} for step, one, mean in self.curve],
        }


def compare(
    original: Path, launch: Launch, *, still: Still | None = None, progress: Callable[[str], None] | None = None
) -> Equivalence:
    """Run `launch` on its ranks, and the original as one process on the batches that the ranks read."""
    with _room() as room:
        runs = _Runs(original, replace(launch, script=launch.script.resolve()), still or Still(), room, progress)
        return runs.compared(double=True) or runs.compared(double=False) or runs.neither()


@contextlib.contextmanager
def _room() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="ddpify-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Runs:
    """The runs that a comparison needs, each in a working folder of its own."""

    def __init__(
        self,
        original: Path,
        launch: Launch,
        still: Still,
        room: Path,
        progress: Callable[[str], None] | None,
    ) -> None:
        self.shown, self.original, self.launch, self.still = original, original.resolve(), launch, still
        self.here, self.room, self.progress = Path.cwd(), room, progress
        self.number = 0
        self.why = ""
        self.scale, self.footing, self.apart = 1.0, list[str](), False

    def _run(self, double: bool, plan: dict[str, Any] | None, padded: bool = False, **changes: Any) -> Trace:
        self.number += 1
        room = self.room / str(self.number)
        room.mkdir()
        wish: dict[str, Any] = {"double": double, "dropout": self.still.dropout, "batch_norm": self.still.batch_norm}
        wish |= {"plan": None, "scale": self.scale, "apart": self.apart, "padded": padded}
        if plan is not None:
            (room / "plan.json").write_text(json.dumps(plan))
            wish["plan"] = str(room / "plan.json")
        env = {**self.launch.env, ENV: json.dumps(wish), "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
        launch = replace(self.launch, cwd=shadow(self.here, room / "work"), env=env, room=self.room, **changes)
        who = launch.script.name if launch.alone else f"{launch.script.name} on {launch.nproc} ranks"
        tell = self.progress
        trace = run(launch, (lambda line: tell(f"comparing, {who}: {line}")) if tell is not None else None)
        shutil.rmtree(room / "work", ignore_errors=True)
        return trace

    def compared(self, *, double: bool) -> Equivalence | None:
        """None: it does not run so, and may run in float32."""
        self.scale, self.footing, self.apart = 1.0, list[str](), False
        ranks = self._run(double, None)
        if not ranks.ended_well:
            return self._stopped("the converted script", ranks, double)
        alone: dict[str, Any] = {"nproc": 1, "nnodes": 1, "alone": True, "cpu": ranks.backend != "nccl"}
        if not _trains(ranks):
            return self._untrained(double, alone)
        plan = plan_of(ranks)
        if padded_apart(ranks):
            ranks = self._padded(ranks, plan, double)
        one = self._run(double, plan, script=self.original, **alone)
        if one.ended_well and is_sum(Pair(ranks, one, double)):
            self.scale = 1 / ranks.world  # DDP505: a step is as large as the original's with its own batch size
            one = self._run(double, plan, script=self.original, **alone)
        if one.ended_well and (footing := differ_by_weights(Pair(ranks, one, double, self.scale))):
            one = self._weighed(ranks, one, plan, double, alone)
            self.footing += [footing] if self.apart else []
        if not one.ended_well:
            given_up = self._stopped("the original, given the ranks' batches together,", one, double)
            return given_up if one.timed_out else self._as_one_process(double, alone)
        pair = Pair(ranks, one, double, self.scale, "; ".join(self.footing))
        single = self._run(double, plan, **alone)
        return self._equivalence(pair, (*rows(pair), of_one(replace(pair, ranks=single))))

    def _padded(self, ranks: Trace, plan: dict[str, Any], double: bool) -> Trace:
        """The ranks with each batch padded to the longest of all ranks, which is what one process does to them."""
        again = self._run(double, plan, padded=True)
        if not again.ended_well or padded_apart(again) or plan_of(again) != plan:
            return ranks
        self.footing.append(TOGETHER)
        return again

    def _weighed(self, ranks: Trace, one: Trace, plan: dict[str, Any], double: bool, alone: dict[str, Any]) -> Trace:
        """The original with its weighted means taken as the ranks take them, where that accounts for the difference."""
        self.apart = True
        apart = self._run(double, plan, script=self.original, **alone)
        if apart.ended_well and losses(Pair(ranks, apart, double, self.scale))[0].status is not Status.FAILED:
            return apart
        self.apart = False
        return one

    def _untrained(self, double: bool, alone: dict[str, Any]) -> Equivalence | None:
        """The ranks make no step: is that what the original does?"""
        one = self._run(double, None, script=self.original, **alone)
        self.why = "the converted script makes no backward pass"
        if not (one.ended_well and _trains(one)):
            return self.given_up(double)
        made = count(len(one.ranks[0].of(Loss)), "backward pass")
        return self._equivalence(Pair(one, one, double), (failed("same_losses", f"{self.why}, the original {made}"),))

    def _stopped(self, who: str, trace: Trace, double: bool) -> Equivalence | None:
        how = _how(trace)
        self.why = f"{who} {how}"
        return self.given_up(double) if trace.timed_out else None

    def _as_one_process(self, double: bool, alone: dict[str, Any]) -> Equivalence | None:
        """The original takes no batches of several ranks: it is given those of one."""
        single = self._run(double, None, **alone)
        one = self._run(double, plan_of(single), script=self.original, **alone)
        if not (single.ended_well and one.ended_well):
            return None
        told = untried("same_losses", f"not compared: {self.why}")
        return self._equivalence(Pair(single, one, double), (told, of_one(Pair(single, one, double))))

    def neither(self) -> Equivalence:
        """It runs in no precision: does the original?"""
        one = self._run(False, None, script=self.original, nproc=1, nnodes=1, alone=True)
        if not one.ended_well:
            self.why += f"; the original does not run here either: by itself it {_how(one)}"
        return self.given_up(False)

    def given_up(self, double: bool) -> Equivalence:
        """Neither in float64 nor in float32, or not in time."""
        told = untried("same_losses", f"not compared: {self.why}")
        return Equivalence(self.shown, self.launch.nproc * self.launch.nnodes, double, self.still, (told,))

    def _equivalence(self, pair: Pair, results: tuple[Result, ...]) -> Equivalence:
        curve = [(loss.step, loss.one, loss.mean) for loss in pair.losses if pair.one is not pair.ranks]
        known = tuple((step, a, b) for step, a, b in curve if a is not None and b is not None)
        return Equivalence(self.shown, pair.world, pair.double, self.still, results, known)


def _trains(trace: Trace) -> bool:
    """With an optimizer, or by hand."""
    return any(rank.steps or rank.of(Loss) for rank in trace.ranks)


def _how(trace: Trace) -> str:
    """Why a run is of no use."""
    if trace.timed_out:
        return f"has no end after {trace.timeout:g} s (give --max-steps)"
    for rank in trace.ranks:
        if rank.end is not None and rank.end.error:
            return f"stops{f' at {rank.end.at}' if rank.end.at else ''}: {rank.end.error.splitlines()[0]}"
    return f"ends without a word: {trace.log.strip().splitlines()[-1] if trace.log.strip() else 'it was killed'}"
