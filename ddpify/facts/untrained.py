"""Roles in, the models that are not trained out: copies, frozen networks, those that are only asked; and why."""

from __future__ import annotations

from dataclasses import dataclass

from ddpify.facts.contents import constants, modules
from ddpify.facts.externals import role_of
from ddpify.facts.flow import Flow
from ddpify.facts.frames import Event
from ddpify.facts.roles import Roles, root, roots
from ddpify.facts.values import Module, Optimizer, Parameters


@dataclass(frozen=True, eq=False)
class Untrained:
    """A model that needs no wrapper, what tells so, and where."""

    module: Module
    why: str
    at: tuple[Event, ...] = ()


def find_untrained(flow: Flow, roles: Roles) -> list[Untrained]:
    """Every model with parameters that the script runs or copies and no loss trains."""
    found: list[Untrained] = []
    optimised = {r for o in roles.optimizers for m in o.modules for r in roots(m)}
    made = [e.obj for e in flow.log.of("new") if isinstance(e.obj, Module)]
    run = {m for e in flow.log.of("forward") if e.obj is not None for m in modules((e.obj,))}
    for module in dict.fromkeys(made):
        if root(module) is not module or module in roles.trained or not module.has_parameters:
            continue
        if role_of(module.name) == "loss-module" or not (_is_copy(module) or module in run):
            continue
        found.append(_reason(flow, module, optimised))
    return found


def _reason(flow: Flow, module: Module, optimised: set[Module]) -> Untrained:
    frozen = tuple(e for e in flow.log.of("set", "method") if _freezes(e, module))
    forwards = [e for e in flow.log.of("forward") if e.obj is not None and module in modules((e.obj,))]
    if _is_copy(module) and module not in optimised:
        return Untrained(module, "a copy of a model" + (", frozen" if frozen else ""), frozen)
    if frozen:
        return Untrained(module, "frozen", frozen)
    if module in optimised:
        return Untrained(module, "an optimizer has its parameters, but its output reaches no .backward()")
    if forwards and all(e.grad is False for e in forwards):
        return Untrained(module, "only run with gradients off", tuple(forwards))
    return Untrained(module, "no optimizer has its parameters")


def is_frozen(flow: Flow, module: Module) -> bool:
    """Whether the script freezes a model, and nothing says that it frees any of it again."""
    events = flow.log.of("set", "method")
    frees = (e for e in events if e.name in ("requires_grad", "requires_grad_") and not _freezes(e, module))
    mine = (e for e in frees if isinstance(e.obj, Parameters) and module in map(root, e.obj.modules))
    return any(_freezes(e, module) for e in events) and not any(mine)


def is_stepped(flow: Flow, optimizer: Optimizer) -> bool:
    """Whether an optimizer makes a step, or is handed to what may make it: `Trainer(net).test()` makes none."""
    for e in flow.log.of("method", "external"):
        if (e.obj is optimizer and e.name == "step") or (
            role_of(e.name) != "scheduler" and any(optimizer in value for value in (e.value, *e.extra.values()))
        ):
            return True
    return False


def _is_copy(module: Module) -> bool:
    return module.evidence.startswith("a copy")


def _freezes(event: Event, module: Module) -> bool:
    """`p.requires_grad = False` in a loop over its parameters, `.requires_grad_(False)` of them or of itself."""
    given = event.value or event.extra.get("requires_grad", ())
    if event.name not in ("requires_grad", "requires_grad_") or constants(given) != [False]:
        return False
    if isinstance(event.obj, Parameters):
        return module in map(root, event.obj.modules)
    return event.obj is not None and module in modules((event.obj,))
