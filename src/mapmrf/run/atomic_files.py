"""Output files: each is written completely or not at all, and the old file may be kept."""

from __future__ import annotations

import contextlib
import filecmp
import os
import shutil
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import BinaryIO

_KEEP: ContextVar[bool] = ContextVar("mapmrf_keep_old", default=False)


@contextlib.contextmanager
def keeping_old() -> Iterator[None]:
    """Keep files that are replaced inside this context as ``FILE~``, unless equal or empty; see `drop_old`."""
    token = _KEEP.set(True)
    try:
        yield
    finally:
        _KEEP.reset(token)


def drop_old() -> None:
    _KEEP.set(False)


def keeps_old() -> bool:
    return _KEEP.get()


def kept_name(path: Path) -> Path:
    return path.with_name(f"{path.name}~")


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str], *, keep: bool | None = None) -> Iterator[BinaryIO]:
    """Open a file for writing that replaces `path` once it is complete and on disk."""
    # The bytes go to a temporary file in the same folder, which is renamed at the end and removed if anything goes
    # wrong; devices and pipes are written directly. With `keep`, the old file is kept as ``FILE~``; by default only
    # inside `keeping_old`. After an OSError the old file is untouched.
    # A link stays a link: its target is replaced.
    target = Path(os.path.realpath(path))
    number = _descriptor(path)
    try:
        if number is not None:
            with os.fdopen(os.dup(number), "wb") as file:
                yield file
            return
        if target.exists() and not target.is_file():
            with open(target, "wb") as file:
                yield file
            return
        if target.exists() and not os.access(target, os.W_OK):
            raise PermissionError(None, "Permission denied")
        temporary = target.with_name(f".{os.urandom(8).hex()}.tmp")
        try:
            with open(temporary, "xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            _put(temporary, target, _KEEP.get() if keep is None else keep)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), os.fspath(path)) from None


def _descriptor(path: str | os.PathLike[str]) -> int | None:
    """The open file that a name such as /dev/stdout stands for: it is written to, not replaced."""
    names = {"/dev/stdout": 1, "/dev/stderr": 2}
    text = os.fspath(path)
    if text in names:
        return names[text]
    folder, _, number = text.rpartition("/")
    return int(number) if folder in ("/dev/fd", "/proc/self/fd") and number.isdecimal() else None


def _put(temporary: Path, target: Path, keep: bool) -> None:
    """Rename a complete file to its target, and sync the folder as well where the system can."""
    if target.exists():
        os.chmod(temporary, target.stat().st_mode & 0o7777)
        if keep and target.stat().st_size and not filecmp.cmp(temporary, target, shallow=False):
            # Link a file under a second name, under which it is kept; it always has at least one name.
            aside = target.with_name(f".{os.urandom(8).hex()}.tmp")
            try:
                try:
                    os.link(target, aside)
                except OSError:  # the file system has no hard links
                    shutil.copy2(target, aside)
                os.replace(aside, kept_name(target))
            finally:
                aside.unlink(missing_ok=True)
    os.replace(temporary, target)
    if hasattr(os, "O_DIRECTORY"):
        folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
