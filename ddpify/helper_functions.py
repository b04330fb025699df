"""The text of every function that ddpify may put into a user's file; `<name>` stands for what that file calls it."""

from __future__ import annotations

from ddpify import helper_classes, helper_gathers

_JOIN = "Join the process group that torchrun describes (alone under plain python)"


def _setup(options: frozenset[str]) -> str:
    """`setup_distributed`, in the form that the script's own choice of device asks for."""
    alone = '    alone = {} if "RANK" in <os>.environ else {"store": <dist>.HashStore(), "rank": 0, "world_size": 1}\n'
    if "cpu" in options:
        return (
            f'def <setup_distributed>():\n    """{_JOIN}."""\n{alone}    <dist>.init_process_group("gloo", **alone)\n'
        )
    if "either" in options:
        gpus = _gpus(options)
        bound, times = (
            (f"with {gpus} GPUs of its own", f" * {gpus}") if gpus > 1 else ("bind this process to its GPU", "")
        )
        return (
            "def <setup_distributed>():\n"
            f'    """{_JOIN}; {bound}."""\n'
            f"{alone}"
            "    if <torch>.cuda.is_available():\n"
            f'        <torch>.cuda.set_device(int(<os>.environ.get("LOCAL_RANK", 0)){times})\n'
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
        backend = "cpu:gloo,cuda:nccl" if "host" in options else "nccl"
        bind = (
            f"    if {test}:\n"
            '        device = <torch>.device("cuda", local_rank)\n'
            "        <torch>.cuda.set_device(device)\n"
            f'        <dist>.init_process_group("{backend}", device_id=device, **alone)\n'
        )
    gloo = '    <dist>.init_process_group("gloo", **alone)\n'
    if "index" in options:
        return f'{head}{bind}        return local_rank\n{gloo}    return "cpu"\n'
    return f'{head}{bind}    else:\n        device = <torch>.device("cpu")\n    {gloo}    return device\n'


def _gpus(options: frozenset[str]) -> int:
    """How many GPUs a process drives."""
    return next((int(o.removeprefix("gpus")) for o in options if o.startswith("gpus")), 1)


def _own_gpu(options: frozenset[str]) -> str:
    return (
        "def <own_gpu>(number):\n"
        f'    """The GPU of this number among the {_gpus(options)} that this process drives."""\n'
        f'    return <torch>.device("cuda", int(<os>.environ.get("LOCAL_RANK", 0)) * {_gpus(options)} + number)\n'
    )


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


def _any(options: frozenset[str]) -> str:
    device, argument = _where(options)
    return (
        "def <any_process>(condition):\n"
        '    """Whether a condition holds on any process: all of them go the same way."""\n'
        f"{device}"
        f"    found = <torch>.tensor(int(bool(condition)){argument})\n"
        "    <dist>.all_reduce(found, op=<dist>.ReduceOp.MAX)\n"
        "    return bool(found)\n"
    )


def _where(options: frozenset[str]) -> tuple[str, str]:
    """The line that chooses the device of what is reduced, and the argument that it gives."""
    if options & {"cpu", "either"}:
        return "", ""
    where = '"cuda"' if "accelerator" not in options else "<torch>.accelerator.current_accelerator()"
    return f'    device = "cpu" if <dist>.get_backend() == "gloo" else {where}\n', ", device=device"


def _broadcast(options: frozenset[str]) -> str:
    box = "[value.cpu() if <torch>.is_tensor(value) else value]" if "tensor" in options else "[value]"
    # what comes over the network lies on the CPU
    back = "box[0].to(value.device) if <torch>.is_tensor(value) else box[0]" if "tensor" in options else "box[0]"
    return (
        "def <broadcast_value>(value):\n"
        '    """Rank 0\'s value, on every process."""\n'
        f"    box = {box}\n"
        "    <dist>.broadcast_object_list(box, src=0)\n"
        f"    return {back}\n"
    )


def _rows(options: frozenset[str]) -> str:
    """`rows_of_rank`: with "weight" also what a mean over the rows counts for; "alike": as many rows everywhere."""
    # a leaf of its own: a graph that leads back to the whole tensor would be freed by the first backward
    own = "t.detach()[{}].requires_grad_(t.requires_grad)" if "leaf" in options else "t[{}]"
    padded = own.format("list(<DistributedSampler>(t, shuffle=False))")
    if "alike" in options:
        return (
            "def <rows_of_rank>(*tensors):\n"
            '    """This process\'s rows of each tensor: as many on every process, the first ones again where they do '
            'not divide."""\n'
            f"    return [{padded} for t in tensors]\n"
        )
    mine = own.format("list(range(rank, len(t), world_size))")  # a copy: a strided slice has no view(-1)
    head = "    rank, world_size = <dist>.get_rank(), <dist>.get_world_size()\n"
    if "weight" not in options:
        return (
            "def <rows_of_rank>(*tensors):\n"
            '    """This process\'s rows of each tensor."""\n'
            f"{head}    return [{mine} for t in tensors]\n"
        )
    return (
        "def <rows_of_rank>(*tensors):\n"
        '    """This process\'s rows of each tensor, and the weight that makes a mean over them one over all rows.\n\n'
        "    Of tensors of several lengths every process gets as many rows, the first ones again where they do not "
        'divide.\n    """\n'
        f"{head}"
        "    rows = len(tensors[0])\n"
        "    if rows < world_size or any(len(t) != rows for t in tensors):\n"
        f"        return *({padded} for t in tensors), 1.0\n"
        "    weight = len(range(rank, rows, world_size)) * world_size / rows\n"
        f"    return *({mine} for t in tensors), weight\n"
    )


def _reduce(options: frozenset[str]) -> str:
    device, argument = _where(options)
    if "empty" in options:
        return (
            "def <all_reduce_sum>(*values):\n"
            '    """Sum each number over all processes; a count stays an integer, and a tensor a tensor.\n\n'
            "    A process that had no batch gives the number that it began with, and gets a tensor, too.\n"
            '    """\n'
            f"{device}"
            "    tensors = [<torch>.is_tensor(v) for v in values]\n"
            "    floats = [v.is_floating_point() if t else isinstance(v, float) for v, t in zip(values, tensors)]\n"
            f"    total = <torch>.tensor([*map(float, values), *floats, *tensors], dtype=<torch>.float64{argument})\n"
            "    <dist>.all_reduce(total)\n"
            "    sums, floats, tensors = total.view(3, -1).tolist()\n"
            "    sums = [s if f else int(s) for s, f in zip(sums, floats)]\n"
            "    return [\n"
            "        <torch>.full_like(v, s) if <torch>.is_tensor(v) else <torch>.tensor(s) if t else s\n"
            "        for v, s, t in zip(values, sums, tensors)\n"
            "    ]\n"
        )
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
    "average_buffers": '''
def <average_buffers>(model):
    """Average a model's buffers (BatchNorm statistics, each of a process's own batches) over all processes."""
    for buffer in (b for b in model.buffers() if b.is_floating_point()):
        <dist>.all_reduce(buffer)
        buffer /= <dist>.get_world_size()
''',
    "state_of_rank": '''
def <state_of_rank>(state):
    """This process's part of a recurrent state, or of each in a tuple: dimension 1 has a place for each row."""
    if isinstance(state, (tuple, list)):
        return type(state)(<state_of_rank>(s) for s in state)
    return <rows_of_rank>(state.transpose(0, 1))[0].transpose(0, 1).contiguous()
''',
    "rows_of_all": '''
def <rows_of_all>(tensor):
    """The rows that all processes computed, in the order of the whole tensor (without their gradients)."""
    world_size = <dist>.get_world_size()
    [total] = <all_reduce_sum>(len(tensor))
    rows = <torch>.cat([tensor, tensor[:1]]).detach()[: -(-total // world_size)]  # as many on every process
    parts = [<torch>.empty_like(rows) for _ in range(world_size)]
    <dist>.all_gather(parts, rows.contiguous())
    return <torch>.stack(parts, dim=1).flatten(0, 1)[:total]
''',
    "share_of_rank": '''
def <share_of_rank>(batches):
    """This process's part of the batches: as many on every process, the first ones again where they do not divide."""
    batches = list(batches)
    return [batches[i] for i in <DistributedSampler>(batches, shuffle=False)]
''',
    "share_with_weights": '''
def <share_with_weights>(batches):
    """This process's part of the batches, each with its weight in sums: as many on every process.

    Where they do not divide, the first ones come again, with weight 0.
    """
    batches, world_size = list(batches), <dist>.get_world_size()
    places = range(<dist>.get_rank(), -(-len(batches) // world_size) * world_size, world_size)
    return [(batches[i % len(batches)], int(i < len(batches))) for i in places]
''',
    "per_process": '''
def <per_process>(batch_size):
    """This process's part of a batch that all processes read together."""
    if batch_size % <dist>.get_world_size():
        raise ValueError(f"a batch of {batch_size} cannot be divided among {<dist>.get_world_size()} processes")
    return batch_size // <dist>.get_world_size()
''',
    "average_gradients": '''
def <average_gradients>(*parameters):
    """Average the gradients of parameters that are in no DDP wrapper over all processes."""
    for grad in (p.grad for p in parameters if p.grad is not None):
        <dist>.all_reduce(grad)
        grad /= <dist>.get_world_size()
''',
    "unwrap": """
def <unwrap>(model):
    return model.module if isinstance(model, <DDP>) else model
""",
    **helper_classes.TEXTS,
    **helper_gathers.TEXTS,
}


def _columns(options: frozenset[str]) -> str:
    """`columns_of_rank`; with "rows" of tensors whose batch comes first, too (their states have it second)."""
    parameter, dim, passed, size = ("", "1", "", "value.size(1)")
    what = "dimension 1 of a tensor (time, batch, ...), or of each in a tuple: whole columns"
    if "rows" in options:
        parameter, dim, passed, size = (", dim=1", "dim", ", dim", "value.size(dim)")
        what = "the batch, dimension `dim` of a tensor, or of each in a tuple"
    return f'''
def <columns_of_rank>(value{parameter}):
    """This process's part of {what}."""
    if isinstance(value, (tuple, list)):
        return type(value)(<columns_of_rank>(v{passed}) for v in value)
    world_size = <dist>.get_world_size()
    if {size} % world_size:
        raise ValueError(f"{{{size}}} columns cannot be shared out over {{world_size}} processes")
    return value.chunk(world_size, dim={dim})[<dist>.get_rank()].contiguous()
'''


_SHAPED = {
    "setup_distributed": _setup,
    "own_gpu": _own_gpu,
    "all_reduce_sum": _reduce,
    "any_process": _any,
    "broadcast_value": _broadcast,
    "rows_of_rank": _rows,
    "columns_of_rank": _columns,
    "ShardedSampler": helper_classes.sampler,
    "forward_through": _through,
    "gather_rows": helper_gathers.rows,
    "same_draws": helper_classes.draws,
}


def text_of(name: str, options: frozenset[str]) -> str:
    """A helper in the form that its options ask for."""
    return _SHAPED[name](options) if name in _SHAPED else _TEXTS[name]
