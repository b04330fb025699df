"""The class of a meter in, the method that adds it up over the ranks out."""

from __future__ import annotations

from ddpify.edits import AddHelper, AddImport, Edit, InsertAfter
from ddpify.facts import Facts
from ddpify.facts.meters import METHOD, Meter
from ddpify.facts.setup import reduce_options


def with_method(facts: Facts, meter: Meter) -> list[Edit]:
    """`def all_reduce(self)` behind `update`."""
    source, names = meter.source, facts.names_of(meter.source)
    reduce = names["all_reduce_sum"]
    body: list[str] = []
    edits: list[Edit] = []
    if meter.sums:
        fields = ", ".join(f"{meter.me}.{field}" for field in meter.sums)
        left = fields if len(meter.sums) > 1 else f"[{fields}]"
        body.append(f"{left} = {reduce}({fields})")
    for field, kind in meter.arrays:
        held = f"{meter.me}.{field}"
        if kind == "list":
            body.append(f"{held}[:] = {reduce}(*{held})")
            continue
        array = f"{names['torch']}.from_numpy({held})" if kind == "numpy" else held
        body.append(f"{names['dist']}.all_reduce({array})")
        edits += [AddImport(source, "dist"), AddHelper(facts.source, "setup_distributed", frozenset({"host"}))]
        edits += [AddImport(source, "torch")] if kind == "numpy" else []
    if meter.sums or any(kind == "list" for _, kind in meter.arrays):
        options = frozenset({"tensor"} if meter.tensor else ())
        edits.append(AddHelper(source, "all_reduce_sum", reduce_options(facts) | options))
    text = "\n".join((f"def {METHOD}({meter.me}):", *(f"    {line}" for line in (*body, *meter.means))))
    return [InsertAfter(source, meter.update, ("", text)), *edits]
