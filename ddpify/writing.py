"""Bytes in, a file out: at once or not at all, and never over something that was not named."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path

from ddpify.errors import DdpifyError


def check_target(target: Path, read: Iterable[Path]) -> None:
    """Refuse to write over a file that the conversion was made from; `read` has the input first."""
    for at, path in enumerate(read):
        if not _same(target, path):
            continue
        if at == 0:
            raise DdpifyError(f"{target}: this is the input; to write over it say so with --in-place")
        raise DdpifyError(
            f"{target}: the script imports this file, so it is not written over; give another name with -o, "
            "or change the script itself with --in-place"
        )


def write(target: Path, data: bytes, *, like: Path | None = None) -> None:
    """Put `data` in the place of `target`; a new file gets the mode bits of `like`.

    The new file is complete before it takes the name, so a full disk or Ctrl-C leaves the old one as it was.
    """
    if target.is_dir():
        raise DdpifyError(f"{target}: a folder; give the name of the file to write")
    place = Path(os.path.realpath(target))  # a symbolic link stays one: the file that it names is written
    if not place.parent.is_dir():
        raise DdpifyError(f"{target}: there is no folder {target.parent} to write into")
    try:
        if target.exists() and not stat.S_ISREG(target.stat().st_mode):
            target.write_bytes(data)  # /dev/stdout, a named pipe: nothing that could be replaced
        elif place.exists() and not os.access(place, os.W_OK):
            raise DdpifyError(f"{target}: cannot be written (read-only)")
        else:
            _replace(place, data, place if place.exists() else like)
    except OSError as error:
        raise DdpifyError(f"{target}: cannot be written ({error.strerror or error})") from None


def _replace(place: Path, data: bytes, like: Path | None) -> None:
    handle, name = tempfile.mkstemp(prefix=f".{place.name[:40]}.", dir=place.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        if like is not None and like.is_file():
            shutil.copymode(like, name)
        else:
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(name, 0o666 & ~umask)  # mkstemp makes files that only their owner can read
        os.replace(name, place)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def _same(one: Path, other: Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return os.path.realpath(one) == os.path.realpath(other)


def check_imports(target: Path, script: Path, read: list[Path]) -> None:
    """Raise where the output would not find the modules that the script imports from its own folder."""
    folder = script.resolve().parent
    beside = next((p for p in read if p != script and folder in p.resolve().parents), None)
    if beside is not None and target.resolve().parent != folder:
        raise DdpifyError(
            f"{target}: {script.name} imports {beside.name} from its own folder, which Python would not find from "
            f"there; write {script.with_name(target.name)}"
        )
