"""A Trace -> one Result for each check; a check is a file in this folder and nothing else."""

from __future__ import annotations

import importlib
import pkgutil

from ..trace import Trace
from ._base import Check, Result, Status

__all__ = ["Check", "Result", "Status", "all_checks", "run_checks"]


def all_checks() -> list[type[Check]]:
    """Every check, in the order of the contract."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    found = [cls for cls in Check.__subclasses__() if cls.__module__.startswith(f"{__name__}.")]
    return sorted(found, key=lambda cls: (tuple(map(int, cls.section.split("."))), cls.name()))


def run_checks(trace: Trace) -> tuple[Result, ...]:
    """What the run says of each property."""
    return tuple(cls().check(trace) for cls in all_checks())
