"""DDP104: CUDA_VISIBLE_DEVICES set in the script."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddpify.edits import Delete
from ddpify.facts import Facts
from ddpify.facts.contents import constants
from ddpify.facts.frames import Event
from ddpify.facts.ranks import depends_on_rank, guarded
from ddpify.facts.values import Ext
from ddpify.rules._base import Bad, Converts, Finding, Good, Rule, Severity


class VisibleDevicesInScript(Rule):
    """The script chooses its GPUs by CUDA_VISIBLE_DEVICES.

    ## What it does
    Finds `os.environ["CUDA_VISIBLE_DEVICES"] = ...`.

    ## Why is this bad?
    Every rank sees the same few GPUs: with "0" the second rank has none ("invalid device ordinal").

    ## Fix
    Take it out, and choose the GPUs where the script is started: `CUDA_VISIBLE_DEVICES=0,1 torchrun ...`.

    ## Edit
    The statement goes. The GPUs are chosen where the job is started: `CUDA_VISIBLE_DEVICES=0,1 torchrun ...`.
    """

    code = "DDP104"
    references = ("https://github.com/pytorch/examples/issues/885",)
    good = (Good('ddp = DDP(model)\nos.environ["OMP_NUM_THREADS"] = "4"'),)
    bad = (Bad('os.environ["CUDA_VISIBLE_DEVICES"] = "0"\nddp = DDP(model)'),)
    converts = (
        Converts(
            """
            import os
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            os.environ["CUDA_VISIBLE_DEVICES"] = "3"
            loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
            net = nn.Linear(4, 1).cuda()
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for (x,) in loader:
                net(x.cuda()).mean().backward()
                optimizer.step()
            """,
            gives=("setup_distributed()",),
            drops=("CUDA_VISIBLE_DEVICES",),
        ),
    )

    def check(self, facts: Facts) -> Iterator[Finding]:
        seen: set[int] = set()
        for e in facts.flow.log.of("store"):
            if (
                not isinstance(e.obj, Ext)
                or e.obj.name != "os.environ"
                or not isinstance(e.node, cst.Subscript)
                or id(e.stmt) in seen
            ):
                continue
            index = e.node.slice[0].slice
            key = constants(facts.flow.values.get(index.value, ())) if isinstance(index, cst.Index) else None
            if key != ["CUDA_VISIBLE_DEVICES"] or not facts.editable(e.frame.source):
                continue
            if not facts.converting and (constants(e.value) in ([""], ["-1"]) or self.is_meant(facts, e)):
                continue  # the CPU is meant, or a GPU of the rank's own
            seen.add(id(e.stmt))
            code = e.frame.source.code(e.stmt)
            several = all("," in str(c) for c in constants(e.value) or [","])  # or what the command line says
            what = "says for every machine which GPUs there are" if several else "hides the other GPUs from every rank"
            yield self.finding(
                e.frame.source,
                e.stmt,
                f"`{code}` {what}",
                Delete(e.frame.source, e.stmt, comments=e.frame.source.owns_comments(e.stmt)),
                severity=Severity.INFO if several and not facts.converting else self.severity,
                unsafe=True,
                reason="GPUs are chosen where the job is started: CUDA_VISIBLE_DEVICES=0,1 torchrun ...",
            )

    def is_meant(self, facts: Facts, e: Event) -> bool:
        """Each rank sees its own GPU, or the process that spawns the ranks says which GPUs they have."""
        own = isinstance(e.stmt, cst.Assign) and depends_on_rank(e.stmt.value, e.frame, facts.flow)
        return own or guarded(e, facts.flow)
