"""Random numbers of a run -> numbers that belong to the sample, whichever process draws them.

Weights are drawn alike whatever was drawn before them; what a dataset draws for a sample hangs on the sample and the
pass; and noise with a row for each sample of the batch gets each row from its sample. So one process that reads the
ranks' batches together draws what the ranks drew.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import random
import zlib
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch

from .log import patch

with contextlib.suppress(ImportError):
    import numpy

_SIZED = ("rand", "randn", "randint", "zeros_like")[:3]
_LIKE = ("rand_like", "randn_like", "randint_like")
_OF_TENSORS = ("bernoulli", "normal", "poisson", "multinomial")
_IN_PLACE = ("normal_", "uniform_", "bernoulli_", "random_", "exponential_", "geometric_", "log_normal_", "cauchy_")
_NUMPY = ("normal", "uniform", "standard_normal", "randint", "random", "random_sample", "exponential")
_NUMPY_DIMS = ("rand", "randn")


def mixed(*key: Hashable) -> int:
    """A seed from a key; the same in every process."""
    return zlib.crc32(repr(key).encode())


class Streams:
    """The global random streams, set anew at every place that two runs have in common."""

    def __init__(self) -> None:
        self._keys: list[int] = []  # of the samples of the batch that was read last
        self._blocks: list[int] = []  # how many of them each rank has, or would have
        self._first = 0
        self._place: tuple[Hashable, ...] = ()
        self._draws = self._made = self._splits = 0
        self._quiet = False
        self.rows_first = True  # is the first dimension of the batch's tensors that of its samples?

    @property
    def blocks(self) -> Sequence[int]:
        """How many samples of the batch that was read last each rank has; none between passes."""
        return self._blocks if self._keys else ()

    def seed(self, *key: Hashable) -> None:
        """Set every global stream."""
        seed = mixed(*key)
        torch.manual_seed(seed)
        random.seed(seed)
        if "numpy" in globals():
            numpy.random.seed(seed)

    def enter(self, place: tuple[Hashable, ...], samples: Sequence[Hashable], blocks: Sequence[int], rank: int) -> None:
        """A batch was read: from here on rows belong to its samples."""
        self.seed("batch", *place)
        self._place, self._draws, self._first = place[:-1], 0, rank
        self._keys, self._blocks = [mixed(sample) for sample in samples], list(blocks)

    def leave(self, *place: Hashable) -> None:
        """A pass is over."""
        self.seed("end", *place)
        self._keys = []

    def _dim(self, shape: Sequence[int]) -> int | None:
        """The dimension of the samples; a single number is none."""
        n = len(self._keys)
        if self._quiet or not n or list(shape) == [1]:
            return None
        return next((dim for dim, size in enumerate(shape) if size == n), None)

    def _rows(self, draw: Callable[[int], Any]) -> list[Any]:
        """`draw(i)` for each sample, each from a stream of its own."""
        self._draws += 1
        kept = torch.get_rng_state()
        rows = []
        self._quiet = True
        try:
            for i, key in enumerate(self._keys):
                torch.default_generator.manual_seed(mixed(*self._place, self._draws, key))
                rows.append(draw(i))
        finally:
            self._quiet = False
            torch.set_rng_state(kept)
        return rows

    def watch(self) -> None:
        """Patch torch and numpy."""
        for names, wrap in ((_SIZED, self._sized), (_LIKE, self._like), (_OF_TENSORS, self._of_tensors)):
            for name in names:
                patch(torch, name, functools.partial(_registered, wrap))
        patch(torch, "randperm", self._randperm)
        for owner in (torch.utils.data, torch.utils.data.dataset):
            patch(owner, "random_split", self._split)
        for name in _IN_PLACE:
            patch(torch.Tensor, name, self._in_place)
        for name, function in inspect.getmembers(torch.nn.init, inspect.isfunction):
            if name.endswith("_") and not name.startswith("_"):
                patch(torch.nn.init, name, self._weights)
                assert function is not None
        if "numpy" in globals():
            for name in _NUMPY:
                patch(numpy.random, name, self._numpy)
            for name in _NUMPY_DIMS:
                patch(numpy.random, name, self._numpy_dims)

    def _weights(self, real: Any) -> Any:
        """`torch.nn.init.*_`: the k-th draws the same, whatever was drawn before."""

        def init(*args: Any, **kwargs: Any) -> Any:
            if self._quiet:
                return real(*args, **kwargs)
            self._made += 1
            self.seed("weights", self._made)
            self._quiet = True
            try:
                return real(*args, **kwargs)
            finally:
                self._quiet = False

        return init

    def _split(self, real: Any) -> Any:
        """The k-th split is the same, whichever generator it is given."""

        def random_split(dataset: Any, lengths: Any, generator: Any = None) -> Any:
            self._splits += 1
            return real(dataset, lengths, torch.Generator().manual_seed(mixed("split", self._splits)))

        return random_split

    def _sized(self, real: Any) -> Any:
        def draw(*args: Any, **kwargs: Any) -> Any:
            before, shape = _split(args, kwargs, real.__name__ == "randint")
            dim = self._dim(shape) if shape is not None else None
            if dim is None or shape is None or kwargs.get("generator") is not None or kwargs.get("out") is not None:
                return real(*args, **kwargs)
            rest = {k: v for k, v in kwargs.items() if k not in ("size", "requires_grad")}
            one = [*shape[:dim], 1, *shape[dim + 1 :]]
            made = torch.cat(self._rows(lambda _: real(*before, one, **rest)), dim)
            return made.requires_grad_() if kwargs.get("requires_grad") else made

        return draw

    def _like(self, real: Any) -> Any:
        def draw(like: Any, *args: Any, **kwargs: Any) -> Any:
            dim = self._dim(like.shape)
            if dim is None:
                return real(like, *args, **kwargs)
            grad = kwargs.pop("requires_grad", False)
            one = like.detach().narrow(dim, 0, 1)
            made = torch.cat(self._rows(lambda _: real(one, *args, **kwargs)), dim)
            return made.requires_grad_() if grad else made

        return draw

    def _of_tensors(self, real: Any) -> Any:
        def draw(*args: Any, **kwargs: Any) -> Any:
            tensors = [a for a in args if torch.is_tensor(a) and a.dim()]
            dim = self._dim(tensors[0].shape) if tensors else None
            if dim is None or kwargs.get("generator") is not None or kwargs.get("out") is not None:
                return real(*args, **kwargs)
            shape = tensors[0].shape

            def row(i: int) -> Any:
                return real(
                    *(_narrow(a, dim, i) if torch.is_tensor(a) and a.shape == shape else a for a in args), **kwargs
                )

            return torch.cat(self._rows(row), dim)

        return draw

    def _in_place(self, real: Any) -> Any:
        def draw(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            dim = self._dim(tensor.shape)
            if dim is None or kwargs.get("generator") is not None:
                return real(tensor, *args, **kwargs)
            with torch.no_grad():
                self._rows(lambda i: real(tensor.detach().narrow(dim, i, 1), *args, **kwargs))
            return tensor

        return draw

    def _randperm(self, real: Any) -> Any:
        """A permutation of the batch stays within each rank's part of it."""

        def randperm(n: int, *args: Any, **kwargs: Any) -> Any:
            if self._quiet or n < 2 or n != len(self._keys) or kwargs.get("generator") is not None or args:
                return real(n, *args, **kwargs)
            self._draws += 1
            kept, parts, begin = torch.get_rng_state(), [], 0
            for i, size in enumerate(self._blocks):
                torch.default_generator.manual_seed(mixed(*self._place, self._draws, "block", self._first + i))
                parts.append(real(size, **kwargs) + begin)
                begin += size
            torch.set_rng_state(kept)
            return torch.cat(parts)

        return randperm

    def _numpy_rows(self, draw: Callable[[list[int]], Any], shape: Sequence[int], dim: int) -> Any:
        kept = numpy.random.get_state()

        def row(i: int) -> Any:
            numpy.random.seed(mixed(*self._place, self._draws, self._keys[i]))
            return draw([*shape[:dim], 1, *shape[dim + 1 :]])

        made = numpy.concatenate(self._rows(row), axis=dim)
        numpy.random.set_state(kept)
        return made

    def _numpy(self, real: Any) -> Any:
        def draw(*args: Any, **kwargs: Any) -> Any:
            # the size is the last that is given, and the only tuple
            shape = kwargs.get("size", args[-1] if args and isinstance(args[-1], (tuple, list)) else None)
            shape = [shape] if isinstance(shape, int) else shape
            dim = self._dim(shape) if shape else None
            if dim is None or not shape or not all(isinstance(a, (int, float, tuple)) for a in args):
                return real(*args, **kwargs)
            rest = {k: v for k, v in kwargs.items() if k != "size"}
            before = args if "size" in kwargs else args[:-1]
            return self._numpy_rows(lambda one: real(*before, size=tuple(one), **rest), shape, dim)

        return draw

    def _numpy_dims(self, real: Any) -> Any:
        def draw(*shape: int) -> Any:
            dim = self._dim(shape)
            return real(*shape) if dim is None else self._numpy_rows(lambda one: real(*one), shape, dim)

        return draw


def _narrow(tensor: Any, dim: int, i: int) -> Any:
    return tensor.narrow(dim, i, 1)


def _split(args: Sequence[Any], kwargs: dict[str, Any], bounds: bool) -> tuple[Sequence[Any], list[int] | None]:
    """What stands before the size, and the size: `randn(2, 3)`, `rand((2, 3))`, `randint(0, 9, (2, 3))`."""
    if "size" in kwargs:
        return args, list(kwargs["size"])
    if args and isinstance(args[-1], (tuple, list)):
        return args[:-1], list(args[-1])
    if not bounds and args and all(isinstance(a, int) for a in args):
        return (), list(args)
    return args, None


def _registered(wrap: Callable[[Any], Any], real: Any) -> Any:
    """torch.jit.script knows the functions of torch by their identity."""
    new = functools.wraps(real)(wrap(real)) if hasattr(real, "__name__") else wrap(real)
    with contextlib.suppress(AttributeError):
        known = torch.jit._builtins._find_builtin(real)
        if known:
            torch.jit._builtins._register_builtin(new, known)
    return new
