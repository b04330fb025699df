"""Data that is not on this machine -> small made-up data of the same form, each told in the events.

Only what cannot be had is replaced: the real constructor, or the real read, is tried first. What is made up is the same
on all ranks and draws nothing from the script's random generators.
"""

from __future__ import annotations

import builtins
import importlib.abc
import importlib.util
import io
import os
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from .log import Log, is_user_file, patch
from .presence import watch_questions
from .tables import csv_text, rows, table, texts
from .vision import image, watch_datasets, watch_weights

_LISTED = 24  # files of a folder that is not there
_TEXT_TABLES = (".csv", ".tsv")


class Standins:
    """What was made up in this process."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._told: set[tuple[str, str | None]] = set()

    def told(self, what: str) -> None:
        """Note that something was made up."""
        self._log.note("standin", what=what, at=self._log.where())

    def _told_once(self, what: str) -> None:
        """Note it the first time that a line asks for it."""
        seen = (what, self._log.where())
        if seen not in self._told:
            self._told.add(seen)
            self.told(what)

    def watch(self) -> None:
        """Patch each library when the script imports it."""
        os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")
        hooks: dict[str, Callable[[ModuleType], None]] = {
            "torchvision.datasets": lambda module: watch_datasets(module, self.told),
            "torchvision.io": self._read_image,
            "pandas": self._pandas,
            "numpy": self._numpy,
            "datasets": self._hub,
            "PIL.Image": lambda module: patch(module, "open", self._image(lambda seen: image(seen))),
            "cv2": lambda module: patch(module, "imread", self._image(_pixels)),
        }
        for name in [name for name in hooks if name in sys.modules]:  # torch itself imports numpy
            hooks.pop(name)(sys.modules[name])
        sys.meta_path.insert(0, _AfterImport(hooks))
        watch_weights(self.told)
        patch(builtins, "open", self._open)
        patch(os, "listdir", self._listdir)
        watch_questions(self._told_once)

    # -- files -----------------------------------------------------------------------------------------------

    def _open(self, real: Any) -> Any:
        def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            try:
                return real(file, mode, *args, **kwargs)
            except FileNotFoundError:
                asked_by_script = is_user_file(sys._getframe(1).f_code.co_filename)
                if not (asked_by_script and str(file).endswith(_TEXT_TABLES) and mode in ("r", "rt")):
                    raise
                self.told(str(file))
                return io.StringIO(csv_text(str(file)))

        return opened

    def _listdir(self, real: Any) -> Any:
        def listdir(path: Any = ".") -> Any:
            try:
                return real(path)
            except FileNotFoundError:
                if not is_user_file(sys._getframe(1).f_code.co_filename):
                    raise
                self._told_once(f"the files of {os.path.dirname(str(path)) or path}")
                return [f"{i}.png" for i in range(_LISTED)]

        return listdir

    def _image(self, make: Callable[[str], Any]) -> Callable[[Any], Any]:
        def patched(real: Any) -> Any:
            def opened(file: Any, *args: Any, **kwargs: Any) -> Any:
                if not isinstance(file, (str, os.PathLike)) or os.path.exists(file):
                    return real(file, *args, **kwargs)
                self._told_once(f"the images of {os.path.dirname(os.fspath(file)) or 'this folder'}")
                return make(os.fspath(file))

            return opened

        return patched

    def _read_image(self, module: ModuleType) -> None:
        def tensor(path: str) -> Any:
            import torch

            return torch.as_tensor(_pixels(path)).permute(2, 0, 1)

        for name in ("read_image", "decode_image"):
            if hasattr(module, name):
                patch(module, name, self._image(tensor))

    # -- tables ----------------------------------------------------------------------------------------------

    def _pandas(self, module: ModuleType) -> None:
        for name in ("read_csv", "read_table", "read_parquet", "read_excel", "read_json"):
            patch(module, name, self._reader(table(module)))

    def _numpy(self, module: ModuleType) -> None:
        for name in ("loadtxt", "genfromtxt"):
            patch(module, name, self._reader(lambda path: rows(str(path))))

    def _reader(self, make: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def patched(real: Any) -> Any:
            def read(*args: Any, **kwargs: Any) -> Any:
                try:
                    return real(*args, **kwargs)
                except FileNotFoundError:
                    path = args[0] if args else next(iter(kwargs.values()))
                    self.told(str(path))
                    return make(path)

            return read

        return patched

    # -- the Hugging Face hub ----------------------------------------------------------------------------------

    def _hub(self, module: ModuleType) -> None:
        def patched(real: Any) -> Any:
            def load_dataset(path: str, *args: Any, **kwargs: Any) -> Any:
                try:
                    return real(path, *args, **kwargs)
                except Exception:  # not in the cache, and nobody to ask
                    self.told(f"load_dataset({path!r})")
                    config = args[0] if args else kwargs.get("name")
                    return texts(module, path, config, kwargs.get("split"))

            return load_dataset

        if hasattr(module, "load_dataset"):  # `datasets` may be a module of the script's own
            patch(module, "load_dataset", patched)


def _pixels(path: str) -> Any:
    import numpy

    return numpy.asarray(image(path)).copy()


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls a function with each module of a list when it has been imported."""

    def __init__(self, hooks: dict[str, Callable[[ModuleType], None]]) -> None:
        self._hooks = hooks

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        hook = self._hooks.pop(name, None)
        if hook is None:
            return None
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        real = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            real(module)
            hook(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
