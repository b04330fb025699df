"""A script that asks for CUDA -> the same script on the CPU (only where there are fewer GPUs than ranks)."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from .log import patch

_NAME = "CPU (CUDA is hidden by ddpify verify)"
_SILENT = [
    "synchronize",
    "empty_cache",
    "ipc_collect",
    "init",
    "manual_seed",
    "manual_seed_all",
    "seed",
    "seed_all",
    "set_rng_state",
    "set_rng_state_all",
    "reset_peak_memory_stats",
    "reset_max_memory_allocated",
    "reset_accumulated_memory_stats",
    "set_per_process_memory_fraction",
]
_NOTHING_USED = [
    "memory_allocated",
    "max_memory_allocated",
    "memory_reserved",
    "max_memory_reserved",
    "memory_cached",
    "max_memory_cached",
]
# A TorchFunctionMode would catch them all, but every collective would then hold a reference to it, and gloo's threads
# would need the interpreter's lock to let it go: a process group that goes away in that moment waits for ever.
_FACTORIES = [
    "arange",
    "as_tensor",
    "asarray",
    "bartlett_window",
    "blackman_window",
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "eye",
    "full",
    "full_like",
    "hamming_window",
    "hann_window",
    "kaiser_window",
    "linspace",
    "logspace",
    "ones",
    "ones_like",
    "rand",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
    "randperm",
    "range",
    "scalar_tensor",
    "sparse_compressed_tensor",
    "sparse_coo_tensor",
    "sparse_csr_tensor",
    "tensor",
    "tril_indices",
    "triu_indices",
    "zeros",
    "zeros_like",
]
_NEW = ["new_empty", "new_empty_strided", "new_full", "new_ones", "new_tensor", "new_zeros"]
_KINDS = ["Float", "Double", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool"]


def _is_index(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_cuda(value: object) -> bool:
    """Does this device argument name a GPU?"""
    if isinstance(value, torch.device):
        return bool(value.type == "cuda")
    return isinstance(value, str) and value.partition(":")[0] == "cuda"


# who wants to know of each GPU that is asked for
_requested: list[Callable[[Any], None]] = []


def _tell(value: Any) -> None:
    for note in _requested:
        note(value)


def on_cpu(value: Any) -> Any:
    """The device to use in the place of the one asked for."""
    if not (is_cuda(value) or _is_index(value)):
        return value
    _tell(value)
    return torch.device("cpu")


def _without_cuda(kind: Any) -> Any:
    """`torch.cuda.FloatTensor` is, by name, `torch.FloatTensor` here."""
    return kind.replace("torch.cuda.", "torch.") if isinstance(kind, str) else kind


def _factory(real: Any) -> Any:
    def make(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("pin_memory", None)
        if kwargs.get("device") is not None:
            kwargs["device"] = on_cpu(kwargs["device"])
        return real(*args, **kwargs)

    with contextlib.suppress(AttributeError):  # torch.jit.script knows the functions of torch by their identity
        known = torch.jit._builtins._find_builtin(real)
        if known:
            torch.jit._builtins._register_builtin(make, known)
    return make


class _Event:
    """torch.cuda.Event: nothing to wait for on the CPU."""

    def __init__(self, *_: object, **__: object) -> None:
        self.device = torch.device("cpu")

    def elapsed_time(self, _: object) -> float:
        return 0.0

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def _nothing(self, *_: object, **__: object) -> None:
        return None

    record = wait = synchronize = wait_event = wait_stream = record_event = _nothing


class _Stream(_Event):
    """torch.cuda.Stream, which is a context too."""

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: object) -> None:
        return None


def _set(owner: object, name: str, value: object) -> None:
    setattr(owner, name, value)


def always(value: object) -> Callable[..., Any]:
    """A function of its own that gives the value, whatever it is asked."""
    return lambda *_, **__: value


def _tensors() -> None:
    for owner, names in ((torch, _FACTORIES), (torch.Tensor, _NEW), (torch.fft, ("fftfreq", "rfftfreq"))):
        for name in names:
            patch(owner, name, _factory)
    real_to, real_type = torch.Tensor.to, torch.Tensor.type

    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        if args and not isinstance(args[0], torch.dtype):
            args = (on_cpu(args[0]), *args[1:])
        if "device" in kwargs:
            kwargs["device"] = on_cpu(kwargs["device"])
        return real_to(self, *args, **kwargs)

    def kind(self: Any, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        return real_type(self, _without_cuda(dtype), *args, **kwargs)

    _set(torch.Tensor, "to", to)
    _set(torch.Tensor, "type", kind)
    patch(torch.nn.Module, "to", _module_to)

    def cuda(self: Any, device: Any = None, *_: object, **__: object) -> Any:
        _tell(device)
        return self

    _set(torch.Tensor, "cuda", cuda)
    _set(torch.Tensor, "pin_memory", lambda self, *_, **__: self)
    _set(torch.Tensor, "record_stream", always(None))
    # its forward refuses the CPU; plain BatchNorm trains there
    _set(torch.nn.SyncBatchNorm, "convert_sync_batchnorm", lambda module, *_, **__: module)
    for name in _KINDS:
        _set(torch.cuda, f"{name}Tensor", getattr(torch, f"{name}Tensor"))


def _module_to(real: Any) -> Any:
    def to(module: Any, *args: Any, **kwargs: Any) -> Any:
        if args and not isinstance(args[0], torch.dtype):
            args = (on_cpu(args[0]), *args[1:])
        if "device" in kwargs:
            kwargs["device"] = on_cpu(kwargs["device"])
        return real(module, *args, **kwargs)

    return to


def _cuda_functions(set_device: Callable[[object], None]) -> None:
    current = SimpleNamespace(index=0)

    def bind(device: Any) -> None:
        set_device(device)
        device = torch.device(device) if isinstance(device, str) else device
        current.index = (device.index if isinstance(device, torch.device) else device) or 0

    properties = SimpleNamespace(name=_NAME, total_memory=0, major=0, minor=0, multi_processor_count=0)
    replacements: dict[str, object] = {
        # a function of its own for each name: torch.compile keeps a table of them and refuses doubles
        **{name: always(None) for name in _SILENT},
        **{name: always(0) for name in _NOTHING_USED},
        **{name: always(contextlib.nullcontext()) for name in ("device", "device_of", "stream")},
        "set_device": bind,
        "current_device": lambda: current.index,
        "get_device_name": always(_NAME),
        "get_device_properties": always(properties),
        "get_device_capability": always((0, 0)),
        "mem_get_info": always((0, 0)),
        "is_bf16_supported": always(False),
        "is_current_stream_capturing": always(False),
        "memory_stats": always({}),
        "memory_summary": always(""),
        "get_rng_state": lambda *_, **__: torch.get_rng_state(),
        "get_rng_state_all": always([]),
        "Event": _Event,
        "Stream": _Stream,
        **{name: always(_Stream()) for name in ("current_stream", "default_stream")},
    }
    for name, value in replacements.items():
        _set(torch.cuda, name, value)
    for name in ("range_push", "range_pop", "mark"):
        _set(torch.cuda.nvtx, name, always(None))
    accelerator = getattr(torch, "accelerator", None)  # torch >= 2.6
    for name, value in (("set_device_index", bind), ("set_device_idx", bind), ("synchronize", always(None))):
        if hasattr(accelerator, name):
            _set(accelerator, name, value)


def _defaults_and_files() -> None:
    real_load, real_generator = torch.load, torch.Generator
    real_device, real_type = torch.set_default_device, torch.set_default_tensor_type

    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        # whatever was asked for: what was saved on a GPU has no other place to go
        on_cpu(map_location)
        return real_load(f, "cpu", *args, **kwargs)

    class Kind(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, real_generator)

    class Generator(metaclass=Kind):
        def __new__(cls, device: Any = "cpu") -> Any:
            return real_generator(device=on_cpu(device))

    _set(torch, "load", load)
    _set(torch, "Generator", Generator)
    _set(torch, "set_default_device", lambda device: real_device(on_cpu(device)))
    _set(torch, "set_default_tensor_type", lambda kind: real_type(_without_cuda(kind)))


def use_cpu(set_device: Callable[[object], None], requested: Callable[[Any], None] | None = None) -> None:
    """Map every CUDA request of this process to the CPU; `requested` is told of each."""
    if requested is not None:
        _requested.append(requested)
    with contextlib.suppress(ImportError):  # its table of torch functions must be made of the real ones
        importlib.import_module("torch._dynamo")
    _tensors()
    _cuda_functions(set_device)
    _defaults_and_files()
