"""Plan and source in, new text out: the only place that writes into a user's file."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict

import libcst as cst

from ddpify.changes import Change, Changes
from ddpify.edits import (
    Append,
    Delete,
    DropArguments,
    Edit,
    Guard,
    Hoist,
    InsertAfter,
    InsertBefore,
    Replace,
    SetArgument,
    Surround,
)
from ddpify.errors import DdpifyError
from ddpify.source import Source, walk


class Conflict(DdpifyError):
    """Two edits want the same text: a fault of ddpify, never written."""


class Rewriter(Changes):
    """Collects changes for one file and applies them from the end to the start."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.runs: list[list[cst.CSTNode]] = []
        self.gone: list[tuple[int, int]] = []
        self.split: set[int] = set()
        self.breaks_before: set[cst.CSTNode] = set()
        self.breaks_after: set[cst.CSTNode] = set()
        #: statements that go -> whether their comments go, too
        self.deleted: dict[cst.CSTNode | None, bool] = {}
        #: places in the order of insertions that are kept for what is lifted out last, with the changes inside it
        self.turns: dict[int, int] = {}

    def apply(self, edits: list[Edit]) -> str:
        """The new text of the file."""
        self.breaks_before = {e.node for e in edits if isinstance(e, InsertBefore)} | {
            e.before for e in edits if isinstance(e, Hoist)
        }
        self.breaks_after = {e.node for e in edits if isinstance(e, InsertAfter)}
        self.deleted = {e.node: bool(e.comments) for e in edits if isinstance(e, Delete)}
        self.guards([e for e in edits if isinstance(e, Guard)])
        for edit in edits:
            match edit:
                case Replace():
                    start, end = self.with_brackets(edit.node, edit.brackets)
                    self.change(start, end, edit.text)
                case Append():
                    self.append(edit)
                case Surround():
                    start, end = self.with_brackets(edit.node, isinstance(edit.node, cst.Tuple))
                    self.change(start, start, edit.before, 5)
                    self.change(end, end, edit.after, -5)
                case SetArgument():
                    self.set_argument(edit)
                case DropArguments():
                    self.drop_arguments(edit.node, [edit.node.args[at] for at in edit.positions])
                case InsertBefore():
                    self.insert_before(edit)
                case InsertAfter():
                    self.insert_after(edit)
                case Delete():
                    self.delete(edit.node, edit.comments)
                case Hoist(in_turn=True):
                    self.turns[id(edit)], self._seq = self._seq, self._seq + 1
        hoists = [e for e in edits if isinstance(e, Hoist)]
        inner = [{id(n) for n in walk(e.node)} for e in hoists]
        # for x in DataLoader(Data()): the data first, then the loader
        for edit in sorted(hoists, key=lambda e: -sum(id(e.node) in nodes for nodes in inner)):
            self.hoist(edit)
        return self.result()

    def with_brackets(self, node: cst.CSTNode, wanted: bool) -> tuple[int, int]:
        """Where a node stands; of a tuple the brackets are a part: `f((a, b))`, where `f(a, b)` passes two values."""
        span, text = self.source.span(node), self.source.text
        if not wanted or not getattr(node, "lpar", ()):
            return span.start, span.end
        behind = re.match(r"(\s|#.*)*\)", text[span.end :])
        assert behind is not None
        return text.rindex("(", 0, span.start), span.end + behind.end()

    def hoist(self, edit: Hoist) -> None:
        """Move an expression, with the changes inside it, into a statement of its own; guards' indentation stays."""
        span = self.source.span(edit.node)
        inner = [
            c
            for c in self.changes
            if span.start <= c.start
            and c.end <= span.end
            and (span.start < c.start < span.end or c.end > c.start or (edit.in_turn and abs(c.order[0]) == 5))
        ]
        self.changes = [c for c in self.changes if c not in inner]
        moved = [c for c in inner if c.order[0] != -9]
        text = _apply(self.source.text, moved, span.start, span.end)
        indent = self.indent_of(edit.before)
        shift = self.unit_after(indent) if edit.header else ""
        lead = f"{shift}{edit.name} = "
        lines = text.split(self.nl)
        rest = self.moved(edit.node, lines, len(indent), lead, shift)
        text = f"{lead}{edit.around[0]}" + "\n".join([lines[0], *rest]) + edit.around[1]
        seq, self._seq = self._seq, self.turns.get(id(edit), self._seq)
        header = f"{edit.header}\n" if edit.header else ""
        self.insert_before(InsertBefore(edit.source, edit.before, (header + text,)), as_is=True)
        self._seq = max(seq, self._seq)
        self.change(span.start, span.end, edit.name)

    def moved(self, node: cst.CSTNode, lines: list[str], indent: int, lead: str, shift: str) -> list[str]:
        """Continuation lines keep their place below the first; arguments that hang below the statement hang again."""
        texts = (n for n in walk(node) if isinstance(n, (cst.SimpleString, cst.FormattedString)))
        if len(lines) == 1 or any(self.nl in self.source.code(n) for n in texts):
            return lines[1:]
        by = indent + len(lead) - self.source.span(node).column
        spaces = [len(x) - len(x.lstrip()) for x in lines[1:]]
        if lines[0].rstrip().endswith(("(", "[", "{")):
            closed = lines[-1].lstrip()[:1] in (")", "]", "}")
            least = min(s for s, x in zip(spaces, lines[1:], strict=True) if x.strip())
            by = indent + len(shift) - spaces[-1] if closed else indent + len(shift) + len(self.unit) - least
        return [
            (x[:1] if x[:1].isspace() else " ") * max(0, s + by - indent) + x.lstrip()
            for s, x in zip(spaces, lines[1:], strict=True)
        ]

    def result(self) -> str:
        text, last = self.source.text, len(self.source.text) + 1
        taken: list[tuple[int, int]] = []
        units = [c for c in self.changes if c.order[0] == -9]
        lost = {id(c) for c in units if any(first <= c.start < last for first, last in self.gone)}
        self.changes = [c for c in self.changes if id(c) not in lost]
        # what is replaced as a whole takes the changes inside it with it
        whole = [(c.start, c.end) for c in self.changes if c.end > c.start]
        self.changes = [
            c
            for c in self.changes
            if not any(
                s <= c.start and c.end <= e and (s, e) != (c.start, c.end) and (s < c.start < e or c.end > c.start)
                for s, e in whole
            )
        ]
        # from the end to the start; of several at one place the first written stands first, insertions before what they
        # precede
        for c in sorted(self.changes, key=lambda c: (c.start, c.end > c.start, c.order), reverse=True):
            if c.end > c.start and any(s < c.end and c.start < e for s, e in taken):
                raise Conflict(
                    f"{self.source.path}:{self.source.line_at(c.start)}: two edits want the same text (internal error)"
                )
            if c.end > last and c.end > c.start:
                raise Conflict(f"{self.source.path}:{self.source.line_at(c.start)}: edits overlap (internal error)")
            text = text[: c.start] + c.text + text[c.end :]
            if c.end > c.start:
                taken.append((c.start, c.end))
                last = c.start
        return text

    # -- statements ----------------------------------------------------------------------------------

    def own_line(self, stmt: cst.CSTNode) -> None:
        """Give a small statement a line of its own: `a; b` and `if x: a` are taken apart."""
        parent = self.source.parents.get(stmt)
        if not isinstance(parent, (cst.SimpleStatementLine, cst.SimpleStatementSuite)) or id(parent) in self.split:
            return
        self.split.add(id(parent))
        smalls = list(parent.body)
        indent = self.indent_of(stmt)
        if isinstance(parent, cst.SimpleStatementSuite):
            start = self.source.span(smalls[0]).start
            colon = self.source.text.rindex(":", 0, start) + 1
            self.change(colon, start, self.nl + indent + self.unit_after(indent) * self.depth(start))
        for one, two in itertools.pairwise(smalls):
            start = self.source.span(two).start
            self.change(
                self.source.span(one).end, start, self.nl + indent + self.unit_after(indent) * self.depth(start)
            )

    def insert_before(self, edit: InsertBefore, as_is: bool = False) -> None:
        stmt = edit.node
        if self.in_place(edit):
            return
        self.own_line(stmt)
        at = self.head(stmt)
        indent = self.indent_of(stmt) + self.unit_of(stmt) * self.depth_of(stmt)
        text = "".join(self.inserted(line, indent, as_is) + self.nl + indent for line in edit.lines)
        if edit.blank_after and at != self.start(stmt):
            text = text.removesuffix(indent) + self.nl + indent  # what follows begins with a comment of its own
        self.change(at, at, text, 0 if edit.last else -1)

    def insert_after(self, edit: InsertAfter) -> None:
        stmt = edit.node
        if self.in_place(edit):
            return
        self.own_line(stmt)
        at = self.end(stmt)
        indent = self.indent_of(stmt) + self.unit_of(stmt) * self.depth_of(stmt)
        text = "".join(self.nl + (indent if line else "") + self.inserted(line, indent) for line in edit.lines)
        order = 600 - 2 * len(indent) + edit.last
        self.change(at, at, text, order)  # at the end of several blocks the innermost comes first

    def in_place(self, edit: InsertBefore | InsertAfter) -> bool:
        """Write in the place of a statement that goes: `if device_count() > 1: model = DataParallel(model)`."""
        around = (edit.node, *self.source.ancestors(edit.node))
        gone = beside = next((n for n in around if n in self.deleted and self.on_lines(n)), None)
        if gone is None and isinstance(edit, InsertAfter):
            # if use_cuda: model.cuda(); model = DataParallel(model): what stands behind goes where the last line was
            gone, beside = self.gone_at_end(edit.node), edit.node
        if gone is None or beside is None:
            return False
        at = self.first_gone(gone, self.deleted[gone])
        indent = self.indent_of(beside) + self.unit_of(beside) * self.depth_of(beside)
        self.change(at, at, "".join(indent + self.inserted(line, indent) + self.nl for line in edit.lines), -1)
        return True

    def gone_at_end(self, stmt: cst.CSTNode) -> cst.CSTNode | None:
        """The last statement inside another one, where it goes."""
        for node in self.deleted:
            if node is None or stmt not in self.source.ancestors(node):
                continue
            if self.end(node) == self.end(stmt) and self.on_lines(node):
                return node
        return None

    def inserted(self, line: str, indent: str, as_is: bool = False) -> str:
        """A line to insert: line breaks inside it are the file's own, four spaces a level become its unit."""
        first, *rest = line.split("\n")
        if not as_is:
            unit = self.unit_after(indent)
            rest = [re.sub(r"^( {4})+", lambda m: unit * (len(m[0]) // 4), x) for x in rest]
        return "".join([first, *(self.nl + (indent + line if line.strip() else "") for line in rest)])

    def depth_of(self, stmt: cst.CSTNode) -> int:
        """How many guards a statement stands under; its own, not shared by what is inserted beside it, left out."""
        above = set(self.source.ancestors(stmt))
        return sum(any(n in above for n in run) for run in self.runs)

    def delete(self, stmt: cst.CSTNode, comments: bool = False) -> None:
        self.own_line(stmt)
        start, end = self.start(stmt), self.last_code(stmt)
        if not self.on_lines(stmt):
            self.change(start, end, "pass" if self.alone(stmt) or self.in_suite(stmt) else "")
            return
        first = self.first_gone(stmt, comments)
        last = self.source.line_start(self.source.line_at(end) + 1)
        above = self.source.text[self.source.line_start(self.source.line_at(first) - 1) : first] if first else "\n"
        below = self.source.text[last : self.source.line_start(self.source.line_at(last) + 1)]
        if last < len(self.source.text) and not above.strip() and not below.strip():
            last = self.source.line_start(self.source.line_at(last) + 1)  # of two blank lines one goes too
        self.gone.append((first, last))
        self.change(first, last, "")

    def alone(self, stmt: cst.CSTNode) -> bool:
        """Whether nothing else of its block stays; of several statements that go, the first gives way to `pass`."""
        block = self.source.parents.get(self.line_owner(stmt))
        if isinstance(block, cst.Module) or not all(self.goes(s) for s in getattr(block, "body", ())):
            return super().alone(stmt)
        return isinstance(block, cst.IndentedBlock) and block.body[0] is self.line_owner(stmt)

    def goes(self, line: cst.CSTNode) -> bool:
        small = line.body if isinstance(line, cst.SimpleStatementLine) else [line]
        return all(s in self.deleted for s in small)

    def first_gone(self, stmt: cst.CSTNode, comments: bool) -> int:
        """Where a statement that goes begins: with its line, or with the comments above it."""
        start = self.start(stmt)
        first = self.source.line_start(self.source.line_at(start))
        return first - (sum(map(len, self.source.comments_above(start))) if comments else 0)

    # -- guards --------------------------------------------------------------------------------------

    def guards(self, guards: list[Guard]) -> None:
        """Headers and indentation; a guard inside another with the same header is dropped, neighbours share one."""
        nodes: dict[cst.CSTNode, str] = {}
        for g in guards:
            nodes.setdefault(g.node, g.header)
        kept = {n: h for n, h in nodes.items() if not any(nodes.get(a) == h for a in self.source.ancestors(n))}
        runs: dict[int, list[cst.CSTNode]] = defaultdict(list)
        for node in sorted(kept, key=self.start):
            previous = self.previous(node) if node not in self.breaks_before else None
            while previous in self.deleted:
                previous = self.previous(previous)
            previous = (
                None
                if previous in self.breaks_after or (previous is not None and self.far(previous, node))
                else previous
            )
            run = next(
                (r for r in runs.values() if previous is not None and r[-1] is previous and kept[r[-1]] == kept[node]),
                None,
            )
            if run is not None:
                run.append(node)
            else:
                runs[len(runs)] = [node]
        # the header stands above the comments that belong to the first statement
        self.runs = list(runs.values())
        self.guarded = [(self.head(run[0]), self.last_code(run[-1])) for run in self.runs]
        outer_first = sorted(zip(runs.values(), self.guarded, strict=True), key=lambda r: (r[1][0], -r[1][1]))
        for run, (at, end) in outer_first:
            self.guard_run(run, kept[run[0]], at, end)

    def guard_run(self, run: list[cst.CSTNode], header: str, at: int, end: int) -> None:
        for stmt in run:
            self.own_line(stmt)
        around = sum(start <= at and end <= stop for start, stop in self.guarded) - 1
        unit = self.unit_of(run[0])
        indent = self.indent_of(run[0]) + unit * around
        self.change(at, at, f"{header}:{self.nl}{indent}{unit}", 2)
        strings = self.strings(run)
        for line in range(self.source.line_at(at) + 1, self.source.line_at(end) + 1):
            start = self.source.line_start(line)
            text = self.source.text[start : self.source.line_start(line + 1)]
            if text.strip() and not any(s < start < e for s, e in strings):
                self.change(start, start, unit, -9)


def _apply(text: str, changes: list[Change], start: int, end: int) -> str:
    """A part of the text with the changes inside it."""
    for c in sorted(changes, key=lambda c: (c.start, c.end > c.start, c.order), reverse=True):
        text = text[: c.start] + c.text + text[c.end :]
        end += len(c.text) - (c.end - c.start)
    return text[start:end]
