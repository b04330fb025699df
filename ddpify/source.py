"""Bytes in, a parsed file with positions out; encoding, byte order mark and line endings live here."""

from __future__ import annotations

import codecs
import dataclasses
import functools
import re
import sys
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import libcst as cst

from ddpify.errors import DdpifyError
from ddpify.parsing import NEWLINE, compiled, encoding_of, parse, python2
from ddpify.positions import Places

#: Fields of libcst nodes that hold white space or punctuation: never code.
_LAYOUT = (
    "whitespace",
    "lpar",
    "rpar",
    "leading",
    "header",
    "footer",
    "comma",
    "semicolon",
    "lines_after",
    "equal",
    "lbracket",
    "rbracket",
    "lbrace",
    "rbrace",
    "first_line",
    "last_line",
    "trailing",
    "indent",
    "colon",
    "dot",
    "newline",
    "comment",
    "star",
    "asname_",
    "posonly_ind",
    "operator",
)
_CODE = frozenset({"star_arg", "star_kwarg"})
_PLAIN = (str, bool, "str", "bool")
_N = TypeVar("_N", bound=cst.CSTNode)


@dataclass(frozen=True)
class Span:
    """A place in a file: character offsets, and line and column counted from 1 and 0."""

    start: int
    end: int
    line: int
    column: int


@functools.cache
def _code_fields(kind: type[cst.CSTNode]) -> tuple[str, ...]:
    fields = [f for f in dataclasses.fields(kind) if f.type not in _PLAIN]
    return tuple(f.name for f in fields if f.name in _CODE or not f.name.startswith(_LAYOUT))


class _Kinds(dict[type, int]):
    """What a field holds: a node (1), a row of nodes (2) or neither. Asking `isinstance` each time is slow here."""

    def __missing__(self, kind: type) -> int:
        self[kind] = 1 if issubclass(kind, cst.CSTNode) else 2 if issubclass(kind, (list, tuple)) else 0
        return self[kind]


_KINDS = _Kinds()


def children(node: cst.CSTNode) -> list[cst.CSTNode]:
    """The code below a node, in the order of the text, without white space and punctuation."""
    found: list[cst.CSTNode] = []
    for name in _code_fields(type(node)):
        value = getattr(node, name)
        kind = _KINDS[type(value)]
        if kind == 1:
            found.append(value)
        elif kind:
            found.extend(value)
    return found


def walk(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """The node and all code below it, parents first."""
    stack = [node]
    while stack:
        top = stack.pop()
        yield top
        stack.extend(reversed(children(top)))


#: `# ---- model ----`, `# ── 3. Model ──────`
_HEADING = re.compile(r"[-=#*~]{3}|[─━═]{2}")


class Source:
    """One Python file: its text as it is, its tree, and where each node stands."""

    #: the lines of a notebook that are no Python (magics, commands), which are comments here
    lost: tuple[int, ...] = ()

    def __init__(self, path: Path, data: bytes) -> None:
        self.path = path
        self.data = data
        self.bom = data.startswith(codecs.BOM_UTF8)
        self.encoding = encoding_of(path, data)
        try:
            self.text = data.decode("utf-8-sig" if self.bom else self.encoding)
        except UnicodeDecodeError as error:
            raise DdpifyError(
                f"{path}: not {self.encoding} text (byte {error.start}); ddpify reads Python source"
            ) from error
        except LookupError as error:
            raise DdpifyError(f"{path}: unknown encoding {self.encoding!r} in its coding line") from error
        self.module, outline = parse(path, self.text)
        self.newline = self.module.default_newline
        self._starts = [0, *(m.end() for m in NEWLINE.finditer(self.text))]
        self._places = Places(self.module, self.text, self._starts, outline)

    @functools.cached_property
    def nodes(self) -> tuple[cst.CSTNode, ...]:
        """All code of the file, parents first."""
        return tuple(self._tree[0])

    def of(self, *kinds: type[_N]) -> list[_N]:
        """All code of some kinds (classes that have none below them), parents first."""
        if kinds not in self._of:
            self._of[kinds] = [n for n in self.nodes if type(n) in kinds]
        return self._of[kinds]

    @functools.cached_property
    def _of(self) -> dict[tuple[type, ...], list[Any]]:
        return {}

    @functools.cached_property
    def parents(self) -> dict[cst.CSTNode, cst.CSTNode]:
        """The parent of every node."""
        return self._tree[1]

    @functools.cached_property
    def _tree(self) -> tuple[list[cst.CSTNode], dict[cst.CSTNode, cst.CSTNode]]:
        nodes: list[cst.CSTNode] = []
        parents: dict[cst.CSTNode, cst.CSTNode] = {}
        stack: list[cst.CSTNode] = [self.module]
        while stack:
            node = stack.pop()
            nodes.append(node)
            below = children(node)
            parents.update(dict.fromkeys(below, node))
            stack.extend(reversed(below))
        return nodes, parents

    def span(self, node: cst.CSTNode) -> Span:
        """Where a node stands, white space and comments before it left out."""
        start, end = self._places.of(node, self.parents)
        line = self.line_at(start)
        return Span(start, min(len(self.text), end), line, start - self.line_start(line))

    def line(self, node: cst.CSTNode) -> int:
        return self.span(node).line

    def line_at(self, offset: int) -> int:
        return bisect_right(self._starts, offset)

    def line_start(self, line: int) -> int:
        """The offset at which a line (from 1) begins; past the end, the length of the text."""
        return self._starts[line - 1] if line <= len(self._starts) else len(self.text)

    def code(self, node: cst.CSTNode) -> str:
        """The text of a node, as the user wrote it."""
        span = self.span(node)
        return self.text[span.start : span.end]

    def comments_above(self, start: int) -> list[str]:
        """The comment lines directly above a statement, with its indentation; notebook cell marks end them."""
        line = self.line_at(start)
        indent = self.text[self.line_start(line) : start]
        found: list[str] = []
        while line > 1 and not indent.strip():
            above = self.text[self.line_start(line - 1) : self.line_start(line)]
            if (
                not above.startswith(indent + "#")
                or above.startswith("#!")
                or re.match(r"\s*# In\[|\s*#.*coding[:=]", above)
            ):
                break
            found.insert(0, above)
            line -= 1
        return found

    def owns_comments(self, stmt: cst.CSTNode) -> bool:
        """Whether the comments directly above a statement speak of it alone: nothing of its block follows right behind.

        A heading (`# ---- model ----`) may be one of all that comes below it.
        """
        span = self.span(stmt)
        above = self.comments_above(span.start)
        last = self.line_at(span.end)
        below = self.text[self.line_start(last + 1) : self.line_start(last + 2)]
        indent = len(below) - len(below.lstrip())
        heading = any(_HEADING.search(c) for c in above)
        return not heading and (not below.strip() or below.lstrip().startswith("#") or indent < span.column)

    def is_about(self, stmt: cst.CSTNode, words: re.Pattern[str]) -> bool:
        """Whether the comments directly above a statement speak of it, and are no heading of what comes below."""
        above = self.comments_above(self.span(stmt).start)
        heading = any(_HEADING.search(c) for c in above)
        return not heading and (self.owns_comments(stmt) or any(words.search(c) for c in above))

    def ancestors(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        above = self.parents.get(node)
        while above is not None:
            yield above
            above = self.parents.get(above)

    def encode(self, text: str) -> bytes:
        """Text back to bytes, with the encoding and the byte order mark of this file."""
        return (codecs.BOM_UTF8 if self.bom else b"") + text.encode("utf-8" if self.bom else self.encoding)


def check_compiles(source: Source) -> None:
    """libcst reads every Python 3; what this interpreter cannot run (`async=True`) is said with its place."""
    try:
        compiled(source.text, source.path)
    except SyntaxError as error:
        line = error.lineno or 1
        said = (
            python2(source.text, line)
            or f"syntax error for Python {sys.version_info[0]}.{sys.version_info[1]} ({error.msg})"
        )
        raise DdpifyError(f"{source.path}:{line}:{error.offset or 1}: {said}") from None
    except ValueError as error:
        raise DdpifyError(f"{source.path}: not Python source ({error})") from None


def dotted(node: cst.CSTNode | None) -> str:
    """`os.path` as the text of its names; empty for what is no chain of names."""
    match node:
        case cst.Name(value=value):
            return value
        case cst.Attribute(value=value, attr=attr):
            return f"{dotted(value)}.{attr.value}"
    return ""


def read_source(path: Path) -> Source:
    """Read a file; every way in which that can fail is one sentence."""
    if path.suffix == ".ipynb" and path.is_file():
        from ddpify.notebook import read_notebook

        return read_notebook(path)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise DdpifyError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise DdpifyError(f"{path}: a folder; give the script that trains") from None
    except PermissionError:
        raise DdpifyError(f"{path}: not readable (permission denied)") from None
    except OSError as error:
        raise DdpifyError(f"{path}: {error.strerror or error}") from None
    return Source(path, data)
