"""A module that a name is looked up in at run time -> what the lookup may give."""

from __future__ import annotations

from collections import Counter

import libcst as cst

from ddpify.facts.values import Class, Ext, Func, Mod, Value
from ddpify.source import Source, walk

#: the module that `importlib.import_module(args.model)` gives
RUN_TIME_MODULE = "<chosen at run time>"
#: what is looked up where it may be any of many: it is what its use makes of it
ANY: Value = (Ext(f"{RUN_TIME_MODULE}.<name>"),)
#: of so many a lookup may give any; of more nothing is known
MOST = 8
#: what the packages are looked up for, and what all that they have is
_KINDS = {"torch.optim": "torch.optim.Optimizer", "torch.optim.lr_scheduler": "torch.optim.lr_scheduler.LRScheduler"}


def of_library(module: Ext) -> Value:
    """`getattr(torch.optim, config["optimizer"])`; of a module that is chosen at run time, anything."""
    if module.name == RUN_TIME_MODULE:
        return ANY
    return (Ext(_KINDS[module.name]),) if module.name in _KINDS else ()


def of_project(module: Mod, names: dict[str, Value]) -> Value:
    """`getattr(models, args.arch)`: the classes and functions that nothing else in their module uses.

    A block of a network, or a class that others derive from, is not asked for by name; that a class names itself
    (`super(Net, self)`) is no use of it.
    """
    known = [(name, o) for name, value in names.items() for o in value if isinstance(o, (Class, Func))]
    own = [(name, o) for name, o in known if o.source is module.source]
    used: dict[Source, Counter[str]] = {}
    found = []
    for name, obj in own or known:
        if obj.source not in used:
            used[obj.source] = Counter(n.value for n in obj.source.of(cst.Name))
        inside = sum(isinstance(n, cst.Name) and n.value == obj.name for n in walk(obj.node))
        if not name.startswith("_") and used[obj.source][obj.name] == inside:
            found.append(obj)
    return tuple(found) if len(found) <= MOST else ()
