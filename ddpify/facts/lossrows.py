"""A training step on whole tensors in, what its loss and its other numbers are over their rows out.

The statements of the step are run once, in their order, with what each name is over the rows; functions, closures and
losses of the project are followed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.axes import of_axes
from ddpify.facts.dependencies import bindings, named
from ddpify.facts.externals import role_of
from ddpify.facts.layerrows import Arguments, of_layer
from ddpify.facts.overrows import (
    NONE,
    ROWS,
    SUM,
    Kind,
    Over,
    by_entry,
    joined,
    reduced,
)
from ddpify.facts.picked import counted, turn
from ddpify.facts.reshaped import SHAPING, Given
from ddpify.facts.rowvalues import Expressions
from ddpify.facts.rowwise import mixes_rows
from ddpify.facts.torchrows import of_function, of_loss
from ddpify.facts.values import Class, Ext, Func, Module, Wrapped
from ddpify.source import Source, dotted

if TYPE_CHECKING:
    from ddpify.facts import Facts

_DEPTH = 10


class Step(Expressions):
    """One run of a step's statements, with what its losses and its other means and sums are over the rows.

    `cuts` are arguments of training forwards of which each row has a part along the second dimension: recurrent states.
    """

    def __init__(
        self,
        facts: Facts,
        names: Sequence[str],
        backwards: Sequence[cst.CSTNode],
        cuts: Collection[cst.CSTNode] = (),
    ) -> None:
        super().__init__(facts)
        self.env = {n: Kind(Over.ROWS, names=frozenset({n})) for n in names}
        self.cuts = {id(n) for n in cuts}
        self.by_row = set()
        #: whether gradients of the tensors themselves are taken
        self.of_inputs = False
        self.backwards = {id(n) for n in backwards}
        self.losses: dict[int, Kind] = {}
        self.depth = 0
        #: the classes whose forward is being run
        self.inside: list[str] = []

    def mixed(self, source: Source, node: cst.CSTNode, why: str = "") -> Kind:
        if self.inside and not why:
            why = f"{{}} in `{self.inside[-1]}` may compute one row from another"
        return super().mixed(source, node, why)

    # -- calls ------------------------------------------------------------------------------------------------

    def call(self, source: Source, node: cst.Call, why: Kind) -> Kind:
        if id(node) in self.backwards and isinstance(node.func, cst.Attribute):
            self.losses[id(node)] = self.of(source, node.func.value)
            return NONE
        called = self.facts.flow.values.get(node.func, ())
        given = [(a.keyword.value if a.keyword else "", self.of(source, a.value)) for a in node.args]
        funcs = [o for o in called if isinstance(o, Func)]
        if isinstance(node.func, cst.Attribute) and node.func.attr.value == "step":
            for arg in node.args:  # optimizer.step(closure)
                for func in self.facts.flow.values.get(arg.value, ()):
                    if isinstance(func, Func):
                        self.follow(func, [], why)
            return NONE
        nets = [n for o in called for n in _networks(o)]
        if self.inside and nets:
            if isinstance(node.func, cst.Call) and any(n.has_parameters for n in nets):
                return self.mixed(source, node, "{} draws the weights of a layer anew in each pass")
            return joined([self.layer(n, node, given, why) for n in _kinds_of(nets)], why)
        if isinstance(node.func, cst.Attribute) and node.func.attr.value == "forward":
            nets += [n for o in self.facts.flow.values.get(node.func.value, ()) for n in _networks(o)]
        if nets:
            given = [(k, self.argument(a.value, kind)) for a, (k, kind) in zip(node.args, given, strict=True)]
            return joined([self.network(source, n, node, given, why) for n in nets], why)
        if funcs:
            return joined([self.follow(f, given, why) for f in funcs], why)
        return self.outside(source, node, given, why)

    def network(self, source: Source, net: Module, node: cst.Call, given: list[tuple[str, Kind]], why: Kind) -> Kind:
        kinds = [k for _, k in given]
        if role_of(net.name) == "loss-module":
            made = net.site.node
            return self.loss(net.name, made if isinstance(made, cst.Call) else None, given, why, net)
        if all(k.over is Over.NONE for k in kinds):
            return self.mixed(source, node, "{} computes a batch that is none of these rows")
        trained = any(n is net for n in self.facts.roles.trained)
        if net.cls is not None and not trained and not net.has_parameters:
            found = [self.follow(f, given, why) for f in net.cls.member("forward") if isinstance(f, Func)]
            return joined(found, why)
        known = self.layer(net, node, given, why)
        if not known.mixed:
            self.by_row.update(*(k.names for k in kinds))
            return known
        plain = all(k.over is Over.NONE or (k.over is Over.ROWS and k.axis == 0 and not k.steps) for k in kinds)
        if known.given is not None or not plain or mixes_rows(self.facts, net) is not None:
            return known
        self.by_row.update(*(k.names for k in kinds))
        kind = by_entry(kinds, why)
        return kind if kind.mixed else ROWS

    def argument(self, node: cst.BaseExpression, kind: Kind) -> Kind:
        """An argument of a training forward: the rows, what each row has a part of, or something else."""
        if id(node) in self.cuts:
            state = Kind(Over.ROWS, axis=1, rank=3)
            return replace(state, items=(state,) * len(kind.items))
        if kind.absent or (kind.over is not Over.NONE and not kind.names):
            return kind
        return replace(kind, given=node, items=tuple(replace(k, given=node) for k in kind.items))

    def layer(self, net: Module, node: cst.Call, given: Arguments, why: Kind) -> Kind:
        """What a model, or a part of one, computes."""
        kinds = [k for _, k in given]
        mixed = next((k for k in kinds if k.mixed), None)
        if mixed is not None:
            return mixed
        if net.inner is not None:
            return self.layer(net.inner, node, given, why)
        if self.inside and all(k.over is Over.NONE for k in kinds):
            return NONE
        if net.cls is not None:
            found = [self.follow(f, given, why, net.cls) for f in net.cls.member("forward") if isinstance(f, Func)]
            return joined(found, why) if found else why
        if role_of(net.name) == "loss-module":
            return self.loss(net.name, net.site.node if isinstance(net.site.node, cst.Call) else None, given, why, net)
        if net.name.endswith(".Sequential"):
            parts = [p for value in net.parts for p in value]
            kind = kinds[0] if kinds and all(isinstance(p, Module) for p in parts) else why
            for part in parts:
                kind = self.layer(part, node, [("", kind)], why) if isinstance(part, Module) else why
            return kind
        return of_layer(self.facts, net, given, why)

    def follow(self, func: Func, given: Arguments, why: Kind, cls: Class | None = None) -> Kind:
        """A function of the project: its statements, with its parameters for what they are given.

        `cls` is the class of a model whose forward it is.
        """
        if self.depth >= _DEPTH or not isinstance(func.node, cst.FunctionDef):
            return why
        listed = (*func.node.params.posonly_params, *func.node.params.params)
        params = [p.name.value for p in listed]
        if params and (func.bound is not None or cls is not None or params[0] == "self"):
            params = params[1:]
        outer, returned = self.env, self.returned
        mine = {p.name.value for p in func.node.params.params}
        mine |= {n for x in bindings(func.node.body) for n in x.targets if cls is not None}
        own = cls is None
        self.env = {k: v for k, v in outer.items() if k.split(".")[0] not in mine or (own and k.startswith("self."))}
        self.env |= {p.name.value: self.of(func.source, p.default) for p in listed if p.default is not None}
        places = iter(params)
        for keyword, kind in given:
            name = keyword or next(places, "")
            if not name:
                self.env, self.returned = outer, returned
                return why
            self.env[name] = kind
        self.returned, self.depth = [], self.depth + 1
        self.inside += [f"{cls.name}.{func.name}"] if cls is not None else []
        self.run(func.source, func.node.body)
        self.inside = self.inside[:-1] if cls is not None else self.inside
        found, self.returned, self.depth = self.returned, returned, self.depth - 1
        self.env = outer
        return joined(found, why)

    def loss(
        self, name: str, made: cst.Call | None, given: list[tuple[str, Kind]], why: Kind, net: Module | None
    ) -> Kind:
        """`F.cross_entropy(out, y)`, `criterion(out, y)`"""
        self.by_row.update(*(k.names for _, k in given))
        return of_loss(self.facts, name, made, given, why, net)

    def outside(self, source: Source, node: cst.Call, given: list[tuple[str, Kind]], why: Kind) -> Kind:
        """A function of torch or Python, or a method of a tensor."""
        called = self.facts.flow.values.get(node.func, ())
        ext = next((o.name for o in called if isinstance(o, Ext)), "")
        func = node.func
        name = func.attr.value if isinstance(func, cst.Attribute) else dotted(func)
        kinds = [k for _, k in given]
        if not ext and isinstance(func, cst.Attribute):
            owner = self.of(source, func.value)
            if owner.over is Over.NONE and all(k.over is Over.NONE for k in kinds):
                return NONE
            kinds = [owner, *kinds]
        if role_of(ext) == "loss":
            return self.loss(ext, node, given, why, None)
        if role_of(ext) == "random" and all(k.over is Over.NONE for k in kinds) and not self.inside:
            return self.mixed(source, node, "{} draws numbers for all rows at once")
        if ext.endswith("autograd.grad"):
            self.of_inputs = True
            wanted = {kinds[0].over, kinds[1].over} if len(kinds) > 1 else set()
            self.by_row.update(*(k.names for k in kinds))
            return ROWS if wanted in ({Over.ROWS}, {Over.SUM, Over.ROWS}) and kinds[1].over is Over.ROWS else why
        if all(k.over is Over.NONE for k in kinds):
            return kinds[0] if kinds and kinds[0].given is not None else NONE
        return self.tensors(source, node, name, ext, given, why)

    def tensors(self, source: Source, node: cst.Call, name: str, ext: str, given: Arguments, why: Kind) -> Kind:
        """A function of tensors of which one at least has rows."""
        owner = node.func.value if isinstance(node.func, cst.Attribute) and not ext else None
        first = [self.of(source, owner)] if owner is not None else []
        kinds = first + [k for keyword, k in given if not keyword]
        mixed = next((k for k in (*first, *(k for _, k in given)) if k.mixed), None)
        if mixed is not None:
            return mixed
        if owner is not None and name in ("append", "extend", "insert") and named(owner):
            part = turn(kinds[-1], why) if name == "extend" else kinds[-1]
            self.env[dotted(owner)] = self.longer(first[0], part, why)
            return NONE
        if {k.over for k in kinds} <= {Over.EACH, Over.NONE} and name not in ("enumerate", "zip", "range"):
            return by_entry(kinds, why)  # of one row
        if ext == "builtins.sum":
            part = turn(kinds[0], why) if kinds[0].items or kinds[0].many else reduced(kinds[0], "sum", why)
            return part if part.over is not Over.EACH else SUM
        if name in ("enumerate", "zip", "range", "reversed") and not owner:
            return counted(name, kinds, why)
        rest = [a.value for a in node.args if a.keyword is None]
        rest = rest if owner is not None else rest[1:]
        keywords = {a.keyword.value: (a.value, k) for a, (_, k) in zip(node.args, given, strict=True) if a.keyword}
        made = name in ("zeros", "ones", "empty", "full", "randn", "rand")
        call = Given(self.facts, node, name, kinds or [k for _, k in given], rest, keywords, why)
        apart = any(k.axis or k.steps or k.many or k.items for _, k in [*given, *(("", k) for k in first)])
        found = of_axes(call) if kinds else why
        if not found.mixed or self.inside or apart or name in SHAPING or made:
            return found
        older = of_function(node, name, ext, [*first, *(k for _, k in given)], why)
        return found if older.mixed and found.why else older


def _networks(obj: object) -> Iterator[Module]:
    if isinstance(obj, Module):
        yield obj
    elif isinstance(obj, Wrapped):
        yield from (m for m in obj.module if isinstance(m, Module))


def _kinds_of(nets: Sequence[Module]) -> list[Module]:
    """One of each class: what a layer of a list computes is the same for all that its forward is run with."""
    return list({(id(n.cls) if n.cls is not None else id(n.site.node)): n for n in nets}.values())
