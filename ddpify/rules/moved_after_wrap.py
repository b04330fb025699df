"""DDP208: a wrapped model that changes its device or type."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddpify.edits import AddImport, Delete, Edit, InsertAfter, Replace, Surround
from ddpify.facts import Facts
from ddpify.facts.moves import Move, moves
from ddpify.facts.outside import holding
from ddpify.facts.trails import shown, way_of_call
from ddpify.facts.unwrapping import find_raw
from ddpify.facts.wraps import WrapPoint
from ddpify.rules._base import Bad, Converts, Finding, Good, Rule
from ddpify.rules._wrapping import device_ids
from ddpify.source import Source, walk


class MovedAfterWrap(Rule):
    """A wrapped model changes its device or type, and is trained on.

    ## What it does
    Finds `.cpu()`, `.half()`, `.to(torch.float64)` and the like on a DDP wrapper (or its module) that trains again
    afterwards.

    ## Why is this bad?
    The move replaces what the wrapper's hooks sit on: gradients are no longer averaged, and nothing is said.

    ## Fix
    Move the model before the wrap, and save a copy: `{k: v.cpu() for k, v in model.module.state_dict().items()}`.

    ## Edit
    `model.cpu()` before a save, and the way back behind it, go; what is saved is a copy on the CPU:
    `{k: v.cpu() for k, v in model.module.state_dict().items()}`. Where the model is used on the CPU in other ways, it
    is wrapped again behind the way back: `model = DDP(model.module)`. So it is behind `model.double()` between two
    trainings.
    """

    code = "DDP208"
    references = ("https://github.com/pytorch/pytorch/issues/104336",)
    good = (
        Good("""
            ddp = DDP(model.double())
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            for x, y in DataLoader(dataset, sampler=DistributedSampler(dataset, shuffle=False)):
                ddp(x.double()).mean().backward()
                optimizer.step()
            """),
    )
    bad = (
        Bad("""
            ddp = DDP(model)
            ddp.double()
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            for x, y in DataLoader(dataset, sampler=DistributedSampler(dataset, shuffle=False)):
                ddp(x.double()).mean().backward()
                optimizer.step()
            """),
    )
    converts = (
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
            device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
            net = nn.Linear(4, 1).to(device)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for epoch in range(2):
                for (x,) in loader:
                    net(x.to(device)).mean().backward()
                    optimizer.step()
                net.eval().cpu()
                torch.save(net.state_dict(), "net.pt")
                net.to(device).train()
            """,
            gives=(
                "    net.eval()\n",
                '        torch.save({k: v.cpu() for k, v in net.module.state_dict().items()}, "net.pt")',
                "    net.to(device).train()",
            ),
            drops=("net.eval().cpu()",),
        ),
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
            device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
            net = nn.Linear(4, 1).to(device)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for epoch in range(2):
                for (x,) in loader:
                    net(x.to(device)).mean().backward()
                    optimizer.step()
                net.eval().cpu()
                with torch.no_grad():
                    shown = net(torch.ones(1, 4))
                net.to(device).train()
            """,
            gives=(
                "    net.eval().module.cpu()",
                "        shown = net.module(torch.ones(1, 4))",
                "    net.to(device).train()\n    net = DDP(net.module, device_ids=",
            ),
        ),
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            def fit(kind):
                for (x,) in loader:
                    net(x.to(kind)).mean().backward()
                    optimizer.step()
            loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
            net = nn.Linear(4, 1)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            fit(torch.float32)
            net.to(torch.float64)
            fit(torch.float64)
            """,
            gives=("net.to(torch.float64)\nnet = DDP(net.module)\nfit(torch.float64)",),
        ),
    )

    def check(self, facts: Facts) -> Iterator[Finding]:
        for move in moves(facts):
            source = move.source
            if not facts.converting and not facts.editable(source):
                continue
            message = f"`{shown(source, move.call)}` moves a wrapped model that is trained on"
            if facts.converting and move.states and facts.editable(source):
                reason = "a copy is saved: a move would take the model out of its wrapper's hands"
                yield self.finding(source, move.call, message, *self.copied(facts, move), reason=reason)
                continue
            point = self.point(facts, move) if facts.converting else None
            if point is not None and move.back is not None and facts.editable(source):
                yield self.rewrapped(facts, move, point, move.back)
                continue
            message = f"{message}: its gradients are no longer averaged"
            left = "Save a copy instead: {k: v.cpu() for k, v in model.module.state_dict().items()}"
            refuse = way_of_call(facts.after, move.event) if facts.converting else None
            yield self.finding(source, move.call, message, refuse=refuse, left=left if refuse else "")

    def point(self, facts: Facts, move: Move) -> WrapPoint | None:
        """The wrap that made the wrapper, by the name that the move uses for it."""
        names = {move.source.code(n) for n in walk(move.call.func) if isinstance(n, (cst.Name, cst.Attribute))}
        mine = (p for p in facts.wrap_points if not p.shape and not p.is_before and not p.may_be_frozen)
        return next((p for p in mine if p.target in names and p.frame.node is move.event.frame.node), None)

    def rewrapped(self, facts: Facts, move: Move, point: WrapPoint, back: cst.CSTNode) -> Finding:
        """`model = DDP(model.module)` behind the way back to the GPU."""
        source = move.source
        ddp, ids = facts.names_of(source)["DDP"], device_ids(facts, point)
        what = "took it to the CPU" if back is not holding(source, move.call) else "gave its numbers another type"
        return self.finding(
            source,
            back,
            f"`{point.target}` is wrapped again: `{shown(source, move.call)}` {what}",
            InsertAfter(source, back, (f"{point.target} = {ddp}({point.target}.module{ids})",)),
            AddImport(source, "DDP"),
            reason="a wrapper knows the parameters as they were when it was made",
        )

    def copied(self, facts: Facts, move: Move) -> Iterator[Edit]:
        """`torch.save({k: v.cpu() for ...})`, without the way to the CPU and back."""
        source = move.source
        for stmt in move.gone:
            yield Delete(source, stmt)
        if not any(stmt in source.ancestors(move.call) for stmt in move.gone):
            assert isinstance(move.call.func, cst.Attribute)
            base = move.call.func.value
            found = facts.cached("raw", find_raw)
            keeps = self.asks(source, move.call) and any(raw.node is base for raw in found)
            yield Replace(source, move.call, source.code(base) + (".module" if keeps else ""))
        for state in move.states:
            yield Surround(source, state, "{k: v.cpu() for k, v in ", ".items()}")

    def asks(self, source: Source, call: cst.Call) -> bool:
        """`model.cpu().state_dict()`"""
        above = source.parents.get(call)
        return isinstance(above, cst.Attribute) and above.attr.value == "state_dict"
