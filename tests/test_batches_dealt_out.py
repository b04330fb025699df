"""Batches of a script's own that are dealt out whole: what is printed of them counts each of them once.

Their number divides by 1 only. Nothing is learned, so that each batch has the same loss on any number of ranks.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.numbers import Shape, Texts, changed
from tests.ranks import Job, JobResult, run_batch

SHAPE = Shape("batches_dealt_out")
CONVERTED = "conversion"
#: an error that is put into the conversion, and the lines that tell it from the original on two ranks
DAMAGES = (
    ((("total += weight * loss.item()\n        right", "total += loss.item()\n        right"),), ("list",)),
    ((("seen += weight * len(b)", "seen += len(b)"),), ("list",)),
    ((("step + weight", "step + 1"),), ("number",)),
    ((("found += weight * ", "found += "),), ("index",)),
    ((("        if weight:\n            losses.append", "        if True:\n            losses.append"),), ("lists",)),
    ((("steps - 1 + weight", "steps"),), ("fit",)),
    ((("int(i < len(batches))", "1"),), ("list", "number", "index", "lists", "function", "fit", "history")),
)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, JobResult]:
    texts = SHAPE.conversion("scale")
    wanted: list[tuple[str, Texts, int]] = [("original", SHAPE.original, 0)]
    wanted += [(f"{CONVERTED}{world}", texts, world) for world in (1, 2, 3)]
    wanted += [(f"damage{at}", changed(texts, d[0]), 2) for at, d in enumerate(DAMAGES)]
    root = tmp_path_factory.mktemp("dealt")
    jobs = [_job(root / name, files, world) for name, files, world in wanted]
    return dict(zip((name for name, _, _ in wanted), run_batch(jobs, timeout=90), strict=True))


def _job(folder: Path, texts: Texts, world: int) -> Job:
    folder.mkdir()
    for name, data in texts.items():
        (folder / name).write_bytes(data)
    return Job(folder / "before.py", (), world, folder)


def _lines(result: JobResult) -> list[str]:
    assert result.ok, [r.stderr for r in result.ranks]
    return "".join(r.stdout for r in result.ranks).splitlines()


@pytest.mark.torchrun
@pytest.mark.parametrize("world", [1, 2, 3])
def test_each_batch_counts_once(world: int, results: dict[str, JobResult]) -> None:
    assert _lines(results[f"{CONVERTED}{world}"]) == _lines(results["original"])


@pytest.mark.torchrun
@pytest.mark.parametrize("at", range(len(DAMAGES)), ids=lambda at: str(DAMAGES[at][0][0][1]))
def test_a_batch_that_counts_twice_is_seen(at: int, results: dict[str, JobResult]) -> None:
    pairs = zip(_lines(results[f"damage{at}"]), _lines(results["original"]), strict=True)
    assert {new.split()[0] for new, old in pairs if new != old} == set(DAMAGES[at][1])
