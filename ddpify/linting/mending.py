"""Scripts with problems in, the new texts of their files out; each pass looks at the texts that the one before made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from ddpify.edits import Edit
from ddpify.errors import DdpifyError
from ddpify.linting.ignores import UNUSED, silence, without
from ddpify.linting.problem import FileResult, Problem
from ddpify.linting.root import Root, Seen, Task, key_of, look
from ddpify.linting.together import Together, overruled
from ddpify.rules import Finding
from ddpify.source import Source, read_source

#: how often a script is mended and looked at again
_PASSES = 8


class Mending:
    """The files as they are by now. Only those whose keys are `wanted` are changed."""

    def __init__(self, task: Task, wanted: set[str], views: dict[str, list[Seen]] | None = None) -> None:
        self.task = task
        self.wanted = wanted
        self.views = views or {}
        self.first: dict[str, Source] = {}
        self.now: dict[str, Source] = {}
        self.counts: dict[str, int] = {}

    def add(self, source: Source) -> None:
        self.now.setdefault(key_of(source.path), source)

    def current(self, path: Path) -> Source:
        key = key_of(path)
        if key not in self.now:
            self.now[key] = read_source(path)
        return self.now[key]

    @property
    def overlay(self) -> dict[Path, Source] | None:
        return {self.now[k].path: self.now[k] for k in self.first} or None

    def look(self, path: Path) -> tuple[Root, dict[str, list[Finding]]]:
        """A script with its modules as they are by now."""
        return look(self.current(path), self.task, self.overlay)

    def mend(self, path: Path) -> None:
        """Make the edits of a script's findings, in whichever file they are."""
        for _ in range(_PASSES):
            root, found = self.look(path)
            changed = [self.one_file(root, key, findings) for key, findings in found.items()]
            if not any(changed):
                return

    def one_file(self, root: Root, key: str, findings: list[Finding]) -> bool:
        seen = root.files[key]
        if key not in self.wanted or Path(seen.name).suffix == ".ipynb":
            return False
        own = root.key == key and not root.script
        places = [
            at
            for at in silence(seen.problems, seen.lines, seen.comments)
            if allowed(seen.problems[at], self.task)
            and not (own and overruled(seen.homes[at], self.views.get(key, [])))
        ]
        wanted = [findings[at] for at in places]
        if not wanted:
            return False
        text, done = _applied(wanted[0].source, wanted)
        return done > 0 and self.change(wanted[0].source, text, done)

    def comments(self, problems: Iterable[Problem]) -> None:
        """Take out comments that ignore nothing."""
        by_file: dict[str, list[Problem]] = {}
        for p in problems:
            if p.code == UNUSED and allowed(p, self.task):
                by_file.setdefault(p.path, []).append(p)
        for name, idle in by_file.items():
            source = self.current(Path(name))
            self.change(source, without(source.text, idle), len(idle))

    def change(self, source: Source, text: str, count: int) -> bool:
        if text == source.text:
            return False
        key = key_of(source.path)
        self.first.setdefault(key, source)
        self.now[key] = Source(source.path, source.encode(text))
        self.counts[key] = self.counts.get(key, 0) + count
        return True

    def tell(self, result: FileResult, key: str) -> None:
        """Put into a result what became of its file."""
        if key in self.first:
            from ddpify.convert import text_diff

            result.mended = self.counts[key]
            result.data = self.now[key].data
            result.diff = text_diff(self.first[key].text, self.now[key].text, result.path, result.path)


def mended(whole: Together, task: Task) -> Iterator[FileResult]:
    """The results after the edits: the scripts one after the other, since they share modules."""
    before = list(whole.results())
    wanted = {key_of(r.path) for r in before if any(allowed(p, task) for p in r.problems)}
    mending = Mending(task, wanted, {k: [s for _, s in seen] for k, seen in whole.views().items()})
    for root in (*whole.mine, *whole.others):
        if wanted & root.files.keys() and not root.error:
            mending.mend(Path(root.path))
    again(whole, mending)
    mending.comments(p for r in whole.results() for p in r.problems if key_of(r.path) in wanted)
    again(whole, mending)
    for result in whole.results():
        mending.tell(result, key_of(result.path))
        yield result


def again(whole: Together, mending: Mending) -> None:
    """Look anew at the scripts whose files have changed."""
    changed = mending.first.keys()
    for roots in (whole.mine, whole.others):
        for at, root in enumerate(roots):
            if changed & root.files.keys():
                roots[at] = mending.look(Path(root.path))[0]


def allowed(problem: Problem, task: Task) -> bool:
    return problem.mend == "safe" or (problem.mend == "unsafe" and task.mend == "unsafe")


def _applied(source: Source, findings: list[Finding]) -> tuple[str, int]:
    """The text with all edits at once; where they are in each other's way, with as many as go together."""
    text = rewritten(source, findings)
    if text is not None:
        return text, len(findings)
    taken: list[Finding] = []
    for finding in findings:
        if rewritten(source, [*taken, finding]) is not None:
            taken.append(finding)
    return rewritten(source, taken) or source.text, len(taken)


def rewritten(source: Source, findings: list[Finding]) -> str | None:
    """The text with the edits of findings, None where they do not go together."""
    from ddpify.convert import with_edits

    edits: list[Edit] = [e for f in findings for e in f.edits]
    try:
        text = with_edits(source, edits)
        compile(text, str(source.path), "exec", dont_inherit=True)
    except (DdpifyError, SyntaxError, ValueError):
        return None
    return text
