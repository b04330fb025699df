"""Facts in, a refusal where a script is not one that ddpify converts: the reason, and what does the job instead."""

from __future__ import annotations

import re

import libcst as cst

from ddpify.errors import Refused
from ddpify.facts import Facts
from ddpify.lint import is_distributed
from ddpify.source import Source, dotted, walk

#: module -> what that framework calls distributed training
_FRAMEWORKS = {
    "pytorch_lightning": 'Lightning does it: Trainer(accelerator="gpu", devices=N, strategy="ddp")',
    "lightning": 'Lightning does it: Trainer(accelerator="gpu", devices=N, strategy="ddp") or Fabric(strategy="ddp")',
    "lightning_fabric": 'Fabric does it: Fabric(devices=N, strategy="ddp")',
    "accelerate": "Accelerate does it: `accelerate launch --multi_gpu --num_processes=N` the script",
    "deepspeed": "DeepSpeed does it: `deepspeed --num_gpus=N` the script",
    "ignite": 'Ignite does it: ignite.distributed.Parallel(backend="nccl")',
    "catalyst": "Catalyst's runner does it: its DistributedDataParallelEngine",
    "fastai": "fastai does it: `with learn.distrib_ctx():` and `accelerate launch`",
    "keras": "Keras does it: keras.distribution.DataParallel(), or torchrun with the torch backend",
    "composer": "Composer does it: `composer -n N` the script",
    "mmengine": "MMEngine does it: Runner(launcher='pytorch')",
    "mmcv": "MMCV does it: its dist_train.sh (launcher='pytorch')",
    "detectron2": "Detectron2 does it: detectron2.engine.launch(main, num_gpus_per_machine=N)",
    "horovod": "the script uses Horovod, which is distributed training already",
    "ray": "Ray Train does it: TorchTrainer with ScalingConfig(num_workers=N, use_gpu=True)",
    "skorch": "skorch drives the loop; its nets take Accelerate (AccelerateMixin)",
    "poutyne": "Poutyne drives the loop; it takes Accelerate or DataParallel",
    "stable_baselines3": "a reinforcement learning library drives the loop; its workers are vectorised environments",
}
_OTHER = {
    "tensorflow": "a TensorFlow script (tf.distribute.MirroredStrategy does it there)",
    "jax": "a JAX script (jax.sharding does it there)",
    "paddle": "a Paddle script (paddle.distributed does it there)",
    "mxnet": "an MXNet script",
}
_TRAINERS = re.compile(
    r"^(transformers|trl|setfit|sentence_transformers|peft)\.(\w+\.)*(\w*Trainer|SentenceTransformer)$"
)
_GYMS = frozenset({"gym", "gymnasium", "gym_super_mario_bros", "pettingzoo", "procgen", "dm_control", "unityagents"})


def check_convertible(facts: Facts) -> None:
    """Raise Refused for a script that must not be converted."""
    source = facts.source
    imports = imported_modules(source)
    roots = {m.split(".")[0]: line for m, line in reversed(list(imports.items()))}
    if is_distributed(facts) or _uses_distributed(facts, imports):
        line = next((ln for m, ln in imports.items() if "distributed" in m), 1)
        raise Refused(
            f"{source.path}:{line}: already distributed (it uses torch.distributed); "
            f"`ddpify lint {source.path.name}` checks it for pitfalls"
        )
    for module, how in _FRAMEWORKS.items():
        if module in roots:
            raise Refused(f"{source.path}:{roots[module]}: {module} drives this training; {how}")
    for name, events in facts.identifiers.items():
        if _TRAINERS.match(name):
            raise Refused(
                f"{source.path}:{events[0].frame.source.line(events[0].node)}: {name.split('.')[-1]} runs the loop; "
                "it is distributed as it stands: `torchrun --nproc-per-node=N` the script"
            )
    if not any(m.split(".")[0] == "torch" for s in facts.project.files() for m in imported_modules(s)):
        other = next((o for o in _OTHER if o in roots), None)
        raise Refused(
            f"{source.path}: {_OTHER[other] if other else 'no PyTorch in it'}; ddpify converts PyTorch training scripts"
        )
    check_trains(facts, roots)
    check_one_gpu(facts)


def check_one_gpu(facts: Facts) -> None:
    """Refuse a model whose parts are put on GPUs of their own: a process would need as many for itself."""
    for source in facts.project.files():
        found: dict[str, int] = {}
        for node in walk(source.module):
            if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
                number = _gpu_number(node)
                if number is not None:
                    found.setdefault(number, source.line(node))
        if len(found) > 1:
            first, second, *_ = found
            raise Refused(
                f"{source.path}:{found[second]}: the script uses more than one GPU by itself (GPU {first} on line "
                f"{found[first]}, GPU {second} here): model parallelism, which needs several GPUs per process; put it "
                "on one device, or wrap it by hand with DDP(model) and no device_ids"
            )


def _gpu_number(call: cst.Call) -> str | None:
    """`0` of `x.to("cuda:0")`, `x.cuda(0)`."""
    method = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
    given = call.args[0].value if call.args else None
    if method == "cuda" and isinstance(given, cst.Integer):
        return given.value
    if method in ("to", "cuda") and isinstance(given, cst.SimpleString):
        match = re.fullmatch(r"cuda:(\d+)", str(given.evaluated_value))
        return match[1] if match else None
    return None


def check_trains(facts: Facts, roots: dict[str, int]) -> None:
    source, roles = facts.source, facts.roles
    if not roles.backwards and not any(m.startswith("torch") for m in roots):
        other = next((o for o in _OTHER if o in roots), None)
        if other:
            raise Refused(f"{source.path}:{roots[other]}: {_OTHER[other]}; ddpify converts PyTorch training scripts")
    gym = next((g for g in _GYMS if g in roots), None)
    if gym is not None:
        raise Refused(
            f"{source.path}:{roots[gym]}: reinforcement learning ({gym}): the data come from an environment, "
            "not from a dataset that ranks could share out; run one environment per rank by hand"
        )
    for name in ("torch.multiprocessing.Process", "multiprocessing.Process", "torch.multiprocessing.spawn"):
        if name in facts.identifiers:
            line = facts.identifiers[name][0].frame.source.line(facts.identifiers[name][0].node)
            raise Refused(
                f"{source.path}:{line}: this script starts training processes of its own ({name}); "
                "torchrun starts them in DDP"
            )
    if roles.backwards and roles.backwards[0].seq >= facts.flow.main_end:
        event = roles.backwards[0]
        name = event.frame.func.name if event.frame.func is not None else "the training code"
        raise Refused(
            f"{event.frame.source.path}:{event.frame.source.line(event.node)}: "
            f"`{name}` trains, but nothing calls it when the script is run"
        )
    if not roles.backwards:
        kind = (
            "it only loads and applies a model (inference)"
            if any(n in facts.identifiers for n in ("torch.load", "torch.no_grad"))
            else "nothing trains in it"
        )
        raise Refused(
            f"{source.path}: no training loop was found (no .backward() is reached): {kind}; "
            "give the script that trains"
        )


def _uses_distributed(facts: Facts, imports: dict[str, int]) -> bool:
    # helpers of other files may ask `dist.get_world_size()` when a group is initialised: that alone makes nothing
    # distributed
    own = {e.name for e in facts.flow.log.of("external") if e.frame.source is facts.source}
    if any(
        n.startswith("torch.distributed.") and n.rsplit(".", 1)[-1] not in ("is_available", "is_initialized")
        for n in own
    ):
        return True
    return any(
        m.startswith(("torch.distributed.fsdp", "torch.distributed._", "torch_xla", "fairscale", "oneflow"))
        for m in imports
    )


def imported_modules(source: Source) -> dict[str, int]:
    """Every module that a file imports, anywhere in it, with the line."""
    found: dict[str, int] = {}
    for node in walk(source.module):
        if isinstance(node, cst.Import):
            for alias in node.names:
                found.setdefault(dotted(alias.name), source.line(node))
        elif isinstance(node, cst.ImportFrom) and node.module is not None and not node.relative:
            found.setdefault(dotted(node.module), source.line(node))
            if not isinstance(node.names, cst.ImportStar):
                for alias in node.names:
                    found.setdefault(f"{dotted(node.module)}.{dotted(alias.name)}", source.line(node))
    return found
