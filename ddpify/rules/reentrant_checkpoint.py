"""DDP216: activation checkpointing in its reentrant form."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddpify.edits import SetArgument
from ddpify.facts import Facts
from ddpify.facts.contents import constants
from ddpify.facts.outside import unread
from ddpify.facts.values import Ext, Method, Module, Wrapped
from ddpify.rules._base import Bad, Converts, Finding, Good, Rule, Severity
from ddpify.source import Source

_CHECKPOINTS = frozenset({"torch.utils.checkpoint.checkpoint", "torch.utils.checkpoint.checkpoint_sequential"})
_ENABLE = "gradient_checkpointing_enable"


class ReentrantCheckpoint(Rule):
    """Activations are checkpointed by a backward inside the backward.

    ## What it does
    Finds `checkpoint(...)` and `checkpoint_sequential(...)` without `use_reentrant=False`, and the
    `gradient_checkpointing_enable()` of Hugging Face models without the argument that passes it on.

    ## Why is this bad?
    The reentrant form runs a backward of its own in the middle of DDP's: a block that is used twice, or
    `find_unused_parameters=True`, ends with "Expected to mark a variable ready only once", and a first layer whose
    input needs no gradient gets none.

    ## Fix
    Give `use_reentrant=False`.

    ## Edit
    `use_reentrant=False`, which PyTorch recommends and which computes the same.
    """

    code = "DDP216"
    severity = Severity.WARNING
    references = ("https://docs.pytorch.org/docs/stable/checkpoint.html",)
    good = (
        Good("""
            ddp = DDP(model)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            for x, y in DataLoader(dataset, sampler=DistributedSampler(dataset, shuffle=False)):
                hidden = torch.utils.checkpoint.checkpoint(torch.tanh, ddp(x), use_reentrant=False)
                hidden.mean().backward()
                optimizer.step()
            """),
    )
    bad = (
        Bad("""
            ddp = DDP(model)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            for x, y in DataLoader(dataset, sampler=DistributedSampler(dataset, shuffle=False)):
                hidden = torch.utils.checkpoint.checkpoint(torch.tanh, ddp(x))
                hidden.mean().backward()
                optimizer.step()
            """),
    )
    converts = (
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.checkpoint import checkpoint
            from torch.utils.data import DataLoader, TensorDataset
            class Net(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 1)
                def forward(self, x):
                    return self.second(checkpoint(self.first, x))
            loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
            net = Net()
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for (x,) in loader:
                net(x).mean().backward()
                optimizer.step()
            """,
            gives=("self.second(checkpoint(self.first, x, use_reentrant=False))",),
        ),
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.checkpoint import checkpoint
            from torch.utils.data import DataLoader, TensorDataset
            class Net(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.out = nn.Linear(4, 1)
                def forward(self, x, spare=False):
                    return checkpoint(self.out, x) if spare else self.out(x)
            loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
            net = Net()
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for (x,) in loader:
                net(x).mean().backward()
                optimizer.step()
            """,
            gives=("return checkpoint(self.out, x, use_reentrant=False) if spare else self.out(x)",),
        ),
    )

    def check(self, facts: Facts) -> Iterator[Finding]:
        for source in facts.looked_at:
            if "checkpoint" not in source.text:
                continue
            for node in source.of(cst.Call):
                edit = self.edit(facts, source, node)
                if edit is not None and not self.is_off(facts, source, node):
                    code = source.code(edit.node.func)
                    yield self.finding(
                        source,
                        edit.node,
                        f"`{code}` runs a backward inside DDP's backward",
                        *((edit,) if facts.converting else ()),
                        reason="the reentrant form does not go with DDP's bookkeeping; the other computes the same",
                    )

    def is_off(self, facts: Facts, source: Source, node: cst.Call) -> bool:
        """`if self.use_checkpoint:`, which nobody asks for: the function was run, and not this call."""
        if facts.converting:
            return False
        home = next((a for a in source.ancestors(node) if isinstance(a, cst.FunctionDef)), None)
        ran = home is not None and home in facts.flow.followed
        return ran and not facts.flow.values.get(node.func)

    def edit(self, facts: Facts, source: Source, node: cst.Call) -> SetArgument | None:
        """`use_reentrant=False`, where the call does not have it."""
        known = facts.flow.values.get(node.func, ()) or (Ext(unread(node.func, source, facts.flow)),)
        if isinstance(node.func, cst.Subscript) and len(known) > 1:
            return None  # models.__dict__[args.model](...): one of all that the file has, its imports too
        for obj in known:
            if isinstance(obj, Ext) and obj.name in _CHECKPOINTS:
                given = next((a.value for a in node.args if a.keyword and a.keyword.value == "use_reentrant"), None)
                splat = any(a.star == "**" for a in node.args)
                told = constants(facts.flow.values.get(given, ())) if given is not None else None
                if not splat and (given is None or told == [True]):
                    return SetArgument(source, node, "use_reentrant", "False")
            held = obj.obj if isinstance(obj, Method) and obj.name == _ENABLE else None
            if isinstance(held, (Module, Wrapped)) and not node.args:
                return SetArgument(source, node, "gradient_checkpointing_kwargs", '{"use_reentrant": False}')
        return None
