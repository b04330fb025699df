"""Lines as a rank writes them -> a Trace, without running anything."""

from __future__ import annotations

from typing import Any

from ddpify.verify.trace import RankTrace, Trace

Line = dict[str, Any]


def trace(*ranks: list[Line], stdout: tuple[str, ...] = (), **rest: Any) -> Trace:
    """A run of as many ranks as lists; `stdout` is their text."""
    texts = [*stdout, *[""] * len(ranks)]
    return Trace(tuple(RankTrace.from_lines(i, lines, stdout=texts[i]) for i, lines in enumerate(ranks)), **rest)


def step(number: int, checksum: str = "aa", **rest: Any) -> Line:
    """One optimizer step."""
    return {"kind": "step", "number": number, "checksum": checksum, "parameters": 15, "at": "train.py:45", **rest}


def drawn(*indices: int, **rest: Any) -> Line:
    """One training pass of a shuffling DistributedSampler over four samples."""
    line = {"kind": "pass", "sampler": "DistributedSampler", "shuffle": True, "training": True, "complete": True}
    return {**line, "size": 4, "drawn": len(indices), "indices": list(indices), "at": "train.py:40", **rest}


def end(status: str = "ok", **rest: Any) -> Line:
    """The end of the script."""
    return {"kind": "end", "status": status, **rest}


def meets(op: str, place: str, **rest: Any) -> Line:
    """A collective over the world."""
    return {"kind": "collective", "op": op, "at": place, "through": [place], **rest}


def forward(number: int, inputs: str, state: str = "", **rest: Any) -> Line:
    """A training forward of the first wrapper; with a state it draws from torch's generator."""
    drawn = {"states": {"torch": state}, "drew": ["torch"]} if state else {}
    return {"kind": "forward", "number": number, "inputs": inputs, "at": "train.py:43", **drawn, **rest}


def over(*levels: tuple[str, int, str], **rest: Any) -> Line:
    """What is behind loader 0, from the loader down."""
    return {"kind": "data", "loader": 0, "levels": [list(level) for level in levels], **rest}


def evaluated(*indices: int, **rest: Any) -> Line:
    """One evaluation over loader 1."""
    line = {"kind": "pass", "loader": 1, "order": 9, "grad": False, "complete": True, "sampler": "range"}
    return {**line, "drawn": len(indices), "indices": list(indices), "at": "train.py:60", "time": 8.0, **rest}


WRAP: Line = {"kind": "wrap", "module": "Net", "parameters": 15, "at": "train.py:30"}
INIT: Line = {"kind": "init", "backend": "gloo", "at": "train.py:20"}
GONE: Line = {"kind": "exit", "initialized": False}
