"""What a rank does -> one JSON line each in its own file; nothing goes over the process group."""

from __future__ import annotations

import functools
import json
import os
import site
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any


def _library_folders() -> tuple[str, ...]:
    """Where code lives that is not the user's."""
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    folders = {sysconfig.get_path(name) for name in names}
    folders |= {site.getusersitepackages(), str(Path(__file__).resolve().parent)}
    return tuple(f"{folder}{os.sep}" for folder in folders if folder)


_LIBRARIES = _library_folders()


@functools.cache
def is_user_file(filename: str) -> bool:
    """Is this the script or one of its own modules?"""
    return not filename.startswith(("<", *_LIBRARIES)) and "-packages" + os.sep not in filename


class Log:
    """The event file of one rank. Lines are appended whole: a kill cuts none, and forked workers may write too."""

    def __init__(self, folder: Path, rank: int, script: Path) -> None:
        self.rank, self.owner, self.begun = rank, os.getpid(), time.time()
        self._home = script.resolve().parent
        self.place = functools.cache(self._place)
        self._file = os.open(folder / f"rank{rank}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, kind: str, **fields: object) -> None:
        """Write one event down, with the time."""
        line = json.dumps({"kind": kind, "time": round(time.time(), 6), **fields}, default=str)
        os.write(self._file, line.encode() + b"\n")

    def _place(self, filename: str, line: int) -> str:
        """`train.py:12`, as seen from the folder of the script."""
        path = Path(filename)
        if path.is_absolute() and path.is_relative_to(self._home):
            path = path.relative_to(self._home)
        return f"{path}:{line}"

    def where(self, frame: FrameType | None = None) -> str | None:
        """The innermost line of the user's own code that led here."""
        frame = frame or sys._getframe(1)
        while frame is not None:
            if is_user_file(frame.f_code.co_filename):
                return self.place(frame.f_code.co_filename, frame.f_lineno)
            frame = frame.f_back
        return None

    def lines(self, most: int) -> list[str]:
        """The lines of the user's own code that led here, the innermost first."""
        frame: FrameType | None = sys._getframe(1)
        found = list[str]()
        while frame is not None and len(found) < most:
            if is_user_file(frame.f_code.co_filename):
                found.append(self.place(frame.f_code.co_filename, frame.f_lineno))
            frame = frame.f_back
        return found


def patch(owner: object, name: str, wrap: Callable[[Any], Any]) -> None:
    """Put `wrap(old)` in the place of `owner.name`; a torch that lacks the name is left as it is."""
    old = getattr(owner, name, None)
    if old is not None:
        new = wrap(old)
        setattr(owner, name, functools.wraps(old)(new) if callable(old) and not isinstance(old, type) else new)


def outermost(wrap: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A patch of `backward` that lets those within another one by: activations that are computed again."""

    def wrapped(real: Any) -> Any:
        within, outer = False, wrap(real)

        def backward(*args: Any, **kwargs: Any) -> Any:
            nonlocal within
            if within:
                return real(*args, **kwargs)
            within = True
            try:
                return outer(*args, **kwargs)
            finally:
                within = False

        return backward

    return wrapped
