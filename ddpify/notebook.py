"""A notebook in, the script that its cells make out: code in order, text and magics as comments."""

from __future__ import annotations

import json
import re
import tokenize
from pathlib import Path
from typing import Any

from ddpify.errors import DdpifyError
from ddpify.source import Source

#: Cells in another language, or whose body is no Python of the notebook's own.
_FOREIGN = re.compile(r"\s*%%(bash|sh|script|html|javascript|js|latex|markdown|svg|writefile|cmd|perl|ruby|R)\b")
#: `%time train()`: the statement
_TIMED = re.compile(r"^(\s*)%time\s+(?=\S)")
#: `%matplotlib inline`, `!ls`, `?net`, `net??`, `files = !ls`
_MAGIC = re.compile(r"^(\s*)(%|!|\?)|^\s*[\w.]+\?{1,2}\s*$|^\s*[\w., ]+=\s*(!|%)")


def read_notebook(path: Path) -> Source:
    """The cells of a notebook as one script, `# In[n]:` before each as nbconvert writes it.

    Raises:
        DdpifyError: where nbformat is missing, or the file is no notebook of version 3 or 4.
    """
    try:
        import nbformat
    except ImportError:
        raise DdpifyError(f'{path}: a notebook; reading it needs nbformat: pip install "ddpify[notebook]"') from None
    try:
        book: Any = nbformat.read(path, as_version=4)
    except (json.JSONDecodeError, nbformat.reader.NotJSONError, KeyError, AttributeError, UnicodeDecodeError):
        raise DdpifyError(f"{path}: not a notebook that can be read (it is no JSON of Jupyter's)") from None
    except OSError as error:
        raise DdpifyError(f"{path}: {error.strerror or error}") from None
    blocks: list[str] = []
    number = 0
    for cell in book.cells:
        text = cell.source.rstrip()
        if cell.cell_type == "code" and text.strip():
            number += 1
            blocks.append(f"# In[{number}]:\n\n\n{_code(text)}\n")
        elif cell.cell_type == "markdown" and text.strip():
            blocks.append(_comment(text) + "\n")
    marked = "\n\n".join(blocks)
    source = Source(path, marked.replace(_LOST, "").encode())
    source.lost = tuple(at for at, line in enumerate(marked.split("\n"), 1) if line.endswith(_LOST))
    return source


#: Behind a line that was no Python and is a comment now (or is no longer timed), until the lines are counted.
_LOST = "\0"
_BLOCKS = frozenset({"if", "else", "elif", "try", "except", "for", "while", "with"})


def _code(text: str) -> str:
    """`%matplotlib inline` and `!pip install x` become comments, as does a whole cell in another language.

    `%time train()` becomes `train()`.
    """
    if _FOREIGN.match(text):
        return "\n".join(line + _LOST for line in _comment(text).split("\n"))
    lines: list[str] = []
    statement: list[str] = []  # the lines of a statement that goes on
    continued = False  # a magic that goes on
    for line in text.split("\n"):
        if not statement and not continued and _TIMED.match(line):
            lines.append(_TIMED.sub(r"\1", line) + _LOST)
            continue
        magic = continued or (not statement and _MAGIC.match(line) is not None)
        lines.append(re.sub(r"^(\s*)", r"\1# ", line, count=1) + _LOST if magic else line)
        continued = magic and line.rstrip().endswith("\\")
        if not magic:
            statement = [*statement, line] if _is_open([*statement, line]) else []
    return _filled("\n".join(lines))


def _is_open(lines: list[str]) -> bool:
    """Whether a bracket, a string or a backslash goes on: a line that begins with `%` is no magic there."""
    if lines[-1].endswith("\\"):
        return True
    try:
        for token in tokenize.generate_tokens(iter([f"{line.lstrip()}\n" for line in lines]).__next__):
            if token.type == tokenize.ERRORTOKEN:
                return False
    except tokenize.TokenError as error:
        return "multi-line" in str(error) or "triple-quoted" in str(error)
    except (SyntaxError, StopIteration):
        return False
    return False


def _filled(text: str) -> str:
    """A block that held nothing but a magic gets a `pass`."""
    lines = text.split("\n")
    found: list[str] = []
    for at, line in enumerate(lines):
        found.append(line)
        if line.rstrip().endswith(":") and not line.lstrip().startswith("#"):
            indent = len(line) - len(line.lstrip())
            rest = [x for x in lines[at + 1 :] if x.strip() and not x.lstrip().startswith("#")]
            deeper = bool(rest) and len(rest[0]) - len(rest[0].lstrip()) > indent
            comments = [x for x in lines[at + 1 : at + 2] if x.lstrip().startswith("# ")]
            if comments and not deeper and line.split()[0].rstrip(":") in _BLOCKS:
                found.append(" " * (indent + 4) + "pass")
    return "\n".join(found)


def what_is_lost(source: Source) -> list[str]:
    """What a reader has to know of the magics and shell lines of a notebook: where they were, and what they set."""
    if not source.lost:
        return []
    lines = source.text.split("\n")
    gone = [at for at in source.lost if lines[at - 1].lstrip().startswith("#")]
    shown = [f"`{lines[at - 1].strip()[2:]}` ({at})" for at in gone]
    named = ", ".join(shown[:6]) + (f" and {len(shown) - 6} more" if len(shown) > 6 else "")
    found = [f"no Python, and so a comment now: {named}; what that does in the notebook, the script does not do"]
    found = found if gone else []
    found += [
        f"{at} `{lines[at - 1].strip()}` runs as before, and is not timed" for at in source.lost if at not in gone
    ]
    for at in gone:
        given = re.match(r"\s*# ([\w, ]+)=\s*[!%]", lines[at - 1])
        for name in re.findall(r"\w+", given[1]) if given else ():
            read = [n for n, line in enumerate(lines, 1) if n > at and re.search(rf"^[^#]*\b{name}\b", line)]
            if read:
                found.append(f"{read[0]} `{name}` is not set any more: it came from line {at}, a command")
    return found


def _comment(text: str) -> str:
    return "\n".join(f"# {line}".rstrip() for line in text.split("\n"))
