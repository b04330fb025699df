"""DDP101: the set-up of the process group."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from ddpify.edits import AddHelper, Delete, Edit, InsertAfter, InsertBefore, Replace
from ddpify.errors import Seen
from ddpify.facts import Facts
from ddpify.facts.devices import DeviceChoice, only_availability
from ddpify.facts.devicetext import option_is_text
from ddpify.facts.setup import SetUp, by_flag, find_setup, moves_up
from ddpify.facts.trails import shown
from ddpify.facts.values import Wrapped
from ddpify.rules._base import Bad, Converts, Finding, Good, Rule

#: utils.init_distributed_mode(args), of a module that is not there
_SETS_UP = re.compile(r"torch\.distributed|deepspeed|dist|ddp|init|setup|set_up|launch|initiali[sz]e")
_NEVER = ("torch.nn.", "torch.utils.", "builtins.")

_DEVICES = re.compile(r"device|gpu|cuda|cpu", re.IGNORECASE)


class ProcessGroupNotInitialized(Rule):
    """The ranks never meet: no process group is set up.

    ## What it does
    Finds scripts that use DistributedDataParallel, a DistributedSampler or a collective without `init_process_group`,
    and gives a single-GPU script its set-up: `device = setup_distributed()` in the place of the script's own choice of
    device.

    ## Why is this bad?
    Without a process group DDP and every collective raise `Default process group has not been initialized`.

    ## Fix
    Call `dist.init_process_group()` once, before a model is wrapped or a sampler is made.

    ## Edit
    The set-up stands after the arguments are parsed and before seeds, data and CUDA. It joins the group that torchrun
    describes and binds this process to its GPU; under plain `python` it is a group of one, so that the script still
    runs by itself. The script's own choice of device type still decides: a `--no-cuda` flag becomes the argument of
    `setup_distributed`.
    """

    code = "DDP101"
    references = ("https://docs.pytorch.org/docs/stable/elastic/run.html",)
    good = (Good("ddp = DDP(model)"),)
    bad = (
        Bad("""
            from torch import nn
            from torch.nn.parallel import DistributedDataParallel as DDP
            ddp = DDP(nn.Linear(4, 1))
            """),
    )
    converts = (
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
            loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2, shuffle=True)
            model = nn.Linear(4, 1).to(device)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for epoch in range(2):
                for (x,) in loader:
                    optimizer.zero_grad()
                    model(x.to(device)).mean().backward()
                    optimizer.step()
            """,
            gives=("device = setup_distributed()", "def setup_distributed():", "dist.destroy_process_group()"),
            drops=("cuda:0",),
        ),
    )

    def check(self, facts: Facts) -> Iterator[Finding]:
        if not facts.converting:
            yield from self.lint(facts)
            return
        setup = facts.cached("setup", find_setup)
        if not isinstance(setup, SetUp):
            yield self.nowhere(facts)
            return
        if setup.again is not None:
            e = setup.again
            what = shown(e.frame.source, e.node)
            yield self.finding(
                e.frame.source,
                e.node,
                f"worker processes that are spawned import this file again and would join the process group here "
                f"(`{what}`)",
                refuse=Seen(what),
                left='Move it under `if __name__ == "__main__":`',
            )
            return
        options = {
            name
            for name, on in (("accelerator", setup.accelerator), ("cpu", not setup.cuda), ("either", setup.either))
            if on
        }
        options |= {f"gpus{setup.gpus}"} if setup.gpus > 1 else set()
        edits, more, why = self.place(facts, setup)
        options |= more
        yield self.finding(
            setup.source,
            setup.first,
            "the process group is set up here",
            *edits,
            AddHelper(setup.source, "setup_distributed", frozenset(options)),
            reason=why,
        )
        if setup.device is not None and setup.device.mps:
            yield self.finding(
                setup.source,
                setup.device.stmts[0],
                "mps is no device for DDP: on a Mac the result runs on the CPU",
                note=True,
            )
        if not setup.cuda:
            message = (
                "the script has no device code: it trains on the CPU, with gloo; "
                "move model and batches to a device to use GPUs"
            )
            yield self.finding(setup.source, setup.first, message, note=True)

    def place(self, facts: Facts, setup: SetUp) -> tuple[list[Edit], set[str], str]:
        """The edits, what shapes the helper, and the reason."""
        name = facts.names["setup_distributed"]
        choice = setup.device
        source = setup.source
        if setup.parsed is not None:
            target, stmt, how = setup.parsed

            def placed(line: str) -> Edit:
                if stmt is not None:
                    return InsertAfter(source, stmt, (line,))
                return InsertBefore(source, setup.first, (line,))

            if how == "index":
                return (
                    [placed(f"{target} = {name}()")],
                    {"index", "host"} if by_flag(facts) else {"index"},
                    f"`{target}` is this process's GPU",
                )
            call = f'{facts.names["torch"]}.device({target}).type == "cuda"'
            text = ".type" * ("." in target and option_is_text(facts, target))
            return (
                [placed(f"{target} = {name}({call}){text}")],
                {"flag"},
                f"`{target}` becomes this process's device",
            )
        if choice is None:
            return (
                [InsertBefore(source, setup.first, (f"{name}()",), blank_after=True)],
                set(),
                "set up before seeds, data and CUDA",
            )
        if choice.form == "other":
            made = isinstance(choice.owner, cst.Assign) and _makes_device(facts, choice.owner.value)
            device = choice.target if made else f"{facts.names['torch']}.device({choice.target})"
            call = f'{device}.type == "cuda"'
            line = f"{choice.target} = {name}({call})"
            return (
                [InsertAfter(source, choice.owner, (line,))],
                {"flag"},
                f"`{choice.target}` becomes this process's device",
            )
        call, options = self.call(facts, setup, choice)
        line = f"{choice.target} = {call}"
        reason = f"`{choice.target}` is this process's own device, in the group that torchrun describes"
        if choice.owner is setup.first or not moves_up(facts, setup):
            return [Replace(source, choice.owner, line)], options, reason
        goes = source.is_about(choice.owner, _DEVICES)  # a heading stays with what comes below it
        above = source.comments_above(source.span(choice.owner).start) if goes else []
        return (
            [
                InsertBefore(source, setup.first, (*(c.strip() for c in above), line), blank_after=True),
                Delete(source, choice.owner, comments=goes),
            ],
            options,
            reason + "; set up before seeds, data and CUDA",
        )

    def call(self, facts: Facts, setup: SetUp, choice: DeviceChoice) -> tuple[str, set[str]]:
        name = facts.names["setup_distributed"]
        if choice.form == "index":
            return f"{name}()", {"index"}
        if choice.test is None or only_availability(facts, choice.test):
            return f"{name}()", set()
        return f"{name}({setup.source.code(choice.test)})", {"flag"}

    def nowhere(self, facts: Facts) -> Finding:
        event = facts.roles.backwards[0]
        what = shown(event.frame.source, event.node)
        if facts.roles.trained:
            return self.finding(
                event.frame.source,
                event.node,
                f"no statement was found that the set-up could stand before: the first that trains is `{what}`",
                refuse=Seen(what),
            )
        return self.finding(
            event.frame.source,
            event.node,
            f"`{what}` trains no nn.Module whose parameters an optimizer has, and DDP wraps modules",
            refuse=Seen(what),
            left="Make the tensors that it trains parameters of a module",
        )

    def lint(self, facts: Facts) -> Iterator[Finding]:
        inits = [n for n in facts.identifiers if n.endswith("init_process_group")]
        if inits or not facts.roles.wrapped or facts.flow.star_imports:
            return
        first = facts.roles.wrapped[0].site
        made = [e for e in facts.flow.log.of("new") if isinstance(e.obj, Wrapped)]
        if all(e.seq >= facts.flow.main_end for e in made):
            return  # functions for a script that imports this file, and sets up
        called = [e.name for e in facts.flow.log.of("external") if not e.name.startswith(_NEVER)]
        if facts.editable(first.source) and not any(map(_SETS_UP.search, called)):
            yield self.finding(
                first.source, first.node, "the model is wrapped, but no process group is ever initialised"
            )


def _makes_device(facts: Facts, value: cst.BaseExpression) -> bool:
    """`torch.device(args.device)`: the name holds a device, and no text that names one."""
    return any(e.node is value and e.name == "torch.device" for e in facts.flow.log.of("external"))
