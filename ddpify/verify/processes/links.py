"""A working folder with links to large files -> whatever is written to such a file is written to a copy of it."""

from __future__ import annotations

import os
import shutil
import sys
from typing import Any

import torch

from .log import patch

_WRITING = os.O_WRONLY | os.O_RDWR


def watch_links() -> None:
    """Turn a link below this folder into a file of its own before it is opened for writing."""
    here = os.getcwd() + os.sep
    sys.addaudithook(lambda event, args: _audit(here, event, args))
    patch(torch, "save", lambda real: _saving(here, real))


def _audit(here: str, event: str, args: tuple[Any, ...]) -> None:
    if event == "open" and isinstance(args[0], (str, bytes)) and args[2] and args[2] & _WRITING:
        _unlink(here, args[0], keep=not args[2] & os.O_TRUNC)


def _saving(here: str, real: Any) -> Any:
    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(f, (str, os.PathLike)):  # written by C++, which is not audited
            _unlink(here, os.fspath(f), keep=False)
        real(obj, f, *args, **kwargs)

    return save


def _unlink(here: str, path: Any, *, keep: bool) -> None:
    full = os.path.abspath(os.fsdecode(path))
    if full.startswith(here) and os.path.islink(full) and os.path.isfile(full):
        target = os.path.realpath(full)
        os.unlink(full)
        if keep:
            shutil.copy2(target, full)
