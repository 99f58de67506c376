"""Files as bytes: transparent compression, a budget for what they become, and no partially written files.

A few words of a file can describe a large table, and a small compressed file may expand to a large one. So readers
charge for the content of the file, its numbers, and the arrays that they are about to make of them, with temporary
copies, before anything is allocated.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import os
import stat
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from contextvars import ContextVar
from pathlib import Path
from typing import IO, Any, cast

from mapmrf.errors import FormatError
from mapmrf.model.memory import byte_count, machine_bytes, shown_bytes
from mapmrf.run.atomic_files import whole_file

AnyPath = str | os.PathLike[str]

FEW = 1 << 16  # bytes that are too few to be counted
_OPEN: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_MAGIC = {b"\x1f\x8b": ".gz", b"BZh": ".bz2", b"\xfd7zXZ\x00": ".xz"}
_CORRUPT = (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError)


class ByteBudget:
    """Bytes that reading one model may use: `limit`, None for the memory of the machine, and what is charged so far."""

    def __init__(self, limit: float | None = None) -> None:
        self.limit = byte_count(limit, "max_bytes")
        # Systems that do not report their memory have less than 2^46 bytes.
        self.allowed = min(machine_bytes(), 2.0**46) if self.limit is None else self.limit
        self.charged: dict[str, float] = {}
        # What came through pipes: readers look at a file repeatedly, to recognise its format and to name a token.
        self.piped: dict[str, bytes] = {}

    def charge(self, path: AnyPath, needed: float, what: str, place: str = "") -> None:
        """Charge bytes; raise FormatError if the budget is exceeded, with purpose, place, total and budget."""
        # A new charge for the same purpose replaces the old one: a file may be read twice, and tables add up.
        total = sum(self.charged.values()) - self.charged.get(what, 0.0) + needed
        if total > self.allowed:
            whose = "the memory of this machine" if self.limit is None else "max_bytes"
            where = f" ({place})" if place else ""
            expected = f"expected at most {shown_bytes(self.allowed)}, {whose}"
            raise FormatError(f"{path}: {what}{where}: reading takes {shown_bytes(total)}, {expected}")
        self.charged[what] = needed


_BUDGET: ContextVar[ByteBudget | None] = ContextVar("mapmrf_budget", default=None)


@contextlib.contextmanager
def spending(max_bytes: float | None) -> Iterator[ByteBudget]:
    """Share a budget, and the content of pipes, among all readers called inside this context."""
    budget = ByteBudget(max_bytes)
    token = _BUDGET.set(budget)
    try:
        yield budget
    finally:
        _BUDGET.reset(token)


def charge(path: AnyPath, needed: float, what: str, place: str = "") -> None:
    """Charge the budget of the current file; outside `spending`, compare with the machine's memory."""
    budget = _BUDGET.get()
    if budget is not None:
        budget.charge(path, needed, what, place)
    elif needed > FEW:
        ByteBudget().charge(path, needed, what, place)


# -- reading ----------------------------------------------------------------------------------------------------------


def compression(path: AnyPath) -> str:
    suffix = Path(path).suffix.lower()
    return suffix if suffix in _OPEN else ""


def plain_name(path: AnyPath) -> str:
    """Name of the file in lower case and without a compression suffix; formats are recognised by it."""
    name = Path(path).name.lower()
    return name.removesuffix(compression(path))


def read_bytes(path: AnyPath) -> bytes:
    """Read a file, decompressed if its name or its first bytes show that it is compressed; ``-`` is standard input."""
    try:
        name = os.fspath(path)
        if name == "-" or not (stat.S_ISREG((about := os.stat(path)).st_mode) or stat.S_ISDIR(about.st_mode)):
            data = _piped(name)
        else:
            charge(path, about.st_size, "the file")
            data = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"{path}: cannot read: {_reason(error)}") from None
    kind = compression(path) or next((kind for magic, kind in _MAGIC.items() if data.startswith(magic)), "")
    if not kind:
        return data
    try:
        with _OPEN[kind](io.BytesIO(data)) as file:
            return _pieces(path, file, "its decompressed content")
    except _CORRUPT as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"{path}: damaged or truncated {kind} file: {_reason(error)}") from None


def _piped(name: str) -> bytes:
    """The content of a pipe, a terminal or standard input, which can be read only once."""
    budget = _BUDGET.get()
    if budget is not None and name in budget.piped:
        return budget.piped[name]
    if name == "-":
        data = _pieces(name, sys.stdin.buffer, "standard input")
    else:
        with Path(name).open("rb") as file:
            data = _pieces(name, file, "the file")
    if budget is not None:
        budget.piped[name] = data
    return data


def _pieces(path: AnyPath, file: IO[bytes], what: str) -> bytes:
    """The content of a file of unknown size, charged piece by piece: a few bytes may expand to very many."""
    pieces, size = [], 0
    while piece := file.read(1 << 20):
        size += len(piece)
        charge(path, 2 * size, what)  # the pieces, and their concatenation
        pieces.append(piece)
    return b"".join(pieces)


# -- writing ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def replacing(path: AnyPath, *, keep: bool | None = None) -> Iterator[IO[bytes]]:
    """Open a file, compressed according to its suffix, that replaces `path` once it is complete; see `whole_file`."""
    try:
        with whole_file(path, keep=keep) as raw, _compressed(raw, compression(path)) as file:
            yield file
    except OSError as error:
        raise FormatError(f"{path}: cannot write: {_reason(error)}") from None


def write_bytes(path: AnyPath, data: bytes, *, keep: bool | None = None) -> None:
    with replacing(path, keep=keep) as file:
        file.write(data)


def write_text(path: AnyPath, parts: Iterable[str]) -> None:
    """Write a file part by part, so that a large model is never in memory as text."""
    with replacing(path) as file:
        for text in parts:
            file.write(text.encode())


def _compressed(raw: IO[bytes], kind: str) -> AbstractContextManager[IO[bytes]]:
    if kind == ".gz":
        # Neither name nor time is stored: equal models give equal files.
        return cast(IO[bytes], gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=raw, mtime=0))
    if kind == ".bz2":
        return cast(IO[bytes], bz2.BZ2File(raw, "wb"))
    if kind == ".xz":
        return cast(IO[bytes], lzma.LZMAFile(raw, "wb"))
    return contextlib.nullcontext(raw)


def _reason(error: Exception) -> str:
    """The reason of an error in one line, without the path, which the message already contains."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(text.split())
