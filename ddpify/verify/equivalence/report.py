"""An Equivalence -> the lines of the report: what was compared, and the losses of both, step by step."""

from __future__ import annotations

from collections.abc import Sequence

Curve = Sequence[tuple[int, float, float]]
_ROWS = 8  # of the table


def head(original: str, world: int, double: bool, still: Sequence[str]) -> str:
    """What was held against what."""
    kind = "float64" if double else "float32: it does not run in float64"
    off = f"; {' and '.join(still)}" if still else ""
    how = f"as one process that reads the batches of {world} ranks together" if world > 1 else "both as one process"
    return f"compared with {original}, {how} ({kind}{off})"


def converted(world: int) -> str:
    """Whose the losses are that stand beside the original's."""
    return "ranks (mean)" if world > 1 else "one process"


def table(curve: Curve, world: int) -> list[str]:
    """Losses by step: the first, the last, and the one where they part."""
    if not curve:
        return []
    lines = [f"{'step':>8}  {'original':>16}  {converted(world):>16}  {'difference':>10}"]
    last = -1
    for i in _shown(curve):
        if i > last + 1:
            lines.append(f"{'...':>8}")
        step, one, mean = curve[i]
        lines.append(f"{step:>8}  {one:>16.9g}  {mean:>16.9g}  {mean - one:>10.1e}")
        last = i
    return lines


def _shown(curve: Curve) -> list[int]:
    """The first few, the last, and those around the first that differs."""
    parts = next((i for i, (_, a, b) in enumerate(curve) if abs(a - b) > 1e-5 * max(abs(a), abs(b))), None)
    wanted = {*range(_ROWS // 2), len(curve) - 1}
    wanted |= set(range(parts - 1, parts + 3)) if parts is not None else set()
    return sorted(i for i in wanted if 0 <= i < len(curve))
