"""Qualified names outside the project, and what calling them gives: adding a library is adding rows."""

from __future__ import annotations

import functools
import re

#: name or pattern -> role; the first that matches counts
_ROWS: tuple[tuple[str, str], ...] = (
    (r"torch\.nn\.parallel(\.distributed)?\.DistributedDataParallel|apex\.parallel\.DistributedDataParallel", "ddp"),
    (r"torch\.nn(\.parallel(\.data_parallel)?)?\.DataParallel", "dataparallel"),
    (r"torch\.nn\.SyncBatchNorm\.convert_sync_batchnorm", "same-module"),
    (r"torch\.nn\.utils\.(parametrizations\.)?(remove_)?weight_norm", "same-module"),
    (r"torch\.nn\.(parameter\.)?Parameter", "parameter"),
    (r"torch\.nn\.(modules\.\w+\.)?(\w*Loss|PairwiseDistance|CosineSimilarity)", "loss-module"),
    (
        r"torch\.nn\.(modules\.\w+\.)?(Identity|Flatten|Unflatten|ReLU6?|LeakyReLU|ELU|GELU|SELU|CELU|SiLU|Mish|Tanh|Sigmoid|LogSigmoid|"
        r"Softplus|Softmax(2d)?|LogSoftmax|Hardtanh|Hardswish|Dropout[123]?d?|AlphaDropout|\w*Pool[123]d|\w*Pad[123]d|Upsample|"
        r"PixelShuffle|Fold|Unfold|ChannelShuffle|Threshold|GLU)",
        "plain-module",
    ),
    (r"torch\.nn\.(modules\.\w+\.)?[A-Z]\w*", "module"),
    (
        r"torch\.nn\.functional\.\w*loss|torch\.nn\.functional\.(cross_entropy|binary_cross_entropy\w*|kl_div)|torch\.(nll|mse)_loss",
        "loss",
    ),
    (
        r"torchvision\.models\.(\w+\.)*(resnet|vgg|densenet|mobilenet|efficientnet|inception|googlenet|alexnet|squeezenet|shufflenet|"
        r"mnasnet|regnet|convnext|vit|swin|maxvit|wide_resnet|resnext|fasterrcnn|maskrcnn|fcn|deeplab|lraspp|retinanet|ssd)\w*",
        "module",
    ),
    (r"torchvision\.models\.(\w+\.)*[A-Z]\w*_Weights.*", "other"),
    (r"torchvision\.models\.(\w+\.)*(get_model|[A-Z]\w*|__dict__\[\])", "module"),
    (
        r"timm\.(models\.)?create_model|torch\.hub\.load|open_clip\.\w+|segmentation_models_pytorch\.\w+|"
        r"efficientnet_pytorch\.EfficientNet\.\w+|transformers\.(\w+\.)*\w*(Model|For[A-Z]\w+)\w*\.from_pretrained|"
        r"transformers\.(\w+\.)*(\w+ForSequenceClassification|\w+Model|\w+LMHeadModel)|torch\.compile",
        "module",
    ),
    (
        r"torch\.optim\.swa_utils\.AveragedModel|torch\.jit\.(script|trace)|timm\.utils\.(\w+\.)?ModelEma\w*|ema_pytorch\.\w*EMA",
        "copy-module",
    ),
    (
        r"torch\.optim\.lr_scheduler\.\w+|transformers\.(\w+\.)*get_\w*schedule\w*|torch\.optim\.swa_utils\.SWALR",
        "scheduler",
    ),
    (
        r"torch\.optim\.(\w+\.)?[A-Z]\w*|transformers\.(\w+\.)*AdamW|bitsandbytes\.optim\.\w+|torch_optimizer\.\w+|adabound\.\w+|apex\.optimizers\.\w+",
        "optimizer",
    ),
    (r"torch\.utils\.data(\.dataloader)?\.DataLoader|torch_geometric\.(loader|data)\.(\w+\.)?DataLoader", "loader"),
    (r"torch\.utils\.data(\.dataset)?\.random_split", "random-split"),
    (r"torch\.utils\.data(\.distributed|\.sampler)?\.\w*Sampler", "sampler"),
    (r"(torchvision|torchtext|torchaudio)\.datasets\.(\w+\.)*[A-Z]\w*", "dataset"),
    (
        r"torch\.utils\.data(\.dataset)?\.(Subset|ConcatDataset|TensorDataset|ChainDataset)|datasets\.(load_dataset|load_from_disk)",
        "dataset",
    ),
    (r"torch\.device", "device"),
    (r"torch\.accelerator\.current_accelerator", "accelerator-device"),
    (r"torch\.(autograd\.)?(grad_mode\.)?(no_grad|inference_mode)|torch\.autograd\.no_grad", "grad-off"),
    (r"torch\.(autograd\.)?(grad_mode\.)?enable_grad", "grad-on"),
    (r"torch\.(autograd\.)?(grad_mode\.)?set_grad_enabled", "grad-set"),
    (
        r"tqdm(\.\w+)*\.(tqdm|tqdm_notebook)|tqdm\.(autonotebook\.)?tqdm|rich\.progress\.track|fastprogress\.\w+|alive_progress\.\w+",
        "progress",
    ),
    (r"tqdm(\.\w+)*\.(trange|tnrange)", "progress-range"),
    (r"torch\.load", "load"),
    (r"torch\.save", "save"),
    (r"copy\.(deepcopy|copy)", "copy"),
    (
        r"(torch\.utils\.tensorboard(\.writer)?|tensorboardX|tensorboard)\.SummaryWriter|tensorboard_logger\.\w+|"
        r"visdom\.Visdom|tensorflow(\.compat\.v\d)?\.summary\.(FileWriter|create_file_writer)",
        "writer",
    ),
    (r"argparse\.ArgumentParser|configargparse\.\w+", "parser"),
    (r"typer\.(main\.)?Typer|click\.Group|cyclopts\.App", "commands"),
    (r"(asyncclick|click|rich_click)\.(command|group)|hydra\.main", "command"),
    (r"typer\.(Option|Argument)", "option"),
    (r"argparse\.Namespace|types\.SimpleNamespace|easydict\.EasyDict|omegaconf\.\w+(\.\w+)*|addict\.Dict", "namespace"),
    (r"functools\.partial", "partial"),
    (r"collections\.namedtuple", "named-tuple"),
    (r"torch\.(cuda\.)?amp\.(grad_scaler\.)?GradScaler", "scaler"),
    (
        r"torch\.manual_seed|torch\.random\.manual_seed|torch\.cuda\.manual_seed(_all)?|numpy\.random\.seed|random\.seed|"
        r"torch\.seed|transformers\.set_seed",
        "seed",
    ),
    (
        r"time\.\w+|datetime\.(\w+\.)*(now|today|utcnow)|uuid\.\w+|tempfile\.(?!gettemp)\w+|hydra\.core\.hydra_config\.HydraConfig\.get|os\.getpid|socket\.\w+|secrets\.\w+",
        "world",
    ),
    (
        r"random\.(?!getstate)\w+|numpy\.random\.(?!get_state)\w+|torch\.(randn?|randint|randperm|normal|bernoulli|multinomial|randn_like|rand_like)"
        r"|sklearn\.utils\.(\w+\.)?(shuffle|resample)",
        "random",
    ),
    (r"sklearn\.model_selection\.train_test_split", "split"),
    (r"sklearn\.metrics\.\w+|math\.(log\w*|exp\w*|sqrt|pow)", "metric"),
    (r"torch\.autograd\.Variable|torch\.(from_numpy|tensor|as_tensor)|torch\.autograd\.variable\.Variable", "same"),
    (r"torch\.cuda\.is_available|torch\.accelerator\.is_available|torch\.backends\.mps\.is_available", "available"),
    (r"torch\.(sum|count_nonzero)|numpy\.sum", "sum"),
    (r"torch\.mean|numpy\.mean", "mean"),
    (r"builtins\.(float|int|round|abs|bool)|numpy\.(array|asarray|float32|float64)", "number"),
)
_COMPILED = tuple((re.compile(pattern), role) for pattern, role in _ROWS)

#: Calls that end the process.
LEAVES = frozenset({"sys.exit", "builtins.exit", "builtins.quit", "os._exit", "builtins.SystemExit"})

#: Another package's names for the same thing.
_ALIASES = (
    (re.compile(r"^np\."), "numpy."),
    (re.compile(r"^torch\.nn\.modules\.(module\.)?Module$"), "torch.nn.Module"),
)

#: Bases that make a class an nn.Module.
_MODULE_BASE = re.compile(
    r"torch\.nn\.(modules\.(\w+\.)?)?[A-Z]\w*|torchvision\.models\.(\w+\.)*[A-Z]\w*|timm\.\w+(\.\w+)*|"
    r"transformers\.(\w+\.)*\w*(Model|PreTrained\w*|For[A-Z]\w+)|torch\.jit\.ScriptModule"
)
_ITERABLE = re.compile(r"torch\.utils\.data(\.dataset)?\.(IterableDataset|ChainDataset|IterDataPipe)")


#: what makes a logger, whatever name it is given
LOGGER = re.compile(r".*\b(getLogger|get_logger|get_absl_logger)")


@functools.cache
def role_of(name: str) -> str:
    """The role of a qualified name, or "" where the table has none."""
    for pattern, other in _ALIASES:
        name = pattern.sub(other, name)
    for compiled, role in _COMPILED:
        if compiled.fullmatch(name):
            return role
    return ""


def keeps(name: str) -> bool:
    """Whether a call keeps the objects that it is given, unread: `SimpleNamespace(model=model)`."""
    return role_of(name) in ("namespace", "partial", "named-tuple") or name in ("builtins.dict", "builtins.setattr")


def makes_module(bases: set[str]) -> bool:
    """Whether a class with these bases outside the project is an nn.Module."""
    return any(_MODULE_BASE.fullmatch(b) for b in bases)


def is_iterable_dataset(bases: set[str]) -> bool:
    return any(_ITERABLE.fullmatch(b) for b in bases)
