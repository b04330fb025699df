"""A command that fails in, a sentence and an exit code out; and the script that may stand in the place of a command."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

from ddpify.errors import DdpifyError

DONE, LEFT, CANNOT, INTERRUPTED = 0, 1, 2, 130
DEBUG = "ddpify.debug"
_Command = TypeVar("_Command", bound=Callable[..., Any])


class ScriptOrCommand(click.Group):
    """A group whose first argument may be a script: `ddpify train.py` means `ddpify convert train.py`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h", "--version"):
            args = ["convert", *args]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; whatever goes wrong is one sentence, with a traceback under --debug only."""
        if os.environ.get("NO_COLOR"):
            ctx.color = False
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit):
            raise
        except (KeyboardInterrupt, click.Abort):
            say("ddpify: interrupted")
            ctx.exit(INTERRUPTED)
        except Exception as error:
            if isinstance(error, OSError) and error.errno == errno.EPIPE:
                raise  # click's: whoever read our output has seen enough
            ctx.exit(failed(error, debug=bool(ctx.meta.get(DEBUG))))


def failed(error: Exception, *, debug: bool, where: str = "") -> int:
    """Say what went wrong; the exit code."""
    if debug:
        import traceback

        traceback.print_exception(error)
    say(f"ddpify: {sentence(error, where)}")
    return CANNOT


def sentence(error: Exception, where: str = "") -> str:
    """What to say of an error; one that is no DdpifyError is a fault of ddpify itself."""
    if isinstance(error, DdpifyError):
        return str(error)
    said = " ".join(str(error).split())
    return f"{where}internal error ({type(error).__name__}: {said[:200]}). Please report it, with the output of --debug"


def say(text: str) -> None:
    """To standard error: standard output is for code, diff and JSON."""
    click.echo(text, err=True)


def _set_debug(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value:
        ctx.meta[DEBUG] = True


def options(*added: Callable[[_Command], _Command]) -> Callable[[_Command], _Command]:
    """Several options as one decorator."""

    def add(command: _Command) -> _Command:
        for option in reversed(added):
            command = option(command)
        return command

    return add


debug = click.option(
    "--debug", is_flag=True, expose_value=False, callback=_set_debug, help="Show the traceback of an error."
)


def is_debug(ctx: click.Context) -> bool:
    """Whether --debug was given."""
    return bool(ctx.meta.get(DEBUG))
