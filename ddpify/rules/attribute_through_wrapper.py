"""DDP202: attributes and methods of the model, asked of the wrapper."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from ddpify.edits import AddHelper, Append, Edit, Replace, Surround
from ddpify.facts import Facts
from ddpify.facts.apart import is_elsewhere
from ddpify.facts.contents import modules
from ddpify.facts.frames import Event
from ddpify.facts.ranks import by_one_process
from ddpify.facts.surface import SURFACE
from ddpify.facts.trails import way_back
from ddpify.facts.unwrapping import Raw, find_raw
from ddpify.facts.values import Data, Module, Wrapped
from ddpify.rules._base import Bad, Converts, Finding, Good, Rule
from ddpify.source import Source


def raw_edits(facts: Facts, raw: Raw) -> tuple[Edit, ...]:
    """`.module` behind the expression; where it holds the module itself in another call, `unwrap(...)` around it."""
    unwrap, helper = facts.names_of(raw.source)["unwrap"], AddHelper(raw.source, "unwrap")
    if raw.test:
        code = raw.source.code(raw.node)
        bare = f"{unwrap}({code})" if raw.both else f"{code}.module"
        edit = Replace(raw.source, raw.node, f"({code} if {raw.test} else {bare})")
        return (edit, helper) if raw.both else (edit,)
    if not raw.both:
        chosen = raw.source.parents.get(raw.node)
        module = f"{raw.source.code(raw.node)}.module"
        if isinstance(chosen, cst.IfExp) and module in map(raw.source.code, (chosen.body, chosen.orelse)):
            return (Replace(raw.source, chosen, module),)  # net.module if use_cuda else net
        return (Append(raw.source, raw.node, ".module"),)
    return Surround(raw.source, raw.node, f"{unwrap}(", ")"), helper


#: What scripts set on the wrapper itself.
SWITCHES = frozenset({"broadcast_buffers", "forward_sync_buffers", "require_backward_grad_sync"})


def raw_findings(rule: Rule, facts: Facts, why: tuple[str, ...], reason: str) -> Iterator[Finding]:
    """The findings for the places of one kind; those in other files are beyond this version."""
    found = facts.cached("raw", find_raw)
    for raw in found:
        if raw.why not in why:
            continue
        name = raw.source.code(raw.node)
        if not facts.editable(raw.source):
            message = f"`{name}` holds the DDP wrapper in {raw.source.path.name}, where its module is wanted"
            yield rule.finding(
                raw.source,
                raw.node,
                message,
                refuse=way_back(facts.flow, raw.node, raw.source),
                left="Move the code into a module of its own: ddpify makes no changed copy of that file",
            )
            continue
        if raw.bound is not None:
            given = raw.source.code(raw.node)
            about = way_back(facts.flow, raw.node, raw.source)
            yield rule.finding(
                raw.source,
                raw.node,
                f"`{given}` binds arguments to the model, which is evaluated by it and has no other name there",
                refuse=about,
                left="Call the model itself with these arguments where it is evaluated",
            )
            continue
        message = (
            f"`{name}.{raw.what}` would ask the DDP wrapper"
            if raw.what
            else f"`{name}` is evaluated through the DDP wrapper"
        )
        yield rule.finding(raw.source, raw.node, message, *raw_edits(facts, raw), reason=reason)


#: what DeepSpeed's engine is asked for, which takes the wrapper's place under a flag, and no nn.Module
_OF_ENGINE = frozenset({"save_checkpoint", "load_checkpoint", "backward", "step", "gradient_accumulation_steps"}) | {
    "is_gradient_accumulation_boundary",
    "save_16bit_model",
    "train_batch",
    "global_steps",
    "micro_steps",
}


class AttributeThroughWrapper(Rule):
    """An attribute or method of the model is asked of the DDP wrapper.

    ## What it does
    Finds `model.encode(x)`, `model.fc`, `model[0]`, `print(model)`, `isinstance(model, Net)`, `copy.deepcopy(model)`
    where `model` is the wrapper.

    ## Why is this bad?
    The wrapper does not have the module's attributes: a read raises AttributeError, a write is silently lost, `hasattr`
    and `isinstance` answer for the wrapper, copies and pickles keep `module.` in their keys.

    ## Fix
    Ask the module inside: `model.module.attribute`.

    ## Edit
    `.module` behind the name, or at the call that hands the model to a function that does not train it.
    """

    code = "DDP202"
    references = ("https://github.com/ultralytics/yolov5/issues/90",)
    good = (Good("ddp = DDP(model)\nshape = ddp.module.weight.shape\nddp.train()"),)
    bad = (
        Bad("ddp = DDP(model)\nshape = ddp.weight.shape"),
        Bad("ddp = DDP(model)\nddp.tau = 0.5"),
        Bad("ddp = DDP(nn.Sequential(model))\nshape = ddp[0].weight.shape"),
    )
    converts = (
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
            net = nn.Linear(4, 1)
            net.losses = []
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for (x,) in loader:
                loss = net(x).mean()
                loss.backward()
                optimizer.step()
                net.losses.append(loss.item())
            print(sum(net.losses) / len(net.losses))
            """,
            gives=("net.module.losses[:] = all_reduce_mean(*net.module.losses)",),
        ),
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
            bias = net.bias.item()
            """,
            gives=("bias = net.module.bias.item()",),
        ),
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
            net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for (x,) in loader:
                net(x).mean().backward()
                optimizer.step()
            first, depth = net[0].weight.detach(), len(net)
            for layer in net:
                nn.init.zeros_(layer.bias)
            """,
            gives=("first, depth = net.module[0].weight.detach(), len(net.module)", "for layer in net.module:"),
        ),
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
            bare = net.module if hasattr(net, "module") else net
            if isinstance(net, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
                torch.save(net.module.state_dict(), "a.pt")
            else:
                torch.save(net.state_dict(), "a.pt")
            torch.save(bare.state_dict(), "b.pt")
            print(isinstance(net, nn.Linear), net.in_features)
            state = {"arch": type(net).__name__, "same": net.__class__ is nn.Linear}
            """,
            gives=(
                'bare = net.module if hasattr(net, "module") else net',
                "if isinstance(net, (nn.DataParallel, nn.parallel.DistributedDataParallel)):",
                'torch.save(net.state_dict(), "a.pt")',
                'torch.save(bare.state_dict(), "b.pt")',
                "print(isinstance(net.module, nn.Linear), net.module.in_features)",
                'state = {"arch": type(net.module).__name__, "same": net.module.__class__ is nn.Linear}',
            ),
        ),
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            def keep(epoch, model, optimizer):
                state = {"epoch": epoch, "model": model, "optimizer": optimizer}
                torch.save(state, "last.pt")
            loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
            net = nn.Linear(4, 1)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for epoch in range(2):
                for (x,) in loader:
                    net(x).mean().backward()
                    optimizer.step()
                keep(epoch, net, optimizer)
                latest = dict(epoch=epoch)
                latest["net"] = net
                torch.save(latest, "latest.pt")
            """,
            gives=("    keep(epoch, net.module, optimizer)", '    latest["net"] = net.module'),
        ),
    )

    def check(self, facts: Facts) -> Iterator[Finding]:
        if facts.converting:
            yield from raw_findings(
                self, facts, ("attribute", "handed over"), "the wrapper does not have the module's attributes"
            )
            return
        seen: set[int] = set()
        asked = {k: {e.name for e in facts.flow.log.of(k) if isinstance(e.obj, Wrapped)} for k in ("attribute", "set")}
        for e in facts.flow.log.of("attribute", "set", "item"):
            if (
                not isinstance(e.obj, Wrapped)
                or not facts.editable(e.frame.source)
                or id(e.node) in seen
                or not e.obj.module
                or self.is_unwrapped(facts, e.frame.source, e.node)
                or by_one_process(e, facts.flow)
                or is_elsewhere(facts.flow, e, e.obj)
            ):
                continue
            seen.add(id(e.node))
            source = e.frame.source
            lost = e.kind == "set"
            if (e.kind == "attribute" and e.name in asked["set"]) or (lost and self.is_kept(e, asked["attribute"])):
                continue  # set on the wrapper, and asked of it again
            if self.of_another(facts, e) or self.of_module(e) or self.may_be_other(facts, e):
                continue
            if e.kind == "item":
                yield self.finding(source, e.node, f"`{source.code(e.node)}`: the DDP wrapper has no items")
            elif (lost or e.name not in SURFACE) and "state_dict" not in e.name and self.unknown(e.obj, e.name, lost):
                code = source.code(e.node)
                why = (
                    "is set on the DDP wrapper; the module keeps its old value"
                    if lost
                    else "is asked of the DDP wrapper, which does not have it"
                )
                edits = self.unwrapped(facts, source, e.node)
                yield self.finding(source, e.node, f"`{code}` {why}", *edits)

    def of_another(self, facts: Facts, e: Event) -> bool:
        """`engine.step()`, of what may be the wrapper of another library: `engine, *_ = deepspeed.initialize(...)`."""
        base = e.node.value if isinstance(e.node, (cst.Attribute, cst.Subscript)) else e.node
        inner = [m for m in e.obj.module if isinstance(m, Module)] if isinstance(e.obj, Wrapped) else []
        own = any(e.name in m.fields or (m.cls is not None and m.cls.member(e.name)) for m in inner)
        if not own and e.kind == "attribute" and e.name in _OF_ENGINE:
            return True
        held = facts.flow.values.get(base, ())
        if not held and isinstance(base, cst.Name):
            held = e.frame.scope.names.get(base.value, ())  # the target of an assignment is not evaluated
        return not own and any(isinstance(o, Data) for o in held)

    def may_be_other(self, facts: Facts, e: Event) -> bool:
        """`held[f"optim_{name}"].step()`, of a dict that holds more than wrappers under computed keys."""
        base = e.node.value if isinstance(e.node, (cst.Attribute, cst.Subscript)) else e.node
        held = facts.flow.values.get(base, ())
        inner = {part for o in held if isinstance(o, Wrapped) for m in modules((o,)) for part in (m, m.inner)}
        return any(not isinstance(o, Wrapped) and o not in inner for o in held)

    def of_module(self, e: Event) -> bool:
        """`ddp.layers = ddp.module.layers`: the module has it already."""
        match e.stmt:
            case cst.Assign(value=cst.Attribute(value=cst.Attribute(attr=cst.Name(value="module")), attr=name)):
                return e.kind == "set" and name.value == e.name
        return False

    def is_kept(self, e: Event, asked: set[str]) -> bool:
        """`ddp.hyp = hyp` that is read from the wrapper, and that the module's own code never mentions."""
        inner = [m for m in e.obj.module if isinstance(m, Module)] if isinstance(e.obj, Wrapped) else []
        texts = [c.source.code(c.node) for m in inner if m.cls is not None for c in m.cls.lineage()]
        return e.name in asked and bool(texts) and not any(f"self.{e.name}" in text for text in texts)

    def is_unwrapped(self, facts: Facts, source: Source, node: cst.CSTNode) -> bool:
        """`raw = model.module if ddp else model`, of which the flow knows both."""
        base = node.value if isinstance(node, (cst.Attribute, cst.Subscript)) else node
        held = facts.flow.values.get(base, ())
        text = f"{source.code(base)}.module"
        if isinstance(node, cst.Attribute) and self.is_asked_first(source, node):
            return True
        # model.module.head if is_parallel(model) else model.head
        if any(isinstance(a, (cst.IfExp, cst.If)) and text in source.code(a) for a in source.ancestors(node)):
            return True
        if not held or all(isinstance(o, Wrapped) for o in held):
            return False
        # de_parallel(model).names, of a function that gives back the module of a wrapper
        inner = {m for o in held if isinstance(o, Wrapped) for m in o.module}
        if isinstance(base, cst.Call) and any(o in inner for o in held):
            return True
        name = re.escape(source.code(base))
        return re.search(rf"\b{name}\s*=[^=\n]*\.module\b", source.text) is not None

    def is_asked_first(self, source: Source, node: cst.Attribute) -> bool:
        """`hasattr(model, "config") and model.config.size`"""
        asked = re.compile(rf"hasattr\(\s*{re.escape(source.code(node.value))}\s*,\s*[\"']{node.attr.value}[\"']")
        tests = (cst.If, cst.IfExp, cst.BooleanOperation)
        above = (a for a in source.ancestors(node) if isinstance(a, tests))
        return any(asked.search(source.code(a.left if isinstance(a, cst.BooleanOperation) else a.test)) for a in above)

    def unwrapped(self, facts: Facts, source: Source, node: cst.CSTNode) -> tuple[Edit, ...]:
        """`ddp.module.tau`, where the name holds the wrapper and nothing else."""
        if isinstance(node, cst.Attribute):
            held = facts.flow.values.get(node.value, ())
            if held and all(isinstance(o, Wrapped) for o in held):
                return (Append(source, node.value, ".module"),)
        return ()

    def unknown(self, obj: Wrapped, name: str, lost: bool) -> bool:
        """nn.Module's own methods work on the wrapper too (their names gain `module.`), those of the class do not."""
        if name in SWITCHES:
            return False
        inner = [m for m in obj.module if isinstance(m, Module)]
        own = any(name in m.fields or (m.cls is not None and m.cls.member(name)) for m in inner)
        common = {
            "named_parameters",
            "named_modules",
            "modules",
            "children",
            "named_children",
            "state_dict",
            "load_state_dict",
            "apply",
            "half",
            "float",
            "double",
            "cpu",
            "type",
            "register_forward_hook",
            "device",
            "named_buffers",
            "register_buffer",
            "get_submodule",
            "share_memory",
            "compile",
            *("require_backward_grad_sync", "device_ids", "output_device", "process_group", "find_unused_parameters"),
            *("broadcast_buffers", "static_graph", "gradient_as_bucket_view", "is_multi_device_module", "device_type"),
            "reducer",
            "logger",
            "_set_static_graph",
            "bfloat16",
        }
        return own or lost or (name not in common and not name.startswith("_"))
