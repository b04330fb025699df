"""DDP503: decisions on numbers of a replicated evaluation."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddpify.edits import AddHelper, InsertAfter
from ddpify.facts import Facts
from ddpify.facts.contents import data_of, origins
from ddpify.facts.evaluation import evaluations
from ddpify.facts.frames import Event, Frame
from ddpify.facts.roles import loaders_in
from ddpify.facts.values import Const, FromBatch, Loader, Scheduler, Value
from ddpify.rules._base import Converts, Finding, Rule
from ddpify.source import walk


class RankLocalDecision(Rule):
    """Ranks decide on numbers that may differ.

    ## What it does
    Finds `if`, `while` and `scheduler.step(metric)` that depend on an evaluation which every rank does by itself, and
    gives all of them rank 0's number, once.

    ## Why is this bad?
    Two GPUs may differ in the last bits: one rank stops, lowers its learning rate or reloads weights, and the others do
    not.

    ## Edit
    `accuracy = broadcast_value(accuracy)` behind the statement that computes it.
    """

    code = "DDP503"
    references = ("https://github.com/huggingface/transformers/issues/28516",)
    converts = (
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            data = TensorDataset(torch.ones(8, 4))
            loader, held_out = DataLoader(data, batch_size=2), DataLoader(data, batch_size=4)
            net = nn.Linear(4, 1)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
            def score():
                values = []
                with torch.no_grad():
                    for (x,) in held_out:
                        values.append(net(x).max().item())
                return max(values)
            for epoch in range(2):
                for (x,) in loader:
                    net(x).mean().backward()
                    optimizer.step()
                value = score()
                plateau.step(value)
            """,
            gives=("    value = score()\n    value = broadcast_value(value)\n    plateau.step(value)",),
        ),
    )

    def check(self, facts: Facts) -> Iterator[Finding]:
        if not facts.converting:
            return
        replicated = {id(e.loader) for e in facts.cached("evaluations", evaluations) if e.mode == "all"}
        done: set[tuple[int, str]] = set()
        for frame, _node, source_names in self.decisions(facts):
            for name in source_names:
                value = facts.flow.values.get(name, ())
                if not self.depends(value, replicated):
                    continue
                bind = self.binding(facts, frame, name, replicated)
                if bind is None or (id(bind.stmt), bind.name) in done or not facts.editable(bind.frame.source):
                    continue
                done.add((id(bind.stmt), bind.name))
                known = data_of(bind.value)
                number = known is not None and known.form in ("int", "float", "number", "bool", "str")
                helper = AddHelper(
                    bind.frame.source, "broadcast_value", frozenset() if number else frozenset({"tensor"})
                )
                text = f"{bind.name} = {facts.names_of(bind.frame.source)['broadcast_value']}({bind.name})"
                yield self.finding(
                    bind.frame.source,
                    bind.stmt,
                    f"all ranks go by rank 0's `{bind.name}`",
                    InsertAfter(bind.frame.source, bind.stmt, (text,)),
                    helper,
                    reason="it decides, and every rank computes it for itself",
                )

    def decisions(self, facts: Facts) -> Iterator[tuple[Frame, cst.CSTNode, list[cst.Name]]]:
        """Tests of `if` and `while` that lead to more than output, and arguments of scheduler.step."""
        seen: set[tuple[int, int]] = set()
        for e in facts.flow.log.events:
            if e.seq >= facts.flow.main_end:
                break
            for node in e.under:
                key = (id(node), id(e.frame))
                if (
                    isinstance(node, cst.If)
                    and key not in seen
                    and not (e.kind == "external" and e.name == "builtins.print")
                ):
                    seen.add(key)
                    yield e.frame, node, [n for n in walk(node.test) if isinstance(n, cst.Name)]
            if (
                e.kind == "method"
                and e.name == "step"
                and isinstance(e.obj, Scheduler)
                and isinstance(e.node, cst.Call)
                and e.node.args
            ):
                yield e.frame, e.node, [n for a in e.node.args for n in walk(a.value) if isinstance(n, cst.Name)]

    def depends(self, value: Value, replicated: set[int]) -> bool:
        return not all(isinstance(o, Const) for o in value) and any(
            isinstance(o, FromBatch) and isinstance(o.loader, Loader) and id(o.loader) in replicated
            for o in origins(value)
        )

    def binding(self, facts: Facts, frame: Frame, name: cst.Name, replicated: set[int]) -> Event | None:
        """The statement that computes a name from the evaluation: no loop's own sum, no copy (`best = value`)."""
        place = frame.source.span(name).start
        binds = [
            e
            for e in facts.flow.log.of("bind")
            if e.frame is frame
            and e.name == name.value
            and isinstance(e.stmt, cst.Assign)
            and frame.source.span(e.stmt).start < place
            and self.depends(e.value, replicated)
            and not isinstance(e.stmt.value, (cst.Name, cst.Integer, cst.Float))
        ]
        outside = [b for b in binds if not any(id(o) in replicated for lo in b.loops for o in loaders_in(lo.iterates))]
        return outside[-1] if outside else None
