"""Data that is not on this machine -> small made-up data of the same form, each told in the events.

Only what cannot be had is replaced: the real constructor, or the real read, is tried first. What is made up is the same
on all ranks and draws nothing from the script's random generators.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.util
import inspect
import os
import sys
import zlib
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from .log import Log, patch

TRAINING, OTHER = 96, 40  # samples
_COLUMNS = 8  # of a table that nobody describes
_IMAGES = {"MNIST": 28, "FashionMNIST": 28, "KMNIST": 28, "EMNIST": 28, "QMNIST": 28, "USPS": 16}
_COLOURS = {"CIFAR10": (32, 10), "CIFAR100": (32, 100), "SVHN": (32, 10), "STL10": (96, 10)}
_FOLDERS = ("DatasetFolder", "ImageNet")


def _numbers(name: str) -> Any:
    """A generator of its own, the same on every rank."""
    import numpy

    return numpy.random.RandomState(zlib.crc32(name.encode()))


class Standins:
    """What was made up in this process."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def told(self, what: str) -> None:
        """Note that something was made up."""
        self._log.note("standin", what=what, at=self._log.where())

    def watch(self) -> None:
        """Patch each library when the script imports it."""
        os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")
        hooks = {"torchvision.datasets": self._torchvision, "pandas": self._pandas, "datasets": self._hub}
        sys.meta_path.insert(0, _AfterImport({**hooks, "numpy": self._numpy}))
        for name in ("numpy", "pandas"):
            if name in sys.modules:
                ({**hooks, "numpy": self._numpy}[name])(sys.modules[name])

    # -- torchvision ---------------------------------------------------------------------------------------

    def _torchvision(self, module: ModuleType) -> None:
        for name in (*_IMAGES, *_COLOURS, *_FOLDERS):
            cls = getattr(module, name, None)
            if cls is not None and "__init__" in vars(cls):
                patch(cls, "__init__", functools.partial(self._dataset, name))

    def _dataset(self, name: str, real: Any) -> Any:
        signature = inspect.signature(real)

        def __init__(dataset: Any, *args: Any, **kwargs: Any) -> None:
            given = signature.bind(dataset, *args, **kwargs)
            if "download" in signature.parameters:
                given.arguments["download"] = False
            try:
                real(*given.args, **given.kwargs)
            except Exception:  # what each says of missing data
                given.apply_defaults()
                self._fill(dataset, name, given.arguments)
                self.told(type(dataset).__name__)

        return __init__

    def _fill(self, dataset: Any, name: str, given: dict[str, Any]) -> None:
        base: Any = next(cls for cls in type(dataset).__mro__ if cls.__name__ == "VisionDataset")
        transforms = {key: given.get(key) for key in ("transform", "target_transform")}
        base.__init__(dataset, str(given.get("root", "data")), **transforms)
        split = given.get("split", given.get("what"))
        train = bool(given.get("train", split in (None, "train", "extra", "train+unlabeled", "letters", "balanced")))
        size = TRAINING if train else OTHER
        dataset.train = train
        if name in _FOLDERS:
            self._folder(dataset, size, f"{dataset.root}{split or ''}")
            return
        numbers = _numbers(f"{name}{size}")
        pixels, classes = _COLOURS.get(name, (_IMAGES.get(name, 28), 10))
        colours = (3,) if name in _COLOURS else ()
        shape = (size, pixels, pixels, *colours) if name.startswith("CIFAR") else (size, *colours, pixels, pixels)
        data, labels = numbers.randint(0, 256, shape).astype("uint8"), numbers.randint(0, classes, size)
        dataset.data = _tensor(data) if name.endswith("MNIST") else data
        dataset.targets = _tensor(labels) if name.endswith("MNIST") else labels.tolist()
        dataset.labels = labels
        if name.startswith("CIFAR"):
            dataset.classes = [f"class {i}" for i in range(classes)]
            dataset.class_to_idx = {label: i for i, label in enumerate(dataset.classes)}

    def _folder(self, dataset: Any, size: int, seed: str) -> None:
        dataset.classes = ["class 0", "class 1"]
        dataset.class_to_idx = {label: i for i, label in enumerate(dataset.classes)}
        dataset.samples = [(f"{dataset.root}/class {i % 2}/{i}.png", i % 2) for i in range(size)]
        dataset.targets = [label for _, label in dataset.samples]
        dataset.imgs, dataset.extensions = dataset.samples, (".png",)
        dataset.loader = lambda path: _image(f"{seed}{path}")

    # -- tables ----------------------------------------------------------------------------------------------

    def _pandas(self, module: ModuleType) -> None:
        for name in ("read_csv", "read_table", "read_parquet", "read_excel", "read_json"):
            patch(module, name, self._reader(_table(module)))

    def _numpy(self, module: ModuleType) -> None:
        for name in ("loadtxt", "genfromtxt"):
            patch(module, name, self._reader(lambda path: _rows(str(path))))

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
                    return _texts(module, kwargs.get("split"))

            return load_dataset

        patch(module, "load_dataset", patched)


def _tensor(array: Any) -> Any:
    import torch

    return torch.as_tensor(array)


def _image(seed: str) -> Any:
    image = importlib.import_module("PIL.Image")
    return image.fromarray(_numbers(seed).randint(0, 256, (64, 64, 3)).astype("uint8"))


def _rows(seed: str) -> Any:
    """Eight columns of numbers, and one of labels."""
    numbers = _numbers(seed)
    rows = numbers.standard_normal((TRAINING, _COLUMNS + 1))
    rows[:, -1] = numbers.randint(0, 2, TRAINING)
    return rows


def _table(pandas: Any) -> Callable[[Any], Any]:
    class Table(pandas.DataFrame):  # type: ignore[misc]  # pandas is not at hand for mypy
        """A table that has every column that it is asked for."""

        @property
        def _constructor(self) -> Any:
            return pandas.DataFrame

        def _have(self, names: Sequence[Any]) -> None:
            for name in names:
                if isinstance(name, str) and name not in self.columns:
                    self[name] = _numbers(name).randint(0, 2, len(self))

        def __getitem__(self, key: Any) -> Any:
            self._have([key] if isinstance(key, str) else key if isinstance(key, list) else [])
            return super().__getitem__(key)

        def drop(self, labels: Any = None, **kwargs: Any) -> Any:
            named = kwargs.get("columns", labels if kwargs.get("axis") in (1, "columns") else None)
            self._have([named] if isinstance(named, str) else list(named or ()))
            return super().drop(labels, **kwargs)

    return lambda path: Table(_rows(str(path)), columns=[*(f"x{i}" for i in range(_COLUMNS)), "label"])


def _texts(module: Any, split: Any) -> Any:
    def part(size: int) -> Any:
        numbers = _numbers(str(size))
        words = ["the", "a", "small", "large", "red", "blue", "cat", "dog", "house", "runs", "sees", "is"]
        lines = [" ".join(numbers.choice(words, 12)) for _ in range(size)]
        labels = numbers.randint(0, 2, size).tolist()
        columns = dict.fromkeys(("text", "sentence", "sentence1", "sentence2"), lines)
        return module.Dataset.from_dict({**columns, "label": labels})

    if isinstance(split, str):
        return part(TRAINING if split.startswith("train") else OTHER)
    return module.DatasetDict({"train": part(TRAINING), "validation": part(OTHER), "test": part(OTHER)})


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
