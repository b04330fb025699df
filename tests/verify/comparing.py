"""Pairs of scripts -> what `verify --original` says of them, on forked ranks: torch is imported once for all."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ddpify.verify import Result, Status
from ddpify.verify.equivalence.alone import of_one
from ddpify.verify.equivalence.pair import Pair
from ddpify.verify.equivalence.plan import plan_of
from ddpify.verify.equivalence.rows import TOGETHER, differ_by_weights, is_sum, losses, padded_apart, rows
from ddpify.verify.trace import Trace
from tests.ranks import Job, JobResult, run_batch

STILL: dict[str, Any] = {"double": True, "dropout": False, "batch_norm": False, "plan": None}


@dataclass(frozen=True)
class Scripts:
    """An original and what it became; each run has a copy of the folder that it stands in."""

    original: Path
    converted: Path
    args: Sequence[str] = ()
    world: int = 2
    still: Mapping[str, Any] | None = None


def compared(
    pairs: Mapping[str, Scripts], timeout: float = 60.0, alone: Iterable[str] | None = None
) -> dict[str, dict[str, Result]]:
    """The results of each pair, by name; `alone`: the pairs whose conversion also runs as one process (all)."""
    leads = dict(zip(pairs, run_batch([_job(p, None) for p in pairs.values()], timeout), strict=True))
    for name, lead in leads.items():
        assert lead.trace.ended_well, f"{name}: {lead.ranks[0].stderr}"
    longest = {n: _job(pairs[n], t, padded=True) for n, r in leads.items() if padded_apart(t := r.trace)}
    padded = {n: r for n, r in _run(longest, timeout).items() if r.trace.ended_well and not padded_apart(r.trace)}
    leads |= padded
    jobs = {name: _job(scripts, leads[name].trace) for name, scripts in pairs.items()}
    ones = _run({name: _original(job, pairs[name]) for name, job in jobs.items()}, timeout)
    sums = [name for name, scripts in pairs.items() if is_sum(_pair(leads[name].trace, ones[name], scripts))]
    scales = {name: 1 / pairs[name].world for name in sums}
    jobs |= {name: _job(pairs[name], leads[name].trace, scale) for name, scale in scales.items()}
    ones |= _run({name: _original(jobs[name], pairs[name]) for name in sums}, timeout)
    footings = {
        n: f
        for n, s in pairs.items()
        if (f := differ_by_weights(_pair(leads[n].trace, ones[n], s, scales.get(n, 1.0))))
    }
    apart = {n: _job(pairs[n], leads[n].trace, scales.get(n, 1.0), apart=True) for n in footings}
    for name, result in _run({n: _original(job, pairs[n]) for n, job in apart.items()}, timeout).items():
        if losses(_pair(leads[name].trace, result, pairs[name]))[0].status is Status.FAILED:
            del footings[name]
        else:
            jobs[name], ones[name] = apart[name], result
    single = _run({name: jobs[name] for name in (pairs if alone is None else alone)}, timeout)
    found = {}
    for name, scripts in pairs.items():
        assert ones[name].trace.ended_well, f"{name}: {ones[name].ranks[0].stderr}"
        scale = scales.get(name, 1.0)
        told = [words for words, of in ((TOGETHER, padded), (footings.get(name, ""), footings)) if name in of]
        pair = replace(_pair(leads[name].trace, ones[name], scripts, scale), footing="; ".join(told))
        results = [*rows(pair)]
        if name in single:
            results.append(of_one(replace(pair, ranks=single[name].trace)))
        found[name] = {result.name: result for result in results}
    return found


def _pair(ranks: Trace, one: JobResult, scripts: Scripts, scale: float = 1.0) -> Pair:
    return Pair(ranks, one.trace, bool((scripts.still or STILL)["double"]), scale)


def _run(jobs: Mapping[str, Job], timeout: float) -> dict[str, JobResult]:
    return dict(zip(jobs, run_batch(list(jobs.values()), timeout), strict=True)) if jobs else {}


def _job(scripts: Scripts, ranks: Trace | None, scale: float = 1.0, apart: bool = False, padded: bool = False) -> Job:
    wish = {**STILL, **(scripts.still or {})}
    folder = _fresh(scripts.converted)
    if ranks is None:
        return Job(scripts.converted, scripts.args, scripts.world, folder, together=wish)
    wish |= {"plan": plan_of(ranks), "scale": scale, "apart": apart, "padded": padded}
    if padded:
        return Job(scripts.converted, scripts.args, scripts.world, folder, together=wish)
    return Job(scripts.converted, scripts.args, 0, folder, together=wish)


def _original(job: Job, scripts: Scripts) -> Job:
    return replace(job, script=scripts.original, cwd=_fresh(scripts.original))


def _fresh(script: Path) -> Path:
    """A working folder that no run has left a checkpoint in."""
    folder = Path(tempfile.mkdtemp(dir=script.parent.parent))
    return Path(shutil.copytree(script.parent, folder, dirs_exist_ok=True))
