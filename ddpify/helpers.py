"""What the helpers that ddpify may put into a user's file are called there, and the imports that they need."""

from __future__ import annotations

from dataclasses import dataclass, field

import libcst as cst

from ddpify import helper_classes
from ddpify.helper_functions import text_of
from ddpify.source import Source, children, dotted

#: what emitted code calls things, and what it calls them where the user has taken the name
_NAMES = {
    "torch": ("torch", "torch_"),
    "os": ("os", "os_"),
    "sys": ("sys", "sys_"),
    "np": ("np", "numpy_"),
    "random": ("random", "random_"),
    "dist": ("dist", "torch_dist"),
    "DDP": ("DDP", "DistributedDataParallel"),
    "DistributedSampler": ("DistributedSampler", "TorchDistributedSampler"),
    "contextmanager": ("contextmanager", "context_manager"),
    "nullcontext": ("nullcontext", "null_context"),
    "setup_distributed": ("setup_distributed", "setup_process_group"),
    "own_gpu": ("own_gpu", "own_gpu_of_process"),
    "is_main_process": ("is_main_process", "is_rank_zero"),
    "main_process_first": ("main_process_first", "rank_zero_first"),
    "is_local_main_process": ("is_local_main_process", "is_local_rank_zero"),
    "all_reduce_sum": ("all_reduce_sum", "sum_over_ranks"),
    "all_reduce_mean": ("all_reduce_mean", "mean_over_ranks"),
    "gather_list": ("gather_list", "gather_list_from_ranks"),
    "gather_in_order": ("gather_in_order", "gather_in_order_from_ranks"),
    "gather_by_index": ("gather_by_index", "gather_by_index_from_ranks"),
    "gather_rows": ("gather_rows", "gather_rows_from_ranks"),
    "merge_rows": ("merge_rows", "merge_rows_of_ranks"),
    "sync_buffers": ("sync_buffers", "broadcast_buffers"),
    "average_buffers": ("average_buffers", "average_buffers_over_ranks"),
    "broadcast_value": ("broadcast_value", "value_of_rank_zero"),
    "any_process": ("any_process", "holds_on_any_process"),
    "unwrap": ("unwrap", "unwrap_ddp"),
    "average_gradients": ("average_gradients", "average_gradients_over_ranks"),
    "forward_through": ("forward_through", "forward_through_ddp"),
    "rows_of_rank": ("rows_of_rank", "rows_of_this_rank"),
    "columns_of_rank": ("columns_of_rank", "columns_of_this_rank"),
    "state_of_rank": ("state_of_rank", "state_of_this_rank"),
    "rows_of_all": ("rows_of_all", "rows_of_all_ranks"),
    "share_of_rank": ("share_of_rank", "share_of_this_rank"),
    "share_with_weights": ("share_with_weights", "weighted_share_of_rank"),
    "per_process": ("per_process", "size_per_process"),
    "batches_of_rank": ("batches_of_rank", "batches_of_this_rank"),
    "same_draws": ("same_draws", "same_draws_on_all_ranks"),
    "device": ("device", "ddp_device"),
    "local_rank": ("local_rank", "ddp_local_rank"),
    "epoch": ("epoch", "epoch_index"),
    "batches": ("batches", "num_batches", "total_batches", "batch_total"),
    **helper_classes.NAMES,
}
_IMPORTS = {
    "torch": ("torch", "import torch"),
    "os": ("os", "import os"),
    "sys": ("sys", "import sys"),
    "np": ("numpy", "import numpy as np"),
    "random": ("random", "import random"),
    "dist": ("torch.distributed", "import torch.distributed as dist"),
    "DDP": (
        "torch.nn.parallel.DistributedDataParallel",
        "from torch.nn.parallel import DistributedDataParallel as DDP",
    ),
    "DistributedSampler": (
        "torch.utils.data.distributed.DistributedSampler",
        "from torch.utils.data.distributed import DistributedSampler",
    ),
    "contextmanager": ("contextlib.contextmanager", "from contextlib import contextmanager"),
    "nullcontext": ("contextlib.nullcontext", "from contextlib import nullcontext"),
}


@dataclass
class Names:
    """The names that emitted code uses in one file: the user's own for what is imported already, else free ones."""

    chosen: dict[str, str]
    #: name -> import line that has to be added
    missing: dict[str, str]
    taken: set[str] = field(default_factory=set)

    def __getitem__(self, name: str) -> str:
        return self.chosen[name]

    def fresh(self, name: str) -> str:
        """A name that is not taken yet, and is from now on."""
        found = next(n for n in (name, *(f"{name}_{i}" for i in range(2, 1000))) if n not in self.taken)
        self.taken.add(found)
        return found

    def line(self, name: str) -> str:
        """The import of a name, as the file's own name for it."""
        return self.missing.get(name) or _import_as(name, self.chosen[name])


def names_for(source: Source) -> Names:
    """Choose names that collide with nothing in the file."""
    taken = _bound_names(source)
    imported = imported_names(source)
    chosen: dict[str, str] = {}
    missing: dict[str, str] = {}
    for name, options in _NAMES.items():
        if name in _IMPORTS:
            whole, line = _IMPORTS[name]
            aliases = (whole, whole.replace(".distributed.Distributed", ".Distributed"))
            known = next((imported[a] for a in aliases if a in imported), None)
            if known is not None:
                chosen[name] = known
                continue
            own = [o for o in options if o not in taken or (line == f"import {o}" and not _is_given(source, o))]
            chosen[name] = own[0] if own else options[-1] + "_"
            missing[name] = _import_as(name, chosen[name])
        else:
            chosen[name] = next((o for o in options if o not in taken), options[-1] + "_")
    return Names(chosen, missing, taken)


def _import_as(name: str, chosen: str) -> str:
    line = _IMPORTS[name][1]
    plain = line.split(" as ")[0]
    return (
        line if chosen == line.split()[-1] else plain if plain.endswith(f"import {chosen}") else f"{plain} as {chosen}"
    )


_NAMING = frozenset({cst.ImportAlias, cst.ImportFrom, cst.Name})


def _bound_names(source: Source) -> set[str]:
    """Every name of the file; of `import os.path as osp` only what it binds."""
    found: set[str] = set()
    todo: list[cst.CSTNode] = [source.module]
    while todo:
        node = todo.pop()
        if type(node) not in _NAMING:
            todo.extend(children(node))
        elif isinstance(node, cst.ImportAlias):
            bound: cst.BaseExpression = node.asname.name if node.asname is not None else node.name
            while isinstance(bound, cst.Attribute):
                bound = bound.value
            found.add(dotted(bound))
        elif isinstance(node, cst.ImportFrom):
            todo.extend(node.names if not isinstance(node.names, cst.ImportStar) else ())
        elif isinstance(node, cst.Name):
            found.add(node.value)
    return found


def _is_given(source: Source, name: str) -> bool:
    """Whether the file itself gives the name to something; what it only reads comes by a `from ... import *`."""
    givers = (cst.AssignTarget, cst.AnnAssign, cst.Param, cst.FunctionDef, cst.ClassDef, cst.AsName, cst.Element)
    return any(
        isinstance(node, cst.Name)
        and node.value == name
        and (
            isinstance(above := source.parents.get(node), givers)
            or (isinstance(above, (cst.For, cst.CompFor, cst.NamedExpr)) and above.target is node)
        )
        for node in source.nodes
    )


def canonical_names() -> Names:
    """The names of emitted code in a module of its own: each by its first choice."""
    return Names({k: v[0] for k, v in _NAMES.items()}, {k: line for k, (_, line) in _IMPORTS.items()})


def imported_names(source: Source, end: int | None = None) -> dict[str, str]:
    """Qualified name -> the name by which the file's top level knows it (at a place in it, behind all by itself)."""
    found: dict[str, str] = {}
    for line in source.module.body:
        if end is not None and source.span(line).start > end:
            break
        for stmt in line.body if isinstance(line, cst.SimpleStatementLine) else ():
            if isinstance(stmt, cst.Import):
                for alias in stmt.names:
                    whole = dotted(alias.name)
                    if alias.asname is not None and isinstance(alias.asname.name, cst.Name):
                        found[whole] = alias.asname.name.value
                    else:
                        found[whole.split(".")[0]] = whole.split(".")[0]
            elif isinstance(stmt, cst.ImportFrom) and not isinstance(stmt.names, cst.ImportStar) and not stmt.relative:
                for alias in stmt.names:
                    bound = alias.asname.name if alias.asname is not None else alias.name
                    if isinstance(bound, cst.Name):
                        found[f"{dotted(stmt.module)}.{dotted(alias.name)}"] = bound.value
    return found


#: helper -> (the names that it uses, the helpers that it uses)
NEEDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "setup_distributed": (("os", "torch", "dist"), ()),
    "own_gpu": (("os", "torch"), ()),
    "is_main_process": (("os",), ()),
    "is_local_main_process": (("os",), ()),
    "main_process_first": (("os", "contextmanager", "dist"), ()),
    "all_reduce_sum": (("torch", "dist"), ()),
    "all_reduce_mean": (("dist",), ("all_reduce_sum",)),
    "gather_list": (("dist",), ()),
    "gather_in_order": (("dist",), ()),
    "gather_by_index": (("dist",), ()),
    "gather_rows": (("torch", "dist"), ()),
    "merge_rows": (("torch", "dist"), ()),
    "sync_buffers": (("dist",), ()),
    "average_buffers": (("dist",), ()),
    "any_process": (("torch", "dist"), ()),
    "broadcast_value": (("torch", "dist"), ()),
    "unwrap": (("DDP",), ()),
    "average_gradients": (("dist",), ()),
    "forward_through": ((), ()),
    "rows_of_rank": (("dist",), ()),
    "columns_of_rank": (("dist",), ()),
    "state_of_rank": ((), ("rows_of_rank",)),
    "rows_of_all": (("torch", "dist"), ("all_reduce_sum",)),
    "share_of_rank": (("DistributedSampler",), ()),
    "share_with_weights": (("dist",), ()),
    "per_process": (("dist",), ()),
    "batches_of_rank": (("torch", "dist"), ()),
    "same_draws": (("contextmanager", "dist"), ()),
    **helper_classes.NEEDS,
}
ORDER = tuple(NEEDS)


def needed(name: str, options: frozenset[str]) -> tuple[str, ...]:
    """The names that a helper uses, in the form that its options ask for."""
    return (*NEEDS[name][0], *sorted(options & {"np", "random", "torch"} if name == "same_draws" else ()))


def helper(name: str, options: frozenset[str], names: Names) -> list[str]:
    """The lines of a helper, indented by four spaces a level."""
    text = text_of(name, options)
    for key, value in names.chosen.items():
        text = text.replace(f"<{key}>", value)
    return text.strip("\n").split("\n")
