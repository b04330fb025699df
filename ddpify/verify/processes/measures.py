"""Losses, gradients, learning rates, parameters and printed lines of a run -> numbers that another run is held against.

Of each tensor two numbers are kept: its length, and its product with a fixed vector. Tensors that differ, differ in
them, and a tensor that is c times another has c times both.
"""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook

from .log import Log, outermost, patch

_STEPS = 200  # whose gradients are written down, where the model is small
_SMALL = 2_000_000  # parameters
_LINES = 20_000
_ROUNDING, _COARSE = 1e-12, 1e-6  # of the largest gradient: float64, float32


def sketch(tensor: Any, index: int) -> list[float] | None:
    """Length of a tensor, and its product with a vector that hangs on its place and size only."""
    if tensor is None:
        return None
    dense = tensor.detach()
    dense = (dense.to_dense() if dense.layout != torch.strided else dense).reshape(-1)
    dense = torch.view_as_real(dense).reshape(-1) if dense.is_complex() else dense
    dense = dense.to("cpu", torch.float64)
    along = (torch.arange(dense.numel(), dtype=torch.float64) * 0.7548776662 + 0.5 + index).cos_()
    return [float(dense.norm()), float(dense @ along)]


def names_of(parameters: Sequence[Any]) -> list[str]:
    """What the script's modules call these parameters."""
    modules = [thing for thing in gc.get_objects() if issubclass(type(thing), torch.nn.Module)]
    modules = [m for m in modules if not isinstance(m, DistributedDataParallel) and "_parameters" in vars(m)]
    inner = {id(child) for module in modules for child in module.children()}
    found: dict[int, str] = {}
    for module in modules:
        if id(module) not in inner:
            for name, parameter in module.named_parameters():
                found.setdefault(id(parameter), f"{type(module).__name__}.{name}")
    return [found.get(id(p), f"parameter {i}") for i, p in enumerate(parameters)]


class Measures:
    """What one process computes."""

    def __init__(self, log: Log, scale: float, fed: Callable[[], bool], place: Callable[[], str]) -> None:
        self._log, self._fed, self._place, self._scale = log, fed, place, scale
        self._optimizers: dict[Any, int] = {}  # held: a script that ends in a function leaves none behind
        self._made: dict[int, int] = {}
        self._largest: dict[int, list[Any]] = {}  # of each element of an optimizer's parameters, the largest gradient
        self._schedules: dict[Any, str | None] = {}
        self._steps = self._losses = self._lines = 0
        self._logging = False
        self._part = {"stdout": ""}

    def watch(self) -> None:
        """Patch torch and logging, and listen to standard output."""
        patch(torch.autograd, "backward", outermost(self._backward))
        patch(torch.optim.lr_scheduler.LRScheduler, "__init__", self._schedule)
        register_optimizer_step_pre_hook(self._before_step)
        patch(logging.Logger, "callHandlers", self._call_handlers)
        stream = sys.stdout
        setattr(stream, "write", self._write(stream.write))  # noqa: B010  (for mypy)

    def _schedule(self, real: Any) -> Any:
        def __init__(schedule: Any, *args: Any, **kwargs: Any) -> None:
            self._schedules[schedule] = self._log.where()
            real(schedule, *args, **kwargs)

        return __init__

    def _backward(self, real: Any) -> Any:
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
            first = tensors if torch.is_tensor(tensors) else next(iter(tensors), None)
            value = None
            if first is not None and torch.is_tensor(first) and first.numel() == 1:
                value = float(first.detach()) * self._scale
            self._losses += 1
            self._log.note("loss", number=self._losses, step=self._steps + 1, value=value, at=self._log.where())
            if self._scale != 1.0 and torch.is_tensor(tensors):
                tensors = tensors * self._scale
            real(tensors, *args, **kwargs)

        return backward

    @staticmethod
    def _parameters(optimizer: Any) -> list[Any]:
        return [p for group in optimizer.param_groups for p in group["params"]]

    def _before_step(self, optimizer: Any, args: object, kwargs: object) -> None:
        self._steps += 1
        parameters = self._parameters(optimizer)
        known = optimizer in self._optimizers
        number = self._optimizers.setdefault(optimizer, len(self._optimizers))
        if not known:
            self._sketches("initial", number, parameters, names=names_of(parameters))
        self._gradients(number, parameters)
        made = self._made[number] = self._made.get(number, 0) + 1
        rates = [float(group["lr"]) if "lr" in group else None for group in optimizer.param_groups]
        self._log.note(
            "rates", number=self._steps, optimizer=number, rates=rates, fed=self._fed(), at=self._log.where()
        )
        small = sum(p.numel() for p in parameters) <= _SMALL
        if made <= (_STEPS if small else 2):
            self._sketches("gradients", number, [p.grad for p in parameters], step=self._steps)

    def _gradients(self, number: int, parameters: Sequence[Any]) -> None:
        """How large the gradient of each element ever was."""
        largest = self._largest.setdefault(number, [])
        for parameter in parameters[len(largest) :]:
            largest.append(torch.zeros_like(parameter.detach()))
        for most, parameter in zip(largest, parameters, strict=False):
            if parameter.grad is not None and most.shape == parameter.shape:
                grad = parameter.grad.detach()
                found = (grad.to_dense() if grad.layout != torch.strided else grad).abs()
                most.copy_(torch.maximum(most, found.nan_to_num(torch.inf).to(most.dtype)))

    def _settled(self, number: int, parameters: Sequence[Any]) -> list[Any]:
        """The parameters without the elements whose gradients are rounding.

        Keys of attention have no use for a bias: its gradient is 0 but for rounding, and Adam with a weight decay makes
        a number of any size out of that.
        """
        largest = self._largest.get(number, [])
        tops = [float(most.max()) for most in largest if most.numel()]
        bound = (_ROUNDING if torch.get_default_dtype() == torch.float64 else _COARSE) * max(tops, default=0.0)
        kept = list[Any]()
        for parameter, most in zip(parameters, largest, strict=False):
            moved = most > bound
            kept.append(parameter.detach() * moved if moved.shape == parameter.shape else parameter)
        return kept

    def _sketches(self, kind: str, number: int, tensors: Sequence[Any], **more: object) -> None:
        listed = [sketch(tensor, i) for i, tensor in enumerate(tensors)]
        self._log.note(kind, optimizer=number, sketches=listed, **more)

    def _line(self, text: str) -> None:
        if text.strip() and "\r" not in text and self._lines < _LINES:
            self._lines += 1
            self._log.note("line", text=text.rstrip()[:1000], place=self._place(), number=self._steps)

    def _write(self, real: Any) -> Any:
        def write(text: str) -> Any:
            if not self._logging:
                *lines, self._part["stdout"] = (self._part["stdout"] + text).split("\n")
                for line in lines:
                    self._line(line)
            return real(text)

        return write

    def _call_handlers(self, real: Any) -> Any:
        def callHandlers(logger: Any, record: Any) -> None:
            self._logging = True
            try:
                if not self._of_torch(record.name):
                    self._line(record.getMessage())
                real(logger, record)
            finally:
                self._logging = False

        return callHandlers

    @staticmethod
    def _of_torch(name: str) -> bool:
        return name.partition(".")[0] in ("torch", "matplotlib", "PIL", "asyncio")

    def finish(self) -> None:
        """The parameters as they are in the end, and how far each schedule came."""
        for schedule, place in self._schedules.items():
            lengths = [getattr(schedule, name, None) for name in ("total_steps", "T_max", "total_iters")]
            length = next((int(n) for n in lengths if isinstance(n, (int, float))), None)
            self._log.note("schedule", name=type(schedule).__name__, done=schedule.last_epoch, length=length, at=place)
        for optimizer, number in self._optimizers.items():
            parameters = self._parameters(optimizer)
            settled = [sketch(tensor, i) for i, tensor in enumerate(self._settled(number, parameters))]
            self._sketches("parameters", number, parameters, settled=settled)
