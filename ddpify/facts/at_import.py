"""A script in, the first statement of an imported module that puts something on a GPU while it is imported out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.contents import constants
from ddpify.facts.devices import device_uses
from ddpify.facts.frames import Event
from ddpify.facts.placing import import_on, in_block, steps
from ddpify.facts.values import Data, Device, Value
from ddpify.source import Source

if TYPE_CHECKING:
    from ddpify.facts import Facts


def gpu_at_import(facts: Facts) -> tuple[Source, cst.CSTNode] | None:
    """`WEIGHTS = torch.tensor([1.0, 2.0]).cuda()` at the top of losses.py: it runs before the script's set-up.

    The outermost statement in the module, in which it stands or which leads to it.
    """
    plain = [(e, e.value) for e in facts.flow.log.of("method") if e.name == "cuda"]
    handed = [(e, v) for e, v in device_uses(facts) if e.name not in ("torch.device", "torch.cuda.set_device")]
    for event, value in sorted((*plain, *handed), key=lambda use: use[0].seq):
        if event.seq < facts.flow.main_end and _may_be_gpu(event, value):
            found = _in_module(facts, event)
            if found is not None:
                return found
    return None


def _may_be_gpu(event: Event, value: Value) -> bool:
    if event.name == "cuda":
        return True
    known = constants(value) or ()
    named = any(str(k).startswith("cuda") or (isinstance(k, int) and not isinstance(k, bool)) for k in known)
    return named or any(isinstance(o, Data) or (isinstance(o, Device) and o.kind != "cpu") for o in value)


def _in_module(facts: Facts, event: Event) -> tuple[Source, cst.CSTNode] | None:
    """Where it stands in the module that is imported; None where the script's own statements lead to it."""
    way = steps(event)
    at = import_on(way)
    if at is None or at + 1 >= len(way):
        return None
    frame, stmt, _ = way[at + 1]
    if frame.func is not None or not facts.editable(frame.source):
        return None
    return frame.source, in_block(frame.source, stmt, frame.source.module)
