"""Facts in, a refusal where a script is not one that ddpify converts: the reason, and what does the job instead."""

from __future__ import annotations

import re
from pathlib import Path

import libcst as cst

from ddpify.errors import DdpifyError, Refused, Seen, Step, Way
from ddpify.facts import Facts
from ddpify.facts.contents import modules
from ddpify.facts.frames import Event, Frame
from ddpify.facts.outside import outside_calls
from ddpify.facts.roles import root
from ddpify.facts.several_gpus import several_gpus
from ddpify.facts.started import starts_ranks
from ddpify.facts.trails import place_of, shown
from ddpify.facts.values import Module
from ddpify.lint import what_distributes
from ddpify.source import Source, dotted, read_source

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
    "mpi4py": "its ranks are those of MPI (mpirun), which is distributed training already",
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
#: what drives the training where another file of the project imports the framework
_DRIVES = re.compile(
    r"ignite\.engine\.\w+(\.\w+)*|(pytorch_lightning|lightning(\.pytorch)?)\.Trainer|accelerate\.Accelerator"
    r"|horovod\.(\w+\.)*init|deepspeed\.initialize|catalyst\.(\w+\.)*\w*Runner|mpi4py\.MPI\.(\w+\.)*allreduce"
)
_ENGINES = re.compile(r"torchnet\.(\w+\.)*\w*Engine")
_APPLIES = ("torch.load", "torch.no_grad")
_SHARDS = ("torch.distributed.fsdp", "torch.distributed._", "torch_xla", "fairscale", "oneflow")
_TRAINERS = re.compile(
    r"^(transformers|trl|setfit|sentence_transformers|peft)\.(\w+\.)*(\w*Trainer|SentenceTransformer)$"
)
_DISTRIBUTES = re.compile(
    r"torch\.distributed\.init_process_group|torch\.nn\.parallel\.(distributed\.)?DistributedDataParallel"
)
#: what nn.DataParallel is made of
_REPLICATES = re.compile(r"torch\.nn\.parallel\.((data_parallel|replicate)\.)?(data_parallel|replicate)")
_PROCESSES = frozenset({"torch.multiprocessing.Process", "multiprocessing.Process", "torch.multiprocessing.spawn"})
_GYMS = frozenset({"gym", "gymnasium", "gym_super_mario_bros", "pettingzoo", "procgen", "dm_control", "unityagents"})


def check_convertible(facts: Facts) -> None:
    """Raise Refused for a script that must not be converted."""
    source = facts.source
    imports = imported_modules(source)
    roots = {m.split(".")[0]: node for m, node in reversed(list(imports.items()))}
    distributed = _distributed(facts, imports)
    if distributed is not None:
        raise _refused(
            *distributed,
            "already distributed ({}, of torch.distributed); "
            f"`ddpify lint {source.path.name}` checks it for pitfalls",
        )
    switched_off = _switched_off(facts)
    if switched_off is not None:
        test, call = switched_off
        raise _refused(
            source,
            call,
            f"already distributed ({{}}) where `{shown(source, test)}` on line {source.line(test)} holds, which is "
            f"off: turn it on, and `ddpify lint {source.path.name}` checks it for pitfalls",
        )
    for module, how in _FRAMEWORKS.items():
        if module in roots:
            raise _refused(source, roots[module], f"{module} drives this training ({{}}); {how}")
    for name, events in facts.identifiers.items():
        if _DRIVES.fullmatch(name):
            module = name.split(".")[0]
            raise _refused(
                events[0].frame.source,
                events[0].node,
                f"{module} drives this training ({{}}); {_FRAMEWORKS[module]}",
            )
    for name, events in facts.identifiers.items():
        if _TRAINERS.match(name):
            raise _refused(
                events[0].frame.source,
                events[0].node,
                f"{name.split('.')[-1]} runs the loop ({{}}); "
                "it is distributed as it stands: `torchrun --nproc-per-node=N` the script",
            )
    if not any(m.split(".")[0] == "torch" for s in facts.project.files() for m in imported_modules(s)):
        other = next((o for o in _OTHER if o in roots), None)
        first = roots[other] if other else next(iter(source.module.body), source.module)
        what = f"{_OTHER[other]}, by {{}}" if other else "no PyTorch in it, which begins with {}"
        raise _refused(source, first, f"{what}; ddpify converts PyTorch training scripts")
    check_trains(facts, roots)
    check_gpus(facts)


def _refused(source: Source, node: cst.CSTNode, sentence: str) -> Refused:
    """A refusal for what stands at a place; `{}` in the sentence is its text."""
    what = shown(source, node)
    return Refused(place_of(source, node), sentence.format(f"`{what}`"), Seen(what))


def check_gpus(facts: Facts) -> None:
    """Refuse a script that drives several GPUs by itself, where their numbers are not those of literals."""
    for e in facts.flow.log.of("external"):
        given = facts.flow.values.get(e.node.args[0].value, ()) if isinstance(e.node, cst.Call) and e.node.args else ()
        inside = e.frame.func is not None and isinstance(e.frame.func.bound, Module)  # of a forward that DDP runs
        trained = any(root(m) in facts.roles.trained for m in modules(given))
        if _REPLICATES.fullmatch(e.name) and trained and not inside:
            raise _refused(
                e.frame.source,
                e.node,
                "{} runs the model on several GPUs from one process, past any wrapper around it: the gradients of the "
                "processes would not be averaged. Call the model itself, one process drives one GPU",
            )
    known = facts.cached("several_gpus", several_gpus)
    if known is None or known.unclear is None:
        return
    source, node, why = known.unclear
    one, two = known.first, known.second
    raise _refused(
        source,
        node,
        f"the script uses more than one GPU by itself (lines {one.source.line(one.node)} and "
        f"{two.source.line(two.node)}), and {{}} {why}: each process needs GPUs of its own, which ddpify counts by "
        'literals ("cuda:0", "cuda:1") only',
    )


def check_trains(facts: Facts, roots: dict[str, cst.CSTNode]) -> None:
    source, roles = facts.source, facts.roles
    if not roles.backwards and not any(m.startswith("torch") for m in roots):
        other = next((o for o in _OTHER if o in roots), None)
        if other:
            raise _refused(source, roots[other], f"{_OTHER[other]}, by {{}}; ddpify converts PyTorch training scripts")
    gym = next((g for g in _GYMS if g in roots), None)
    if gym is not None:
        raise _refused(
            source,
            roots[gym],
            "reinforcement learning ({}): the data come from an environment, "
            "not from a dataset that ranks could share out; run one environment per rank by hand",
        )
    for event in facts.cached("starts_ranks", lambda known: starts_ranks(known.flow)):
        if event.name in _PROCESSES:
            raise _refused(
                event.frame.source,
                event.node,
                "this script starts training processes of its own ({}); torchrun starts them in DDP",
            )
    if roles.backwards and roles.backwards[0].seq >= facts.flow.main_end:
        raise uncalled(max(roles.backwards, key=lambda e: len(next(e.frame.chains(), ()))))
    if not roles.backwards:
        raise no_loop(facts)


def uncalled(backward: Event) -> Refused:
    """`def main(): ...` that nothing calls: the outermost function of the way to the backward."""
    chain = next(backward.frame.chains(), ())
    way = [(e.frame, "calls", e.call) for e in chain if e.frame.func is not None]
    way.append((backward.frame, "has", backward.node))
    func, source = way[0][0].func, way[0][0].source
    assert func is not None  # the code of a module runs when it is imported
    steps = [
        Step(_name(frame), how, shown(frame.source, node), place_of(frame.source, node)) for frame, how, node in way
    ]
    call = f"`{func.name}(...)`" if func.owner is None else f"`{func.name}`"
    return Refused(
        place_of(source, func.node),
        f"`{func.name}` trains, but nothing calls it when the script is run. Call {call} in it, behind "
        '`if __name__ == "__main__":`',
        Way(func.name, tuple(steps)),
    )


def _name(frame: Frame) -> str:
    return frame.func.name if frame.func is not None else "the module"


def no_loop(facts: Facts) -> Refused:
    """No backward is reached: there is one in functions that nothing runs, in a file that is no Python 3, or none."""
    for path, found in facts.project.modules.items():
        said = _why_unread(path) if found is None else ""
        if said:
            place, _, why = said.partition(": ")
            sentence = f"no training loop was found, and this file could not be read: {why}"
            return Refused(place, sentence, Seen(path.name))
    for source in facts.project.files():
        for node in source.nodes:
            match node:
                case cst.Call(func=cst.Attribute(attr=cst.Name(value="backward"))):
                    return _refused(
                        source,
                        node,
                        "no training loop was found: {} stands here, but nothing that the script runs gets to it; give "
                        "the script that trains",
                    )
    engine = next((events[0] for name, events in facts.identifiers.items() if _ENGINES.fullmatch(name)), None)
    if engine is not None:
        return _refused(
            engine.frame.source,
            engine.node,
            "no training loop was found: {}, of a library, runs it, and ddpify edits what stands in the project; write "
            "the loop out",
        )
    event = next((facts.identifiers[n][0] for n in _APPLIES if n in facts.identifiers), None)
    kind = "it only loads and applies a model (inference, {})" if event is not None else "nothing trains in it ({})"
    source = event.frame.source if event is not None else facts.source
    imported = (node for module, node in imported_modules(source).items() if module.split(".")[0] == "torch")
    node = event.node if event is not None else next(imported, source.module.body[0])
    return _refused(
        source,
        node,
        f"no training loop was found (no .backward() is reached): {kind}; give the script that trains",
    )


def _why_unread(path: Path) -> str:
    """What is wrong with a module that the script imports and that trains: where, and what."""
    try:
        if b".backward(" in path.read_bytes():
            read_source(path)
    except (OSError, DdpifyError) as error:
        return str(error)
    return ""


def _distributed(facts: Facts, imports: dict[str, cst.CSTNode]) -> tuple[Source, cst.CSTNode] | None:
    """What makes a script distributed, where it is: the import of torch.distributed, or what joins or wraps."""
    joins = what_distributes(facts)
    # helpers of other files may ask `dist.get_world_size()` when a group is initialised: that alone makes nothing
    # distributed
    own = (
        e
        for e in facts.flow.log.of("external")
        if e.frame.source is facts.source
        and e.name.startswith("torch.distributed.")
        and e.name.rsplit(".", 1)[-1] not in ("is_available", "is_initialized")
    )
    event = joins or next(own, None)
    for module, node in imports.items():
        if "distributed" in module if event is not None else module.startswith(_SHARDS):
            return facts.source, node
    return (event.frame.source, event.node) if event is not None else None


def _switched_off(facts: Facts) -> tuple[cst.CSTNode, cst.CSTNode] | None:
    """`if distributed: model = DDP(model)` of a constant that is false: the test, and what would wrap or join."""
    source, values = facts.source, facts.flow.values
    for call in facts.cached("outside", outside_calls):
        if call.source is source and not call.events and _DISTRIBUTES.fullmatch(call.name):
            for above in source.ancestors(call.node):
                if isinstance(above, (cst.FunctionDef, cst.ClassDef)):
                    break
                if isinstance(above, cst.If) and above.test in values:
                    return above.test, call.node
    return None


def imported_modules(source: Source) -> dict[str, cst.CSTNode]:
    """Every module that a file imports, anywhere in it, with the statement."""
    found: dict[str, cst.CSTNode] = {}
    for node in source.nodes:
        if isinstance(node, cst.Import):
            for alias in node.names:
                found.setdefault(dotted(alias.name), node)
        elif isinstance(node, cst.ImportFrom) and node.module is not None and not node.relative:
            found.setdefault(dotted(node.module), node)
            if not isinstance(node.names, cst.ImportStar):
                for alias in node.names:
                    found.setdefault(f"{dotted(node.module)}.{dotted(alias.name)}", node)
    return found
