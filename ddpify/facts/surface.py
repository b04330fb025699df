"""What can be asked of a DDP wrapper in the place of its module."""

from __future__ import annotations

import libcst as cst

from ddpify.source import Source

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

#: methods that give back what they are called of
_GIVE_BACK = frozenset({"apply", "half", "float", "double", "bfloat16", "cpu", "share_memory"})


def given_back(source: Source, node: cst.CSTNode) -> bool:
    """`net = net.apply(adjust)`: the name goes on to hold what it held, so that it has to stay the wrapper."""
    call = source.parents.get(node)
    stmt = source.parents.get(call) if isinstance(call, cst.Call) and call.func is node else None
    if not isinstance(node, cst.Attribute) or node.attr.value not in _GIVE_BACK or not isinstance(stmt, cst.Assign):
        return False
    return [source.code(t.target) for t in stmt.targets] == [source.code(node.value)]
