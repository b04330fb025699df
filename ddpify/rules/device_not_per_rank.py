"""DDP103: GPUs that are named in the script."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddpify.edits import AddImport, Append, Delete, Edit, InsertBefore, Replace
from ddpify.facts import Facts
from ddpify.facts.at_import import gpu_at_import
from ddpify.facts.contents import constants
from ddpify.facts.devices import DeviceChoice, FixedDevice, device_choices, fixed_devices, given_devices
from ddpify.facts.devicetext import is_text_there
from ddpify.facts.ranks import guarded
from ddpify.facts.setup import SetUp, find_setup
from ddpify.facts.several_gpus import handed_on, several_gpus
from ddpify.rules._base import Bad, Converts, Finding, Good, Rule
from ddpify.rules._several_gpus import shifted
from ddpify.source import Source, walk


class DeviceNotPerRank(Rule):
    """One GPU is named for every rank.

    ## What it does
    Finds `"cuda:0"`, `.cuda(0)`, `.to(0)`, `torch.cuda.set_device(0)` and `with torch.cuda.device(0):` in a script that
    runs once per GPU.

    Of a model whose layers stand on several GPUs, each process drives as many: in a conversion their numbers move on by
    the local rank (`own_gpu(1)`).

    ## Why is this bad?
    Every rank works on GPU 0: it runs out of memory, or tensors meet on different devices, and the other GPUs idle.

    ## Fix
    Name the GPU by the local rank: `torch.cuda.set_device(local_rank)` once, then `"cuda"`.

    ## Edit
    After the set-up has bound the process to its GPU, `"cuda"` and `.cuda()` mean that GPU: the index is taken out. A
    call of `torch.cuda.set_device` goes, the set-up does it, and so does the number in `.cuda(args.gpu)`;
    `with torch.cuda.device(args.gpu):` names the current one. A module that puts something on the GPU while it is
    imported, before the set-up, binds the process itself.
    """

    code = "DDP103"
    references = ("https://docs.pytorch.org/docs/stable/generated/torch.cuda.set_device.html",)
    good = (
        Good('local_rank = int(os.environ["LOCAL_RANK"])\ntorch.cuda.set_device(local_rank)\nddp = DDP(model.cuda())'),
    )
    bad = (Bad('ddp = DDP(model.to("cuda:0"))'), Bad("torch.cuda.set_device(0)\nddp = DDP(model.cuda())"))
    converts = (
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            torch.cuda.set_device(0)
            loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
            model = nn.Linear(4, 1).cuda(0)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for (x,) in loader:
                model(x.to("cuda:0")).mean().backward()
                optimizer.step()
            """,
            gives=("nn.Linear(4, 1).cuda()", 'x.to("cuda")'),
            drops=("torch.cuda.set_device(0)", "cuda:0"),
        ),
        Converts(
            """
            import argparse
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            parser = argparse.ArgumentParser()
            parser.add_argument("--gpu", type=int, default=0)
            args = parser.parse_args()
            loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
            device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
            model = nn.Linear(4, 1).to(device)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            with torch.cuda.device(args.gpu):
                for (x,) in loader:
                    model(x.to(device)).mean().backward()
                    optimizer.step()
            """,
            gives=("with torch.cuda.device(torch.cuda.current_device() if torch.cuda.is_available() else -1):",),
        ),
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            def train(epochs=2, device="cuda:1"):
                loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
                model = nn.Linear(4, 1).to(device)
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                for epoch in range(epochs):
                    for (x,) in loader:
                        model(x.to(device)).mean().backward()
                        optimizer.step()
            if __name__ == "__main__":
                train()
            """,
            gives=('def train(epochs=2, device="cuda"):',),
        ),
        Converts(
            """
            import json
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            cfg = json.load(open("cfg.json"))
            cfg["device"] = "cuda:0" if torch.cuda.is_available() else "cpu"
            loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=cfg["size"])
            model = nn.Linear(4, 1).to(cfg["device"])
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for (x,) in loader:
                model(x.to(cfg["device"])).mean().backward()
                optimizer.step()
            """,
            gives=('cfg["device"] = "cuda" if torch.cuda.is_available() else "cpu"',),
        ),
    )

    def check(self, facts: Facts) -> Iterator[Finding]:
        several = facts.cached("several_gpus", several_gpus) if facts.converting else None
        if several is not None:
            yield from shifted(self, facts, several)
            return
        fixed = facts.cached("fixed_devices", fixed_devices)
        for place in fixed:
            if not facts.editable(place.source):
                if facts.converting and place.how != "set_device":
                    yield self.finding(
                        place.source,
                        place.node,
                        f"`{place.source.code(place.node)}` names one GPU, in another file",
                        left='write "cuda" without an index',
                    )
                continue
            literal = place.how not in ("set_device", "context") or isinstance(place.argument, cst.Integer)
            if facts.converting:
                yield from self.bind(facts, place) if place.how == "context" else self.mend(place)
            elif literal and not (place.event is not None and guarded(place.event, facts.flow)):
                yield self.finding(
                    place.source, place.node, f"`{place.source.code(place.node)}` names one GPU for every rank"
                )
        if facts.converting:
            yield from self.choices(facts)
            yield from self.given(facts)
            yield from self.at_import(facts)

    def at_import(self, facts: Facts) -> Iterator[Finding]:
        """What a module puts on a GPU while it is imported: the script binds the process to its own only later."""
        found = gpu_at_import(facts) if isinstance(facts.cached("setup", find_setup), SetUp) else None
        if found is None:
            return
        source, stmt = found
        names = facts.names_of(source)
        torch = names["torch"]
        block = (
            f"if {torch}.cuda.is_available():  # used while this module is imported, before the set-up\n"
            f'    {torch}.cuda.set_device(int({names["os"]}.environ.get("LOCAL_RANK", 0)))'
        )
        edits = (InsertBefore(source, stmt, (block,)), AddImport(source, "torch"), AddImport(source, "os"))
        message = "the module uses a GPU while it is imported, which is before the set-up"
        yield self.finding(source, stmt, message, *edits, reason="bound before it is used: all ranks had GPU 0")

    def given(self, facts: Facts) -> Iterator[Finding]:
        """`.cuda(args.gpu)` loses its index; of `model.to(cfg["device"])` the report says what must not be in it."""
        setup = facts.cached("setup", find_setup)
        if not isinstance(setup, SetUp) or setup.parsed is not None or setup.device is not None:
            return
        said: set[str] = set()
        for place in given_devices(facts):
            source, argument = place.source, place.argument
            assert argument is not None
            code = source.code(argument)
            if place.how == "index" and facts.editable(source):
                yield from self.mend(place)
            elif code not in said:
                said.add(code)
                message = (
                    f"what `{code}` names could not be followed: with an index (`cuda:0`, `0`) it would be one GPU for"
                )
                yield self.finding(source, place.node, f"{message} all ranks; `cuda` is each one's own", note=True)

    def mend(self, place: FixedDevice) -> Iterator[Finding]:
        source, code = place.source, place.source.code(place.node)
        edit: Edit
        if place.how == "set_device":
            edit = Delete(source, place.node, comments=source.owns_comments(place.node))
        elif (
            place.how == "index"
            and isinstance(place.node, cst.Call)
            and len(place.node.args) == 1
            and _method(place.node) == "cuda"
        ):
            edit = Replace(source, place.node.args[0], "")
        elif place.argument is not None and isinstance(place.argument, cst.SimpleString):
            edit = Replace(source, place.argument, place.argument.value.split(":")[0] + place.argument.quote)
        else:
            assert place.argument is not None
            edit = Replace(source, place.argument, '"cuda"')
        yield self.finding(
            source,
            place.node,
            f"`{code}` names one GPU for every rank",
            edit,
            reason="the set-up bound this process to its GPU",
        )

    def bind(self, facts: Facts, place: FixedDevice) -> Iterator[Finding]:
        """`with torch.cuda.device(args.gpu):` is this process's own GPU; a negative index stays the no-op it is."""
        assert place.argument is not None
        source, argument = place.source, place.argument
        setup = facts.cached("setup", find_setup)
        given = setup.parsed[0] if isinstance(setup, SetUp) and setup.parsed is not None else ""
        if source.code(argument) == given:
            return  # the set-up gives it this process's device
        cuda = f"{facts.names_of(source)['torch']}.cuda"
        own = f"{cuda}.current_device()"
        text = own if isinstance(argument, cst.Integer) else f"{own} if {cuda}.is_available() else -1"
        yield self.finding(
            source,
            place.node,
            f"`{source.code(place.node)}` may name one GPU for every rank",
            Replace(source, argument, text),
            AddImport(source, "torch"),
            reason="the set-up bound this process to its GPU",
        )

    def choices(self, facts: Facts) -> Iterator[Finding]:
        """Device choices that the set-up does not take the place of lose their index."""
        setup = facts.cached("setup", find_setup)
        taken = setup.device if isinstance(setup, SetUp) else None
        choices = facts.cached("device_choices", device_choices)
        for choice in choices:
            if choice is taken:
                yield from self.as_text(facts, choice)
                continue
            for node in (n for s in choice.stmts for n in walk(s)):
                if isinstance(node, cst.SimpleString) and str(node.evaluated_value).startswith("cuda:"):
                    text = node.value.split(":")[0] + node.quote
                    whole = _filled_in(choice.source, node)
                    if facts.editable(choice.source):
                        yield self.finding(
                            choice.source,
                            node,
                            f"`{choice.target}` names one GPU for every rank",
                            Replace(choice.source, whole, text),
                            reason="the set-up bound this process to its GPU",
                        )
                    else:
                        yield self.finding(
                            choice.source,
                            node,
                            f"`{choice.target}` names one GPU, in another file",
                            left=f"write {text} there",
                        )
        direct = {f.argument for f in facts.cached("fixed_devices", fixed_devices)}
        for named in handed_on(facts):
            literal = named.node
            if isinstance(literal, cst.SimpleString) and literal not in direct:
                text, message = literal.value.split(":")[0] + literal.quote, f"{literal.value} is one GPU for all ranks"
                if facts.editable(named.source):
                    reason = "the set-up bound this process to its GPU"
                    yield self.finding(
                        named.source, literal, message, Replace(named.source, literal, text), reason=reason
                    )
                else:
                    yield self.finding(named.source, literal, message, left=f"write {text} there")

    def as_text(self, facts: Facts, choice: DeviceChoice) -> Iterator[Finding]:
        """A device that was a string, used as one (`device == "cuda"`, `autocast(device)`): its type is meant."""
        values = facts.flow.values
        chosen = (s.value for s in choice.stmts if isinstance(s, (cst.Assign, cst.AnnAssign)) and s.value is not None)
        texts = [c for v in chosen for c in constants(values.get(v, ())) or ()]
        if not texts or not all(isinstance(t, str) for t in texts) or choice.form == "index":
            return
        source = choice.source
        for node in source.of(cst.Name, cst.Attribute):
            if source.code(node) != choice.target:
                continue
            if constants(values.get(node, ())) != texts or _comes_before(source, node, choice.owner):
                continue
            if is_text_there(facts, source, node):
                yield self.finding(
                    source,
                    node,
                    f"`{source.code(node)}` is a device now, and its type is meant here",
                    Append(source, node, ".type"),
                    reason="a device is no string",
                )


def _comes_before(source: Source, node: cst.CSTNode, owner: cst.CSTNode) -> bool:
    """`print(DEVICE)` above `DEVICE = torch.device(DEVICE)`: still the text there."""
    here, there = (
        next((a for a in source.ancestors(n) if isinstance(a, cst.FunctionDef)), None) for n in (node, owner)
    )
    return here is there and source.span(node).start < source.span(owner).start


def _method(call: cst.Call) -> str:
    return call.func.attr.value if isinstance(call.func, cst.Attribute) else ""


def _filled_in(source: Source, text: cst.SimpleString) -> cst.BaseExpression:
    """`"cuda:{}".format(gpu)`, `"cuda:%d" % gpu`, `"cuda:" + gpu`: all of it, else the literal alone."""
    above = source.parents.get(text)
    if isinstance(above, cst.BinaryOperation) and above.left is text:
        return above
    if isinstance(above, cst.Attribute) and above.attr.value == "format":
        call = source.parents.get(above)
        return call if isinstance(call, cst.Call) else text
    return text
