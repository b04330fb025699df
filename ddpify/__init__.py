"""Single-GPU PyTorch training scripts in, DistributedDataParallel scripts out."""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Conversion", "__version__", "convert", "lint"]

if TYPE_CHECKING:
    from ddpify.convert import Conversion, convert
    from ddpify.lint import lint_file as lint


class _Package(types.ModuleType):
    """The public names, imported when they are asked for: `import ddpify` itself reads neither libcst nor torch.

    They are properties because `convert` and `lint` are modules of the package too, and Python would put the module in
    the place of the function as soon as somebody imports it.
    """

    @property
    def convert(self) -> Any:
        return _load("convert", "convert")

    @convert.setter
    def convert(self, module: types.ModuleType) -> None:
        """The import system's notice that the module is there."""

    @property
    def lint(self) -> Any:
        return _load("lint", "lint_file")

    @lint.setter
    def lint(self, module: types.ModuleType) -> None:
        """The import system's notice that the module is there."""

    @property
    def Conversion(self) -> Any:
        return _load("convert", "Conversion")


def _load(module: str, name: str) -> Any:
    import importlib

    return getattr(importlib.import_module(f"ddpify.{module}"), name)


sys.modules[__name__].__class__ = _Package
