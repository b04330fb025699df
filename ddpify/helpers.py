"""Every line of text that ddpify may put into a user's file, as named snippets with the imports they need."""

from __future__ import annotations

from dataclasses import dataclass, field

import libcst as cst

from ddpify import helper_classes
from ddpify.source import Source, children, dotted, walk

#: what emitted code calls things, and what it calls them where the user has taken the name
_NAMES = {
    "torch": ("torch", "torch_"),
    "os": ("os", "os_"),
    "sys": ("sys", "sys_"),
    "dist": ("dist", "torch_dist"),
    "DDP": ("DDP", "DistributedDataParallel"),
    "DistributedSampler": ("DistributedSampler", "TorchDistributedSampler"),
    "contextmanager": ("contextmanager", "context_manager"),
    "nullcontext": ("nullcontext", "null_context"),
    "setup_distributed": ("setup_distributed", "setup_process_group"),
    "is_main_process": ("is_main_process", "is_rank_zero"),
    "main_process_first": ("main_process_first", "rank_zero_first"),
    "is_local_main_process": ("is_local_main_process", "is_local_rank_zero"),
    "all_reduce_sum": ("all_reduce_sum", "sum_over_ranks"),
    "all_reduce_mean": ("all_reduce_mean", "mean_over_ranks"),
    "sync_buffers": ("sync_buffers", "broadcast_buffers"),
    "broadcast_value": ("broadcast_value", "value_of_rank_zero"),
    "unwrap": ("unwrap", "unwrap_ddp"),
    "forward_through": ("forward_through", "forward_through_ddp"),
    "rows_of_rank": ("rows_of_rank", "rows_of_this_rank"),
    "rows_of_all": ("rows_of_all", "rows_of_all_ranks"),
    "share_of_rank": ("share_of_rank", "share_of_this_rank"),
    "per_process": ("per_process", "size_per_process"),
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
            as_is = line.split()[-1]
            if chosen[name] == as_is:
                missing[name] = line
            else:
                missing[name] = f"{line.split(' as ')[0]} as {chosen[name]}"
        else:
            chosen[name] = next((o for o in options if o not in taken), options[-1] + "_")
    return Names(chosen, missing, taken)


def _bound_names(source: Source) -> set[str]:
    """Every name of the file; of `import os.path as osp` only what it binds."""
    found: set[str] = set()
    todo: list[cst.CSTNode] = [source.module]
    while todo:
        node = todo.pop()
        if isinstance(node, cst.ImportAlias):
            bound: cst.BaseExpression = node.asname.name if node.asname is not None else node.name
            while isinstance(bound, cst.Attribute):
                bound = bound.value
            found.add(dotted(bound))
        elif isinstance(node, cst.ImportFrom):
            todo.extend(node.names if not isinstance(node.names, cst.ImportStar) else ())
        elif isinstance(node, cst.Name):
            found.add(node.value)
        else:
            todo.extend(children(node))
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
        for node in walk(source.module)
    )


def canonical_names() -> Names:
    """The names of emitted code in a module of its own: each by its first choice."""
    return Names({k: v[0] for k, v in _NAMES.items()}, {k: line for k, (_, line) in _IMPORTS.items()})


def imported_names(source: Source) -> dict[str, str]:
    """Qualified name -> the name by which the file's top level knows it."""
    found: dict[str, str] = {}
    for line in source.module.body:
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
    "is_main_process": (("os",), ()),
    "is_local_main_process": (("os",), ()),
    "main_process_first": (("os", "contextmanager", "dist"), ()),
    "all_reduce_sum": (("torch", "dist"), ()),
    "all_reduce_mean": (("dist",), ("all_reduce_sum",)),
    "sync_buffers": (("dist",), ()),
    "broadcast_value": (("torch", "dist"), ()),
    "unwrap": (("DDP",), ()),
    "forward_through": ((), ()),
    "rows_of_rank": (("DistributedSampler",), ()),
    "rows_of_all": (("torch", "dist"), ()),
    "share_of_rank": (("DistributedSampler",), ()),
    "per_process": (("dist",), ()),
    **helper_classes.NEEDS,
}
ORDER = tuple(NEEDS)


def helper(name: str, options: frozenset[str], names: Names) -> list[str]:
    """The lines of a helper, indented by four spaces a level."""
    shaped = {
        "setup_distributed": _setup,
        "all_reduce_sum": _reduce,
        "broadcast_value": _broadcast,
        "rows_of_rank": _rows,
        "ShardedSampler": helper_classes.sampler,
        "forward_through": _through,
    }
    text = shaped[name](options) if name in shaped else _TEXTS[name]
    for key, value in names.chosen.items():
        text = text.replace(f"<{key}>", value)
    return text.strip("\n").split("\n")


_JOIN = "Join the process group that torchrun describes (alone under plain python)"


def _setup(options: frozenset[str]) -> str:
    """`setup_distributed`, in the form that the script's own choice of device asks for."""
    alone = '    alone = {} if "RANK" in <os>.environ else {"store": <dist>.HashStore(), "rank": 0, "world_size": 1}\n'
    if "cpu" in options:
        return (
            f'def <setup_distributed>():\n    """{_JOIN}."""\n{alone}    <dist>.init_process_group("gloo", **alone)\n'
        )
    if "either" in options:
        return (
            "def <setup_distributed>():\n"
            f'    """{_JOIN}; bind this process to its GPU."""\n'
            f"{alone}"
            "    if <torch>.cuda.is_available():\n"
            '        <torch>.cuda.set_device(int(<os>.environ.get("LOCAL_RANK", 0)))\n'
            '    <dist>.init_process_group("cpu:gloo,cuda:nccl" if <torch>.cuda.is_available() else "gloo", **alone)\n'
        )
    returned = "this process's GPU or CPU" if "index" in options else "this process's device"
    head = (
        f"def <setup_distributed>({'use_accel' if 'accelerator' in options else 'use_cuda'}):\n"
        if "flag" in options
        else "def <setup_distributed>():\n"
    )
    head += f'    """{_JOIN}; return {returned}."""\n'
    head += '    local_rank = int(<os>.environ.get("LOCAL_RANK", 0))\n' + alone
    if "accelerator" in options:
        test = "use_accel" if "flag" in options else "<torch>.accelerator.is_available()"
        bind = (
            f"    if {test}:\n"
            "        device = <torch>.device(<torch>.accelerator.current_accelerator().type, local_rank)\n"
            "        <torch>.accelerator.set_device_index(local_rank)\n"
            "        <dist>.init_process_group("
            "<dist>.get_default_backend_for_device(device), device_id=device, **alone)\n"
        )
    else:
        test = "use_cuda" if "flag" in options else "<torch>.cuda.is_available()"
        bind = (
            f"    if {test}:\n"
            '        device = <torch>.device("cuda", local_rank)\n'
            "        <torch>.cuda.set_device(device)\n"
            '        <dist>.init_process_group("nccl", device_id=device, **alone)\n'
        )
    gloo = '    <dist>.init_process_group("gloo", **alone)\n'
    if "index" in options:
        return f'{head}{bind}        return local_rank\n{gloo}    return "cpu"\n'
    return f'{head}{bind}    else:\n        device = <torch>.device("cpu")\n    {gloo}    return device\n'


def _through(options: frozenset[str]) -> str:
    told = "method or part" if "part" in options else "method"
    bare = "<ddp_model>.module"
    part = f"{bare}.get_submodule(name)" if "nested" in options else f"getattr({bare}, name)"
    evaluates = f"    if not <torch>.is_grad_enabled():\n        return {part}(*args, **kwargs)\n"
    text = (
        "def <forward_through>(<ddp_model>, name, *args, **kwargs):\n"
        f'    """Call a {told} of the wrapped module in a forward of DDP, which averages no other gradients."""\n'
        f"{evaluates if 'evaluates' in options else ''}\n"
        "    def forward(*args, **kwargs):\n"
        "        del <ddp_model>.module.forward  # the module's own is in force again\n"
        f"        return {part}(*args, **kwargs)\n"
        "\n"
        "    <ddp_model>.module.forward = forward\n"
        "    return <ddp_model>(*args, **kwargs)\n"
    )
    return text.replace("<ddp_model>", "model")


def _broadcast(options: frozenset[str]) -> str:
    box = "[value.cpu() if <torch>.is_tensor(value) else value]" if "tensor" in options else "[value]"
    return (
        "def <broadcast_value>(value):\n"
        '    """Rank 0\'s value, on every process."""\n'
        f"    box = {box}\n"
        "    <dist>.broadcast_object_list(box, src=0)\n"
        "    return box[0]\n"
    )


def _rows(options: frozenset[str]) -> str:
    # a leaf of its own: a graph that leads back to the whole tensor would be freed by the first backward
    own = "t.detach()[{}].requires_grad_(t.requires_grad)" if "leaf" in options else "t[{}]"
    rows = own.format("list(<DistributedSampler>(t, shuffle=False))")
    return (
        "def <rows_of_rank>(*tensors):\n"
        '    """This process\'s rows of each tensor: as many on every process, the first ones again where they do not '
        'divide."""\n'
        f"    return [{rows} for t in tensors]\n"
    )


def _reduce(options: frozenset[str]) -> str:
    where = '"cuda"' if "accelerator" not in options else "<torch>.accelerator.current_accelerator()"
    device = (
        f'    device = "cpu" if <dist>.get_backend() == "gloo" else {where}\n'
        if not options & {"cpu", "either"}
        else ""
    )
    argument = ", device=device" if device else ""
    tensors = "tensor" in options
    kept = "; tensors stay tensors" if tensors else ""
    first = "*map(float, values)" if tensors else "*values"
    back = (
        "<torch>.full_like(v, s) if <torch>.is_tensor(v) else s if f else int(s)" if tensors else "s if f else int(s)"
    )
    names = "v, s, f in zip(values, sums, floats)" if tensors else "s, f in zip(sums, floats)"
    return (
        "def <all_reduce_sum>(*values):\n"
        f'    """Sum each number over all processes; a count stays an integer{kept}."""\n'
        f"{device}"
        f"    total = <torch>.tensor([{first}, *(isinstance(v, float) for v in values)], "
        f"dtype=<torch>.float64{argument})\n"
        "    <dist>.all_reduce(total)\n"
        "    sums, floats = total.view(2, -1).tolist()\n"
        f"    return [{back} for {names}]\n"
    )


_TEXTS = {
    "is_main_process": """
def <is_main_process>():
    return int(<os>.environ.get("RANK", 0)) == 0
""",
    "is_local_main_process": """
def <is_local_main_process>():
    return int(<os>.environ.get("LOCAL_RANK", 0)) == 0
""",
    "main_process_first": '''
@<contextmanager>
def <main_process_first>():
    """One process per node goes ahead (to download, to build a cache); the others follow."""
    ahead = int(<os>.environ.get("LOCAL_RANK", 0)) == 0
    if not ahead:
        <dist>.barrier()
    try:
        yield
    finally:
        if ahead:
            <dist>.barrier()
''',
    "all_reduce_mean": '''
def <all_reduce_mean>(*values):
    """Average each number over all processes."""
    return [total / <dist>.get_world_size() for total in <all_reduce_sum>(*values)]
''',
    "sync_buffers": '''
def <sync_buffers>(model):
    """Give every process rank 0's buffers (BatchNorm statistics differ between ranks after training)."""
    for buffer in model.buffers():
        <dist>.broadcast(buffer, src=0)
''',
    "rows_of_all": '''
def <rows_of_all>(tensor):
    """The rows that all processes computed, in the order of the whole tensor (without their gradients)."""
    parts = [<torch>.empty_like(tensor) for _ in range(<dist>.get_world_size())]
    <dist>.all_gather(parts, tensor.detach().contiguous())
    return <torch>.stack(parts, dim=1).flatten(0, 1)
''',
    "share_of_rank": '''
def <share_of_rank>(batches):
    """This process's part of the batches: as many on every process, the first ones again where they do not divide."""
    batches = list(batches)
    return [batches[i] for i in <DistributedSampler>(batches, shuffle=False)]
''',
    "per_process": '''
def <per_process>(batch_size):
    """This process's part of a batch that all processes read together."""
    if batch_size % <dist>.get_world_size():
        raise ValueError(f"a batch of {batch_size} cannot be divided among {<dist>.get_world_size()} processes")
    return batch_size // <dist>.get_world_size()
''',
    "unwrap": """
def <unwrap>(model):
    return model.module if isinstance(model, <DDP>) else model
""",
    **helper_classes.TEXTS,
}
