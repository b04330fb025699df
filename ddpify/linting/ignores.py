"""Comments in, the problems that they silence out, and the comments that silence none.

torch.save(state, path)  # ddpify: ignore[DDP401]
# ddpify: ignore-file[DDP402, print-on-every-rank]
"""

from __future__ import annotations

import dataclasses
import io
import re
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ddpify.errors import DdpifyError
from ddpify.linting.problem import Problem, texts
from ddpify.linting.settings import selectors

MARK = b"ddpify:"
UNUSED = "DDP001"
_COMMENT = re.compile(r"#\s*ddpify:\s*ignore(?P<file>-file)?(?!\w|-)\s*(?:\[(?P<codes>[^\]]*)\])?(?P<rest>[^#]*)")


@dataclass
class Ignore:
    """One comment: where it stands, the lines that it is for (none: the file), the codes that it names (none: all)."""

    line: int
    start: int
    end: int
    whole_file: bool
    codes: tuple[str, ...]
    wrong: str = ""
    used: set[str] = field(default_factory=set)

    def silences(self, problem: Problem, lines: range) -> bool:
        if self.wrong or not (self.whole_file or self.line in lines):
            return False
        named = [c for c in self.codes if problem.code.startswith(c)]
        self.used.update(named or ([] if self.codes else [problem.code]))
        return bool(named) or not self.codes


def ignores(text: str) -> list[Ignore]:
    """The comments of a file; words of this kind in strings are none."""
    found: list[Ignore] = []
    with_comments = (t for t in _tokens(text) if t.type == tokenize.COMMENT)
    for token in with_comments:
        for match in _COMMENT.finditer(token.string):
            codes, wrong = _codes(match["codes"])
            line, column = token.start
            found.append(
                Ignore(
                    line,
                    column + match.start(),
                    column + match.end() - len(match["rest"]),
                    match["file"] is not None,
                    codes,
                    wrong,
                )
            )
    return found


def _tokens(text: str) -> Iterator[tokenize.TokenInfo]:
    try:
        yield from tokenize.generate_tokens(io.StringIO(text).readline)
    except (tokenize.TokenError, SyntaxError):  # the file is said to be unreadable elsewhere
        return


def _codes(text: str | None) -> tuple[tuple[str, ...], str]:
    if text is None:
        return (), ""
    try:
        return selectors([c for c in text.split(",") if c.strip()], "ignore"), ""
    except DdpifyError as error:
        return (), str(error).removeprefix("ignore: ")


def silence(problems: list[Problem], lines: list[range], comments: list[Ignore]) -> list[int]:
    """The places in the list of the problems that are left; `lines` are those whose comments count for each."""
    left = []
    for at, problem in enumerate(problems):
        silenced = [c for c in comments if c.silences(problem, lines[at])]  # all that do are marked as used
        if not silenced:
            left.append(at)
    return left


def unused(comments: list[Ignore], path: str, text: str, selected: Callable[[str], bool]) -> Iterator[Problem]:
    """A problem for each comment that silences nothing, or names no rule."""
    if any(c.whole_file and not c.codes and not c.wrong and c.used for c in comments):
        return  # the whole file is left alone, its other comments with it
    lines = text.splitlines()
    name, why, fix = texts(UNUSED)
    for c in comments:
        idle = [code for code in c.codes if code not in c.used and any(map(selected, _all_of(code)))]
        if c.wrong:
            message = c.wrong
        elif not c.codes and not c.used:
            message = "this comment ignores nothing"
        elif idle:
            are = "are" if len(idle) > 1 else "is"
            message = f"{' and '.join(idle)} {are} not reported here: the comment ignores nothing"
        else:
            continue
        whole = not c.wrong and (not c.codes or len(idle) == len(c.codes))
        yield Problem(
            path,
            c.line,
            c.start + 1,
            c.line,
            c.end + 1,
            UNUSED,
            name,
            "warning",
            message,
            why,
            fix,
            "safe" if whole else "",
            lines[c.line - 1] if c.line <= len(lines) else "",
        )


def _all_of(code: str) -> list[str]:
    from ddpify.rules import all_rules

    return [r.code for r in all_rules() if code == "ALL" or r.code.startswith(code)]


def without(text: str, comments: list[Problem]) -> str:
    """The text without comments that ignore nothing; a line of its own goes as a whole."""
    lines = re.split(r"(?<=\n)|(?<=\r)(?!\n)", text)
    for problem in comments:
        line = lines[problem.line - 1]
        before, after = line[: problem.column - 1], line[problem.end_column - 1 :]
        if not before.strip() and not after.strip():
            lines[problem.line - 1] = ""
        elif after.strip():
            lines[problem.line - 1] = (
                before + "#" + after if not after.lstrip().startswith("#") else before + after.lstrip()
            )
        else:
            lines[problem.line - 1] = before.rstrip() + after
    return "".join(lines)


def renumbered(problems: list[Problem]) -> list[Problem]:
    """Equal problems of a file get a number each, so that a baseline tells them apart."""
    seen: dict[tuple[str, str, str], int] = {}
    found = []
    for p in problems:
        key = (p.path, p.code, p.text.strip())
        found.append(dataclasses.replace(p, nth=seen.get(key, 0)))
        seen[key] = seen.get(key, 0) + 1
    return found
