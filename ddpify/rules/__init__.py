"""Every rule of the package, found by walking it, in the order of their codes."""

from __future__ import annotations

import functools
import importlib
import pkgutil

from ddpify.rules._base import Finding, Rule, Severity


@functools.cache
def all_rules() -> tuple[type[Rule], ...]:
    """One rule per module; the module's name is the rule's."""
    found: list[type[Rule]] = []
    for info in pkgutil.iter_modules(__path__):
        if not info.name.startswith("_"):
            module = importlib.import_module(f"{__name__}.{info.name}")
            found.extend(
                c
                for c in vars(module).values()
                if isinstance(c, type) and issubclass(c, Rule) and c.__module__ == module.__name__
            )
    return tuple(sorted(found, key=lambda c: c.code))


def rule(code: str) -> type[Rule] | None:
    return next((r for r in all_rules() if r.code == code.upper() or r.name() == code.lower()), None)


__all__ = ["Finding", "Rule", "Severity", "all_rules", "rule"]
