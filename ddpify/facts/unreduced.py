"""A distributed script in, whether anything in it adds numbers up over the ranks, and which loaders are shared out."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ddpify.facts.frames import Event
from ddpify.facts.values import Loader, Sampler

if TYPE_CHECKING:
    from ddpify.facts import Facts

#: functions that bring the ranks' numbers together, also of modules that are not there (`utils.reduce_mean`)
_BRINGS = re.compile(r".*(reduce|gather|broadcast|synchroni[sz]e|sync_|average_|metric|send|recv).*", re.IGNORECASE)
_NOT = ("torch.nn.", "functools.", "builtins.", "torch.cuda.", "torch.accelerator.", "sklearn.")


def adds_up(facts: Facts) -> bool:
    """Whether anything may bring the numbers of the ranks together."""
    return facts.cached("adds up", _adds_up)


def _adds_up(facts: Facts) -> bool:
    return any(brings_together(e) for e in facts.flow.log.of("external", "method"))


def brings_together(event: Event) -> bool:
    """Whether a call outside the project may bring the numbers of the ranks together."""
    if event.kind == "method":
        return event.name in ("synchronize_between_processes", "all_reduce", "reduce", "compute", "gather")
    return not event.name.startswith(_NOT) and _BRINGS.fullmatch(event.name.rsplit(".", 1)[-1]) is not None


def shared_out(loader: Loader) -> bool:
    """Whether a DistributedSampler, and nothing else, gives a loader its samples."""
    samplers = loader.arguments.get("sampler", ())
    return bool(samplers) and all(isinstance(o, Sampler) and "Distributed" in o.name for o in samplers)
