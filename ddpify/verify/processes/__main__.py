"""`python .../processes guard|torchrun|rank ARGS` -> that process, without ddpify on sys.path."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

PACKAGE = "_ddpify_processes"  # a private name, so that the script under test cannot meet ddpify by accident


def load() -> ModuleType:
    """Import this folder as a package of its own; the script's sys.path and sys.modules stay its own."""
    if PACKAGE not in sys.modules:
        here = Path(__file__).resolve().parent
        spec = importlib.util.spec_from_file_location(
            PACKAGE, here / "__init__.py", submodule_search_locations=[str(here)]
        )
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[PACKAGE] = module
        spec.loader.exec_module(module)
    return sys.modules[PACKAGE]


def _own_hash_seed() -> None:
    """Sets of strings have another order on each rank, and the same one in every run, unless the user chose a seed."""
    if os.environ.get("PYTHONHASHSEED", "random") == "random" and hasattr(sys, "orig_argv"):
        os.environ["PYTHONHASHSEED"] = str(int(os.environ.get("RANK", "0")) + 1)
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def main() -> None:
    if sys.argv[1] == "rank":
        _own_hash_seed()
    del sys.path[0]  # this folder
    load()
    name = sys.argv.pop(1)
    assert name in ("guard", "torchrun", "rank")
    importlib.import_module(f"{PACKAGE}.{name}").main(sys.argv[1:])


if __name__ == "__main__":
    main()
