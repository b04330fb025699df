"""What each script sees in its files in, the problems of each file out, once, comments heeded."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ddpify.linting.ignores import UNUSED, renumbered, silence, unused
from ddpify.linting.problem import FileResult, Problem
from ddpify.linting.root import MAIN, Root, Seen
from ddpify.linting.settings import Settings

Key = tuple[int, int, str]


@dataclass
class Together:
    """The scripts that were asked for, and others that import what was given: their own faults nobody asked for."""

    settings: Settings
    #: every file that was given, by its key, and those that are left out all the same
    given: Mapping[str, str]
    left_out: Collection[str]
    mine: list[Root]
    others: list[Root]

    def views(self) -> dict[str, list[tuple[Root, Seen]]]:
        """What is seen of each file that somebody asked for."""
        asked = {*self.given, *(key for r in self.mine for key in r.files)} - set(self.left_out)
        found: dict[str, list[tuple[Root, Seen]]] = {}
        for root in (*self.mine, *self.others):
            for key, seen in root.files.items():
                if key in asked:
                    found.setdefault(key, []).append((root, seen))
        return found

    def doubtful(self) -> list[Path]:
        """Modules that are no scripts, and in which no script that is known runs all that was found."""
        views = self.views()
        found: list[Path] = []
        for root in self.mine:
            own = root.files.get(root.key)
            if own is None or root.script:
                continue
            others = [s for r, s in views.get(root.key, ()) if r is not root]
            if any(home != MAIN and not overruled(home, others) for home in own.homes):
                found.append(Path(root.path))
        return found

    def results(self) -> Iterator[FileResult]:
        """The files that were given in their order, then modules that they import."""
        views = self.views()
        errors = {r.key: r for r in self.mine if r.error}
        names = {k: p for k, p in self.given.items() if k in views or k in errors}
        rest = {k: v[0][1].name for k, v in views.items() if k not in names}
        rest = dict(sorted(rest.items(), key=lambda item: item[1]))
        for key, name in (names | rest).items():
            if key in errors:
                yield FileResult(name, error=errors[key].error)
            elif key in self.given or not self.settings.excludes(name):
                yield merged(key, name, views[key], self.settings, alone=key in self.given)


def merged(
    key: str, name: str, views: list[tuple[Root, Seen]], settings: Settings, *, alone: bool = False
) -> FileResult:
    """The problems of one file; `alone`: all scripts that there are have been asked, so that comments may be idle."""
    found: dict[Key, tuple[Problem, range]] = {}
    for root, seen in views:
        others = [s for r, s in views if r is not root]
        for problem, counted, home in zip(seen.problems, seen.lines, seen.homes, strict=True):
            if not (root.key == key and not root.script and overruled(home, others)):
                found.setdefault((problem.line, problem.column, problem.code), (problem, counted))
    problems, lines = [p for p, _ in found.values()], [at for _, at in found.values()]
    comments = next((s.comments for _, s in views), [])
    for c in comments:
        c.used.clear()
    left = [problems[at] for at in silence(problems, lines, comments)] if comments else problems
    if alone and comments and settings.selects(UNUSED, name):
        left = [*left, *unused(comments, name, views[0][1].text, lambda code: settings.selects(code, name))]
    return FileResult(name, renumbered([*sorted((_named(p, name) for p in left), key=_place)]))


def overruled(home: str, others: list[Seen]) -> bool:
    """Whether a script runs the function of a file that is none by itself: the script knows how it is called."""
    return home != MAIN and any(home in seen.reached for seen in others)


def _place(problem: Problem) -> Key:
    return problem.line, problem.column, problem.code


def _named(problem: Problem, name: str) -> Problem:
    if problem.path == name:
        return problem
    import dataclasses

    return dataclasses.replace(problem, path=name)
