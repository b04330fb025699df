"""Modules in, their parameters out: all of them, or those of a layer whose class is not there."""

from __future__ import annotations

import libcst as cst

from ddpify.facts.contents import looked_up_in
from ddpify.facts.expressions import Expressions
from ddpify.facts.frames import Frame
from ddpify.facts.values import Data, Module, Parameters, Seq, Thing, Value

PARAMETERS = frozenset({"parameters", "named_parameters", "trainable_parameters"})
LAYERS = frozenset({"children", "modules", "named_children", "named_modules"})


class Learned(Expressions):
    """Methods of modules that give their parameters."""

    def learned(self, node: cst.Call, frame: Frame, name: str, held: tuple[Module, ...], part: bool = False) -> Value:
        """`net.parameters()`, `net.named_children()`: by pairs where they come with their names."""
        made = Parameters(self.site(node, frame), modules=held, part=part)
        if name.startswith("named"):
            return (Seq(made.site, joined=(Seq(made.site, elements=[(Data("str"),), (made,)]),)),)
        return self.made(node, frame, made, f"parameters of {[id(m) for m in held]}")

    def asked(self, node: cst.Call) -> tuple[Module, ...]:
        """`net` of `net.get_classifier().parameters()`, where its class is not there."""
        call = node.func.value if isinstance(node.func, cst.Attribute) else node
        layer = self.values.get(call.func, ()) if isinstance(call, cst.Call) else ()
        return tuple(m for o in layer if isinstance(m := looked_up_in(o), Module))

    def by_use(self, obj: Thing) -> Module:
        """Something unknown that gives its parameters to an optimizer is a module."""
        key = (id(obj), 0, "module by use")
        made = self.sites.setdefault(key, Module(obj.site, evidence="known by use: .parameters() is taken of it"))
        assert isinstance(made, Module)
        obj.module, made.part_of = made, obj.owner
        return made
