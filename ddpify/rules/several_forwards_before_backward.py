"""DDP207: several forwards of one wrapper before the backward."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import libcst as cst

from ddpify.edits import Append, Edit, InsertAfter
from ddpify.facts import Facts
from ddpify.facts.contents import constants, modules, origins
from ddpify.facts.discarded import discarded
from ddpify.facts.frames import Event
from ddpify.facts.known_ways import comes_of
from ddpify.facts.layers import BUFFERS, mentions, normalises
from ddpify.facts.placing import alternatives, of_one_call
from ddpify.facts.replay import replay
from ddpify.facts.trails import shown, way_of_call
from ddpify.facts.values import FromForward, Wrapped
from ddpify.facts.wraps import WrapPoint
from ddpify.rules._base import Bad, Converts, Finding, Good, Rule, Severity

_REMEDY = (
    "Add the losses and call backward once, or run the model again before the second; .detach() the output that the "
    "first loss does not train"
)

_SWITCHES = ("broadcast_buffers", "forward_sync_buffers")
_WHY = ("# The backward needs the BatchNorm statistics as the first of two forwards left them.",)


class SeveralForwardsBeforeBackward(Rule):
    """One wrapper runs forward several times before its losses are backpropagated one by one.

    ## What it does
    Finds backwards through a DDP wrapper that has not run forward since the one before: two forwards and then two
    backwards, or one forward and two losses with `retain_graph=True`. Also two forwards of a model with BatchNorm
    before one backward. What goes through `.detach()` does not count.

    ## Why is this bad?
    DDP reduces gradients once per forward-backward pair: of two backwards after two forwards the second leaves local
    gradients, silently. Two forwards of a model with buffers before one backward fail on CUDA: the second forward's
    buffer broadcast overwrites in place what the first one's backward needs.

    ## Fix
    Add the losses and call backward once, or run the model again before the second backward; `.detach()` what the
    first loss does not train.

    ## Edit
    Where the first loss does not train what made its input, and the gradients that it leaves there are zeroed before
    any step (a discriminator's loss on `fake`), the input is detached: `disc(fake.detach())`. Else the script is
    refused. Of a model with BatchNorm that runs forward twice before one backward, the broadcast is switched off
    behind the wrap: `disc.broadcast_buffers = False`. Its statistics are made equal before an evaluation instead
    (DDP206), and rank 0's are saved, as before.
    """

    code = "DDP207"
    references = ("https://github.com/pytorch/pytorch/issues/22095", "https://github.com/pytorch/pytorch/issues/47260")
    good = (
        Good("""
            ddp = DDP(model)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            def run(net, x):
                return net(x).mean()
            for x, y in DataLoader(dataset, sampler=DistributedSampler(dataset, shuffle=False)):
                loss = run(ddp, x)
                loss.backward()
                other = run(ddp, x)
                other.backward()
                optimizer.step()
            """),
        Good("""
            ddp = DDP(model)
            critic = DDP(nn.Linear(1, 1))
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            judge = torch.optim.SGD(critic.parameters(), lr=0.1)
            for x, y in DataLoader(dataset, sampler=DistributedSampler(dataset, shuffle=False)):
                made = ddp(x)
                critic(made.detach()).mean().backward()
                judge.step()
                critic(made).mean().backward()
                optimizer.step()
            """),
        Good("""
            ddp = DDP(model)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler() if torch.cuda.is_available() else None
            for x, y in DataLoader(dataset, sampler=DistributedSampler(dataset, shuffle=False)):
                loss = ddp(x).mean()
                if scaler is not None:
                    scaler.scale(loss).backward()
                else:
                    loss.backward()
                optimizer.step()
            """),
        Good("""
            ddp = DDP(model)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            for x, y in DataLoader(dataset, sampler=DistributedSampler(dataset, shuffle=False)):
                (ddp(x).mean() + ddp(y.expand(-1, 8)).mean()).backward()
                optimizer.step()
            """),
    )
    bad = (
        Bad("""
            ddp = DDP(model)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            for x, y in DataLoader(dataset, sampler=DistributedSampler(dataset, shuffle=False)):
                out = ddp(x)
                (out - y).pow(2).mean().backward(retain_graph=True)
                out.abs().mean().backward()
                optimizer.step()
            """),
        Bad("""
            ddp = DDP(model)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            for x, y in DataLoader(dataset, sampler=DistributedSampler(dataset, shuffle=False)):
                one = ddp(x).mean()
                two = ddp(y.expand(-1, 8)).mean()
                one.backward()
                two.backward()
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
            gen, disc = nn.Linear(2, 4), nn.Linear(4, 1)
            opt_g = torch.optim.SGD(gen.parameters(), lr=0.1)
            opt_d = torch.optim.SGD(disc.parameters(), lr=0.1)
            for (real,) in loader:
                fake = gen(torch.randn(len(real), 2))
                loss_d = disc(fake).mean() - disc(real).mean()
                opt_d.zero_grad()
                loss_d.backward(retain_graph=True)
                opt_d.step()
                loss_g = -disc(fake).mean()
                opt_g.zero_grad()
                loss_g.backward()
                opt_g.step()
            """,
            gives=("    loss_d = disc(fake.detach()).mean() - disc(real).mean()", "    loss_g = -disc(fake).mean()"),
        ),
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            class Twin(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.layers = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
                def forward(self, x):
                    return self.layers(x)
            loader = DataLoader(TensorDataset(torch.ones(8, 4), torch.ones(8, 4)), batch_size=2)
            net = Twin()
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for left, right in loader:
                (net(left) - net(right)).pow(2).mean().backward()
                optimizer.step()
            """,
            gives=("net = DDP(net)", "net.broadcast_buffers = False"),
        ),
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            def train(net, loader, optimizer):
                for left, right in loader:
                    (net(left) - net(right)).pow(2).mean().backward()
                    optimizer.step()
            twin = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
            loader = DataLoader(TensorDataset(torch.ones(8, 4), torch.ones(8, 4)), batch_size=2)
            train(twin, loader, torch.optim.SGD(twin.parameters(), lr=0.1))
            """,
            gives=(
                "twin = DDP(twin)\n# The backward needs",
                "first of two forwards left them.\ntwin.broadcast_buffers = False",
            ),
        ),
    )

    def check(self, facts: Facts) -> Iterator[Finding]:
        done: set[int] = set()
        happened = list(replay(facts.after, "forward", "backward"))
        for w in facts.after_roles.wrapped:
            inner = {part for m in modules((w,)) for part in (m, m.inner) if part is not None}
            pending: list[Event] = []  # forwards since the last backward through this wrapper
            ran: list[Event] = []  # those before it
            last: Event | None = None  # that backward
            again = False  # a new wrapper of the same model ran forward since then
            for e in happened:
                if e.kind == "forward" and e.obj is w and e.grad is not False:
                    pending.append(e)
                elif e.kind == "forward" and isinstance(e.obj, Wrapped) and inner & set(modules((e.obj,))):
                    again = e.obj is not w
                elif e.kind == "backward":
                    reached = {
                        id(o.node)
                        for o in origins(e.value)
                        if isinstance(o, FromForward) and not o.cut and o.module in inner
                    }
                    # another way of the same step: it has forwards of its own, or shares those of the first
                    other = last is not None and (alternatives(last, e) or of_one_call(last, e))
                    if not reached or not (pending or ran) or ((again or other) and not pending):
                        continue
                    if not pending and last is not None:
                        through = next((f for f in reversed(ran) if id(f.node) in reached), ran[-1])
                        if not facts.converting and not comes_of(facts, e, {id(f.node) for f in ran}):
                            continue
                        if id(e.node) not in done and (facts.converting or facts.editable(e.frame.source)):
                            done.add(id(e.node))
                            cut = discarded(facts, last, e, through) if facts.converting else []
                            yield self.detached(e, through, cut) if cut else self.second(facts, e, through)
                        continue
                    # those that no backward reaches will run the module itself
                    mine = [p for p in pending if id(p.node) in reached]
                    pairs = itertools.combinations(mine, 2) if facts.converting or len(mine) == len(pending) else ()
                    if any(a.node is not b.node and not (alternatives(a, b) or of_one_call(a, b)) for a, b in pairs):
                        yield from self.buffers(facts, pending[-1], w, done)
                    pending, ran, last, again = [], pending or ran, e, False

    def detached(self, e: Event, through: Event, cut: list[cst.Name | cst.Attribute]) -> Finding:
        """The first loss does not train what made its input: its gradients there are thrown away."""
        source = e.frame.source
        made, maker = source.code(cut[0]), source.code(through.node)
        return self.finding(
            source,
            cut[0],
            f"`{made}` carries gradients back to `{maker}` that are zeroed before any step",
            *(Append(source, node, ".detach()") for node in cut),
            reason="a forward is reduced in one backward: the one that trains it",
        )

    def second(self, facts: Facts, e: Event, through: Event) -> Finding:
        code, forward = shown(e.frame.source, e.node), shown(through.frame.source, through.node)
        return self.finding(
            e.frame.source,
            e.node,
            f"`{code}` is the second backward through `{forward}`: only the first is reduced, these stay local",
            refuse=way_of_call(facts.after, e) if facts.converting else None,
            left=_REMEDY if facts.converting else "",
        )

    def buffers(self, facts: Facts, e: Event, w: Wrapped, done: set[int]) -> Iterator[Finding]:
        """Lint wants to have seen the BatchNorm; a model that cannot be seen converts as one that has it."""
        known = list(modules((w,)))
        if not any(mentions(m, BUFFERS) if facts.converting else normalises(m) for m in known):
            return
        if not facts.converting:
            if id(e.node) not in done and facts.editable(e.frame.source) and not self.is_quiet(facts, w):
                done.add(id(e.node))
                yield self.again(e)
            return
        made = {m.site.node for m in known}
        points = [
            p
            for p in facts.wraps
            if isinstance(p, WrapPoint) and any(m.site.node in made for m in (p.module, *p.modules))
        ]
        key = id(points[0]) if points else id(e.node)
        if key in done:
            return
        done.add(key)
        code = e.frame.source.code(e.node)
        mended = self.without_broadcast(points)
        yield self.finding(
            e.frame.source,
            e.node,
            f"`{code}` is another forward of a model with BatchNorm before the backward: on CUDA that fails under DDP",
            *mended,
            left="" if mended else "concatenate the inputs of both forwards, or use SyncBatchNorm",
            reason=f"`{code}` runs it again before the backward, and must not overwrite BatchNorm's statistics"
            if mended
            else "",
        )

    def again(self, e: Event) -> Finding:
        code = e.frame.source.code(e.node)
        message = (
            f"`{code}` is another forward of a model with BatchNorm before the backward: on CUDA that fails under DDP"
        )
        left = "Concatenate the inputs of both forwards, or set `broadcast_buffers = False` on the wrapper"
        return self.finding(e.frame.source, e.node, message, left=left, severity=Severity.WARNING)

    def is_quiet(self, facts: Facts, w: Wrapped) -> bool:
        """A wrapper that broadcasts no buffers, or a model whose BatchNorm is made one of all ranks."""
        made = [e for e in facts.flow.log.of("new") if e.obj is w]
        sets = [e for e in facts.flow.log.of("set") if e.obj is w and e.name in _SWITCHES]
        given = [v for e in made for k, v in e.extra.items() if k in _SWITCHES] + [e.value for e in sets]
        synced = any("convert_sync" in name for name in facts.identifiers)
        return synced or any(constants(v) != [True] for v in given)

    def without_broadcast(self, points: list[WrapPoint]) -> list[Edit]:
        """An attribute: the argument has another name from torch 2.13 on."""
        if not points or any(p.shape or p.is_before for p in points):
            return []
        lines = [(*_WHY, f"{p.target}.broadcast_buffers = False") for p in points]
        # last: the wrap goes behind the same statement, and its forwards may stand in a function further up
        return [InsertAfter(p.source, p.after, text, last=True) for p, text in zip(points, lines, strict=True)]
