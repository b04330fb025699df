"""What is chosen at run time in, or called by nothing, notes that it stays as it is out."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddpify.facts import Facts
from ddpify.facts.registries import ANY, RUN_TIME_MODULE
from ddpify.facts.values import Ext
from ddpify.facts.wraps import WrapPoint
from ddpify.rules._base import Finding, Rule


def unread(rule: Rule, facts: Facts) -> Iterator[Finding]:
    """What a conversion has not looked into, or does not get to."""
    yield from _modules(rule, facts)
    yield from _classes(rule, facts)
    yield from _uncalled(rule, facts)


def _modules(rule: Rule, facts: Facts) -> Iterator[Finding]:
    """`importlib.import_module(args.model)`: what such a module prints or writes is not guarded."""
    for e in facts.external("importlib.import_module", "importlib.util.module_from_spec"):
        if Ext(RUN_TIME_MODULE) in facts.flow.values.get(e.node, ()):
            source = e.frame.source
            yield rule.finding(
                source,
                e.node,
                f"`{source.code(e.node)}` is known at run time only: ddpify has not looked into the module, and what "
                "it prints or writes is done on every rank",
                note=True,
            )


def _classes(rule: Rule, facts: Facts) -> Iterator[Finding]:
    """`eval(args.model)(width)` of many that it may be: what such a model does in its forward is not known."""
    made = [m.site for w in facts.wraps if isinstance(w, WrapPoint) for m in w.modules if m.cls is None and not m.name]
    for site in dict.fromkeys(made):
        func = site.node.func if isinstance(site.node, cst.Call) else None
        named = isinstance(func, (cst.Call, cst.Subscript)) and not set(ANY).isdisjoint(facts.flow.values.get(func, ()))
        if func is not None and named and not any(m in site.source.code(func) for m in ("import_module", "__import__")):
            yield rule.finding(
                site.source,
                site.node,
                f"which model `{site.source.code(func)}` is, is known at run time only: ddpify has not looked into it. "
                "What it prints is printed on every rank, and one that leaves layers out needs "
                "find_unused_parameters=True",
                note=True,
            )


def _uncalled(rule: Rule, facts: Facts) -> Iterator[Finding]:
    """A second training function of the script that nothing calls: its model gets no wrapper."""
    end = facts.flow.main_end
    if not facts.roles.backwards or facts.roles.backwards[0].seq >= end:
        return
    told = set()
    for e in facts.flow.log.of("backward"):
        if e.seq < end or e.grad is False:
            continue
        chain = next(e.frame.chains(), ())
        func = next((f.func for f in (*(x.frame for x in chain), e.frame) if f.func is not None), None)
        # a class that others derive from is tried, too
        if func is not None and func.owner is None and isinstance(func.node, cst.FunctionDef) and func.node not in told:
            told.add(func.node)
            message = f"`{func.name}` trains, but nothing calls it: no model of it is wrapped, no loader of it shared"
            yield rule.finding(func.source, func.node, message, note=True)
