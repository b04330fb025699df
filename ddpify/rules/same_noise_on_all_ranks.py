"""DDP306: noise that differs by rank."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from ddpify.edits import AddHelper, AddImport, InsertAfter, InsertBefore
from ddpify.facts import Facts
from ddpify.facts.construction import late_draws, places_behind
from ddpify.facts.drawing import is_certain
from ddpify.facts.externals import role_of
from ddpify.facts.frames import Event, Frame
from ddpify.facts.handmade import Draws, hand_fed
from ddpify.facts.ranks import depends_on_rank, guarded
from ddpify.facts.seeds import Seed, draws_in_loop, is_noisy, seeds
from ddpify.facts.trails import way_back, way_of_call
from ddpify.facts.unreduced import shared_out
from ddpify.facts.values import Ext
from ddpify.rules._base import Converts, Finding, Rule, Severity
from ddpify.rules._seeding import as_torch_began, asked_for, called_apart, nameable
from ddpify.source import Source

#: torch.manual_seed, generator.manual_seed, np.random.seed, and set_seed of a module that is not there
_SEEDS = re.compile(r"seed", re.IGNORECASE)


class SameNoiseOnAllRanks(Rule):
    """Dropout and augmentation draw the same random numbers on every rank.

    ## What it does
    Gives the ranks other than 0 a seed of their own, after the models are made and wrapped, where the script fixes a
    seed and training draws random numbers.

    ## Why is this bad?
    With one seed for all, every rank drops the same units and makes the same crops: less variety in a global batch,
    silently.

    ## Fix
    Seed again behind the wrap, with the rank: `torch.manual_seed(seed + rank)`.

    ## Edit
    `if not is_main_process(): torch.manual_seed(seed + dist.get_rank())` behind the last wrap, or before the epochs, or
    the call that leads to them, where data are drawn or split between the two, or the seed has a name there only.
    Before it all ranks are seeded alike, so that splits and weights agree; rank 0 keeps the original's stream. A
    function of the script that seeds is called once more instead, `set_seed(args.seed + dist.get_rank())`. Where the
    steps draw numbers themselves (batches, a generator's noise) and no seed is set, the streams that the processes have
    go apart all the same, by rank and not by chance.
    """

    code = "DDP306"
    severity = Severity.INFO
    references = ("https://github.com/facebookresearch/detr/issues/297",)
    converts = (
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            torch.manual_seed(3)
            loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
            net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 1))
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for (x,) in loader:
                net(x).mean().backward()
                optimizer.step()
            """,
            gives=("if not is_main_process():\n    torch.manual_seed(3 + dist.get_rank())",),
        ),
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            torch.manual_seed(3)
            net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 1))
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            loader = DataLoader(TensorDataset(torch.randn(8, 4)), batch_size=2)
            for epoch in range(2):
                for (x,) in loader:
                    net(x).mean().backward()
                    optimizer.step()
            """,
            gives=("if not is_main_process():\n    torch.manual_seed(3 + dist.get_rank())\nfor epoch in range(2):",),
        ),
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            from zoo import build
            torch.manual_seed(3)
            loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
            net = nn.Sequential(nn.Dropout(0.1), nn.Linear(4, 1))
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            aim = build("large")
            for p in aim.parameters():
                p.requires_grad = False
            for (x,) in loader:
                (net(x) - aim(x)).square().mean().backward()
                optimizer.step()
            """,
            gives=("if not is_main_process():\n    torch.manual_seed(3 + dist.get_rank())\nfor (x,) in loader:",),
        ),
        Converts(
            """
            import argparse
            import random
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            def main():
                parser = argparse.ArgumentParser()
                parser.add_argument("--seed", type=int)
                args = parser.parse_args()
                if args.seed is not None:
                    random.seed(args.seed)
                    torch.manual_seed(args.seed)
                work(0, args)
            def work(gpu, args):
                loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
                net = nn.Sequential(nn.Dropout(0.1), nn.Linear(4, 1))
                optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
                for (x,) in loader:
                    net(x).mean().backward()
                    optimizer.step()
            main()
            """,
            gives=(
                "    net = DDP(net)\n"
                "    if args.seed is not None and not is_main_process():\n"
                "        torch.manual_seed(args.seed + dist.get_rank())\n"
                "        random.seed(args.seed + dist.get_rank())\n",
            ),
        ),
        Converts(
            """
            import numpy as np
            import torch
            from torch import nn
            net = nn.Sequential(nn.Linear(1, 4), nn.Dropout(0.1), nn.Linear(4, 1))
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            def curve(n):
                x = np.random.uniform(-1, 1, (n, 1))
                return torch.from_numpy(x).float()
            for step in range(20):
                x = curve(8)
                loss = (net(x) - x**2 + torch.randn(8, 1)).pow(2).mean()
                loss.backward()
                optimizer.step()
            """,
            gives=("    torch.manual_seed(torch.initial_seed() + dist.get_rank())\n",),
        ),
    )

    def check(self, facts: Facts) -> Iterator[Finding]:
        if not facts.converting:
            yield from self.lint(facts)
            return
        if not facts.wrap_points:
            return
        fixed = list(seeds(facts))
        why = is_noisy(facts)
        drawn = next((h for h in hand_fed(facts) if isinstance(h, Draws)), None)
        apart = not fixed and (drawn is not None or draws_in_loop(facts))
        if not (fixed or apart) or not why:
            return
        places = [w for w in facts.wrap_points if facts.editable(w.source)]
        if not places:
            return
        here = [w for w in places if w.source is places[-1].source]
        point = max(here, key=lambda w: w.source.span(w.after).start)
        late = late_draws(facts)
        behind = places_behind(facts, late)
        ways = [(frame, stmt, False) for frame, stmt in behind if facts.editable(frame.source)]
        if not late and not point.is_before:
            ways.insert(0, (point.frame, point.after, True))
        homes = [s.event.frame.node for s in fixed]
        ways.sort(key=lambda way: way[0].node not in homes)  # rather where the script seeds than where it can, too
        found = ((way, self.seeded(facts, way[0].source, way[0], way[1], fixed, apart)) for way in ways)
        (frame, place, is_after), lines = next(
            ((way, lines) for way, lines in found if lines), ((point.frame, point.after, True), [])
        )
        # a seed that may not be set is asked for by name, or left
        certain = any(s.what == "torch" and is_certain(facts, s) for s in fixed)
        if not lines and drawn is None and ways and certain:
            (frame, place, is_after), lines = ways[0], as_torch_began(facts, ways[0][0].source, fixed)
        if not fixed and not lines:
            return  # without a seed, processes draw differently but for what CUDA draws
        if not lines and not any(s.what in ("torch", "numpy") for s in fixed):
            return
        if not lines:
            yield self.unvaried(facts, fixed, [] if behind else late, needed=drawn is not None)
            return
        source = frame.source
        blocks = []
        for test in dict.fromkeys(test for test, _ in lines):
            asked = f"{test} and " * bool(test) + f"not {facts.names_of(source)['is_main_process']}()"
            blocks.append("\n".join([f"if {asked}:", *(f"    {line}" for t, line in lines if t == test)]))
        yield self.finding(
            source,
            place,
            "the other ranks get a seed of their own",
            (InsertAfter if is_after else InsertBefore)(source, place, tuple(blocks)),
            AddHelper(source, "is_main_process"),
            AddImport(source, "dist"),
            *([AddImport(source, "torch")] if any("initial_seed" in line for _, line in lines) else []),
            reason=f"{why}; rank 0 keeps the original's stream",
        )

    def lint(self, facts: Facts) -> Iterator[Finding]:
        """The last seed before training, where none knows the rank."""
        seeding = [e for e in facts.flow.log.of("external", "method") if _SEEDS.search(e.name) and _given(e)]
        fixed = [s for s in seeds(facts) if s.what == "torch" and facts.editable(s.event.frame.source)]
        shuffled = any(shared_out(loader) for loader in facts.roles.training_loaders)
        if not fixed or not facts.roles.wrapped or not shuffled:
            return
        if any(depends_on_rank(a, e.frame, facts.flow) or guarded(e, facts.flow) for e in seeding for a in _given(e)):
            return
        why = is_noisy(facts)
        if why:
            e = fixed[-1].event
            yield self.finding(e.frame.source, e.node, f"all ranks draw the same random numbers while training: {why}")

    def seeded(
        self, facts: Facts, source: Source, frame: Frame, place: cst.CSTNode, fixed: list[Seed], apart: bool
    ) -> list[tuple[str, str]]:
        """`torch.manual_seed(seed + dist.get_rank())` for every generator whose seed has a name there, and its test."""
        names = facts.names_of(source)
        rank = f"{names['dist']}.get_rank()"
        if apart:
            return [("", f"{line} + {rank})") for line in draws_of_torch(facts, source)]
        asked = [(test, s) for s in fixed if (test := asked_for(facts, s, source, frame, place)) is not None]
        lines = []
        for what in ("torch", "numpy", "random"):
            for test, seed in asked:
                if seed.what == what and nameable(facts, seed.call, seed.event.frame, frame.node, frame):
                    func = seed.event.frame.source.code(seed.call.func)
                    text = "" if seed.text == "0" else f"{seed.text if _plain(seed) else f'({seed.text})'} + "
                    lines.append((test, f"{func}({text}{rank})"))
                    break
        if not lines:
            test, again = called_apart(facts, source, frame, asked, rank)
            lines = [(test, again)] if again else []
        return lines

    def unvaried(self, facts: Facts, fixed: list[Seed], late: list[Event], needed: bool) -> Finding:
        """The ranks stay alike: `needed` says that they must not, since each draws its own batches."""
        first = next((s for s in fixed if s.what in ("torch", "numpy")), fixed[0])
        about = way_back(facts.flow, first.call.args[0].value, first.event.frame.source, first.event.frame)
        why_not = f"the seed `{about.value}` cannot be named where the model is wrapped"
        if late:
            about = way_of_call(facts.flow, late[-1])
            why_not = f"`{about.value}` comes behind the wrap, and has to be alike on all of them"
        return self.finding(
            first.event.frame.source,
            first.event.node,
            f"all ranks draw the same random numbers while training: {why_not}; to vary them, seed the ranks apart "
            "before the first epoch",
            note=not needed,
            refuse=about if needed else None,
            left="make the seed a constant, or a name of the whole module" if needed else "",
        )


def draws_of_torch(facts: Facts, source: Source) -> list[str]:
    """The seed of torch, where the training steps draw from it: without one, CUDA's numbers are alike on all ranks.

    numpy and random begin differently in each process, as torch does on the CPU.
    """
    training = facts.roles.training_loops
    drawn = any(
        e.name.startswith("torch.")
        and role_of(e.name) == "random"
        and "generator" not in e.extra
        and any(lp.node in training for loops in e.all_loops() for lp in loops)
        for e in facts.flow.log.of("external")
    )
    given = facts.flow.modules[source].scope.names.items()
    name = next((n for n, held in given if any(isinstance(o, Ext) and o.name == "torch" for o in held)), "")
    return [f"{name}.manual_seed({name}.initial_seed()"] if drawn and name else []


def _given(event: Event) -> list[cst.BaseExpression]:
    return [a.value for a in event.node.args] if isinstance(event.node, cst.Call) else []


def _plain(seed: Seed) -> bool:
    node = seed.call.args[0].value
    return isinstance(node, (cst.Name, cst.Attribute, cst.Integer, cst.Call, cst.Subscript))
