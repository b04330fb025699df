"""A file of known problems in, those that are new out; line numbers may move.

{"version": 1, "known": {"train.py": {"DDP401": {"torch.save(state, path)": 1}}}}
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ddpify.errors import DdpifyError
from ddpify.linting.problem import Problem


class Baseline:
    """The problems that were there when the baseline was written, by file, code and text of the line."""

    def __init__(self, root: Path, known: dict[str, Any] | None = None) -> None:
        self.root = root
        self.known = known or {}

    @classmethod
    def read(cls, path: Path, root: Path) -> Baseline:
        """The baseline in a file.

        Raises:
            DdpifyError: where it is not there, or was not written by ddpify.
        """
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            known = data["known"]
            if data["version"] != 1 or not all(isinstance(n, int) for n in _numbers(known)):
                raise ValueError
        except FileNotFoundError:
            raise DdpifyError(f"{path}: no such baseline; `ddpify lint --write-baseline` makes it") from None
        except OSError as error:
            raise DdpifyError(f"{path}: {error.strerror or error}") from None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise DdpifyError(
                f"{path}: not a baseline of ddpify; write it with `ddpify lint --write-baseline`"
            ) from None
        return cls(root, known)

    def new(self, problems: Iterable[Problem]) -> Iterator[Problem]:
        """The problems that the baseline does not know."""
        for p in problems:
            if p.nth >= self.known.get(self._file(p.path), {}).get(p.code, {}).get(p.text.strip(), 0):
                yield p

    def write(self, path: Path, problems: Iterable[Problem]) -> None:
        """Write the problems down as known."""
        known: dict[str, dict[str, dict[str, int]]] = {}
        for p in problems:
            lines = known.setdefault(self._file(p.path), {}).setdefault(p.code, {})
            lines[p.text.strip()] = lines.get(p.text.strip(), 0) + 1
        text = json.dumps({"version": 1, "known": known}, indent=1, sort_keys=True, ensure_ascii=False)
        try:
            path.write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise DdpifyError(f"{path}: {error.strerror or error}") from None

    def _file(self, path: str) -> str:
        return os.path.relpath(path, self.root).replace(os.sep, "/")


def _numbers(known: dict[str, Any]) -> Iterator[object]:
    for codes in known.values():
        for lines in codes.values():
            yield from lines.values()
