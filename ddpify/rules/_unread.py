"""Modules that are chosen at run time in, a note that they stay as they are out."""

from __future__ import annotations

from collections.abc import Iterator

from ddpify.facts import Facts
from ddpify.facts.registries import RUN_TIME_MODULE
from ddpify.facts.values import Ext
from ddpify.rules._base import Finding, Rule


def unread(rule: Rule, facts: Facts) -> Iterator[Finding]:
    """`importlib.import_module(args.model)`: what such a module prints or writes is not guarded."""
    for e in facts.external("importlib.import_module"):
        if Ext(RUN_TIME_MODULE) in facts.flow.values.get(e.node, ()):
            source = e.frame.source
            yield rule.finding(
                source,
                e.node,
                f"`{source.code(e.node)}` is known at run time only: ddpify has not looked into the module, and what "
                "it prints or writes is done on every rank",
                note=True,
            )
