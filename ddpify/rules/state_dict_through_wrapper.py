"""DDP203: state dicts of the wrapper."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddpify.edits import Append, Edit
from ddpify.facts import Facts
from ddpify.facts.definitions import definitions
from ddpify.facts.frames import Event
from ddpify.facts.values import Dict, Module, Seq, StateDict, Value, Wrapped
from ddpify.rules._base import Bad, Converts, Finding, Good, Rule, Severity
from ddpify.rules._checkpoint_keys import renames_keys
from ddpify.rules.attribute_through_wrapper import raw_findings
from ddpify.source import Source, walk


class StateDictThroughWrapper(Rule):
    """A checkpoint is made of the wrapper: its keys gain `module.`.

    ## What it does
    Finds `torch.save(model.state_dict(), ...)` and `torch.save(model, ...)` where `model` is the wrapper.

    ## Why is this bad?
    The file does not load into the model itself; with `strict=False` nothing is loaded and nothing is said. A pickled
    wrapper does not even open without a process group.

    ## Fix
    Save `model.module.state_dict()`.

    ## Edit
    `model.module.state_dict()`, `model.module.load_state_dict(...)`: checkpoints stay those of the original script.
    """

    code = "DDP203"
    severity = Severity.WARNING
    references = ("https://github.com/NVIDIA/apex/issues/647",)
    good = (Good('ddp = DDP(model)\nif dist.get_rank() == 0:\n    torch.save(ddp.module.state_dict(), "model.pt")'),)
    bad = (Bad('ddp = DDP(model)\nif dist.get_rank() == 0:\n    torch.save(ddp.state_dict(), "model.pt")'),)
    converts = (
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
            net = nn.Linear(4, 1)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for (x,) in loader:
                net(x).mean().backward()
                optimizer.step()
            torch.save(net.state_dict(), "net.pt")
            """,
            gives=('torch.save(net.module.state_dict(), "net.pt")',),
        ),
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            class Options:
                save = False
            def finish(model, path):
                if Options.save:
                    torch.save(model.state_dict(), path)
                    torch.save(model, "whole.pt")
            loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
            net = nn.Linear(4, 1)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for (x,) in loader:
                net(x).mean().backward()
                optimizer.step()
            if Options.save:
                torch.save({"net": net.state_dict()}, "net.pt")
            finish(net, "last.pt")
            """,
            gives=('torch.save({"net": net.module.state_dict()}, "net.pt")', 'finish(net.module, "last.pt")'),
        ),
    )

    def check(self, facts: Facts) -> Iterator[Finding]:
        if facts.converting:
            parallel = facts.flow.log.of("dataparallel")  # its keys began with "module."
            kept = "checkpoints have the module's own keys" if parallel else "checkpoints keep the original's keys"
            yield from raw_findings(self, facts, ("state",), kept)
            return
        seen: set[int] = set()
        for e in facts.external("torch.save"):
            given = any(self.wrapped(v) for v in e.extra.values()) and not self.unwraps_at_times(facts, e)
            given = given and not renames_keys(facts, e)
            if id(e.node) not in seen and facts.editable(e.frame.source) and given:
                seen.add(id(e.node))
                yield self.finding(
                    e.frame.source,
                    e.node,
                    'the checkpoint is made of the DDP wrapper: its keys start with "module."',
                    *self.unwrapped(facts, e.frame.source, e.node),
                    unsafe=True,
                )

    def unwraps_at_times(self, facts: Facts, e: Event) -> bool:
        """`raw = ddp.module` in one branch and `raw = ddp` in the other, which is for a run without ranks."""
        known = definitions(facts.flow)
        for node in walk(e.node):
            inner = node.value if isinstance(node, cst.Attribute) and node.attr.value == "state_dict" else None
            given = known.of(inner, e.frame) if isinstance(inner, cst.Name) else []
            if any(isinstance(d.node, cst.Attribute) and d.node.attr.value == "module" for d in given):
                return True
        return False

    def unwrapped(self, facts: Facts, source: Source, call: cst.CSTNode) -> Iterator[Edit]:
        """`torch.save(ddp.module.state_dict(), path)`, where the wrapper stands in the call itself."""
        for node in walk(call):
            inner = node.value if isinstance(node, cst.Attribute) and node.attr.value == "state_dict" else None
            held = facts.flow.values.get(inner, ()) if inner is not None else ()
            if inner is not None and held and all(isinstance(o, Wrapped) for o in held):
                yield Append(source, inner, ".module")

    def wrapped(self, value: Value, depth: int = 3) -> bool:
        if any(isinstance(o, StateDict) and isinstance(o.of, Module) for o in value):
            return False  # raw = model.module if ddp else model
        for obj in value:
            if isinstance(obj, Wrapped) or (isinstance(obj, StateDict) and isinstance(obj.of, Wrapped)):
                return True
            if (
                depth
                and isinstance(obj, Dict)
                and any(self.wrapped(v, depth - 1) for v in (*obj.items.values(), obj.joined))
            ):
                return True
            if (
                depth
                and isinstance(obj, Seq)
                and any(self.wrapped(v, depth - 1) for v in (obj.joined, *(obj.elements or ())))
            ):
                return True
        return False
