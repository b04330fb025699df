"""A run that no terminal shows -> one that is told of a terminal of the usual size, as its user's would tell it.

Progress bars ask `stty size` (`os.popen("stty size").read().split()`) or `os.get_terminal_size()` once, and stop the
script where there is none.
"""

from __future__ import annotations

import io
import os
from typing import Any

from .log import patch

_ROWS, _COLUMNS = 24, 80


def watch_terminal() -> None:
    """Patch what asks for its size."""

    def popen(real: Any) -> Any:
        def opened(cmd: str, *args: Any, **kwargs: Any) -> Any:
            if str(cmd).split()[:2] != ["stty", "size"]:
                return real(cmd, *args, **kwargs)
            with real("stty size 2>/dev/null") as answer:
                return io.StringIO(answer.read() or f"{_ROWS} {_COLUMNS}\n")

        return opened

    def size(real: Any) -> Any:
        def get_terminal_size(*args: Any) -> os.terminal_size:
            try:
                found: os.terminal_size = real(*args)
            except OSError:
                return os.terminal_size((_COLUMNS, _ROWS))
            return found

        return get_terminal_size

    patch(os, "popen", popen)
    patch(os, "get_terminal_size", size)
