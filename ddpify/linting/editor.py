"""The text of an open file in; its problems, and the changes of lines that mend them, out."""

from __future__ import annotations

import difflib
import functools
import io
import re
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ddpify.files import may_matter
from ddpify.linting.baseline import Baseline
from ddpify.linting.check import Checked, Task, check, comments_only, mended, mended_alone, scripts_for
from ddpify.linting.problem import Problem
from ddpify.linting.settings import Settings, read_settings
from ddpify.source import Source

_LINE_END = re.compile(r"(?<=\n)|(?<=\r)(?!\n)")
_UNSAFE = "other files or other training"


@dataclass(frozen=True)
class Change:
    """The lines from `first` to before `last`, counted from 0, become `text`."""

    first: int
    last: int
    text: str


@dataclass(frozen=True)
class Fix:
    """What mends a problem, or all that can be mended safely (`problem` is None)."""

    title: str
    changes: tuple[Change, ...]
    problem: Problem | None = None

    @property
    def safe(self) -> bool:
        return self.problem is None or self.problem.mend == "safe"


class Opened:
    """An open file as it was last looked at."""

    def __init__(self, path: Path, text: str, scripts: Sequence[Path] | None = None) -> None:
        """Look at a text; `scripts` import it, and where they are not given they are looked for.

        Raises:
            DdpifyError: where it is no Python, or the settings of its project are not right.
        """
        self.name, self.text = str(path), text
        self.task = Task(read_settings(path.parent))
        self.checked: Checked | None = None
        self.problems: list[Problem] = []
        data = encoded(text)
        self.scripts: Sequence[Path] = scripts or ()
        if self.task.settings.excludes(path):
            return
        if scripts is None:
            self.scripts = scripts_for(path, self.task.settings)
        if may_matter(data) or self.scripts:
            self.checked = check(Source(path, data), self.name, self.task, self.scripts)
            self.problems = _new(self.checked.problems, self.task.settings)
        else:
            self.problems = comments_only(data, self.name, self.task.settings)

    @functools.cached_property
    def lines(self) -> list[str]:
        return lines_of(self.text)

    def fixes(self, first: int, last: int) -> Iterator[Fix]:
        """A fix for each problem that touches the lines from `first` to `last`, counted from 1."""
        for problem in self.problems:
            if not problem.mend or problem.line > last or problem.end_line < first:
                continue
            text = self._mended(problem)
            if text is not None and text != self.text:
                said = f"Mend {problem.code} ({problem.name})"
                title = said if problem.mend == "safe" else f"{said}: {_UNSAFE}"
                yield Fix(title, changes(self.text, text), problem)

    def all_safe(self) -> Fix | None:
        """One fix for all that can be mended without other results or other files."""
        if self.checked is None or not any(p.mend == "safe" for p in self.problems):
            return None
        result = mended(self.checked, self.name, Task(self.task.settings, "safe"))
        if result.data is None:
            return None
        text = Source(Path(self.name), result.data).text
        return Fix("Mend all that ddpify mends safely", changes(self.text, text))

    def _mended(self, problem: Problem) -> str | None:
        if self.checked is None:
            return mended_alone(self.text, problem)
        at = self.checked.problems.index(problem)
        return mended_alone(self.text, problem, self.checked.findings[at])


def _new(problems: list[Problem], settings: Settings) -> list[Problem]:
    """The problems that the baseline does not know."""
    if settings.baseline is None:
        return problems
    return list(Baseline.read(settings.baseline, settings.root).new(problems))


def encoded(text: str) -> bytes:
    """The bytes that a text has by its own coding line."""
    data = text.encode("utf-8", "surrogatepass")
    try:
        encoding = tokenize.detect_encoding(io.BytesIO(data).readline)[0]
        return data if encoding == "utf-8-sig" else text.encode(encoding)
    except (SyntaxError, LookupError, UnicodeEncodeError):
        return data


def lines_of(text: str) -> list[str]:
    """The lines as Python and editors count them: other separators (form feeds) end none."""
    return [line for line in _LINE_END.split(text) if line]


def changes(before: str, after: str) -> tuple[Change, ...]:
    """What to do with the lines of a text to make another of it."""
    old, new = lines_of(before), lines_of(after)
    steps = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    return tuple(Change(a, b, "".join(new[c:d])) for kind, a, b, c, d in steps if kind != "equal")
