"""`ddpify lsp`, talked to by a client of its own over standard input and output, as an editor does."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from lsprotocol import types
from pygls.lsp.client import LanguageClient

from ddpify.cli import cli
from ddpify.linting.editor import changes, encoded, lines_of

HEAD = """\
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
model = DDP(nn.Linear(4, 1))
"""
TAIL = "dist.destroy_process_group()\n"
SAVE = 'torch.save(model.module.state_dict(), "a.pt")'
BAD = f'{HEAD}os.makedirs("out")\n{SAVE}\n{TAIL}'
PATIENCE = 120


class Editor(LanguageClient):
    """An editor with files open: what it was told of each, and its own texts."""

    def __init__(self, folder: Path) -> None:
        super().__init__("editor", "1")
        self.folder = folder
        self.texts: dict[str, str] = {}
        self.versions: dict[str, int] = {}
        self.told: asyncio.Queue[types.PublishDiagnosticsParams] = asyncio.Queue()
        self.shown: list[str] = []
        self.logged: list[str] = []
        self.feature(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)(lambda params: self.told.put_nowait(params))
        self.feature(types.WINDOW_SHOW_MESSAGE)(lambda params: self.shown.append(params.message))
        self.feature(types.WINDOW_LOG_MESSAGE)(lambda params: self.logged.append(params.message))

    def uri(self, name: str) -> str:
        return (self.folder / name).absolute().as_uri()

    def open(self, name: str, text: str) -> None:
        self.texts[name], self.versions[name] = text, 1
        item = types.TextDocumentItem(self.uri(name), "python", 1, text)
        self.text_document_did_open(types.DidOpenTextDocumentParams(item))

    def change(self, name: str, text: str) -> None:
        self.texts[name] = text
        self.versions[name] += 1
        which = types.VersionedTextDocumentIdentifier(self.versions[name], self.uri(name))
        whole = types.TextDocumentContentChangeWholeDocument(text)
        self.text_document_did_change(types.DidChangeTextDocumentParams(which, [whole]))

    def save(self, name: str) -> None:
        (self.folder / name).write_text(self.texts[name])
        self.text_document_did_save(types.DidSaveTextDocumentParams(types.TextDocumentIdentifier(self.uri(name))))

    async def problems(self, name: str) -> list[types.Diagnostic]:
        """What is published next of a file, for the text that it has now."""
        while True:
            told = await asyncio.wait_for(self.told.get(), PATIENCE)
            if told.uri == self.uri(name) and told.version in (None, self.versions[name]):
                return list(told.diagnostics)

    async def codes(self, name: str) -> list[str]:
        return [f"{p.range.start.line + 1} {p.code}" for p in await self.problems(name)]

    async def actions(self, name: str, line: int, *only: str) -> dict[str, types.CodeAction]:
        """What is offered on a line, counted from 1."""
        place = types.Position(line - 1, 0)
        found = await self.text_document_code_action_async(
            types.CodeActionParams(
                types.TextDocumentIdentifier(self.uri(name)),
                types.Range(place, place),
                types.CodeActionContext([], only=list(only) or None),
            )
        )
        actions = [a for a in found or () if isinstance(a, types.CodeAction)]
        return {a.title: a for a in actions}

    def after(self, name: str, action: types.CodeAction) -> str:
        """The text with an action's edits, as an editor makes them: the last one first."""
        assert action.edit is not None
        assert action.edit.changes is not None
        lines = lines_of(self.texts[name])
        starts = [sum(map(len, lines[:n])) for n in range(len(lines) + 1)]

        def offset(place: types.Position) -> int:
            start = starts[place.line]
            units = self.texts[name][start:].encode("utf-16-le")[: 2 * place.character]
            return start + len(units.decode("utf-16-le"))

        text = self.texts[name]
        for edit in reversed(action.edit.changes[self.uri(name)]):
            text = text[: offset(edit.range.start)] + edit.new_text + text[offset(edit.range.end) :]
        return text


Story = Callable[[Editor], Coroutine[Any, Any, None]]


@pytest.fixture
def play(tmp_path: Path) -> Callable[[Story], None]:
    """A way to let an editor do something with a server that is started for it, and ended as editors do."""

    async def session(story: Story) -> None:
        editor = Editor(tmp_path)
        await editor.start_io(sys.executable, "-m", "ddpify", "lsp", "--stdio")
        answer = await editor.initialize_async(
            types.InitializeParams(types.ClientCapabilities(), root_uri=tmp_path.as_uri())
        )
        assert answer.server_info is not None
        assert answer.server_info.name == "ddpify"
        editor.initialized(types.InitializedParams())
        await story(editor)
        await editor.shutdown_async(None)
        editor.exit(None)
        assert editor._server is not None
        assert await asyncio.wait_for(editor._server.wait(), PATIENCE) == 0
        await editor.stop()  # type: ignore[no-untyped-call]

    return lambda story: asyncio.run(session(story))


def test_problems_as_they_are_typed(play: Callable[[Story], None]) -> None:
    async def story(editor: Editor) -> None:
        editor.open("train.py", BAD)
        first, second = await editor.problems("train.py")
        assert (first.code, first.severity, first.source) == ("DDP403", types.DiagnosticSeverity.Warning, "ddpify")
        assert (second.code, second.severity) == ("DDP401", types.DiagnosticSeverity.Error)
        assert second.range == types.Range(types.Position(9, 0), types.Position(9, len(SAVE)))
        assert second.message.splitlines()[0] == 'every rank writes `"a.pt"` with `torch.save`'
        assert "Let rank 0 alone write" in second.message
        assert second.code_description is not None
        assert second.code_description.href.startswith("https://")

        editor.change("train.py", BAD.replace(SAVE, f"{SAVE}  # ddpify: ignore[DDP401]"))
        assert await editor.codes("train.py") == ["9 DDP403"]
        editor.change("train.py", "print(1)\n")
        assert await editor.codes("train.py") == []
        for text in (HEAD, BAD):  # only the last of two quick changes is looked at
            editor.change("train.py", text)
        assert await editor.codes("train.py") == ["9 DDP403", "10 DDP401"]
        editor.change("train.py", BAD + "if (\n")
        assert await editor.codes("train.py") == []
        assert "syntax error" in editor.logged[-1]
        assert editor.shown == []

    play(story)


def test_fixes(play: Callable[[Story], None]) -> None:
    bad = f'{HEAD}os.makedirs("out")\nif dist.get_rank() == 0:\n    torch.save(model.state_dict(), "a.pt")\n{TAIL}'
    made = bad.replace('makedirs("out")', 'makedirs("out", exist_ok=True)')

    async def story(editor: Editor) -> None:
        editor.open("train.py", bad)
        await editor.problems("train.py")
        actions = await editor.actions("train.py", 9)
        assert list(actions) == ["Mend DDP403 (directory-race)", "Mend all that ddpify mends safely"]
        quick, every = actions.values()
        assert (quick.kind, quick.is_preferred) == ("quickfix", True)
        assert [d.code for d in quick.diagnostics or ()] == ["DDP403"]
        assert editor.after("train.py", quick) == made
        assert editor.after("train.py", every) == made
        ((title, unsafe),) = (await editor.actions("train.py", 11, "quickfix")).items()
        assert title == "Mend DDP203 (state-dict-through-wrapper): other files or other training"
        assert unsafe.is_preferred is False
        assert editor.after("train.py", unsafe) == bad.replace("model.state_dict", "model.module.state_dict")
        assert await editor.actions("train.py", 3, "quickfix") == {}
        assert await editor.actions("train.py", 9, "refactor") == {}
        (every,) = (await editor.actions("train.py", 1, "source.fixAll")).values()
        assert every.kind == "source.fixAll.ddpify"

        idle = bad + "x = 1  # ddpify: ignore[DDP401]\n"
        editor.change("train.py", idle)  # asked at once: the answer is for the new text
        (comment,) = (await editor.actions("train.py", 13, "quickfix")).values()
        assert editor.after("train.py", comment) == bad + "x = 1\n"
        editor.change("train.py", "# ddpify: ignore-file[DDP401]\nx = 1")
        assert await editor.codes("train.py") == ["1 DDP001"]
        (comment,) = (await editor.actions("train.py", 1, "quickfix")).values()
        assert editor.after("train.py", comment) == "x = 1"

    play(story)


@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["lf", "crlf"])
def test_places_in_odd_texts(play: Callable[[Story], None], end: str) -> None:
    """Columns are counted in UTF-16; form feeds end no line; the last line may have no end."""
    text = BAD.removesuffix(TAIL).replace(SAVE, f'\f\nname = "😀ä"; {SAVE}').rstrip("\n").replace("\n", end)

    async def story(editor: Editor) -> None:
        editor.open("two words 训练.py", text)
        problem = next(p for p in await editor.problems("two words 训练.py") if p.code == "DDP401")
        start = len('name = "xxä"; ')
        assert problem.range == types.Range(types.Position(10, start), types.Position(10, start + len(SAVE)))
        (fix,) = (await editor.actions("two words 训练.py", 9, "quickfix")).values()
        assert editor.after("two words 训练.py", fix) == text.replace('"out")', '"out", exist_ok=True)')

    play(story)


def test_settings_baseline_and_other_files(play: Callable[[Story], None], tmp_path: Path) -> None:
    settings = tmp_path / "pyproject.toml"
    known = '{"version": 1, "known": {"train.py": {"DDP403": {"os.makedirs(\\"out\\")": 1}}}}'
    (tmp_path / "known.json").write_text(known)

    async def story(editor: Editor) -> None:
        settings.write_text('[tool.ddpify]\nexclude = ["old.py"]\nignore = ["DDP401"]\n')
        editor.open("old.py", BAD)
        assert await editor.codes("old.py") == []
        editor.open("train.py", BAD)
        assert await editor.codes("train.py") == ["9 DDP403"]
        settings.write_text('[tool.ddpify]\nbaseline = "known.json"\n')
        editor.save("train.py")
        assert await editor.codes("train.py") == ["10 DDP401"]
        settings.write_text('[tool.ddpify]\nselekt = ["ALL"]\n')
        for _ in range(2):
            editor.save("train.py")
            assert await editor.codes("train.py") == []
        assert [s for s in editor.shown if "selekt" in s] == [
            f"ddpify: {settings}: tool.ddpify has no key 'selekt'; did you mean 'select'?"
        ]
        settings.unlink()

        # what an open script imports is read anew when it is saved
        ranks = "import torch.distributed as dist\n\n\ndef first():\n    return True\n"
        (tmp_path / "ranks.py").write_text(ranks)
        editor.open("ranks.py", ranks)
        editor.change("train.py", BAD.replace(SAVE, f"from ranks import first\nif first():\n    {SAVE}"))
        assert await editor.codes("train.py") == ["9 DDP403", "12 DDP401"]
        editor.change("ranks.py", ranks.replace("True", "dist.get_rank() == 0"))
        editor.save("ranks.py")
        assert await editor.codes("train.py") == ["9 DDP403"]

    play(story)


def test_a_module_is_seen_as_its_scripts_use_it(play: Callable[[Story], None], tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "train.py").write_text(f'{HEAD}from keep import save, load\nsave(model, "a.pt")\n{TAIL}')
    (tmp_path / "careful.py").write_text(
        f'{HEAD}from first import keep_first\nif dist.get_rank() == 0:\n    keep_first(model, "a.pt")\n{TAIL}'
    )
    keep = "import torch\n\n\ndef save(model, path):\n    torch.save(model.module.state_dict(), path)\n"
    first = "import torch\nimport torch.distributed as dist\n\n\n" + (
        "def keep_first(model, path):\n    torch.save(model.module.state_dict(), path)\n"
    )
    (tmp_path / "keep.py").write_text(keep)
    (tmp_path / "first.py").write_text(first)

    async def story(editor: Editor) -> None:
        editor.open("keep.py", keep)  # nothing in it says that it is distributed
        assert await editor.codes("keep.py") == ["5 DDP401"]
        editor.change("keep.py", keep.replace("    torch", "    print(path)\n    torch"))
        assert await editor.codes("keep.py") == ["5 DDP402", "6 DDP401"]
        (fix,) = (await editor.actions("keep.py", 6, "quickfix")).values()
        assert "if dist.get_rank() == 0:" in editor.after("keep.py", fix)
        editor.open("first.py", first)  # rank 0 alone calls it
        assert await editor.codes("first.py") == []
        assert await editor.actions("first.py", 1, "source.fixAll") == {}
        (tmp_path / "careful.py").write_text(f'{HEAD}from first import keep_first\nkeep_first(model, "a.pt")\n{TAIL}')
        editor.save("first.py")
        assert await editor.codes("first.py") == ["6 DDP401"]

    play(story)


def test_without_pygls_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in sys.modules if n.partition(".")[0] == "pygls" or n == "ddpify.linting.server"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pygls", None)
    result = CliRunner().invoke(cli, ["lsp"])
    assert result.exit_code == 2
    assert result.stderr.startswith('ddpify: the language server needs pygls 2: pip install "ddpify[lsp]"')


@pytest.mark.parametrize(
    ("before", "after"),
    [("a\nb\nc\n", "a\nx\nc\n"), ("a\nb", "a\n"), ("", "a\n"), ("a\r\nb", "a\r\nb\r\nc"), ("a\rb\fc\n", "a\rc\n")],
)
def test_changes_of_lines(before: str, after: str) -> None:
    lines = lines_of(before)
    assert "".join(lines) == before
    for change in reversed(changes(before, after)):
        lines[change.first : change.last] = [change.text]
    assert "".join(lines) == after


@pytest.mark.parametrize(
    "text", ["# coding: latin-1\nx = 'ä'\n", "# coding: nonsense\n", "x = '😀'\n", "\ufeffx = 1\n"]
)
def test_a_text_as_bytes(text: str) -> None:
    assert encoded(text) == text.encode("latin-1" if "latin" in text else "utf-8")
