"""What can be asked of a DDP wrapper in the place of its module."""

from __future__ import annotations

#: What the wrapper answers as the module would.
SURFACE = frozenset(
    {
        "train",
        "eval",
        "parameters",
        "zero_grad",
        "to",
        "cuda",
        "module",
        "no_sync",
        "join",
        "training",
        "requires_grad_",
        "register_comm_hook",
        "forward",
        "buffers",
    }
)
