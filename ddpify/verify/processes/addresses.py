"""A temporary folder with a long name -> sockets of worker processes that have no place in it.

The address of a Unix socket is cut off after some 100 characters; loader workers that pass tensors on would then hang.
"""

from __future__ import annotations

import itertools
import multiprocessing.connection
import os
import sys
import tempfile
from typing import Any

_LONGEST = 70  # characters; multiprocessing adds some 30


def short_addresses() -> None:
    """Linux knows addresses that are no files."""
    if sys.platform != "linux" or len(tempfile.gettempdir()) <= _LONGEST:
        return
    connection: Any = multiprocessing.connection
    real, numbers = connection.arbitrary_address, itertools.count()

    def arbitrary_address(family: str) -> Any:
        return f"\0ddpify-{os.getpid()}-{next(numbers)}" if family == "AF_UNIX" else real(family)

    connection.arbitrary_address = arbitrary_address
