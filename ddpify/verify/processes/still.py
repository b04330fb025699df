"""Dropout, BatchNorm's statistics, mixed precision and float32 -> nothing that makes one process differ from several.

What hangs on the batch as a whole (BatchNorm) or is drawn for each process (dropout) is held still in both runs alike.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from .log import patch

_DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")


def no_dropout() -> None:
    """Every dropout lets everything through."""

    def through(real: Any) -> Any:
        return lambda input, *args, **kwargs: input

    for name in _DROPOUTS:
        patch(functional, name, through)
    for name in ("dropout", "alpha_dropout", "feature_dropout"):
        patch(torch, name, through)

    def attention(real: Any) -> Any:
        def scaled_dot_product_attention(
            q: Any, k: Any, v: Any, attn_mask: Any = None, dropout_p: Any = 0.0, *a: Any, **kw: Any
        ) -> Any:
            return real(q, k, v, attn_mask, 0.0, *a, **kw)

        return scaled_dot_product_attention

    def recurrent(real: Any) -> Any:
        def __init__(module: Any, *args: Any, **kwargs: Any) -> None:
            real(module, *args, **kwargs)
            module.dropout = 0.0

        return __init__

    patch(functional, "scaled_dot_product_attention", attention)
    patch(torch.nn.RNNBase, "__init__", recurrent)


def still_batch_norm() -> None:
    """BatchNorm goes by its running statistics, which stay as they are."""

    def norm(real: Any) -> Any:
        def batch_norm(
            input: Any,
            running_mean: Any,
            running_var: Any,
            weight: Any = None,
            bias: Any = None,
            training: bool = False,
            momentum: float = 0.1,
            eps: float = 1e-5,
        ) -> Any:
            alone = training and running_mean is None  # there is nothing else to go by
            return real(input, running_mean, running_var, weight, bias, alone, momentum, eps)

        return batch_norm

    patch(functional, "batch_norm", norm)


def full_precision() -> None:
    """No autocast, no loss scaling, no TF32."""

    def off(real: Any) -> Any:
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            real(self, *args, **kwargs)
            self._enabled = False

        return __init__

    patch(torch.autocast, "__init__", off)
    patch(torch.amp.GradScaler, "__init__", off)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False


def doubled(value: Any) -> Any:
    """A batch with float64 wherever it had float32."""
    if torch.is_tensor(value):
        return value.double() if value.dtype is _SINGLE else value
    if isinstance(value, dict):
        return type(value)({k: doubled(v) for k, v in value.items()}) if type(value) is dict else _inside(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(doubled, value))
    if type(value) in (list, tuple):
        return type(value)(map(doubled, value))
    return value


def _inside(value: Any) -> Any:
    for key in list(value):
        value[key] = doubled(value[key])
    return value


_SINGLE = torch.float32


def double_precision() -> None:
    """float64 wherever the script says float32, or nothing."""
    torch.storage._dtype_to_storage_type_map(), torch.storage._storage_type_to_dtype_map()  # kept: the names for files
    torch.set_default_dtype(torch.float64)
    torch.float = torch.float32 = torch.float64
    torch.FloatTensor = torch.DoubleTensor
    torch.Tensor.float = torch.Tensor.double
    torch.nn.Module.float = torch.nn.Module.double

    def cast(real: Any) -> Any:
        return lambda *args, **kwargs: doubled(real(*args, **kwargs))

    for name in ("tensor", "as_tensor", "from_numpy"):
        patch(torch, name, cast)
