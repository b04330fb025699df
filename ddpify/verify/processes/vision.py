"""torchvision's datasets and pretrained weights that are not on this machine -> small made-up ones of the same form."""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import sys
import zlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from .log import is_user_file, patch
from .presence import is_caught

_normal = torch.randn  # as it is before others patch it
TRAINING, OTHER = 96, 40  # samples
_IMAGES = {"MNIST": 28, "FashionMNIST": 28, "KMNIST": 28, "EMNIST": 28, "QMNIST": 28, "USPS": 16}
_COLOURS = {"CIFAR10": (32, 10), "CIFAR100": (32, 100), "SVHN": (32, 10), "STL10": (96, 10)}
_FOLDERS = ("DatasetFolder", "ImageNet")
#: those that read a file for each sample, and how many classes they tell apart
_CLASSES = {
    "Caltech101": 101,
    "Caltech256": 257,
    "Country211": 211,
    "DTD": 47,
    "EuroSAT": 10,
    "FER2013": 7,
    "FGVCAircraft": 100,
    "Flowers102": 102,
    "Food101": 101,
    "GTSRB": 43,
    "Imagenette": 10,
    "INaturalist": 100,
    "LSUN": 10,
    "Omniglot": 964,
    "OxfordIIITPet": 37,
    "PCAM": 2,
    "Places365": 365,
    "RenderedSST2": 2,
    "StanfordCars": 196,
    "SUN397": 397,
}
_MASKS = ("VOCSegmentation", "SBDataset", "Cityscapes")
_KNOWN = (*_IMAGES, *_COLOURS, *_FOLDERS, *_CLASSES, *_MASKS, "CelebA")
_ATTRIBUTES = 40  # of CelebA
_TRAINED = (None, "train", "trainval", "extra", "train+unlabeled", "letters", "balanced", "train-standard", "train_new")


def numbers(name: str) -> Any:
    """A generator of its own, the same on every rank."""
    import numpy

    return numpy.random.RandomState(zlib.crc32(name.encode()))


def image(seed: str, colours: bool = True) -> Any:
    """A picture of noise."""
    made = importlib.import_module("PIL.Image")
    return made.fromarray(numbers(seed).randint(0, 256, (64, 64, 3) if colours else (64, 64)).astype("uint8"))


def _mask(seed: str) -> Any:
    made = importlib.import_module("PIL.Image")
    return made.fromarray(numbers(seed).randint(0, 2, (64, 64)).astype("uint8"))


def _labels(size: int, classes: int) -> Any:
    """As many of each class: scripts that look for another sample of the same class must find one."""
    import numpy

    return numpy.arange(size) % classes


def watch_datasets(module: ModuleType, told: Callable[[str], None]) -> None:
    """Patch the classes of torchvision.datasets; each tries the real data first."""
    found = [getattr(module, name) for name in _KNOWN if hasattr(module, name)]
    # that of VOCSegmentation is in a class below it
    for cls in {next(base for base in cls.__mro__ if "__init__" in vars(base)) for cls in found}:
        patch(cls, "__init__", functools.partial(_dataset, told))


def _dataset(told: Callable[[str], None], real: Any) -> Any:
    signature = inspect.signature(real)

    def __init__(dataset: Any, *args: Any, **kwargs: Any) -> None:
        given = signature.bind(dataset, *args, **kwargs)
        if "download" in signature.parameters:
            given.arguments["download"] = False
        try:
            real(*given.args, **given.kwargs)
        except Exception:  # what each says of missing data
            given.apply_defaults()
            name = next((cls.__name__ for cls in type(dataset).__mro__ if cls.__name__ in _KNOWN), "DatasetFolder")
            _fill(dataset, name, given.arguments)
            told(type(dataset).__name__)

    return __init__


def _fill(dataset: Any, name: str, given: dict[str, Any]) -> None:
    base: Any = next(cls for cls in type(dataset).__mro__ if cls.__name__ == "VisionDataset")
    kept = {key: given.get(key) for key in ("transforms", "transform", "target_transform") if given.get(key)}
    base.__init__(dataset, str(given.get("root", "data")), **kept)
    split = given.get("split", given.get("what", given.get("image_set")))
    train = bool(given.get("train", split in _TRAINED))
    size = TRAINING if train else OTHER
    dataset.train = train
    if name in _FOLDERS:
        _folder(dataset, size, f"{dataset.root}{split or ''}")
    elif name in _IMAGES or name in _COLOURS:
        _arrays(dataset, name, size)
    else:
        _one_by_one(dataset, name, size, given)


def _arrays(dataset: Any, name: str, size: int) -> None:
    pixels, classes = _COLOURS.get(name, (_IMAGES.get(name, 28), 10))
    colours = (3,) if name in _COLOURS else ()
    shape = (size, pixels, pixels, *colours) if name.startswith("CIFAR") else (size, *colours, pixels, pixels)
    data = numbers(f"{name}{size}").randint(0, 256, shape).astype("uint8")
    labels = _labels(size, classes)
    dataset.data = torch.as_tensor(data) if name.endswith("MNIST") else data
    dataset.targets = torch.as_tensor(labels) if name.endswith("MNIST") else labels.tolist()
    dataset.labels = labels
    if name.startswith("CIFAR"):
        _named(dataset, classes)


def _named(dataset: Any, classes: int) -> None:
    dataset.classes = [f"class {i}" for i in range(classes)]
    dataset.class_to_idx = {label: i for i, label in enumerate(dataset.classes)}


def _folder(dataset: Any, size: int, seed: str) -> None:
    _named(dataset, 2)
    dataset.samples = [(f"{dataset.root}/class {i % 2}/{i}.png", i % 2) for i in range(size)]
    dataset.targets = [label for _, label in dataset.samples]
    dataset.imgs, dataset.extensions = dataset.samples, (".png",)
    dataset.loader = lambda path: image(f"{seed}{path}")


def _one_by_one(dataset: Any, name: str, size: int, given: dict[str, Any]) -> None:
    """A dataset whose samples are made when they are asked for: an image, and a label, attributes or a mask."""
    kind = given.get("target_type", given.get("target_types"))
    kind = kind[0] if isinstance(kind, (list, tuple)) and kind else kind
    classes = _CLASSES.get(name, 2)
    _named(dataset, classes)
    dataset.targets = dataset.labels = dataset._labels = _labels(size, classes).tolist()

    def sample(index: int) -> tuple[Any, Any]:
        seed = f"{name}{size} {index}"
        if name in _MASKS or kind in ("segmentation", "semantic", "instance"):
            return image(seed), _mask(seed)
        if name == "CelebA" and kind == "attr":
            return image(seed), torch.as_tensor(numbers(seed).randint(0, 2, _ATTRIBUTES))
        return image(seed, name != "Omniglot"), int(dataset.targets[index])

    def item(made: Any, index: int) -> tuple[Any, Any]:
        if not 0 <= index < size:
            raise IndexError(index)
        given_image, target = sample(index)
        return made.transforms(given_image, target) if made.transforms is not None else (given_image, target)

    own = {"__getitem__": item, "__len__": lambda made: size}
    dataset.__class__ = type(type(dataset).__name__, (type(dataset),), own)


class NotHere(dict):  # type: ignore[type-arg]
    """The weights of a file that is not on this machine: whatever is taken out of it is not here either."""

    def __missing__(self, key: object) -> NotHere:
        return self

    def pop(self, key: Any, *default: Any) -> Any:
        """Nothing is in it."""
        return default[0] if default else self


def watch_weights(told: Callable[[str], None]) -> None:
    """Pretrained weights: a model that should load them gets numbers that are the same on all ranks."""
    real = torch.hub.load_state_dict_from_url

    def load(url: str, model_dir: str | None = None, *args: Any, **kwargs: Any) -> Any:
        folder = model_dir or os.path.join(torch.hub.get_dir(), "checkpoints")
        name = kwargs.get("file_name") or os.path.basename(url)
        if os.path.exists(os.path.join(folder, name)):
            return real(url, model_dir, *args, **kwargs)
        told(f"the weights {name}")
        return NotHere()

    for module in list(sys.modules.values()):  # those that have imported it by name
        for name in ("load_state_dict_from_url", "load_url"):
            if getattr(module, "__dict__", {}).get(name) is real:
                setattr(module, name, load)
    patch(torch.nn.Module, "load_state_dict", _load_state_dict)
    patch(torch, "load", functools.partial(_load, told))


def _load(told: Callable[[str], None], real: Any) -> Any:
    """`net.load_state_dict(torch.load("mobilenet_v2.pth"))`, which somebody was to download."""

    def load(f: Any, *args: Any, **kwargs: Any) -> Any:
        frame = sys._getframe(1)
        missing = isinstance(f, (str, os.PathLike)) and not os.path.exists(f)
        if not missing or not is_user_file(frame.f_code.co_filename) or is_caught(frame):
            return real(f, *args, **kwargs)
        told(f"the weights {os.fspath(f)}")
        return NotHere()

    return load


def _load_state_dict(real: Any) -> Any:
    def load_state_dict(module: Any, state: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(state, NotHere):
            return real(module, state, *args, **kwargs)
        with torch.no_grad():
            for name, tensor in module.state_dict().items():
                if tensor.is_floating_point() and tensor.dim() > 1:
                    own = torch.Generator().manual_seed(zlib.crc32(name.encode()))
                    tensor.copy_(_normal(tensor.shape, generator=own) / max(1.0, tensor[0].numel()) ** 0.5)
        return real(module, module.state_dict(), False)

    return load_state_dict
