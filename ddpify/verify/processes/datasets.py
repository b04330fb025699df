"""A dataset -> what of it must be alike on all ranks: hashes of its data level by level, its numberings and lists."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from types import FrameType
from typing import Any

import torch
from torch.utils.data import Subset

from .log import is_user_file
from .training import checksum

_BYTES = 4 << 20  # of each end of a tensor
_ITEMS = 20_000  # of a list
_PLAIN = (str, int, float, bool, bytes, type(None))


def _hash(parts: Iterable[bytes]) -> str:
    total = hashlib.blake2b(digest_size=8)
    for part in parts:
        total.update(part)
        total.update(b"\0")
    return total.hexdigest()


def _of_tensor(tensor: Any) -> bytes:
    flat = tensor.detach()
    if flat.layout != torch.strided or not flat.is_contiguous() or flat.device.type != "cpu":
        return b""
    raw = flat.reshape(-1).view(torch.uint8) if flat.numel() else flat
    ends = raw if raw.numel() <= 2 * _BYTES else torch.cat([raw[:_BYTES], raw[-_BYTES:]])
    return f"{tuple(flat.shape)} {flat.dtype} {checksum([ends])}".encode()


def _is_array(value: Any) -> bool:
    return type(value).__module__ == "numpy" and hasattr(value, "tobytes") and getattr(value, "ndim", 0) > 0


def _plain(value: Any) -> bool:
    return isinstance(value, (*_PLAIN, os.PathLike)) or (isinstance(value, tuple) and all(map(_plain, value)))


def _content(value: Any, depth: int = 0) -> bytes | None:
    """Bytes that are the same for the same data; None for what is no data."""
    try:
        if torch.is_tensor(value):
            return _of_tensor(value) or None
        if _is_array(value):
            return _of_tensor(torch.as_tensor(value)) if value.dtype.kind in "biuf" else repr(value[:100]).encode()
        if isinstance(value, (list, tuple)) and len(value) > 1:
            if all(map(_plain, value[:_ITEMS])):
                return repr(value[:_ITEMS]).encode()
            inner = [_content(held, depth + 1) for held in value[:100]] if depth < 2 else []
            return b"".join(part for part in inner if part is not None) or None
    except (TypeError, ValueError, RuntimeError, NotImplementedError):
        return None
    return None


def _members(value: object) -> Mapping[str, Any]:
    found: Mapping[str, Any] = getattr(value, "__dict__", {})
    return found


def chain(dataset: Any) -> Iterator[Any]:
    """The dataset, and what is nested in it, to the bottom."""
    while True:
        yield dataset
        if not isinstance(dataset, Subset):
            return
        dataset = dataset.dataset


def _size(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except Exception:  # whatever a dataset without a length says
        return None


def _level(dataset: Any) -> list[object]:
    if isinstance(dataset, Subset):
        hashed = _hash([repr([int(i) for i in dataset.indices]).encode()])
    else:
        held = [(name, _content(value)) for name, value in _members(dataset).items()]
        if isinstance(dataset, (list, tuple)):
            held = [("", _content(dataset))]
        hashed = _hash(part for name, value in held if value is not None for part in (name.encode(), value))
    return [type(dataset).__name__, _size(dataset), hashed]


def levels(dataset: Any) -> list[list[object]]:
    """Class, length and hash of the dataset and of all that is nested in it."""
    return [_level(one) for one in chain(dataset)]


def _numbering(value: Any) -> bool:
    """`{"cat": 0, "dog": 1}` or `{0: "cat", 1: "dog"}`: every number below the length once."""
    if not isinstance(value, dict) or not 2 <= len(value) <= 1_000_000:
        return False
    for words, numbers in ((value.keys(), value.values()), (value.values(), value.keys())):
        if all(type(n) is int for n in numbers) and all(isinstance(w, str) for w in words):
            return set(numbers) == set(range(len(value)))
    return False


def _both(value: Any) -> tuple[str, str]:
    """Two hashes: of the pairs or of the order, and of what it is made of whatever the order."""
    if isinstance(value, dict):
        pairs = sorted(value.items(), key=repr)
        words = sorted(map(str, value if isinstance(next(iter(value)), str) else value.values()))
    else:
        pairs, words = list(value), sorted(map(str, value))
    return _hash([repr(pairs).encode()]), _hash([repr(words).encode()])


def _strings(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) > 1 and all(isinstance(v, str) for v in value[:_ITEMS])


def names(dataset: Any) -> dict[str, tuple[str, str]]:
    """The numberings and lists of strings that a dataset keeps."""
    found = {}
    for one in chain(dataset):
        for name, value in _members(one).items():
            if _numbering(value) or _strings(value):
                found[f"{type(one).__name__}.{name}"] = _both(value)
    return found


def names_in_script(frame: FrameType | None) -> dict[str, tuple[str, str]]:
    """The numberings in the variables of the user's code that is running, and in what these variables hold."""
    found: dict[str, tuple[str, str]] = {}
    while frame is not None:
        if is_user_file(frame.f_code.co_filename):
            for scope in (frame.f_locals, frame.f_globals):
                for name, value in list(scope.items()):
                    if _numbering(value):
                        found[name] = _both(value)
                    elif type(value).__module__ in ("__main__", frame.f_globals.get("__name__")):
                        inner = _members(value).items() if not isinstance(value, type) else ()
                        found |= {f"{name}.{key}": _both(held) for key, held in inner if _numbering(held)}
        frame = frame.f_back
    return found


def buffer_names(wrapper: Any) -> dict[str, tuple[str, str]]:
    """The order of a wrapped model's buffers: DDP broadcasts them by their place."""
    listed = [name for name, _ in wrapper.module.named_buffers()]
    return {f"the buffers of {type(wrapper.module).__name__}": _both(listed)} if len(listed) > 1 else {}
