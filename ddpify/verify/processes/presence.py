"""Scripts that stop where their data is not there -> scripts that are told that it is: what reads it gets stand-ins.

Only a question whose answer decides about going on is answered so: `assert os.path.exists(folder)`, or an
`if not os.path.isdir(folder):` that raises or exits. A checkpoint that may be there is still not there.
"""

from __future__ import annotations

import ast
import functools
import linecache
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from .log import is_user_file, patch

_QUESTIONS = ("exists", "isdir", "isfile")


@functools.cache
def _stops(filename: str) -> tuple[tuple[int, int], ...]:
    """The lines, first and last, of the conditions without which a file's code does not go on."""
    try:
        tree = ast.parse("".join(linecache.getlines(filename)))
    except (SyntaxError, ValueError):
        return ()
    found = []
    for node in ast.walk(tree):
        match node:
            # assert os.path.exists(root), f"{root} does not exist"
            case ast.Assert(test=test):
                found.append(test)
            # if not os.path.isdir(root):
            #     raise FileNotFoundError(root)
            case ast.If(test=ast.UnaryOp() as test, body=[*_, last]) if _ends(last):
                found.append(test)
    return tuple((test.lineno, test.end_lineno or test.lineno) for test in found)


@functools.cache
def _tried(filename: str) -> tuple[tuple[int, int], ...]:
    """The lines of the `try` blocks of a file."""
    try:
        tree = ast.parse("".join(linecache.getlines(filename)))
    except (SyntaxError, ValueError):
        return ()
    blocks = [node.body for node in ast.walk(tree) if isinstance(node, ast.Try) and node.handlers]
    return tuple((body[0].lineno, body[-1].end_lineno or body[-1].lineno) for body in blocks)


def is_caught(frame: FrameType) -> bool:
    """Does the script itself deal with what goes wrong in this line?"""
    return any(first <= frame.f_lineno <= last for first, last in _tried(frame.f_code.co_filename))


def _ends(statement: ast.stmt) -> bool:
    """`raise ...`, `sys.exit(1)` or `exit()`"""
    match statement:
        case ast.Raise() | ast.Expr(value=ast.Call(func=ast.Name(id="exit") | ast.Attribute(attr="exit"))):
            return True
    return False


def _decides() -> bool:
    """Does the script stop by the answer to what it asks now?"""
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename == Path.exists.__code__.co_filename:  # of pathlib
        frame = frame.f_back
    if frame is None or not is_user_file(frame.f_code.co_filename):
        return False
    return any(first <= frame.f_lineno <= last for first, last in _stops(frame.f_code.co_filename))


def watch_questions(told: Callable[[str], None]) -> None:
    """Patch os.path and pathlib."""

    def patched(real: Any) -> Any:
        def asked(path: Any, *args: Any, **kwargs: Any) -> bool:
            there = bool(real(path, *args, **kwargs))
            if there or not isinstance(path, (str, os.PathLike)) or not _decides():
                return there
            told(os.fspath(path))
            return True

        return asked

    for owner, names in ((os.path, _QUESTIONS), (Path, ("exists", "is_dir", "is_file"))):
        for name in names:
            patch(owner, name, patched)
