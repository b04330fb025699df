"""DDP205: training forwards around the wrapper."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddpify.edits import AddHelper, Edit, Replace, Surround
from ddpify.facts import Facts
from ddpify.facts.contents import modules, origins
from ddpify.facts.frames import Event, Frame, while_made
from ddpify.facts.ranks import never_with_others
from ddpify.facts.roles import root, roots
from ddpify.facts.routes import Route
from ddpify.facts.trails import shown, way_of_call
from ddpify.facts.untrained import is_stepped
from ddpify.facts.unused import has_weights
from ddpify.facts.values import FromForward, Module, Optimizer
from ddpify.rules._base import Bad, Converts, Finding, Good, Rule
from ddpify.rules._wrapping import own_name


class ForwardBypassesWrapper(Rule):
    """A training forward does not go through the DDP wrapper.

    ## What it does
    Finds forwards of a wrapped module (`model.module(x)`, a name that still holds the raw module, one of its parts, a
    method other than forward) whose loss is backpropagated.

    ## Why is this bad?
    Backward runs, nothing is reduced, every rank trains a model of its own, and nothing is said: the worst silent fault
    of DDP.

    ## Fix
    Call the wrapper itself; what is another method belongs into `forward`, or into a module around the model that
    is wrapped in its place.

    ## Edit
    `model.compute_loss(x)` and `model.encoder(x)` become `forward_through(model, "compute_loss", x)`: the method runs
    in a forward of the wrapper. Evaluation goes on calling the module. Losses that each train other parts of one model
    are refused: a wrapper reduces all of its gradients in each backward.
    """

    code = "DDP205"
    references = ("https://pytorch.org/docs/stable/notes/ddp.html#internal-design",)
    good = (
        Good("""
            ddp = DDP(model)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            for x, y in DataLoader(dataset, sampler=DistributedSampler(dataset, shuffle=False)):
                ddp(x).mean().backward()
                optimizer.step()
            """),
    )
    bad = (
        Bad("""
            ddp = DDP(model)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            for x, y in DataLoader(dataset, sampler=DistributedSampler(dataset, shuffle=False)):
                ddp.module(x).mean().backward()
                optimizer.step()
            """),
    )

    converts = (
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            class Net(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.layer = nn.Linear(4, 1)
                def forward(self, x):
                    return self.layer(x)
                def loss(self, x):
                    return self(x).mean()
            loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
            net = Net()
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for (x,) in loader:
                net.loss(x).backward()
                optimizer.step()
            print(net.loss(torch.ones(1, 4)).item())
            """,
            gives=('    forward_through(net, "loss", x).backward()', "net.module.loss(torch.ones(1, 4))"),
        ),
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            class Net(nn.Linear):
                def loss(self, x):
                    return self(x).mean()
            loader = DataLoader(TensorDataset(torch.ones(8, 4), torch.ones(8, 4)), batch_size=2)
            net = Net(4, 1)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for one, two in loader:
                (net.loss(one) + net.loss(two)).backward()
                optimizer.step()
            """,
            gives=('    (forward_through(net, "loss", one) + forward_through(net, "loss", two)).backward()',),
        ),
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
            nets = nn.ModuleDict({"one": nn.Linear(4, 2), "two": nn.Linear(2, 1)})
            optimizer = torch.optim.SGD(nets.parameters(), lr=0.1)
            for (x,) in loader:
                nets["two"](nets["one"](x)).mean().backward()
                optimizer.step()
            """,
            gives=('    forward_through(nets, "two", forward_through(nets, "one", x)).mean().backward()',),
        ),
    )

    def check(self, facts: Facts) -> Iterator[Finding]:
        yield from self.routed(facts) if facts.converting else ()
        yield from self.around(facts)

    def routed(self, facts: Facts) -> Iterator[Finding]:
        """`model.compute_loss(x)` -> `forward_through(model, "compute_loss", x)`"""
        held_by = {r: own_name(facts, w) if w.uses else "" for w in facts.wrap_points for r in w.routes}
        routes = list(held_by)
        options = frozenset({"nested"} if any("." in r.name for r in routes) else ())
        calls = {r.call for r in routes}
        if any(e.node in calls and e.grad is False for e in facts.flow.log.of("call")):
            options |= {"evaluates"}
        for w in facts.wrap_points:
            yield from self.apart(facts, w.routes)
        for r in routes:
            source = r.frame.source
            name = facts.names_of(source)["forward_through"]
            held = f'{held_by[r] or source.code(r.base)}, "{r.name}"'
            first = r.call.args[0] if r.call.args else None
            edits: list[Edit] = (
                [Replace(source, r.call, f"{name}({held})")]
                if first is None
                else [Replace(source, r.call.func, name), Surround(source, first, f"{held}, ", "")]
            )
            yield self.finding(
                source,
                r.call,
                f"`{source.code(r.call.func)}` trains outside the forward of the model",
                *edits,
                AddHelper(source, "forward_through", options),
                reason="DDP averages the gradients of what goes through its forward",
            )

    def apart(self, facts: Facts, routes: tuple[Route, ...]) -> Iterator[Finding]:
        """`loss_d` trains `model.disc` alone, `loss_g` both parts: one wrapper cannot reduce either."""
        names = {r.call: r.name for r in routes if r.is_part}
        trained: dict[cst.CSTNode, tuple[Event, frozenset[str]]] = {}
        for b in facts.after_roles.backwards:
            through = [o for o in origins(b.value) if isinstance(o, FromForward) and not o.cut]
            held = frozenset(n for o in through for call, n in names.items() if o.node is call)
            if held:
                trained.setdefault(b.node, (b, held))
        if len({held for _, held in trained.values()}) > 1:
            b, held = min(trained.values(), key=lambda t: len(t[1]))
            source = b.frame.source
            yield self.finding(
                source,
                b.node,
                f"`{source.code(b.node)}` trains no more than `{'`, `'.join(sorted(held))}` of the model, and another "
                "loss trains other parts: a DDP wrapper reduces all of its gradients in each backward",
                refuse=way_of_call(facts.after, b),
                left="Make a model of its own of each part, so that each gets a wrapper of its own",
            )

    def around(self, facts: Facts) -> Iterator[Finding]:
        flow, roles = facts.after, facts.after_roles
        wrapped = {part for w in roles.wrapped for m in modules(w.module) for part in (m, m.inner or m)}
        through = {id(b) for e in flow.log.of("forward") for b in [e.node] if not isinstance(e.obj, Module)}
        trained = roles.training_forwards if facts.converting else _stepped(facts)
        for e in flow.log.of("forward", "method"):
            if not isinstance(e.obj, Module) or e.node not in trained or e.grad is False or id(e.node) in through:
                continue
            if e.kind == "method" and e.name in ("to", "train", "eval"):
                continue
            if not facts.converting and (while_made(e.frame) or never_with_others(e, flow) or not has_weights(e.obj)):
                continue  # self.forward(torch.zeros(...)) in __init__, for the sizes of its layers; a loss in the model
            if not facts.converting and (_where_bare(e) or not _is_trained(facts, e.obj)):
                continue
            core = root(e.obj)
            if (core in wrapped or e.obj in wrapped) and facts.editable(e.frame.source):
                name = shown(e.frame.source, e.node)
                yield self.finding(
                    e.frame.source,
                    e.node,
                    f"`{name}` is trained without going through the DDP wrapper: no gradient is reduced",
                    refuse=way_of_call(flow, e) if facts.converting else None,
                    left="Compute the loss from a call of the model itself" if facts.converting else "",
                )


def _where_bare(e: Event) -> bool:
    """`net.loss(x) if not hasattr(net, "module") else ...`: there is no wrapper on that side."""
    below: cst.CSTNode = e.node
    source = e.frame.source
    func = e.node.func if isinstance(e.node, cst.Call) else None
    base = func.value if isinstance(func, cst.Attribute) else func
    for above in source.ancestors(e.node):
        if isinstance(above, cst.FunctionDef) or base is None:
            return False
        if isinstance(above, (cst.If, cst.IfExp)):
            test: cst.BaseExpression = above.test
            bare: cst.CSTNode | None = above.orelse
            if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
                test, bare = test.expression, above.body
            if below is bare and source.code(test).replace("'", '"') == f'hasattr({source.code(base)}, "module")':
                return True
        below = above
    return False


def _stepped(facts: Facts) -> set[cst.CSTNode]:
    """The forwards behind a backward that an optimizer may go by: gradients are asked for to be looked at, too."""
    steps = [e for e in facts.flow.log.of("method") if e.name == "step" and isinstance(e.obj, Optimizer)]
    above = {id(f) for e in steps for f in _frames(e)}
    own = {id(e.frame) for e in steps}
    found: set[cst.CSTNode] = set()
    for b in facts.after_roles.backwards:
        if not steps or id(b.frame) in above or any(id(f) in own for f in _frames(b)):
            found |= {o.node for o in origins(b.value) if isinstance(o, FromForward)}
    return found & facts.after_roles.training_forwards


def _is_trained(facts: Facts, module: Module) -> bool:
    """Whether an optimizer that makes steps has a module: one that never steps leaves gradients that nothing reads."""
    every, core = facts.after_roles.optimizers, root(module)
    mine = [o for o in every if o.loose or core in (r for m in o.modules for r in (root(m), *roots(m)))]
    return not every or any(is_stepped(facts.after, o) for o in mine)


def _frames(e: Event) -> list[Frame]:
    """Where an event happens, and what calls it."""
    return [e.frame, *(entry.frame for chain in e.frame.chains(8) for entry in chain)]
