"""DDP212: copies of the wrapper."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddpify.edits import Append
from ddpify.facts import Facts
from ddpify.facts.externals import role_of
from ddpify.facts.values import Wrapped
from ddpify.rules._base import Bad, Finding, Good, Rule, Severity


class CopyOfWrapper(Rule):
    """A copy or an average of the model is made of the DDP wrapper.

    ## What it does
    Finds `copy.deepcopy(ddp)`, `AveragedModel(ddp)` and their kin.

    ## Why is this bad?
    The copy is a wrapper too: its keys begin with `module.` (`module.module.` in an average), it does not load into a
    plain model, and each forward of it may be a collective.

    ## Fix
    Copy the module: `copy.deepcopy(model.module)`.
    """

    code = "DDP212"
    severity = Severity.WARNING
    references = ("https://docs.pytorch.org/docs/stable/optim.html#weight-averaging-swa-and-ema",)
    good = (
        Good("""
            from copy import deepcopy
            import torch.distributed as dist
            from torch import nn
            from torch.nn.parallel import DistributedDataParallel as DDP
            dist.init_process_group("gloo")
            ddp = DDP(nn.Linear(8, 1))
            average = deepcopy(ddp.module)
            dist.destroy_process_group()
            """),
    )
    bad = (
        Bad("""
            from copy import deepcopy
            import torch.distributed as dist
            from torch import nn
            from torch.nn.parallel import DistributedDataParallel as DDP
            dist.init_process_group("gloo")
            ddp = DDP(nn.Linear(8, 1))
            average = deepcopy(ddp)
            dist.destroy_process_group()
            """),
        Bad("ddp = DDP(model)\naverage = torch.optim.swa_utils.AveragedModel(ddp)"),
    )

    def check(self, facts: Facts) -> Iterator[Finding]:
        if facts.converting:
            return
        seen: set[int] = set()
        calls = ((n, s) for s in facts.looked_at for n in s.of(cst.Call))
        for node, source in calls:
            names = [getattr(o, "name", "") for o in facts.flow.values.get(node.func, ())]
            if not node.args or not any(role_of(n) in ("copy", "copy-module") and ".jit." not in n for n in names):
                continue
            given = node.args[0].value
            held = facts.flow.values.get(given, ())
            if id(node) in seen or not held or not all(isinstance(o, Wrapped) for o in held):
                continue
            seen.add(id(node))
            code = source.code(node).split("\n")[0]
            plain = isinstance(given, (cst.Name, cst.Attribute))
            edits = (Append(source, given, ".module"),) if plain else ()
            yield self.finding(
                source, node, f"`{code}` is made of the DDP wrapper, not of the model", *edits, unsafe=True
            )
