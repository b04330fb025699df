"""The class of a meter in, the method that adds it up over the ranks out."""

from __future__ import annotations

from ddpify.edits import AddHelper, Edit, InsertAfter
from ddpify.facts import Facts
from ddpify.facts.meters import METHOD, Meter
from ddpify.facts.setup import reduce_options


def with_method(facts: Facts, meter: Meter) -> list[Edit]:
    """`def all_reduce(self)` behind `update`."""
    reduce = facts.names_of(meter.source)["all_reduce_sum"]
    fields = ", ".join(f"{meter.me}.{field}" for field in meter.sums)
    left = fields if len(meter.sums) > 1 else f"[{fields}]"
    body = (f"{left} = {reduce}({fields})", *meter.means)
    text = "\n".join((f"def {METHOD}({meter.me}):", *(f"    {line}" for line in body)))
    options = frozenset({"tensor"} if meter.tensor else ())
    return [
        InsertAfter(meter.source, meter.update, ("", text)),
        AddHelper(meter.source, "all_reduce_sum", reduce_options(facts) | options),
    ]
