"""A script and its arguments -> the script run as `python script`, observed, with its events in the folder.

rank FOLDER SCRIPT ARGS...
"""

from __future__ import annotations

import atexit
import faulthandler
import os
import runpy
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import NoReturn

import torch

from . import datasets, reload
from .addresses import short_addresses
from .chance import Chance
from .collectives import Collectives
from .devices import use_cpu
from .files import Files
from .lifetime import die_with_parent
from .links import watch_links
from .loading import Loading
from .log import Log, is_user_file, patch
from .output import Output, capture
from .pretend import pretend
from .standins import Standins
from .stress import inject
from .terminal import watch_terminal
from .timing import Timing
from .together import Together, Wish
from .training import StepLimit, Training, checksum, device_index

# a rank that waits in a collective is still there, and says where, when the time is up
_AFTER_DEADLINE = 10.0


@dataclass(frozen=True)
class Settings:
    """How to run one rank."""

    folder: Path
    cpu: bool
    deadline: float  # seconds since the epoch
    max_steps: int | None = None
    #: the folder and the package that the script is run in (`python -m`)
    package: str = ""
    #: how this run is made comparable with another; None: it is watched and nothing else
    together: Wish | None = None
    pretend: bool = False  # GPUs
    max_batches: int | None = None  # of each pass over a loader
    synthetic: bool = False  # made-up data where the real one is not here
    fault: str = ""  # of --stress
    #: steps that warm up, of a run that is timed; None: it is watched
    timed: int | None = None


class Observer:
    """Everything that watches the script of one rank."""

    def __init__(self, settings: Settings, script: Path) -> None:
        rank = int(os.environ.get("RANK", "0"))
        self._settings = settings
        self.log = Log(settings.folder, rank, script)
        (settings.folder / f"rank{rank}.pid.{os.getpid()}").touch()
        capture(settings.folder, rank)
        self._stand = (settings.folder / f"rank{rank}.stand").open("w")
        left = settings.deadline - time.time()
        faulthandler.dump_traceback_later(max(left, 0.1), file=self._stand)
        self._loading = Loading(self.log, settings.max_batches)
        self._timing = Timing(self.log, settings.timed) if settings.timed is not None else None
        self._together = Together(self.log, settings.together) if settings.together is not None else None
        self._training = Training(
            self.log,
            cpu=settings.cpu,
            timeout=max(left, 1.0) + _AFTER_DEADLINE,
            max_steps=settings.max_steps,
            on_step=self._on_step if self._timing is None else None,
        )
        self._files = Files(self.log, lambda: self._training.wrapped)
        self._script, self._ended, self._load = script, False, torch.load

    def start(self) -> None:
        """Patch torch."""
        local = int(os.environ.get("LOCAL_RANK", "0"))
        self.log.note("start", pid=os.getpid(), thread=threading.main_thread().ident, local_rank=local)
        if self._settings.cpu and not self._settings.pretend:
            use_cpu(self._training.set_device)
        watch_terminal()
        if self._settings.synthetic:
            Standins(self.log).watch()
        if self._settings.fault:
            inject(self._settings.fault)  # first: what is watched is what came of it
        if self._timing is not None:
            watch_links()
            self._timing.watch()  # before whatever ends the run at a step
        self._training.watch()
        if self._timing is not None:
            return
        self._loading.watch()
        Collectives(self.log).watch()
        Chance(self.log, checksum, lambda: self._loading.starting).watch()
        patch(os, "_exit", self._exit)
        Output(self.log).watch()
        if self._together is not None:
            self._together.start()
        self._files.watch()  # last: our own files are none of the script's
        if self._settings.pretend:
            pretend(self.log, self._settings.folder, device_index, self._training.set_device)

    def _on_step(self) -> None:
        self._loading.on_step()
        if self._together is not None:
            self._together.on_step()
        if self._training.steps == 1:
            found = datasets.names_in_script(sys._getframe(1))
            for wrapper in self._training.wrapped:
                found |= datasets.buffer_names(wrapper)
            self.log.note("names", names=found)

    def _exit(self, real: Callable[[int], NoReturn]) -> Callable[[int], NoReturn]:
        """`os._exit(0)` is an end like any other; nothing else would tell of it."""

        def _exit(status: int) -> NoReturn:
            if os.getpid() == self.log.owner and not self._ended:
                self.end("exit" if status else "ok", SystemExit(status) if status else None)
                self.exit()
            real(status)

        return _exit

    def _trimmed(self, error: BaseException) -> TracebackType | None:
        """The traceback from the script on, without our frames."""
        step = error.__traceback__
        while step is not None and step.tb_frame.f_code.co_filename != str(self._script):
            step = step.tb_next
        return step

    def _failing_line(self, error: BaseException) -> str | None:
        if isinstance(error, SyntaxError) and error.filename and error.lineno:
            return self.log.place(error.filename, error.lineno)
        frames = traceback.walk_tb(self._trimmed(error))
        lines = [(frame.f_code.co_filename, line) for frame, line in frames if is_user_file(frame.f_code.co_filename)]
        return self.log.place(*lines[-1]) if lines else None

    def end(self, status: str, error: BaseException | None = None) -> None:
        """Write down how the script ended."""
        self._ended = True
        if self._timing is not None:
            self._timing.finish()
        elif status in ("ok", "cut"):
            self._loading.finish()
            self._training.finish()
            if self._together is not None:
                self._together.finish()
            reload.tell(self.log, self._load, self._files.here, self._files.saved)
        text, name, at = "", "", None
        if error is not None and status == "error":
            text = _format(error, self._trimmed(error))
            name, at = "".join(traceback.format_exception_only(type(error), error)).strip(), self._failing_line(error)
            sys.stderr.write(text)
        elif error is not None and status == "exit":
            name, at = f"SystemExit: {getattr(error, 'code', error)}", self._failing_line(error) or self.log.where()
        more = {"traceback": text[-6000:], "devices": _devices_used(), "backwards": self._training.backwards}
        self.log.note("end", status=status, error=name, at=at, **more)

    def exit(self) -> None:
        """The very end, after the script's own atexit functions."""
        if os.getpid() == self.log.owner:
            initialized = torch.distributed.is_available() and torch.distributed.is_initialized()
            self.log.note("exit", initialized=initialized)
            faulthandler.cancel_dump_traceback_later()


def _format(error: BaseException, begin: TracebackType | None) -> str:
    """The traceback as Python prints it, but for our own frames."""
    whole = traceback.TracebackException(type(error), error, begin)
    ours = str(Path(__file__).parent)
    kept = [frame for frame in whole.stack if not frame.filename.startswith(ours)]
    whole.stack = traceback.StackSummary.from_list(kept)
    return "".join(whole.format())


def _devices_used() -> list[int]:
    """The GPUs on which this process holds, or held, memory."""
    if not torch.cuda.is_initialized():
        return []
    return [i for i in range(torch.cuda.device_count()) if torch.cuda.max_memory_allocated(i)]


def run(script: Path, args: Sequence[str], settings: Settings) -> int:
    """Run the script as the main program; return the exit code."""
    observer = Observer(settings, script)
    atexit.register(observer.exit)  # before any of the script's own, so that it runs after them
    sys.argv = [str(script), *args]
    root, _, package = settings.package.rpartition(os.pathsep)
    sys.path.insert(0, root or str(script.resolve().parent))
    observer.start()
    status, code = _outcome(script, package, observer)
    if status == "cut":
        observer.log.note("exit", initialized=None)
        os._exit(0)  # nobody waits for a run that was cut short
    return code


def _outcome(script: Path, package: str, observer: Observer) -> tuple[str, int]:
    try:
        if package:
            runpy.run_module(f"{package}.{script.stem}", run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(str(script), run_name="__main__")
    except StepLimit:
        observer.end("cut")
        return "cut", 0
    except SystemExit as error:
        if error.code in (None, 0):
            observer.end("ok")
            return "ok", 0
        if isinstance(error.code, str):
            sys.stderr.write(f"{error.code}\n")
        observer.end("exit", error)
        return "exit", error.code if isinstance(error.code, int) else 1
    except BaseException as error:
        observer.end("error", error)
        return "error", 1
    observer.end("ok")
    return "ok", 0


def main(argv: list[str]) -> None:
    """One rank under torchrun."""
    die_with_parent()
    short_addresses()
    limit, batches = (os.environ.pop(f"DDPIFY_VERIFY_MAX_{what}", "") for what in ("STEPS", "BATCHES"))
    timed = os.environ.pop("DDPIFY_VERIFY_TIMED", "")
    os.environ.pop("DDPIFY_VERIFY_NNODES", None)
    settings = Settings(
        folder=Path(argv[0]),
        cpu=bool(os.environ.pop("DDPIFY_VERIFY_CPU", "")),
        deadline=float(os.environ.pop("DDPIFY_VERIFY_DEADLINE")),
        max_steps=int(limit) if limit else None,
        package=os.environ.pop("DDPIFY_VERIFY_PACKAGE", ""),
        together=Wish.from_environment(),
        pretend=bool(os.environ.pop("DDPIFY_VERIFY_PRETEND", "")),
        max_batches=int(batches) if batches else None,
        synthetic=bool(os.environ.pop("DDPIFY_VERIFY_SYNTHETIC", "")),
        fault=os.environ.pop("DDPIFY_VERIFY_FAULT", ""),
        timed=int(timed) if timed else None,
    )
    raise SystemExit(run(Path(argv[1]), argv[2:], settings))
