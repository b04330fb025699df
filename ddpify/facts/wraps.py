"""Roles in, wrap points out: where each trained module is held when it first trains, and after which statement."""

from __future__ import annotations

from dataclasses import dataclass, replace

import libcst as cst

from ddpify.errors import Way
from ddpify.facts.cells import Cell, find_cell, holders, holds_others, members, stores_in
from ddpify.facts.contents import modules
from ddpify.facts.flow import Flow
from ddpify.facts.frames import Event, Frame
from ddpify.facts.freezing import may_be_frozen
from ddpify.facts.given import Made, made_in_place
from ddpify.facts.methods import PREPARES
from ddpify.facts.placing import blocks, common_block, in_block, in_branches
from ddpify.facts.preparing import comes_again, only_notes, prepares, runs_again
from ddpify.facts.roles import Roles, root
from ddpify.facts.routes import Route, find_routes, in_step
from ddpify.facts.trails import way_back
from ddpify.facts.values import Module
from ddpify.source import Source


@dataclass(frozen=True, eq=False)
class WrapPoint:
    """`target` holds the module from `after` on; its first training forward comes later."""

    module: Module
    target: str
    after: cst.CSTNode
    source: Source
    frame: Frame
    #: `target` holds a list, tuple or dict of models, all of which are trained
    shape: str = ""
    #: the names that the script gives to an element (of a dict: to key and value)
    each: tuple[str, ...] = ()
    #: all that `target` may hold when it is wrapped
    modules: tuple[Module, ...] = ()
    #: `train(Net().to(device), loader)`: the expression that makes the module, which no variable holds there
    made: cst.BaseExpression | None = None
    #: the `self` of each `self(x)` in a module that trains itself; `target` is wrapped before `after`
    uses: tuple[cst.BaseExpression, ...] = ()
    #: the calls of methods and parts of the model in which it trains, which have to go through the wrapper
    routes: tuple[Route, ...] = ()
    #: nothing tells that any parameter is trained by then: DDP would refuse it
    may_be_frozen: bool = False
    #: `target` may hold a plain function, or None: `loss_fn = Learned() if learned else F.mse_loss`
    may_be_plain: bool = False
    #: `"aux" in models`, of a model that some runs do not put there
    there: str = ""

    @property
    def is_before(self) -> bool:
        """Whether the wrapper is made before the statement, not behind it."""
        return self.made is not None or bool(self.uses)


@dataclass(frozen=True, eq=False)
class NoWrapPoint:
    """A trained module that no variable holds in a way that could be followed."""

    module: Module
    node: cst.CSTNode
    source: Source
    reason: str
    #: the model as its first training forward calls it, and how it got there
    about: Way


def find_wraps(flow: Flow, roles: Roles) -> list[WrapPoint | NoWrapPoint]:
    """A wrap point for each trained module that is not wrapped yet."""
    wrapped = {part for w in roles.wrapped for m in modules(w.module) for part in (m, m.inner or m)}
    found: list[tuple[WrapPoint | NoWrapPoint, Event]] = []
    for module in roles.trained:
        if module in wrapped or root(module) in wrapped or not module.has_parameters:
            continue
        forwards = [
            e
            for e in flow.log.of("forward", "method")
            if e.node in roles.training_forwards
            and e.grad is not False
            and e.obj is not None
            # net.get_loss(x), of a class that is not there
            and (e.kind == "forward" or (isinstance(e.obj, Module) and e.name not in PREPARES))
            and module in [root(m) for m in modules((e.obj,))]
        ]
        if forwards:
            forwards = [e for e in forwards if in_step(roles, e)] or forwards
            first = min(forwards, key=lambda e: e.seq)
            routes = [find_routes(flow, roles, e, module) for e in forwards]
            around = routes[forwards.index(first)]
            first = around[0].event(first) if around else first
            kept = {id(r.call): r for found_routes in routes for r in found_routes}
            found.append((_Search(flow, roles, module, first, tuple(kept.values())).point(), first))
    return _one_each(found)


def _one_each(found: list[tuple[WrapPoint | NoWrapPoint, Event]]) -> list[WrapPoint | NoWrapPoint]:
    """`model = A() if small else B()`: two modules that one variable may hold are wrapped once, behind both."""
    places: dict[object, WrapPoint | NoWrapPoint] = {}
    for w, first in found:
        if isinstance(w, NoWrapPoint):
            places[w] = w
            continue
        # a function that is called twice has one text; fit(net), net = Other(), fit(net) are two uses
        use = (id(_stmt_in(first, w.frame)), id(first.frame.node), id(first.node))
        key = (id(w.frame.node), w.target, w.shape or use)
        kept = places.get(key)
        if not isinstance(kept, WrapPoint):
            places[key] = w
            continue
        held = tuple(dict.fromkeys((*kept.modules, *w.modules)))
        later = w.source.span(w.after).start > kept.source.span(kept.after).start
        places[key] = replace(
            w if later else kept,
            module=kept.module,
            modules=held,
            may_be_frozen=kept.may_be_frozen or w.may_be_frozen,
            may_be_plain=kept.may_be_plain or w.may_be_plain,
        )
    return list(places.values())


@dataclass(frozen=True, eq=False)
class _Search:
    """The search for the place where one module is wrapped, before its first training forward."""

    flow: Flow
    roles: Roles
    module: Module
    first: Event
    routes: tuple[Route, ...] = ()

    def none(self, reason: str) -> NoWrapPoint:
        about = way_back(
            self.flow, _callee(self.first.node) or self.first.node, self.first.frame.source, self.first.frame
        )
        return NoWrapPoint(self.module, self.first.node, self.first.frame.source, reason, about)

    def point(self) -> WrapPoint | NoWrapPoint:
        first, module = self.first, self.module
        source = first.frame.source
        assert isinstance(first.node, cst.Call)
        func = first.node.func
        inside = (
            [m for m in modules((first.obj,)) if m is not module and m is not module.inner]
            if first.obj is not None
            else []
        )
        route = next((r for r in self.routes if r.call is first.node), None)
        if route is not None:
            func = route.base
        elif isinstance(func, cst.Attribute) and func.attr.value in ("forward", "__call__"):
            func = func.value
        elif inside and root(inside[0]) is module and inside[0].inner is not module:
            return self.none(f"`{source.code(func)}` trains a part of the model by itself, not the model's forward")
        if is_self(func, first.frame):
            return self.by_itself()
        cell = find_cell(self.flow, func, first, module)
        if isinstance(cell, Made):
            return self.in_place(cell)
        if isinstance(cell, str):
            return self.none(cell)
        found = self.place(cell)
        found = self.whole(found, cell) if isinstance(found, WrapPoint) and cell.shape else found
        return replace(found, routes=self.routes) if isinstance(found, WrapPoint) else found

    def place(self, cell: Cell) -> WrapPoint | NoWrapPoint:
        """The statement behind which the model stands in its cell, ready to be wrapped."""
        flow, first, target = self.flow, self.first, cell.target
        # if opt.aux: self.models["aux"] = Aux(): the wrap stands with it, not behind the `if`
        keyed = [e for e in stores_in(cell) if e.seq < first.seq]
        binds = keyed or [e for e in cell.binds if e.seq < first.seq and self.puts(e)]
        parallel = {id(e.stmt) for e in flow.log.of("dataparallel")}
        # model = nn.DataParallel(model) is taken out: nothing can stand behind it
        binds = sorted([e for e in binds if id(e.stmt) not in parallel] or binds, key=lambda e: e.seq)
        binds = [e for e in binds if not comes_again(e, binds[0])]
        if not binds:
            return self.none(f"`{target}` is not assigned where ddpify could follow it")
        frame = _declaring(binds, target, cell.frame)
        prepared = [e for e in flow.log.events if e.seq < first.seq and prepares(flow, e, self.module)]
        places = [(e.seq, s) for e in (*binds, *prepared) if (s := _stmt_in(e, frame)) is not None]
        bound = _stmt_in(binds[-1], frame)
        if bound is None:
            return self.none(f"`{target}` is assigned in another function than the one that prepares it")
        use = _stmt_in(first, frame)
        # if cuda: self.net = self.net.cuda(), which some runs do not do: the wrap stands behind it, not in it
        held = [s for e in binds if (s := _stmt_in(e, frame)) is not None and (keyed or e.kind in ("bind", "set"))]
        held += self.instead(cell, frame, bound)
        block = common_block(frame.source, [*held, bound, *([use] if use is not None and not keyed else [])])
        late = [s for seq, s in places if keyed and block is not None and block not in _around(frame.source, s)]
        there = ""
        if late:  # what prepares it stands behind the `if` that makes it
            block = common_block(frame.source, [*held, bound, *late])
            there = f"{target.rpartition('[')[2][:-1]} in {target.rpartition('[')[0]}"
        if block is None:
            return self.none(f"no place for the wrap of `{target}` was found")
        if use is not None and not late:
            block = self.branch(frame, held, [s for _, s in places], use) or block
        stop = in_block(frame.source, use, block) if use is not None else None
        for seq, stmt in sorted(places, key=lambda p: p[0], reverse=True):
            if common_block(frame.source, [stmt, bound]) is None or block not in _around(frame.source, stmt):
                continue
            anchor = in_block(frame.source, stmt, block)
            if anchor is not stop and not isinstance(anchor, cst.Return):
                if runs_again(flow, frame, self.module):
                    code = frame.source.code(bound).split("\n")[0]
                    return self.none(
                        f"every epoch makes `{code}` anew, and would wrap it anew: do it before the epochs"
                    )
                frozen = may_be_frozen(flow, self.roles, self.module, seq, anchor, frame.source)
                plain = not cell.shape and holds_others(flow, frame, target, cell.binds)
                return WrapPoint(
                    self.module,
                    target,
                    anchor,
                    frame.source,
                    frame,
                    modules=(self.module,),
                    may_be_frozen=frozen or plain,
                    may_be_plain=plain,
                    there=there,
                )
        return self.none(f"`{target}` is made and trained in one statement")

    def branch(
        self, frame: Frame, held: list[cst.CSTNode], places: list[cst.CSTNode], use: cst.CSTNode
    ) -> cst.CSTNode | None:
        """The branch of `if train:` in which a model that is made in front of it is moved, and alone is trained."""
        source, training = frame.source, self.roles.training_forwards
        forwards = [e for e in self.flow.log.of("forward") if e.node in training and isinstance(e.obj, Module)]
        mine = [_stmt_in(e, frame) for e in forwards if e.obj in (self.module, self.module.inner)]
        for stmt in reversed(places):
            inner = common_block(source, [stmt, use])
            if inner is None or not isinstance(source.parents.get(inner), (cst.If, cst.Else)):
                continue
            outside = [s for s in held if inner not in blocks(source, s)]
            above, start = blocks(source, inner), source.span(inner).start
            straight = all(source.span(s).start < start and blocks(source, s)[0] in above for s in outside)
            around = list(source.ancestors(inner))
            between = around[: around.index(blocks(source, outside[0])[0])] if outside and straight else []
            plain = all(isinstance(a, (cst.If, cst.Else, cst.IndentedBlock)) for a in between)
            if outside and straight and plain and all(s is None or inner in blocks(source, s) for s in mine):
                return inner
        return None

    def instead(self, cell: Cell, frame: Frame, bound: cst.CSTNode) -> list[cst.CSTNode]:
        """`if small: self.net = Small() else: self.net = Large()`: where other runs have another model in the cell."""
        others = [
            e
            for e in cell.binds
            if e.kind in ("bind", "set") and any(m.has_parameters for m in modules(e.value)) and not self.puts(e)
        ]
        stmts = [s for e in others if e.seq < self.first.seq and (s := _stmt_in(e, frame)) is not None]
        return [s for s in stmts if in_branches(frame.source, s, bound)]

    def by_itself(self) -> WrapPoint | NoWrapPoint:
        """`def fit(self, loader): ... self(x)`, or `self.decoder(self.encoder(x))`: wrapped before the loop."""
        frame, source = self.first.frame, self.first.frame.source
        name = frame.func.name if frame.func is not None else ""
        calls = {r.call for r in self.routes}
        ways = [(r.frame, r.base) for r in self.routes] + [
            (e.frame, _callee(e.node))
            for e in self.flow.log.of("forward")
            if e.node in self.roles.training_forwards and e.grad is not False and e.obj is self.module
            if not any(c in calls for c in (e.node, *(entry.call for chain in e.frame.chains() for entry in chain)))
        ]
        if not ways or any(f is not frame or not is_self(use, frame) for f, use in ways):
            return self.none(f"the model trains itself in `{name}` and in other places, so that no variable holds it")
        around = self.first.loops
        again = any(entry.loops for chain in frame.chains() for entry in chain)
        if again or not around or not isinstance(around[0].node, (cst.For, cst.While)):
            where = "is called in a loop" if again else "has no loop"
            return self.none(f"the model trains itself in `{name}`, which {where}: every turn would wrap it anew")
        loop = around[0].node
        inside = (e for e in self.flow.log.events if e.stmt is loop or loop in source.ancestors(e.stmt))
        if any(e.frame is frame and not only_notes(e) and prepares(self.flow, e, self.module) for e in inside):
            return self.none(f"the model is prepared in the loop of `{name}` that trains it")
        uses = tuple(dict.fromkeys(u for _, u in ways if u is not None))
        of = (self.module,)
        return WrapPoint(self.module, "model", loop, source, frame, modules=of, uses=uses, routes=self.routes)

    def in_place(self, made: Made) -> WrapPoint | NoWrapPoint:
        """`train(Net().to(device), loader)`: it gets a name before the statement, where nothing else prepares it."""
        stmt, frame = made_in_place(made), made.frame
        events = (e for e in self.flow.log.events if made.called <= e.seq < self.first.seq)
        if stmt is None or any(prepares(self.flow, e, self.module) for e in events):
            return self.none(f"`{frame.source.code(made.node)}` is made and trained in one statement")
        return WrapPoint(self.module, made.name, stmt, frame.source, frame, modules=(self.module,), made=made.node)

    def puts(self, event: Event) -> bool:
        """Whether an event puts the module into its cell, by itself or in a list or dict."""
        values = (event.value, *event.extra.values())
        return any(self.module in map(root, modules(v)) or holders(v, self.module) for v in values)

    def whole(self, made: WrapPoint, cell: Cell) -> WrapPoint | NoWrapPoint:
        """`nets = [DDP(net) for net in nets]`, where all of them are trained; else the trained ones, each."""
        held = [(key, m) for o in cell.of for key, value in members(o) for m in map(root, modules(value))]
        if all(m in self.roles.trained for _, m in held):
            return replace(made, shape=cell.shape, each=cell.each, modules=tuple(m for _, m in held))
        keys = [key for key, m in held if m is self.module]
        if cell.shape == "tuple" or len(keys) != 1 or not isinstance(keys[0], (int, str)):
            return self.none(f"`{cell.target}` holds models that are trained and others that are not")
        return replace(made, target=f"{cell.target}[{_key(keys[0])}]")


def _key(key: int | str) -> str:
    return f'"{key}"' if isinstance(key, str) and repr(key) == f"'{key}'" else repr(key)


def _callee(call: cst.CSTNode) -> cst.BaseExpression | None:
    """What is called: `net` of `net(x)` and of `net.forward(x)`."""
    func = call.func if isinstance(call, cst.Call) else None
    return func.value if isinstance(func, cst.Attribute) and func.attr.value in ("forward", "__call__") else func


def is_self(node: cst.BaseExpression | None, frame: Frame) -> bool:
    """Whether an expression is the name of the object whose method is running."""
    func = frame.func
    if func is None or func.bound is None or not isinstance(node, cst.Name) or not func.node.params.params:
        return False
    return func.node.params.params[0].name.value == node.value


def _declaring(binds: list[Event], name: str, holder: Frame) -> Frame:
    """`global model` in main(): the function that binds the name of another scope, where no other does."""
    frames = list(dict.fromkeys(e.frame for e in binds))
    declared = name.partition("[")[0] in frames[0].scope.outer
    return frames[0] if len(frames) == 1 and declared else holder


def _around(source: Source, stmt: cst.CSTNode) -> list[cst.CSTNode]:
    return list(source.ancestors(stmt))


def _stmt_in(event: Event, frame: Frame) -> cst.CSTNode | None:
    """The statement of a frame that leads to an event."""
    for chain in event.frame.chains():
        for entry in chain:
            if entry.frame is frame:
                return entry.stmt
    return (
        event.stmt
        if event.frame is frame or (event.frame.scope.parent is frame.scope and event.frame.func is frame.func)
        else None
    )
