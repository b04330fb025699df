"""Messages of an editor in; problems and the edits that mend them out, by the Language Server Protocol."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote

from lsprotocol import types
from pygls.lsp.server import LanguageServer
from pygls.uris import to_fs_path
from pygls.workspace import TextDocument

from ddpify import __version__
from ddpify.group import sentence
from ddpify.linting.editor import Fix, Opened
from ddpify.linting.problem import Problem
from ddpify.rules import rule

#: seconds without a key stroke before a text is looked at
PAUSE = 0.3
FIX_ALL = f"{types.CodeActionKind.SourceFixAll.value}.ddpify"
_SEVERITIES = {
    "error": types.DiagnosticSeverity.Error,
    "warning": types.DiagnosticSeverity.Warning,
    "info": types.DiagnosticSeverity.Information,
}
_T = TypeVar("_T")


class Server(LanguageServer):
    """Looks at one text after the other, beside the loop that talks to the editor."""

    def __init__(self) -> None:
        # whole texts: pygls counts lines by `str.splitlines`, editors do not
        super().__init__("ddpify", __version__, text_document_sync_kind=types.TextDocumentSyncKind.Full)
        self.opened: dict[str, Opened] = {}
        self.told: set[str] = set()
        threading.stack_size(64 << 20)  # a tree is walked by recursion, and threads have little room on some systems
        self.worker = ThreadPoolExecutor(1)

    def document(self, uri: str) -> TextDocument | None:
        """An open Python file."""
        document = self.workspace.text_documents.get(unquote(uri))  # so pygls keeps them
        if document is None or not uri.startswith("file:"):
            return None
        return document if document.language_id == "python" or uri.endswith((".py", ".pyi")) else None

    async def work(self, todo: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self.worker, todo)

    async def look(self, uri: str, pause: float = 0.0) -> None:
        """Publish the problems of a file, unless its text changes meanwhile."""
        document = self.document(uri)
        if document is None:
            return
        version = document.version
        await asyncio.sleep(pause)
        if self._is(uri, version):
            # while one types, the scripts are those of when the file was opened or some file was saved
            await self.read(uri, document.source, anew=not pause)
        if self._is(uri, version):
            self.publish(uri, version)

    def _is(self, uri: str, version: int | None) -> bool:
        document = self.document(uri)
        return document is not None and document.version == version

    async def read(self, uri: str, text: str, *, anew: bool = False) -> None:
        """Look at a text; errors go to the editor's log, and those that are not in the text are shown, once."""
        path = Path(to_fs_path(uri) or "")
        try:
            known = self.opened.get(uri)
            scripts = known.scripts if known is not None and not anew else None
            self.opened[uri] = await self.work(lambda: Opened(path, text, scripts))
        except Exception as error:
            self.opened.pop(uri, None)
            self.say(sentence(error, f"{path}: "), aloud=not str(error).startswith(f"{path}:"))

    def say(self, text: str, *, aloud: bool) -> None:
        self.window_log_message(types.LogMessageParams(types.MessageType.Warning, text))
        if aloud and text not in self.told:
            self.told.add(text)
            self.window_show_message(types.ShowMessageParams(types.MessageType.Warning, f"ddpify: {text}"))

    def publish(self, uri: str, version: int | None) -> None:
        opened = self.opened.get(uri)
        found = [self.diagnostic(p, opened) for p in opened.problems] if opened is not None else []
        self.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri, found, version))

    def diagnostic(self, problem: Problem, opened: Opened) -> types.Diagnostic:
        found = rule(problem.code)
        pages = found.references if found is not None else ()
        return types.Diagnostic(
            range=types.Range(
                self.position(opened, problem.line, problem.column),
                self.position(opened, problem.end_line, problem.end_column),
            ),
            message="\n".join(filter(None, (problem.message, problem.why, problem.fix))),
            severity=_SEVERITIES[problem.severity],
            code=problem.code,
            code_description=types.CodeDescription(pages[0]) if pages else None,
            source="ddpify",
        )

    def position(self, opened: Opened, line: int, column: int) -> types.Position:
        """A place that we count in characters from 1, as the editor counts it."""
        lines = opened.lines
        before = lines[line - 1][: column - 1] if line <= len(lines) else ""
        return types.Position(line - 1, self.workspace.position_codec.client_num_units(before))

    # -- fixes --------------------------------------------------------------------------------------------------

    async def actions(self, params: types.CodeActionParams) -> list[types.CodeAction]:
        """The fixes of the problems in a range, and where one asks for it, one for the file."""
        uri = params.text_document.uri
        document = self.document(uri)
        if document is None:
            return []
        if uri not in self.opened or self.opened[uri].text != document.source:
            await self.read(uri, document.source)
        opened = self.opened.get(uri)
        if opened is None:
            return []
        return await self.work(lambda: list(self._actions(uri, opened, params)))

    def _actions(self, uri: str, opened: Opened, params: types.CodeActionParams) -> Iterator[types.CodeAction]:
        context, place = params.context, params.range
        only = [str(getattr(k, "value", k)) for k in context.only or ()]
        if _asked(types.CodeActionKind.QuickFix.value, only):
            for fix in opened.fixes(place.start.line + 1, place.end.line + 1):
                yield self.action(uri, opened, fix, types.CodeActionKind.QuickFix.value)
        # editors ask at every move of the cursor, too; this one is dear
        if _asked(FIX_ALL, only) and (only or context.trigger_kind != types.CodeActionTriggerKind.Automatic):
            every = opened.all_safe()
            if every is not None:
                yield self.action(uri, opened, every, FIX_ALL)

    def action(self, uri: str, opened: Opened, fix: Fix, kind: str) -> types.CodeAction:
        edits = [
            types.TextEdit(types.Range(self.line(opened, c.first), self.line(opened, c.last)), c.text)
            for c in fix.changes
        ]
        return types.CodeAction(
            title=fix.title,
            kind=kind,
            diagnostics=[self.diagnostic(fix.problem, opened)] if fix.problem is not None else None,
            is_preferred=fix.safe if fix.problem is not None else None,
            edit=types.WorkspaceEdit(changes={uri: edits}),
        )

    def line(self, opened: Opened, at: int) -> types.Position:
        """The begin of a line, counted from 0; behind the last one the end of the text."""
        lines = opened.lines
        if at < len(lines) or not lines or lines[-1].endswith(("\n", "\r")):
            return types.Position(at, 0)
        return self.position(opened, len(lines), len(lines[-1]) + 1)


def _asked(kind: str, only: list[str]) -> bool:
    return not only or any(kind == o or kind.startswith(f"{o}.") for o in only)


def make_server() -> Server:
    """The server with all that it answers to."""
    server = Server()

    @server.feature(types.TEXT_DOCUMENT_DID_OPEN)
    async def did_open(params: types.DidOpenTextDocumentParams) -> None:
        await server.look(params.text_document.uri)

    @server.feature(types.TEXT_DOCUMENT_DID_CHANGE)
    async def did_change(params: types.DidChangeTextDocumentParams) -> None:
        await server.look(params.text_document.uri, PAUSE)

    @server.feature(types.TEXT_DOCUMENT_DID_SAVE)
    async def did_save(params: types.DidSaveTextDocumentParams) -> None:
        # the file may be one that the others import, or the settings
        for document in list(server.workspace.text_documents.values()):
            await server.look(document.uri)

    @server.feature(types.TEXT_DOCUMENT_DID_CLOSE)
    async def did_close(params: types.DidCloseTextDocumentParams) -> None:
        server.opened.pop(params.text_document.uri, None)
        server.text_document_publish_diagnostics(types.PublishDiagnosticsParams(params.text_document.uri, []))

    kinds = types.CodeActionOptions(code_action_kinds=[types.CodeActionKind.QuickFix, FIX_ALL])

    @server.feature(types.TEXT_DOCUMENT_CODE_ACTION, kinds)
    async def code_action(params: types.CodeActionParams) -> list[types.CodeAction]:
        return await server.actions(params)

    return server
