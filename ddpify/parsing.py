"""Text in, its syntax tree out; every way in which that can fail is one sentence."""

from __future__ import annotations

import ast
import io
import re
import tokenize
import warnings
from pathlib import Path
from types import CodeType

import libcst as cst

from ddpify.errors import DdpifyError
from ddpify.positions import Outline, outline

NEWLINE = re.compile(r"\r\n?|\n")
#: what libcst does with each node that is made: it asks whether the node is valid
_VALIDATE = cst.CSTNode.__post_init__


def compiled(text: str, path: Path) -> CodeType:
    """The code of a file, without this interpreter's warnings about it (`x is 0`): they are not the user's question."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return compile(text, str(path), "exec", dont_inherit=True)


def encoding_of(path: Path, data: bytes) -> str:
    if b"\0" in data[:8192]:
        raise DdpifyError(f"{path}: a binary file, not Python source")
    try:
        return tokenize.detect_encoding(io.BytesIO(data).readline)[0]
    except SyntaxError as error:
        raise DdpifyError(f"{path}: {error.msg or 'not Python source'}") from None


def _outline(text: str) -> tuple[Outline, ...] | None:
    """Where the statements stand; None where Python gives up on the nesting: libcst's parser would overflow the stack.

    What else Python cannot read, such as code of Python 2, is left to libcst: nothing is known of it here.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return outline(ast.parse(text).body)
    except (RecursionError, MemoryError):
        return None
    except SyntaxError as error:
        return None if "nested" in (error.msg or "") else ()
    except ValueError:
        return ()


def _trust(_node: cst.CSTNode) -> None:
    pass


def _tree(text: str) -> cst.Module:
    """The tree of a text; what the parser makes is valid, and to ask that of each node takes a fifth of the time."""
    cst.CSTNode.__post_init__ = _trust  # type: ignore[assignment, method-assign]
    try:
        return cst.parse_module(text)
    finally:
        cst.CSTNode.__post_init__ = _VALIDATE  # type: ignore[method-assign]


def parse(path: Path, text: str) -> tuple[cst.Module, tuple[Outline, ...]]:
    """The tree of a text, and where its statements stand.

    Raises:
        DdpifyError: where it is no Python 3.
    """
    outlined = _outline(text)
    if outlined is None:
        raise DdpifyError(f"{path}: nested too deeply to be read")
    try:
        return _tree(text), outlined
    except cst.ParserSyntaxError as error:
        line, column = _stops_at(text, path) or (error.raw_line, error.raw_column + 1)
        said = python2(text, line)
        why = f"{said}; ddpify converts Python 3 (2to3 first)" if said else "syntax error, ddpify converts Python 3"
        raise DdpifyError(f"{path}:{line}:{column}: {why}") from None
    except RecursionError:
        raise DdpifyError(f"{path}: nested too deeply to be read") from None
    except Exception as error:  # libcst raises bare exceptions for some inputs, such as a lone carriage return
        raise DdpifyError(f"{path}: not readable as Python 3 ({type(error).__name__})") from None


def _stops_at(text: str, path: Path) -> tuple[int, int] | None:
    """Line and column at which Python stops reading: libcst names the place behind, often a line further down."""
    try:
        compiled(text, path)
    except SyntaxError as error:
        return (error.lineno, error.offset or 1) if error.lineno else None
    except (ValueError, RecursionError, MemoryError):
        return None
    return None


def python2(text: str, line: int) -> str:
    lines = NEWLINE.split(text)
    near = " ".join(lines[max(0, line - 2) : line + 1])
    # print "x"      print x, y      except Error, e:      exec "code"
    if re.search(r"(^|[\s:;])print\s+[\"'\w%]", near):
        return "Python 2 print statement"
    if re.search(r"except\s+[\w.]+\s*,\s*\w+\s*:", near) or re.search(r"(^|\s)exec\s+[\"']", near):
        return "Python 2 syntax"
    if re.search(r"\basync\s*=", near):
        return "`async=` is a syntax error since Python 3.7 (write `non_blocking=`)"
    return ""
