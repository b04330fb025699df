"""The facts in, whether a script keeps the other ranks quiet by itself out."""

from __future__ import annotations

import re

import libcst as cst

from ddpify.facts import Facts
from ddpify.facts.externals import LOGGER
from ddpify.facts.frames import Event
from ddpify.facts.outside import made_by
from ddpify.facts.ranks import depends_on_rank, guarded
from ddpify.facts.values import Ext, Func, Instance
from ddpify.source import dotted

_STREAMS = frozenset({"logging.basicConfig", "logging.StreamHandler"})
_METHODS = frozenset({"debug", "info", "warning", "error", "critical"})
_HELPER = re.compile(r"(?!torch\.|deepspeed\.).*\b(init_distributed\w*|init_dist\w*|setup_for_distributed)")


def print_is_replaced(facts: Facts) -> bool:
    """`builtins.print = ...`: the script has its own way to keep the other ranks quiet."""
    sets = facts.flow.log.of("set")
    if any(e.name == "print" and isinstance(e.obj, Ext) and e.obj.name == "builtins" for e in sets):
        return True
    if stdout_is_another(facts):
        return True
    # utils.init_distributed_mode(args) of a module that is not there: the usual one replaces print
    if any(map(_HELPER.fullmatch, facts.identifiers)):
        return True
    # ... or of a module of the project that has it no longer
    calls = (n for s in facts.flow.modules for n in s.of(cst.Call))
    named = (c.func for c in calls if isinstance(c.func, cst.Attribute) and _HELPER.fullmatch(dotted(c.func)))
    return any(not any(isinstance(o, Func) for o in facts.flow.values.get(f, ())) for f in named)


def stdout_is_another(facts: Facts) -> bool:
    """`if rank != 0: sys.stdout = open(os.devnull, "w")`, not around one call and taken back behind it."""
    sets = [e for e in facts.flow.log.of("set") if e.name == "stdout" and getattr(e.obj, "name", "") == "sys"]
    back = any(_is_stdout(facts, e) for e in sets)
    return not back and any(guarded(e, facts.flow) for e in sets)


def _is_stdout(facts: Facts, e: Event) -> bool:
    """`sys.stdout = sys.__stdout__`, or what it was before."""
    given = e.stmt.value if isinstance(e.stmt, cst.Assign) else None
    held = facts.flow.values.get(given, ()) if given is not None else ()
    return any(isinstance(o, Ext) and o.name in ("sys.stdout", "sys.__stdout__") for o in held)


def logs_are_replaced(facts: Facts) -> bool:
    """What is logged goes to a `sys.stdout` that is another on the other ranks, or by methods that the script sets."""
    return (stdout_is_another(facts) and _logs_to_stdout(facts)) or _sets_methods(facts)


def _logs_to_stdout(facts: Facts) -> bool:
    """`logging.basicConfig(stream=sys.stdout)`, `logging.StreamHandler(sys.stdout)`"""
    for e in facts.flow.log.of("external"):
        args = e.node.args if e.name in _STREAMS and isinstance(e.node, cst.Call) else ()
        held = [o for a in args for o in facts.flow.values.get(a.value, ())]
        if any(isinstance(o, Ext) and o.name == "sys.stdout" for o in held):
            return True
    return False


def _sets_methods(facts: Facts) -> bool:
    """`logger.info = quiet`, `setattr(logger, name, quiet)`, `logger.__setattr__(name, quiet)`"""
    for source in facts.flow.modules:
        for target in (t.target for stmt in source.of(cst.Assign) for t in stmt.targets):
            if isinstance(target, cst.Attribute) and target.attr.value in _METHODS and _is_logger(facts, target.value):
                return True
        for call in source.of(cst.Call):
            whose: cst.BaseExpression | None = None
            match call:
                case cst.Call(func=cst.Name(value="setattr"), args=[first, _, _]):
                    whose = first.value
                case cst.Call(func=cst.Attribute(value=obj, attr=cst.Name(value="__setattr__"))):
                    whose = obj
            if whose is not None and _is_logger(facts, whose):
                return True
    return False


def _is_logger(facts: Facts, node: cst.BaseExpression) -> bool:
    return any(LOGGER.fullmatch(made_by(o)) for o in facts.flow.values.get(node, ()))


def is_given_rank(facts: Facts, e: Event) -> bool:
    """`logger.addFilter(RankFilter(rank))`: an object of the project's that was made with the rank."""
    call = e.node if isinstance(e.node, cst.Call) and e.name in ("addFilter", "addHandler") else None
    for given in (o for a in call.args for o in facts.flow.values.get(a.value, ())) if call is not None else ():
        made = given.site.node if isinstance(given, Instance) else None
        parts = [a.value for a in made.args] if isinstance(made, cst.Call) else []
        if isinstance(given, Instance) and any(depends_on_rank(p, given.site.frame, facts.flow) for p in parts):
            return True
    return False
