"""Process group, wrapper, backward and optimizer -> events with exact checksums of the parameters."""

from __future__ import annotations

import ctypes
import datetime
import hashlib
import inspect
import os
import sys
import time
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook

from .log import Log, is_user_file, outermost, patch

_LET_GO = 0.03  # seconds


class StepLimit(BaseException):
    """--max-steps is reached. No `except Exception` of the script may swallow it."""


def checksum(tensors: Iterable[Any]) -> str:
    """Hash of the exact bytes: ranks in step are bit-equal. Of hashlib's, sha1 takes the least time for long ones."""
    total = hashlib.sha1(usedforsecurity=False)
    for tensor in tensors:
        dense = tensor.detach()
        dense = (dense.to_dense() if dense.layout != torch.strided else dense).cpu().contiguous()
        size = dense.numel() * dense.element_size()
        if size:
            total.update((ctypes.c_char * size).from_address(dense.data_ptr()))
    return total.hexdigest()[:16]


def device_index(value: Any) -> int | None:
    """The GPU that a request names; None is the current one."""
    device = torch.device(value) if isinstance(value, str) else value
    index: int | None = device.index if isinstance(device, torch.device) else device
    return index


class Training:
    """What is wrapped and which steps were made in this process."""

    def __init__(
        self, log: Log, *, cpu: bool, timeout: float, max_steps: int | None, on_step: Callable[[], None] | None
    ) -> None:
        self._log, self._cpu, self._timeout, self._max_steps = log, cpu, timeout, max_steps
        self._on_step = on_step  # None: steps are counted, nothing more
        self._optimizers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._wrapped: list[weakref.ref[Any]] = []
        self.steps = self.backwards = 0
        self.loss: float | None = None

    @property
    def wrapped(self) -> list[Any]:
        """The wrappers that are still alive, in the order in which they were made."""
        return [wrapper for ref in self._wrapped if (wrapper := ref()) is not None]

    def set_device(self, device: object) -> None:
        """Note that the script chose a GPU for this process."""
        index, initialized = device_index(device), dist.is_initialized()
        self._log.note("set_device", index=index, after_init=initialized, at=self._log.where())

    def watch(self) -> None:
        """Patch torch; called before the script starts."""
        if dist.is_available():
            for owner in (dist, distributed_c10d):
                patch(owner, "init_process_group", self._init)
                patch(owner, "destroy_process_group", self._destroy)
                if self._cpu:
                    patch(owner, "new_group", self._new_group)
            patch(DistributedDataParallel, "__init__", self._wrap)
            patch(DistributedDataParallel, "__setattr__", self._set_attribute)
        if not self._cpu:
            patch(torch.cuda, "set_device", self._set_device)
        patch(torch.autograd, "backward", outermost(self._backward))
        register_optimizer_step_post_hook(self._step)

    def _arguments(self, real: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """All arguments by name; those that only CUDA understands made fit for gloo."""
        given = inspect.signature(real).bind(*args, **kwargs).arguments
        if self._cpu:
            for name in ("device_id", "pg_options"):
                given.pop(name, None)
            if "nccl" in str(given.get("backend") or "").lower():
                given["backend"] = "gloo"
        return given

    def _init(self, real: Any) -> Any:
        def init_process_group(*args: Any, **kwargs: Any) -> None:
            given = inspect.signature(real).bind(*args, **kwargs).arguments
            names = {"backend": given.get("backend"), "device": device_index(given.get("device_id"))}
            self._log.note("init", **names, at=self._log.where())
            given = self._arguments(real, args, kwargs)
            limit = datetime.timedelta(seconds=self._timeout)
            given["timeout"] = min(given.get("timeout") or limit, limit)
            real(**given)

        return init_process_group

    def _new_group(self, real: Any) -> Any:
        return lambda *args, **kwargs: real(**self._arguments(real, args, kwargs))

    def _destroy(self, real: Any) -> Any:
        def destroy_process_group(group: Any = None) -> None:
            self._log.note("destroy", at=self._log.where())
            # gloo's threads need the interpreter's lock to let go of their last work; torch holds it while it waits
            # for them (seen in 2.13), and a run as short as a verified one meets that moment
            time.sleep(_LET_GO)
            real(group)

        return destroy_process_group

    def _set_device(self, real: Any) -> Any:
        def set_device(device: Any) -> None:
            self.set_device(device)
            real(device)

        return set_device

    def _wrap(self, real: Any) -> Any:
        def __init__(wrapper: Any, module: Any, *args: Any, **kwargs: Any) -> None:
            given = inspect.signature(real).bind(wrapper, module, *args, **kwargs).arguments
            ids = given.get("device_ids")
            numbers = [device_index(i) for i in ids] if ids else None
            size = sum(p.numel() for p in module.parameters())
            where = self._log.where()
            self._log.note("wrap", module=type(module).__name__, parameters=size, device_ids=numbers, at=where)
            if self._cpu:
                given = {k: v for k, v in given.items() if k not in ("device_ids", "output_device")}
            real(**given)
            self._wrapped.append(weakref.ref(wrapper))

        return __init__

    def _set_attribute(self, real: Any) -> Any:
        def __setattr__(wrapper: Any, name: str, value: Any) -> None:
            inner = wrapper.__dict__.get("_modules", {}).get("module")
            if inner is not None and is_user_file(sys._getframe(1).f_code.co_filename) and hasattr(inner, name):
                self._log.note("attribute", name=name, model=type(inner).__name__, at=self._log.where())
            real(wrapper, name, value)

        return __setattr__

    def _backward(self, real: Any) -> Any:
        def backward(*args: Any, **kwargs: Any) -> None:
            self.backwards += 1  # begun, not ended: a rank that is alone in its backward waits there
            given: Any = args[0] if args else kwargs.get("tensors")
            if self._cpu and torch.is_tensor(given) and given.numel() == 1:  # a GPU would have to wait for it
                self.loss = float(given.detach())
            real(*args, **kwargs)

        return backward

    def _parameters(self, optimizer: Any) -> list[Any]:
        return [p for group in optimizer.param_groups for p in group["params"]]

    def _step(self, optimizer: Any, args: object, kwargs: object) -> None:
        if os.getpid() != self._log.owner:
            return
        self.steps += 1
        if self._on_step is not None:
            self._on_step()
            self._tell(optimizer)
        if self._max_steps is not None and self.steps >= self._max_steps:
            raise StepLimit

    def _tell(self, optimizer: Any) -> None:
        number = self._optimizers.setdefault(optimizer, len(self._optimizers))
        seconds = round(time.time() - self._log.begun, 3)
        fields: dict[str, object] = {"number": self.steps, "optimizer": number, "backwards": self.backwards}
        if self.steps <= 12 or self.steps % 10 == 0:  # hashing every step would slow a large model down
            parameters = self._parameters(optimizer)
            inside = {id(p) for wrapper in self.wrapped for p in wrapper.parameters()}
            outside = sum(p.numel() for p in parameters if p.grad is not None and id(p) not in inside)
            fields |= {"parameters": sum(p.numel() for p in parameters), "outside": outside}
            fields["checksum"] = checksum(parameters)
        if self.loss is not None:
            fields["loss"] = self.loss
        fields["rates"] = [float(group.get("lr", 0.0)) for group in optimizer.param_groups]
        self._log.note("step", **fields, seconds=seconds, at=self._log.where())

    def finish(self) -> None:
        """The parameters as they are in the end, also those that changed after the last step."""
        ordered = sorted(self._optimizers.items(), key=lambda item: item[1])
        sums = {f"optimizer {number}": checksum(self._parameters(optimizer)) for optimizer, number in ordered}
        sums |= {f"wrapped model {i}": checksum(wrapper.parameters()) for i, wrapper in enumerate(self.wrapped)}
        self._log.note("final", sums=sums, steps=self.steps, backwards=self.backwards)
