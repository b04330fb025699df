"""What the script prints, also through logging and progress bars -> the lines of its text that did it."""

from __future__ import annotations

import io
import logging
import os
import sys
from pathlib import Path
from typing import Any

from .log import Log, is_user_file

MOST = 20  # events a rank; the text itself is captured whole
_VIA_PACKAGES = ("tqdm", "rich", "click", "progressbar", "alive_progress", "loguru")
_LOGGING = os.path.dirname(logging.__file__)


def capture(folder: Path, rank: int) -> None:
    """Send standard output and error of this process and of all its children to files of the rank."""
    for stream, name in ((1, "out"), (2, "err")):
        target = os.open(folder / f"rank{rank}.{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(target, stream)
        os.close(target)
    for text in (sys.stdout, sys.stderr):
        if isinstance(text, io.TextIOWrapper):
            text.reconfigure(line_buffering=True, write_through=True)  # a kill loses nothing


def _prints_for_user(filename: str) -> bool:
    """Code of others that only passes on what the user's line asked for."""
    parts = Path(filename).parts
    return os.path.dirname(filename) == _LOGGING or any(name in parts for name in _VIA_PACKAGES)


class Output:
    """The first writes of a rank to its standard streams, with the user's line behind each."""

    def __init__(self, log: Log) -> None:
        self._log, self._left = log, MOST

    def watch(self) -> None:
        """Look at every write; the stream objects stay what they are."""
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            stream.write = self._noting(name, stream.write)

    def _noting(self, name: str, write: Any) -> Any:
        def noting(text: str) -> Any:
            if self._left > 0 and text.strip():
                at = self._user_line(sys._getframe(1))
                # a warning, a traceback or torch's own log reaches the error stream without the user's asking
                if at is not None:
                    self._left -= 1
                    self._log.note("output", stream=name, text=text.strip()[:80], at=at)
            return write(text)

        return noting

    def _user_line(self, frame: Any) -> str | None:
        while frame is not None and _prints_for_user(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is None or not is_user_file(frame.f_code.co_filename):
            return None
        return self._log.place(frame.f_code.co_filename, frame.f_lineno)
